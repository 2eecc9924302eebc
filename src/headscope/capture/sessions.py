"""Who is looking at which module: sessions open and close, forwards begin and end, calls are counted.

A session covers the modules of one model. Sessions may be nested and may run in several threads: each call is offered
to every session that covers the module, and each thread's forward is its own. Hooks belong to the whole process, so a
session goes by threads: where several threads have opened one over a model, each sees its own forward passes only.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from headscope.capture.calls import Call, Forward, Stack
from headscope.capture.projections import Output, may_read

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

    from headscope.capture.stacks import Plan

LOCK = threading.RLock()
COVERED: dict[int, list[Session]] = {}
"""The sessions that cover a module, by the module's id."""

OPEN: list[Session] = []
"""All sessions that are open."""


class WhileAnybodyLooks:
    """A setting of the whole process, made when the first one enters and put back when the last one leaves.

    Threads leave in any order: who came first must not put it back under the others.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make = make
        self._users = 0
        self._undo: Callable[[], None] | None = None

    def enter(self) -> None:
        """Make it, unless it is made."""
        with LOCK:
            if self._users == 0:
                self._undo = self._make()
            self._users += 1

    def leave(self) -> None:
        """Put it back, unless others need it."""
        with LOCK:
            self._users -= 1
            if self._users == 0 and self._undo is not None:
                self._undo()


class HookedOnce:
    """Modules that are hooked, each once, however many captures are open. One for the whole process."""

    def __init__(self, hook: Callable[[nn.Module], list[Callable[[], None]]]) -> None:
        self._hook = hook
        self._users: dict[int, int] = {}
        self._undo: dict[int, list[Callable[[], None]]] = {}

    def enter(self, module: nn.Module) -> None:
        """Hook the module, unless it is hooked."""
        with LOCK:
            self._users[id(module)] = self._users.get(id(module), 0) + 1
            if self._users[id(module)] == 1:
                self._undo[id(module)] = self._hook(module)

    def leave(self, module: nn.Module) -> None:
        """Let go when the last capture closes."""
        with LOCK:
            self._users[id(module)] -= 1
            if self._users[id(module)] == 0:
                del self._users[id(module)]
                for undo in self._undo.pop(id(module)):
                    undo()


class Listener(Protocol):
    """What a session does when something happens."""

    def begin(self, forward: Forward) -> None: ...
    def end(self, forward: Forward) -> None: ...
    def drop(self, forward: Forward) -> None: ...
    def wants(self, stack: Stack, layer: int) -> bool: ...
    def take(self, forward: Forward, call: Call) -> None: ...
    def silences(self, stack: Stack, layer: int) -> dict[int, str]: ...


class Session:
    """One `with` block over one model."""

    def __init__(self, model: nn.Module, plan: Plan, listener: Listener) -> None:
        self.model = model
        self.plan = plan
        self.listener = listener
        self.stray = 0
        self.thread = threading.get_ident()
        self._handles: list[RemovableHandle] = []
        self._open: dict[int, tuple[nn.Module, Forward]] = {}
        self._numbers = itertools.count()

    def forward(self) -> Forward | None:
        """The forward that this thread is in."""
        found = self._open.get(threading.get_ident())
        return found[1] if found else None

    def sees_this_thread(self) -> bool:
        """Whether forwards of the running thread are this session's: its own, or else those of a thread without any.

        Where several threads have sessions over this model, nobody can say whose a forward of yet another thread is.
        """
        thread = threading.get_ident()
        if thread == self.thread:
            return True
        with LOCK:
            return all(
                other.thread == self.thread
                for other in OPEN
                if not self.plan.paths.keys().isdisjoint(other.plan.paths.keys())
            )

    def open(self, starts: list[nn.Module], words: list[nn.Embedding]) -> None:
        """Cover the model's modules.

        Args:
            starts: modules whose call begins a forward, unless one is under way: the model, its towers.
            words: embeddings whose ids are the tokens.
        """
        for module in starts:
            self._handles.append(module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._end, with_kwargs=True, always_call=True))
        self._handles += [module.register_forward_pre_hook(self._embed) for module in words]
        for path, module in self.plan.modules:
            if may_read(module):
                self._handles.append(module.register_forward_pre_hook(partial(self._project, path)))
        with LOCK:
            OPEN.append(self)
            for module_id in self.plan.paths:
                COVERED.setdefault(module_id, []).append(self)

    def close(self) -> None:
        """Let go of everything; hooks and tables are as they were."""
        with LOCK:
            if self in OPEN:
                OPEN.remove(self)
            for module_id in self.plan.paths:
                sessions = COVERED.get(module_id, [])
                if self in sessions:
                    sessions.remove(self)
                if not sessions:
                    COVERED.pop(module_id, None)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._open.clear()

    def count(self, forward: Forward, module: nn.Module) -> int:
        """The layer of this call: the module's own layer_idx where it has one that goes up, else the count of calls."""
        stack = self.plan.stacks[id(module)]
        last = forward.counts.get(stack.pattern, -1)
        own = getattr(module, "layer_idx", None)
        layer = own if isinstance(own, int) and not isinstance(own, bool) and own > last else last + 1
        forward.counts[stack.pattern] = layer
        return layer

    # A hook that is removed while another thread's call is on its way to it is called once more, without keywords.

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        thread = threading.get_ident()
        if thread in self._open or kwargs is None or not self.sees_this_thread():
            return
        forward = Forward(next(self._numbers), module, args, kwargs)
        self._open[thread] = (module, forward)
        self.listener.begin(forward)

    def _end(self, module: nn.Module, args: tuple[Any, ...], *keywords_and_output: Any) -> None:
        thread = threading.get_ident()
        if thread not in self._open or self._open[thread][0] is not module:
            return
        _, forward = self._open.pop(thread)
        output = keywords_and_output[-1]
        forward.awaited = None
        if output is None:
            self.listener.drop(forward)
            return
        forward.output = output
        self.listener.end(forward)

    def _embed(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        forward = self.forward()
        if forward is not None and args and not args[0].is_floating_point():
            forward.embedded.append((forward.calls, args[0].detach()))

    def _project(self, path: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        forward = self.forward()
        awaited = None if forward is None else forward.awaited
        if forward is None or awaited is None or not args or not awaited.is_in(args[0]):
            return
        known = forward.projections.get(awaited.place, Output((), awaited.shape[-1]))
        forward.projections[awaited.place] = Output((*known.paths, path), known.d_value)


Seat = tuple[Session, Forward, Stack, int]
"""Who looks at a call: the session, its forward, and which layer of which stack the call is there."""


def covering(module: nn.Module) -> list[Seat]:
    """The sessions that this call belongs to, the forward of each, and which layer it is. Counts the call."""
    found = []
    for session in list(COVERED.get(id(module), ())):
        forward = session.forward()
        if forward is None:
            session.stray += session.sees_this_thread()
            continue
        found.append((session, forward, session.plan.stacks[id(module)], session.count(forward, module)))
    return found


def asked(seats: list[Seat]) -> tuple[list[Seat], dict[int, str]]:
    """The seats that want to see this call, and the heads that are being ablated in it, with how."""
    silenced: dict[int, str] = {}
    for session, forward, stack, layer in seats:
        forward.calls += 1
        silenced.update(session.listener.silences(stack, layer))
    return [seat for seat in seats if seat[0].listener.wants(seat[2], seat[3])], silenced


def hand_over(module: nn.Module, seats: list[Seat], **seen: Any) -> None:
    """Give each seat its Call: what was seen, and which layer of which stack it is there."""
    for session, forward, stack, layer in seats:
        call = Call(module=module, path=session.plan.paths[id(module)], stack=stack, layer=layer, **seen)
        session.listener.take(forward, call)


def silence(context: torch.Tensor, silenced: dict[int, str], kept: torch.Tensor | None) -> torch.Tensor:
    """(batch, heads, queries, d_value) with heads silenced, a new tensor.

    Args:
        kept: (batch, queries) bool, the positions that are not padding; None for all. A mean is taken over these.
    """
    context = context.clone()
    for head, how in silenced.items():
        if how == "zero":
            context[:, head] = 0
            continue
        one = context[:, head]
        share = one.new_ones(one.shape[:2]) if kept is None else kept.to(one)
        mean = (one * share[..., None]).sum(1, keepdim=True) / share.sum(1)[:, None, None].clamp(min=1)
        context[:, head] = mean.expand_as(one)
    return context

"""Who is looking at which module: sessions open and close, forwards begin and end, calls find their places.

A session covers the modules of one model. Sessions may be nested and may run in several threads: each call is offered
to every session that covers the module, and each thread's forward is its own. Hooks belong to the whole process, so a
session goes by threads: where several threads have opened one over a model, each sees its own forward passes only.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import nn

from headscope._capture import operators
from headscope._capture.calls import Call, Forward, Stack, Unrecorded
from headscope._capture.progress import Missed, Place
from headscope._capture.projections import Output, may_read
from headscope.checkpoint.json_text import few
from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

    from headscope._capture.stacks import Plan

LOCK = threading.RLock()
COVERED: dict[int, list[Session]] = {}
"""The sessions that cover a module, by the module's id."""

OPEN: list[Session] = []
"""All sessions that are open."""


class _Here(threading.local):
    """The forward passes that are under way in this thread, those that began first standing first."""

    def __init__(self) -> None:
        self.open: list[tuple[Session, Forward]] = []


HERE = _Here()

MOST_NAMED = 4
"""Calls that an error names."""


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
    """One `with` block over one model.

    Attributes:
        strict: whether a forward pass with attention that was not recorded raises an error.
        surely: modules, by id, whose own softmax is attention as far as their code tells.
        otherwise: modules of attention, by id, whose code has another way to attend, out of sight.
        unrecorded: the attention that was not recorded, of all forward passes.
        stray: calls of attention outside of any forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        listener: Listener,
        *,
        strict: bool,
        surely: frozenset[int],
        otherwise: frozenset[int],
    ) -> None:
        self.model = model
        self.plan = plan
        self.listener = listener
        self.strict = strict
        self.surely = surely
        self.otherwise = otherwise
        self.unrecorded: list[Unrecorded] = []
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
        begun = {id(module) for module in starts}
        counted = {*self.plan.paths, *self.plan.homes.values()} - begun
        for path, module in self.plan.modules:
            if id(module) in counted:
                self._handles.append(module.register_forward_pre_hook(self._enter))
            if may_read(module):
                self._handles.append(module.register_forward_pre_hook(partial(self._project, path)))
        self._handles += [module.register_forward_pre_hook(self._embed) for module in words]
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
        HERE.open = [one for one in HERE.open if one[0] is not self]
        operators.watch(bool(HERE.open))

    def admit(self, module: nn.Module) -> bool:
        """Cover a module that was found to attend as it ran. False where its layer can't be told."""
        if id(module) in self.plan.paths:
            return True
        admitted = self.plan.admit(module)
        for one in admitted:
            with LOCK:
                COVERED.setdefault(id(one), []).append(self)
            self._handles.append(one.register_forward_pre_hook(self._enter))
        forward = self.forward()
        if admitted and forward is not None:
            forward.progress.enter(module)
        return bool(admitted)

    # A hook that is removed while another thread's call is on its way to it is called once more, without keywords.

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        thread = threading.get_ident()
        if thread not in self._open:
            if kwargs is None or not self.sees_this_thread():
                return
            forward = Forward(next(self._numbers), module, args, kwargs)
            self._open[thread] = (module, forward)
            HERE.open.append((self, forward))
            operators.watch(True)
            self.listener.begin(forward)
        self._open[thread][1].progress.enter(module)

    def _end(self, module: nn.Module, args: tuple[Any, ...], *keywords_and_output: Any) -> None:
        thread = threading.get_ident()
        if thread not in self._open or self._open[thread][0] is not module:
            return
        _, forward = self._open.pop(thread)
        HERE.open = [one for one in HERE.open if one[0] is not self]
        operators.watch(bool(HERE.open))
        output = keywords_and_output[-1]
        forward.awaited = None
        if output is None:
            self.listener.drop(forward)
            return
        forward.output = output
        forward.unrecorded = self._unrecorded(forward)
        self.unrecorded += forward.unrecorded
        if forward.unrecorded and self.strict:
            self.listener.drop(forward)
            raise UnsupportedError(
                f"{type(self.model).__name__}: attention ran that was not recorded: "
                f"{few([str(one) for one in forward.unrecorded], MOST_NAMED)}",
                where=forward.unrecorded[0].module or type(self.model).__name__,
                advice=WAY_OUT,
            )
        self.listener.end(forward)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        forward = self.forward()
        if forward is not None:
            forward.progress.enter(module)

    def _unrecorded(self, forward: Forward) -> tuple[Unrecorded, ...]:
        """What ran unread and is attention, and the modules that attended in a way that nothing showed."""
        progress = forward.progress
        silent = self.otherwise & progress.entered.keys() - progress.read
        found = [one for one in forward.missed if one.module in silent or progress.is_attention(one)]
        silent -= {one.module for one in found}
        found += [
            Missed(id(module), path, type(module).__name__, "attention of its own, out of sight")
            for path, module in self.plan.modules
            if id(module) in silent
        ]
        seen = dict.fromkeys((one.path, one.kind, one.operator) for one in found)
        return tuple(Unrecorded(*one, forward=forward.number) for one in seen)

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


WAY_OUT = (
    "let every layer attend through scaled_dot_product_attention, nn.MultiheadAttention or transformers' attention "
    "interface: in transformers attn_implementation='sdpa' as the model is made, and no output_attentions; in timm "
    "timm.layers.set_fused_attn(True, experimental=True). To accept that it is missing, or if it is not attention: "
    "hs.capture(model, strict=False), whose traces list it"
)


class Seat(NamedTuple):
    """Who looks at a call: the session, its forward, and which attention of the model the call is there."""

    session: Session
    forward: Forward
    place: Place


def covering(module: nn.Module, queries: int, keys: int, sizes: Hashable) -> list[Seat]:
    """The sessions that this call belongs to, the forward of each, and which attention it is. Counts the call.

    Args:
        queries, keys: how many the call has.
        sizes: these and the batch's.
    """
    found = []
    for session in list(COVERED.get(id(module), ())):
        forward = session.forward()
        if forward is None:
            session.stray += session.sees_this_thread()
            continue
        forward.progress.sizes.add((queries, keys))
        forward.progress.read.add(id(module))
        found.append(Seat(session, forward, forward.progress.place(session.plan, module, sizes)))
    return found


def asked(seats: list[Seat]) -> tuple[list[Seat], dict[int, str]]:
    """The seats that want to see this call, and the heads that are being ablated in it, with how."""
    silenced: dict[int, str] = {}
    for session, forward, place in seats:
        forward.calls += 1
        silenced.update(session.listener.silences(place.stack, place.layer))
    return [seat for seat in seats if seat.session.listener.wants(seat.place.stack, seat.place.layer)], silenced


def hand_over(module: nn.Module, seats: list[Seat], **seen: Any) -> None:
    """Give each seat its Call: what was seen, and which attention of the model it is there."""
    for session, forward, place in seats:
        call = Call(
            module=module,
            path=session.plan.paths[id(module)],
            stack=place.stack,
            layer=place.layer,
            turn=place.turn,
            **seen,
        )
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

"""Capture sessions: which modules each session covers, and which of the model's layers a call of attention is.

A session covers the modules of one model. Sessions can be nested and can run in several threads: each call is offered
to every session that covers the module, and each thread has its own forward pass. Hooks apply to the whole process, so
sessions check the thread: if several threads have opened sessions over the same model, each session sees only the
forward passes of its own thread.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import nn

from headscope._capture import operators
from headscope._capture.calls import Call, Forward, Stack, Unrecorded
from headscope._capture.hooks import Hook, Hooks
from headscope._capture.progress import Missed, Place
from headscope._capture.projections import Output
from headscope.checkpoint.json_text import few
from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

    from headscope._capture.projections import Awaited
    from headscope._capture.stacks import Plan

LOCK = threading.RLock()
COVERED: dict[int, list[Session]] = {}
"""Module id -> the sessions that cover the module."""

OPEN: list[Session] = []
"""All open sessions."""


class _Running(threading.local):
    """The forward passes running in this thread, oldest first, and the compiled model that runs in them, if any."""

    def __init__(self) -> None:
        self.forwards: list[tuple[Session, Forward]] = []
        self.compiled: Graph | None = None


RUNNING = _Running()

MOST_LISTED = 4
"""Maximum number of calls that an error message lists."""


@dataclass(eq=False)
class Graph:
    """A compiled model that is running.

    Attributes:
        sessions: the sessions that cover its modules.
        modules: id -> module, of all modules that they know.
        inside: True while an attention function runs that is read as a whole.
    """

    sessions: list[Session]
    modules: dict[int, nn.Module]
    inside: bool = False


class SharedSetting:
    """A process-wide setting, applied when its first user enters and undone when its last user leaves.

    Users in different threads may leave in any order, so the setting counts them: the first one to enter must not undo
    it while others still need it.

    Args:
        apply: applies the setting and returns a function that undoes it.
    """

    def __init__(self, apply: Callable[[], Callable[[], None]]) -> None:
        self._apply = apply
        self._users = 0
        self._undo: Callable[[], None] | None = None

    def enter(self) -> None:
        """Apply the setting if this is the first user."""
        with LOCK:
            if self._users == 0:
                self._undo = self._apply()
            self._users += 1

    def leave(self) -> None:
        """Undo the setting if this is the last user."""
        with LOCK:
            self._users -= 1
            if self._users == 0 and self._undo is not None:
                self._undo()


class SharedHooks:
    """Hooks shared by all open captures: each module is hooked once, however many captures cover it.

    Args:
        hook: hooks a module and returns functions that remove the hooks.
    """

    def __init__(self, hook: Callable[[nn.Module], list[Callable[[], None]]]) -> None:
        self._hook = hook
        self._users: dict[int, int] = {}
        self._undo: dict[int, list[Callable[[], None]]] = {}

    def enter(self, module: nn.Module) -> None:
        """Hook the module unless another capture already did."""
        with LOCK:
            self._users[id(module)] = self._users.get(id(module), 0) + 1
            if self._users[id(module)] == 1:
                self._undo[id(module)] = self._hook(module)

    def leave(self, module: nn.Module) -> None:
        """Remove the module's hooks if no other capture needs them."""
        with LOCK:
            self._users[id(module)] -= 1
            if self._users[id(module)] == 0:
                del self._users[id(module)]
                for undo in self._undo.pop(id(module)):
                    undo()


class Listener(Protocol):
    """Callbacks of a session: those of a `Consumer`, and the heads to silence.

    Attributes:
        silencing: True if it silences heads.
    """

    silencing: bool

    def begin(self, forward: Forward) -> None: ...
    def end(self, forward: Forward) -> None: ...
    def drop(self, forward: Forward) -> None: ...
    def wants(self, stack: Stack, layer: int) -> bool: ...
    def take(self, forward: Forward, call: Call) -> None: ...
    def silences(self, stack: Stack, layer: int) -> dict[int, str]:
        """Heads of a layer to silence: head -> "zero" or "mean"."""


class Session:
    """One `with` block over one model: its hooks, its running forward passes, and the listener it reports to.

    Attributes:
        strict: True to raise an error at the end of a forward pass that ran unrecorded attention.
        may_bypass: ids of attention modules whose code has a second way to attend that capture cannot see.
        refuse: raises an error if the caller's forward pass can't be captured.
        unrecorded: attention that was not recorded, over all forward passes.
        stray: number of attention calls outside any forward pass.
        hooks: the session's hooks on the model's modules.
        counted: ids of the modules whose entries are counted.
        words: the embeddings whose input ids are the tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        listener: Listener,
        *,
        strict: bool,
        may_bypass: frozenset[int],
        refuse: Callable[[nn.Module], None],
    ) -> None:
        self.model = model
        self.plan = plan
        self.listener = listener
        self.strict = strict
        self.may_bypass = may_bypass
        self.refuse = refuse
        self.unrecorded: list[Unrecorded] = []
        self.stray = 0
        self.thread = threading.get_ident()
        self.hooks = Hooks()
        self.counted: set[int] = set()
        self.words: list[nn.Embedding] = []
        self._open: dict[int, tuple[nn.Module, Forward]] = {}
        self._numbers = itertools.count()

    def forward(self) -> Forward | None:
        """Return the forward pass running in this thread, or None."""
        running = self._open.get(threading.get_ident())
        return running[1] if running else None

    def sees_this_thread(self) -> bool:
        """Return True if forward passes of the current thread belong to this session.

        They do if the current thread opened the session, or if no other thread has a session over this model. If
        several threads do, a forward pass in yet another thread can't be attributed to any of them.
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

    def busy_elsewhere(self) -> bool:
        """Return True if a forward pass runs in another thread."""
        return any(thread != threading.get_ident() for thread in list(self._open))

    def open(self, starts: list[nn.Module], words: list[nn.Embedding]) -> None:
        """Register the hooks and start covering the model's modules.

        Args:
            starts: modules whose call begins a forward pass unless one is already running: the model and its towers.
            words: embeddings whose input ids are the tokens.
        """
        begin, end = self.begin, self.end
        for module in starts:
            self.hooks.around(module, begin, end)
        begun = {id(module) for module in starts}
        counted = {*self.plan.paths, *self.plan.homes.values()} - begun
        enter, embed, project = self._enter, self._embed, self._projecting()
        for _, module in self.plan.modules:
            if id(module) in counted:
                self.hooks.before(module, enter)
            if id(module) in self.plan.readers:
                self.hooks.before(module, project)
        for module in words:
            self.hooks.before(module, embed)
        self.counted, self.words = counted | begun, words
        with LOCK:
            OPEN.append(self)
            for module_id in self.plan.paths:
                COVERED.setdefault(module_id, []).append(self)

    def close(self) -> None:
        """Remove the hooks and stop covering the modules."""
        with LOCK:
            if self in OPEN:
                OPEN.remove(self)
            for module_id in self.plan.paths:
                sessions = COVERED.get(module_id, [])
                if self in sessions:
                    sessions.remove(self)
                if not sessions:
                    COVERED.pop(module_id, None)
        self.hooks.remove()
        self._open.clear()
        RUNNING.forwards = [entry for entry in RUNNING.forwards if entry[0] is not self]
        operators.watch(bool(RUNNING.forwards))

    def admit(self, module: nn.Module) -> bool:
        """Start covering a module that turned out to compute attention; return False if its layer is unknown."""
        if id(module) in self.plan.paths:
            return True
        admitted = self.plan.admit(module)
        for member in admitted:
            with LOCK:
                COVERED.setdefault(id(member), []).append(self)
            self.hooks.before(member, self._enter)
        forward = self.forward()
        if admitted and forward is not None:
            forward.progress.enter(module)
        return bool(admitted)

    # A hook that is removed while another thread is about to call it runs once more, without keyword arguments.

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Begin a forward pass, unless one is already running in this thread (a forward pre-hook)."""
        thread = threading.get_ident()
        if thread not in self._open:
            if kwargs is None or not self.sees_this_thread():
                return
            self.refuse(self.model)
            forward = Forward(next(self._numbers), module, args, kwargs)
            self._open[thread] = (module, forward)
            RUNNING.forwards.append((self, forward))
            operators.watch(True)
            self.listener.begin(forward)
        self._open[thread][1].progress.enter(module)

    def end(self, module: nn.Module, args: tuple[Any, ...], *keywords_and_output: Any) -> None:
        """End the forward pass that this module began, with its output; None if it raised (a forward hook).

        Raises:
            UnsupportedError: attention ran that was not recorded.
        """
        thread = threading.get_ident()
        if thread not in self._open or self._open[thread][0] is not module:
            return
        _, forward = self._open.pop(thread)
        RUNNING.forwards = [entry for entry in RUNNING.forwards if entry[0] is not self]
        operators.watch(bool(RUNNING.forwards))
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
                f"{few([str(call) for call in forward.unrecorded], MOST_LISTED)}",
                where=forward.unrecorded[0].module or type(self.model).__name__,
                advice=ADVICE,
            )
        self.listener.end(forward)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        forward = self.forward()
        if forward is not None:
            forward.progress.enter(module)

    def _unrecorded(self, forward: Forward) -> tuple[Unrecorded, ...]:
        """Attention that ran without being read, and modules that must have attended in a way that left no trace."""
        progress = forward.progress
        silent = self.may_bypass & progress.entered.keys() - progress.read
        missed = [call for call in forward.missed if call.module in silent or progress.is_attention(call)]
        silent -= {call.module for call in missed}
        missed += [
            Missed(id(module), path, type(module).__name__, "attention computed where capture can't see it")
            for path, module in self.plan.modules
            if id(module) in silent
        ]
        distinct = dict.fromkeys((call.path, call.kind, call.operator) for call in missed)
        return tuple(Unrecorded(*names, forward=forward.number) for names in distinct)

    def _embed(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        forward = self.forward()
        if forward is not None and args and not args[0].is_floating_point():
            forward.embedded.append((forward.calls, args[0].detach()))

    def _projecting(self) -> Hook:
        """A hook that notes a module as a reader of the last attention's output."""
        running, this_thread, names = self._open, threading.get_ident, self.plan.readers

        def project(module: nn.Module, args: tuple[Any, ...]) -> None:
            _, forward = running.get(this_thread(), (None, None))
            if forward is not None and forward.awaited is not None and args and forward.awaited.is_in(args[0]):
                note_reader(forward, forward.awaited, names[id(module)])

        return project


def note_reader(forward: Forward, awaited: Awaited, path: str) -> None:
    """Note that a module reads an attention's output."""
    known = forward.projections.get(awaited.place, Output((), awaited.shape[-1]))
    forward.projections[awaited.place] = Output((*known.paths, path), known.d_value)


ADVICE = (
    "make every layer use scaled_dot_product_attention, nn.MultiheadAttention or transformers' attention interface: in "
    "transformers, build the model with attn_implementation='sdpa' and don't ask for output_attentions; in timm, call "
    "timm.layers.set_fused_attn(True, experimental=True). To capture without it, or if it is not attention, use "
    "hs.capture(model, strict=False): its traces list what is missing"
)


class Seat(NamedTuple):
    """One session's view of a call: the session, its forward pass, and the stack and layer of the call."""

    session: Session
    forward: Forward
    place: Place


def register_call(module: nn.Module, queries: int, keys: int, sizes: Hashable) -> list[Seat]:
    """Register a call of attention with every session that covers its module.

    Args:
        module: the attention module.
        queries, keys: number of queries and keys in the call.
        sizes: shapes of the call, batch included; layers are counted separately for each.

    Returns:
        One seat for each session that is in a forward pass in this thread.
    """
    seats = []
    for session in list(COVERED.get(id(module), ())):
        forward = session.forward()
        if forward is None:
            session.stray += session.sees_this_thread()
            continue
        forward.progress.sizes.add((queries, keys))
        forward.progress.read.add(id(module))
        forward.calls += 1
        seats.append(Seat(session, forward, forward.progress.place(session.plan, module, sizes)))
    return seats


def recording(seats: list[Seat]) -> list[Seat]:
    """The seats whose sessions record this call."""
    return [seat for seat in seats if seat.session.listener.wants(seat.place.stack, seat.place.layer)]


def heads_to_silence(seats: list[Seat]) -> dict[int, str]:
    """The heads that any session silences in this call: head -> "zero" or "mean"."""
    silenced: dict[int, str] = {}
    for seat in seats:
        silenced.update(seat.session.listener.silences(seat.place.stack, seat.place.layer))
    return silenced


def deliver(module: nn.Module, seats: list[Seat], **tensors: Any) -> None:
    """Pass a call to the listener of each seat, as a `Call` with that seat's stack and layer.

    Args:
        tensors: the other fields of `Call`, the same for all seats.
    """
    for session, forward, place in seats:
        call = Call(
            module=module,
            path=session.plan.paths[id(module)],
            stack=place.stack,
            layer=place.layer,
            turn=place.turn,
            **tensors,
        )
        session.listener.take(forward, call)


def silence(context: torch.Tensor, silenced: dict[int, str], kept: torch.Tensor | None) -> torch.Tensor:
    """Return a copy of the contexts with heads silenced.

    Args:
        context: (batch, heads, queries, d_value).
        silenced: head -> "zero", or "mean" for the mean of the head's contexts over the queries.
        kept: (batch, queries) bool, True for positions that are not padding: means are taken over these. None for all.
    """
    context = context.clone()
    for head, way in silenced.items():
        if way == "zero":
            context[:, head] = 0
            continue
        contexts = context[:, head]
        share = contexts.new_ones(contexts.shape[:2]) if kept is None else kept.to(contexts)
        mean = (contexts * share[..., None]).sum(1, keepdim=True) / share.sum(1)[:, None, None].clamp(min=1)
        context[:, head] = mean.expand_as(contexts)
    return context

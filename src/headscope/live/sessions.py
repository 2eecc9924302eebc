"""Capture sessions: which modules each session covers, and which of the model's layers a call of attention is.

A session covers the modules of one model. Sessions can be nested and can run in several threads and tasks of asyncio:
each call is offered to every session that covers the module, and each thread has its own forward pass. Hooks apply to
the whole process, so sessions check who runs: if several threads or tasks have opened sessions over the same model,
each session sees only the forward passes of its own.

A `Seat` is a session that sees a call of attention: the functions after it tell who records the call, who silences its
heads, and who is told.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from headscope.attention.precision import exact_products
from headscope.checkpoint.json_text import few
from headscope.errors import UnsupportedError
from headscope.live.calls import Consumer, Forward, Unrecorded
from headscope.live.hooks import LOCK, Hooks, frames
from headscope.live.masks.analyst import Analyst
from headscope.live.names import following
from headscope.live.names.axes import Followed
from headscope.live.names.facts import Follower
from headscope.live.names.lookups import Tables
from headscope.live.names.sources import memory_of
from headscope.live.plan.refusals import refuse_transforms
from headscope.live.plan.stacks import Place, is_idle, within
from headscope.live.progress import Loop, is_plain
from headscope.live.seeing import operators
from headscope.live.seeing.missed import Missed, attention_among
from headscope.live.seeing.parts import Held, note_reader, settle

if TYPE_CHECKING:
    from headscope.attention.patterns import Way
    from headscope.live.plan.stacks import Plan


OPEN: list[Session] = []
"""All open sessions."""


MINE: ContextVar[frozenset[int]] = ContextVar("MINE", default=frozenset())
"""Numbers of the sessions that this task, or one that it began in, has opened; so has a thread without tasks."""

NUMBERS = itertools.count()


def covering(module: nn.Module) -> list[Session]:
    """The sessions that cover an attention module."""
    return [session for session in list(OPEN) if id(module) in session.plan.paths]


class _Running(threading.local):
    """The captures that run in this thread.

    Attributes:
        forwards: the forward passes, oldest first.
        inside: True while an attention function runs that is read as a whole, with all that it calls.
        switched: ids of the configs that `replay.eager` switched to eager attention.
        own_masks: True if their models make all masks of numbers themselves.
    """

    def __init__(self) -> None:
        self.forwards: list[tuple[Session, Forward]] = []
        self.inside = False
        self.switched: frozenset[int] = frozenset()
        self.own_masks = False


RUNNING = _Running()

ADVICE = (
    "make every layer use scaled_dot_product_attention, nn.MultiheadAttention or transformers' attention interface: in "
    "transformers, build the model with attn_implementation='sdpa' and don't ask for output_attentions; in timm, call "
    "timm.layers.set_fused_attn(True, experimental=True). To capture without it, or if it is not attention, use "
    "hs.capture(model, strict=False): its traces list what is missing"
)

ELSEWHERE = "attention in another thread"
THREADS_ADVICE = "let the thread that calls the model run all its layers: a forward pass is recorded in one thread"

LIST_IT = "list what is missing with hs.capture(model, strict=False)"

PARTS_ADVICE = (
    "let each layer attend to all rows of the batch with all its heads in one call: scaled_dot_product_attention "
    "takes (batch, heads, tokens, d_head). It may attend to chunks of its queries one after another, each with a mask "
    f"over all keys, if one nn.Linear reads their contexts, joined in order. Or {LIST_IT}"
)

PADDED = "pass padded tensors and a mask, as x.to_padded_tensor(0) makes them"

HEADS_ADVICE = (
    "let one nn.Linear read the outputs of all modules that have one head each, joined in their order: "
    "proj(torch.cat([head(x) for head in heads], -1)). Otherwise nothing tells that they are one layer. Or capture "
    "each module alone: hs.capture(model.get_submodule(name))"
)

ADVICES = {
    "": ADVICE,
    "thread": THREADS_ADVICE,
    "parts": PARTS_ADVICE,
    "heads": HEADS_ADVICE,
    "nested": f"{PADDED}; or {LIST_IT}",
}
"""Reason why attention was not read -> what to do."""

MOST_LISTED = 4
"""Maximum number of calls that an error message lists."""


@dataclass(eq=False)
class Session:
    """One `with` block over one model: its hooks, its running forward passes, and the consumer it reports to.

    Attributes:
        strict: True to raise an error at the end of a forward pass that ran unrecorded attention.
        may_bypass: ids of attention modules whose code has a second way to attend that capture cannot see.
        prepare: called before each forward pass; raises an error if it can't be captured.
        unrecorded: attention that was not recorded, over all forward passes.
        stray: number of attention calls outside any forward pass.
        hooks: the session's hooks on the model's modules.
    """

    model: nn.Module
    plan: Plan
    consumer: Consumer
    strict: bool
    may_bypass: frozenset[int]
    prepare: Callable[[], None]
    unrecorded: list[Unrecorded] = field(default_factory=list)
    stray: int = 0
    thread: int = 0
    number: int = field(default_factory=NUMBERS.__next__)
    hooks: Hooks = field(default_factory=Hooks)
    _followers: dict[int, Follower] = field(default_factory=dict)
    _open: dict[int, Forward] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @cached_property
    def tables(self) -> Tables:
        """The model's tables in which ids are looked up."""
        return Tables(self.plan.modules)

    def forward(self) -> Forward | None:
        """Return the forward pass running in this thread, or None."""
        return self._open.get(threading.get_ident())

    def sees_this_thread(self) -> bool:
        """Return True if forward passes of the current thread, and of its current task, belong to this session.

        They do if the current task or thread opened the session, or if no other has a session over this model. If
        several threads do, a forward pass in yet another thread can't be attributed to any of them.
        """
        mine = MINE.get()
        with LOCK:
            over = [other for other in OPEN if not self.plan.paths.keys().isdisjoint(other.plan.paths.keys())]
        if self.number in mine or any(other.number in mine for other in over):
            return self.number in mine
        return threading.get_ident() == self.thread or all(other.thread == self.thread for other in over)

    def open(self, starts: list[nn.Module]) -> None:
        """Register the hooks and start covering the model's modules.

        Args:
            starts: modules whose call begins a forward pass unless one is already running: the model and its towers.
        """
        for module in starts:
            self.hooks.around(module, self.begin, self.end)
        begun = {id(module) for module in starts}
        counted = {*self.plan.paths, *self.plan.homes.values(), *self.plan.layers.values()} - begun
        for _, module in self.plan.modules:
            if id(module) in counted:
                self.hooks.before(module, self._enter)
            if id(module) in self.plan.readers:
                self.hooks.before(module, self._project)
        if self.consumer.follows:
            following.install()
            blocks = following.blocks_of(self.plan)
            begin_block = partial(following.begin_block, blocks)
            for module in blocks:
                self.hooks.around(module, begin_block, following.end_block)
        MINE.set(MINE.get() | {self.number})
        self.thread = threading.get_ident()
        with LOCK:
            OPEN.append(self)

    def close(self) -> None:
        """Remove the hooks and stop covering the modules."""
        MINE.set(MINE.get() - {self.number})
        with LOCK:
            if self in OPEN:
                OPEN.remove(self)
        self.hooks.remove()
        for forward in self._open.values():
            following.end(forward, remember=False)
        for follower in self._followers.values():
            follower.closed = True
        self._open.clear()
        RUNNING.forwards = [entry for entry in RUNNING.forwards if entry[0] is not self]
        operators.watch(bool(RUNNING.forwards))

    def admit(self, module: nn.Module) -> bool:
        """Start covering a module that turned out to compute attention; return False if its layer is unknown."""
        if id(module) in self.plan.paths:
            return True
        admitted = self.plan.admit(module)
        for member in admitted:
            self.hooks.before(member, self._enter)
        forward = self.forward()
        if admitted and forward is not None:
            forward.progress.enter(module)
        return bool(admitted)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a forward pass, unless one is already running in this thread (a forward pre-hook)."""
        thread = threading.get_ident()
        _end_abandoned()
        running = self._open.get(thread)
        if running is not None and all(forward is not running for _, forward in RUNNING.forwards):
            self.abandon(running)  # of a thread that is gone, and had this number
        if thread not in self._open:
            self.note_outside(module)
            if not self.sees_this_thread() or torch._C._current_graph_task_id() >= 0:
                return  # gradient checkpointing runs modules again in the backward pass
            if not self.consumer.silencing:
                refuse_transforms(module)
            self.prepare()
            self.hooks.put_last()
            whole = any(session.consumer.keeps_padding for session in OPEN)
            forward = Forward(next(self._numbers), module, args, kwargs, analyst=Analyst(whole=whole))
            forward.caller, forward.handling = sys._getframe(2), id(sys.exc_info()[1])
            self._open[thread] = forward
            RUNNING.forwards.append((self, forward))
            with operators.Unwatched():
                self.consumer.begin(forward)
            operators.watch(True)
            if self.consumer.follows and not torch._C._functorch.get_interpreter_stack():
                follower = Follower(memory_of(self.model), self.consumer.replace)
                following.begin(forward, self.tables, self._followers.setdefault(thread, follower))
        elif self._open[thread].module is module:
            self._open[thread].again += 1
        self._open[thread].progress.enter(module, args, kwargs)

    def end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """End the forward pass that this module began, with its output, or None if it raised (a forward hook).

        Raises:
            UnsupportedError: attention ran that was not recorded.
        """
        forward = self.forward()
        if forward is None or forward.module is not module:
            return
        if forward.again:
            forward.again -= 1
            return
        forward.output = output
        if output is None and id(sys.exc_info()[1]) != forward.handling:
            self.abandon(forward)
            return
        self._leave(forward)
        try:
            self._finish(forward)
        except BaseException:
            self.consumer.drop(forward)
            raise
        with exact_products():
            self.consumer.end(forward)

    def abandon(self, forward: Forward) -> None:
        """End a pass of this thread that raised an error, or that is no longer running."""
        opened = self.forward() is forward
        self._leave(forward)
        if opened:
            self.consumer.drop(forward)

    def _leave(self, forward: Forward) -> None:
        self._open.pop(threading.get_ident(), None)
        RUNNING.forwards = [entry for entry in RUNNING.forwards if entry[1] is not forward]
        operators.watch(bool(RUNNING.forwards))
        forward.awaited = forward.caller = None
        crosses = any(stack.cross for stack in self.plan.stacks.values())
        following.end(forward, remember=forward.output is not None and crosses)

    def _finish(self, forward: Forward) -> None:
        """Deliver what is held back, and list what was not recorded."""
        settle(forward)
        missed = self._missed(forward)
        distinct = dict.fromkeys((call.path, call.kind, call.operator) for call in missed)
        forward.unrecorded = tuple(Unrecorded(*names, forward=forward.number) for names in distinct)
        self.unrecorded += forward.unrecorded
        if forward.unrecorded and self.strict:
            raise UnsupportedError(
                f"{type(self.model).__name__}: attention ran that was not recorded: "
                f"{few([str(call) for call in forward.unrecorded], MOST_LISTED)}",
                where=forward.unrecorded[0].module or type(self.model).__name__,
                advice=ADVICES[missed[0].reason],
            )
        forward.own.clear()
        forward.analyst.finish(type(self.model).__name__)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        forward = self.forward()
        if forward is not None:
            beside = id(module) in self.plan.paths and len(self.plan.beside(module)) > 1
            forward.progress.enter(module, args, kwargs, beside=beside)
        else:
            self.note_outside(module)

    def note_outside(self, module: nn.Module) -> None:
        """Note for the passes of other threads that a module runs in this thread, which has none: it may be theirs."""
        if self._open and self.sees_this_thread() and torch._C._current_graph_task_id() < 0:
            for forward in list(self._open.values()):
                forward.progress.elsewhere.add(id(module))

    def _missed(self, forward: Forward) -> list[Missed]:
        """Attention that ran without being read, and modules that must have attended in a way that left no trace."""
        progress = forward.progress
        silent = self.may_bypass & progress.entered.keys() - progress.read
        missed = attention_among(forward.missed, progress.sizes)
        missed += [call for call in forward.missed if call.module in silent and call.over and call not in missed]
        silent -= {call.module for call in missed}
        missed += [
            Missed(id(module), path, type(module).__name__, "attention computed where capture can't see it")
            for path, module in self.plan.modules
            if id(module) in silent
        ]
        idle = self.plan.idle(forward.module, progress.read)
        others = [name for at in tuple(progress.elsewhere) if (name := self.plan.known.get(at))]
        elsewhere = [path for path in idle if any(within(path, name) or within(name, path) for name in others)]
        missed += [Missed(0, path, type(idle[path]).__name__, ELSEWHERE, reason="thread") for path in elsewhere]
        forward.idle = [
            (path, self.plan.stacks[id(module)], self.plan.number(module))
            for path, module in idle.items()
            if path not in elsewhere
        ]
        return missed

    def _project(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a module as a reader of the last attention's output (a forward pre-hook)."""
        forward, given = self.forward(), (*args, *kwargs.values())
        if forward is None:
            self.note_outside(module)
        elif given and id(module) in self.plan.readers:
            if not is_idle(module, kwargs):
                note_reader(forward, module, given, self.plan.readers[id(module)])
            for attention, path in self.plan.looped.get(id(module), ()):
                if is_plain(given[0]):
                    with operators.Unwatched(), torch.no_grad():
                        forward.progress.loops.setdefault(attention, Loop()).read(path, given[0])


def _end_abandoned() -> None:
    """End the passes that no longer run: they were interrupted, or another thread has closed their blocks."""
    if not RUNNING.forwards:
        return
    running = set(map(id, frames()))  # to hold them would keep alive all that they hold
    for session, forward in RUNNING.forwards:
        if id(forward.caller) not in running:
            session.abandon(forward)


class Seat(NamedTuple):
    """One session's view of a call: the session, its forward pass, and the stack and layer of the call.

    Attributes:
        session, forward, place: these.
        path: the layer's name, if it isn't that of the module that attends.
        followed: the numbers of the queries' and the keys' tokens.
    """

    session: Session
    forward: Forward
    place: Place
    path: str = ""
    followed: Followed = (None, None)

    @property
    def held(self) -> Held | None:
        """The calls that this one is held back with, as it may be a part of the module's attention; None if whole."""
        held = self.forward.held
        return held if held is not None and held.seat is self else None


def register_call(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    rows: int | None = 0,
    tokens: int = 2,
    *,
    followed: Followed | None = None,
    may_be_part: bool = False,
    one_head: bool = False,
) -> list[Seat]:
    """Register a call of attention with every session that covers its module.

    Args:
        module: the attention module.
        query, key: its queries and keys, or what they are made of. Layers of other sizes are counted on their own.
        rows, tokens: their axes of rows, None if they have none, and of tokens.
        followed: the numbers of their tokens, if others than these tensors tell them.
        may_be_part: True if the module may attend to its tokens in several calls: one with fewer is held back.
        one_head: True if the call has one head and may be one of several: it is held back, too.

    Returns:
        One seat for each session that is in a forward pass in this thread.

    Raises:
        UnsupportedError: the module ran before, for another part of its tokens.
    """
    batch = 1 if rows is None else max(query.shape[rows], key.shape[rows])
    queries, keys = (x.shape[tokens - query.dim()] for x in (query, key))
    sizes = tuple(query.shape), tuple(key.shape)
    followed = following.tokens_of(query, key, rows, tokens) if followed is None else followed
    seats = []
    for session in covering(module):
        forward = session.forward()
        if forward is None:
            session.stray += session.sees_this_thread()
            session.note_outside(module)
            continue
        if not session.consumer.silencing:
            refuse_transforms(module)
        progress, held = forward.progress, forward.held
        progress.sizes.add((queries, keys))
        progress.read.add(id(module))
        entries = progress.entered.get(id(module), 0)
        whole = not may_be_part or forward.is_whole(module, batch, queries)
        if held is not None and (one_head or not whole):
            if held.is_beside(module, progress.given):
                held.add_head(module, sizes)
            if held.continues(module, entries):
                held.seat = held.seat._replace(followed=followed)
                seats.append(held.seat)
                continue
        settle(forward)
        place = progress.place(session.plan, module, sizes, not whole or forward.is_fewer(batch, queries))
        seats.append(Seat(session, forward, place, followed=followed))
        if one_head or not whole:
            heads = session.plan.beside(module) if one_head and not place.stack.call else ()
            heads = heads if len(heads) > 1 else ()
            forward.held = Held(seats[-1], module, entries, heads, progress.given if heads else [])
    return seats


def recording(seats: list[Seat]) -> list[Seat]:
    """The seats whose sessions record this call, or may when its layer is known: it may be one head of several."""
    return [
        seat
        for seat in seats
        if (seat.held and seat.held.heads) or seat.session.consumer.wants(seat.place.stack, seat.place.layer)
    ]


def heads_to_silence(seats: list[Seat]) -> dict[int, Way]:
    """The heads that any session silences in this call, or gives another map: head -> way."""
    ways = [session.consumer.silences(place.stack, place.layer) for session, _, place, *_ in seats]
    if silenced := {head: way for of_seat in ways for head, way in of_seat.items()}:
        _refuse_checkpointing(f"layer {seats[0].place.layer}")
    return silenced


def _refuse_checkpointing(where: str) -> None:
    """Raise an error in gradient checkpointing, which runs a layer again when gradients are computed.

    Raises:
        UnsupportedError: gradients will be computed.
    """
    for frame in frames():
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            needed = getattr(frame.f_locals.get("ctx"), "needs_input_grad", ())  # if it runs without gradients itself
            if torch.is_grad_enabled() or any(needed):
                raise UnsupportedError(
                    "heads can't be silenced in gradient checkpointing: backward() runs the layer with all its heads",
                    where=where,
                    advice="call model.gradient_checkpointing_disable(), or run the model in torch.no_grad()",
                )

"""Calls of a module that may be parts of one attention, held back until it is known what they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from headscope.errors import UnsupportedError
from headscope.live.keeping.projections import Awaited, Output, mark_of
from headscope.live.progress import is_plain
from headscope.live.seeing import operators
from headscope.live.seeing.missed import Missed
from headscope.live.seeing.parts import HEADS, ROWS, TOKENS, Ran, joined

if TYPE_CHECKING:
    from torch import nn

    from headscope.live.names.axes import Followed
    from headscope.live.seats import Seat
    from headscope.live.sessions import Pass


@dataclass(eq=False)
class Held:
    """The calls of a module that may be parts of one, held back until it is known what they are.

    Attributes:
        seat: the place of the first call.
        module: the module.
        entries: how often the module had been entered at the last call.
        followed: the numbers of the last call's tokens.
        heads: ids of the modules of which each may be one head of the layer; () if the first call has several heads or
            its module isn't an element of a list.
        given: copies of what the first module was given.
        modules: the modules that have called, in order.
        calls: number of calls.
        parts: copies of those that are recorded, or in which heads are silenced.
        deliver: passes on a call.
        read: True if a module has read something since the last call.
    """

    seat: Seat
    module: nn.Module
    entries: int
    followed: Followed
    heads: tuple[int, ...] = ()
    given: list[torch.Tensor] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    calls: int = 1
    parts: list[Ran] = field(default_factory=list)
    deliver: Callable[[Ran, list[Seat]], None] | None = None
    read: bool = False

    def is_beside(self, module: nn.Module, given: list[torch.Tensor]) -> bool:
        """Return True if a module is another element of the list, and was given the same: no layer follows another."""
        if id(module) not in self.heads or module is self.module:
            return False
        if not self.entries and not self.seat.forward.progress.entered.get(id(module)):
            return True  # called around their hooks: what reads the contexts must tell
        pairs = [*zip(given, self.given, strict=False)]
        return len(given) == len(self.given) > 0 and all(x.shape == y.shape and torch.equal(x, y) for x, y in pairs)

    def add_head(self, module: nn.Module, sizes: Hashable) -> None:
        """Count the next call as one of a module beside the one that called first.

        Raises:
            UnsupportedError: heads of the first call's layer are silenced: it was not known then which it is.
        """
        session, forward, place, _ = self.seat
        if not self.modules:
            place = forward.progress.replace_as_head(session.plan, self.module, place, sizes)
            forward.followed[place] = forward.followed.pop(self.seat.place)
            self.seat = self.seat._replace(place=place, path=session.plan.list_of(self.module))
            self.modules.append(self.module)
            if self._silences or any(part.silenced for part in self.parts):
                self._refuse_silencing()
        self.modules.append(module)
        self.module, self.entries = module, forward.progress.entered.get(id(module), 0)

    def continues(self, module: nn.Module, entries: int) -> bool:
        """Return True if a call of a module is the next part: it runs in the same entry, or in a loop of its caller."""
        if module is not self.module or (entries != self.entries and self.read):
            return False
        self.calls += 1
        self.entries, self.read = entries, False
        return True

    def add(self, ran: Ran, deliver: Callable[[Ran, list[Seat]], None]) -> None:
        """Hold back a call.

        Raises:
            UnsupportedError: heads are silenced, and it matters which part this is.
        """
        if self.calls > 1 and self._silences and (ran.query.shape[1] == 1 or self._silences != {"zero"}):
            self._refuse_silencing()
        if not is_plain(ran.query):
            return  # heads are silenced in a transform of torch.func; nothing is recorded there
        ran = replace(ran.kept(), followed=self.followed)
        self.parts.append(replace(ran, key=self._shared("key", ran.key), value=self._shared("value", ran.value)))
        self.deliver = deliver

    def _shared(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A copy of keys or values, which calls over the same first tokens share: the longest that there is."""
        last = getattr(self.parts[-1], name) if self.parts else x[:0]
        shorter = min(last.shape[2], x.shape[2])
        if last.shape[:2] != x.shape[:2] or not torch.equal(last[:, :, :shorter], x[:, :, :shorter]):
            return x.clone()
        if x.shape[2] == shorter:
            return last[:, :, :shorter]
        longer = x.clone()
        for at, part in enumerate(self.parts):
            known = getattr(part, name)
            if known.data_ptr() == last.data_ptr():
                changes: dict[str, Any] = {name: longer[:, :, : known.shape[2]]}
                self.parts[at] = replace(part, **changes)
        return longer

    def prove(self, x: torch.Tensor) -> None:
        """Deliver the calls as one if `x`, which a module reads, proves their places."""
        self.read = True
        if len(self.parts) < 2 and not (self.parts and self.parts[0].query.shape[1] == 1):
            return
        if x.numel() != sum(part.returned.numel() for part in self.parts):
            return
        forward, place = self.seat.forward, self.seat.place
        known = bool(forward.sizes(self.module))
        wholes = [
            whole
            for axis, parts in self._arrangements()
            if (whole := joined(parts, axis, x)) is not None
            and (not known or forward.is_whole(self.module, *whole.context.shape[:2]))
        ]
        if len(wholes) != 1 or self.deliver is None:
            return
        if self._silences and wholes[0].query.shape[1] != self.parts[0].query.shape[1]:
            self._refuse_silencing()
        forward.held, forward.followed[place] = None, wholes[0].followed
        self.deliver(wholes[0], [self.seat])
        output = x.detach().reshape(wholes[0].context.shape)
        forward.awaited = Awaited.of(output, place.stack, place.layer, mark_of(output))

    def settle(self) -> None:
        """Deliver the calls if each is whole by itself; report them otherwise."""
        session, forward, place, _ = self.seat
        if not self.parts or self.deliver is None:
            return
        if self.modules:
            self._report_heads()
            return
        if len(self.parts) == 1 and not self._lacks_rows():
            self.deliver(self.parts[0], [self.seat])
        elif len(self.parts) > 1 and self._are_whole():
            self.deliver(self.parts[0], [self.seat])
            for part in self.parts[1:]:
                sizes = tuple(part.query.shape), tuple(part.key.shape)
                place = forward.progress.place(session.plan, self.module, sizes, False)
                forward.followed[place] = part.followed
                self.deliver(part, [self.seat._replace(place=place)])
        else:
            name = f"{self.parts[0].name} in {self.calls} parts at unknown positions"
            path = session.plan.paths[id(self.module)]
            forward.missed[Missed(id(self.module), path, type(self.module).__name__, name)] = 1

    def _report_heads(self) -> None:
        """Report modules of one head each, which nothing shows to be the heads of one layer.

        Raises:
            UnsupportedError: the capture is strict.
        """
        path, kind = self.seat.path, type(self.module).__name__
        name = f"{self.parts[0].name} in {len(self.modules)} modules side by side"
        if self.seat.session.strict:
            raise UnsupportedError(
                f"{kind}: {len(self.modules)} of the {len(self.heads)} modules in {path} attend side by side, each "
                "with one head, but no Linear reads the contexts of all of them joined in their order: whether they "
                "are the heads of one layer is unknown",
                where=path,
                advice="join their outputs for one nn.Linear, proj(torch.cat([head(x) for head in heads], -1)), or "
                "capture each module alone: hs.capture(model.get_submodule(name))",
            )
        self.seat.forward.missed[Missed(id(self.module), path, kind, name)] = 1

    def _arrangements(self) -> list[tuple[int, list[Ran]]]:
        """The ways in which the calls may lie side by side: the axis, and the calls."""
        if not self.modules:
            return _arrangements(self.parts)
        if sorted(id(part.module) for part in self.parts) != sorted(self.heads):
            return []
        return [(HEADS, sorted(self.parts, key=lambda part: self.heads.index(id(part.module))))]

    @property
    def _silences(self) -> set[str]:
        """The ways in which heads of the layer are silenced."""
        return {*self.seat.session.consumer.silences(self.seat.place.stack, self.seat.place.layer).values()}

    def _refuse_silencing(self) -> NoReturn:
        if self.modules:
            raise UnsupportedError(
                f"{type(self.module).__name__} is one head of several, each a module by itself, and can't be silenced",
                where=self.seat.path,
                advice="return zeros from the head's own module: "
                "head.register_forward_hook(lambda module, args, output: torch.zeros_like(output))",
            )
        raise UnsupportedError(
            f"{type(self.module).__name__} attends in parts, so it is unknown which heads and queries a part has",
            where=self.seat.session.plan.paths[id(self.module)],
            advice="silence heads in a module that attends to all tokens at once",
        )

    def _lacks_rows(self) -> bool:
        """Return True if the only call has some of the rows that the module was given."""
        batch, queries, _, _ = self.parts[0].context.shape
        sizes = self.seat.forward.sizes(self.module)
        return bool(sizes) and all(batch not in size and batch * queries < size[0] * size[1] for size in sizes)

    def _are_whole(self) -> bool:
        """Return True if each call has all rows and tokens, and its first axis can't be that of the heads."""
        sizes = [part.context.shape for part in self.parts]
        return all(
            self.seat.forward.is_whole(self.module, batch, queries) and (heads > 1 or batch != self.calls)
            for batch, queries, heads, _ in sizes
        )


def _arrangements(parts: list[Ran]) -> list[tuple[int, list[Ran]]]:
    """The ways in which calls may lie side by side: the axis, and the calls, whose first axis may be that of heads."""
    ways = [(axis, parts) for axis in (ROWS, HEADS, TOKENS)[: 1 if len(parts) == 1 else 3]]
    if all(part.query.shape[1] == part.key.shape[1] == 1 and part.raw.keys is None for part in parts):
        ways.append((ROWS, [part.with_heads_first() for part in parts]))
    return ways


def note_reader(forward: Pass, x: Any, path: str) -> None:
    """Note what a module reads that may be an output projection: an attention's output, or several side by side."""
    if forward.held is None and (forward.awaited is None or not forward.awaited.may_be(x)):
        return
    with operators.Unwatched(), torch.no_grad():
        if forward.held is not None and is_plain(x):
            forward.held.prove(x)
        awaited = forward.awaited
        if awaited is not None and awaited.is_in(x):
            known = forward.projections.get(awaited.place, Output((), awaited.shape[-1]))
            forward.projections[awaited.place] = Output((*known.paths, path), known.d_value)


def settle(forward: Pass) -> None:
    """Deliver or report the calls that are held back: no more parts of them will come."""
    held, forward.held = forward.held, None
    if held is not None:
        with operators.Unwatched(), torch.no_grad():
            held.settle()

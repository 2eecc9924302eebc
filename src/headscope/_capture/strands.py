"""Keys and values that a cache hands from one forward pass to the next: kept once, however many passes see them.

A cache is known by its contents: where the keys and values that a pass found there are, bit for bit and in every layer,
the last ones that an earlier pass left, this pass goes on with that sequence. So a new sequence is told from one that
is continued, and rows that changed places (beam search) or were cut back (assisted decoding) are followed, whatever
kind of cache it is and without asking it what it did.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from headscope._capture.building import Group, Series
    from headscope._capture.calls import Forward

MOST_STRANDS = 64
"""How many sequences of a stack are searched for what a cache held, the latest first."""

Part = tuple[int, str]
"""Which call of a stack, in order, and keys or values."""

Tensors = Mapping[Part, torch.Tensor]
"""(heads, tokens, width) of each part; layers with windows have fewer tokens than others."""


@dataclass(frozen=True, eq=False)
class Origin:
    """Tokens of a sequence that one forward pass brought.

    Attributes:
        start, stop: where they are in the sequence.
        forward: the pass; None where the cache held them before anything was captured.
        of: layers of that pass, held weakly, and `row` the row of its batch: the tokens are its first stop - start
            queries.
    """

    start: int
    stop: int
    forward: Forward | None
    of: weakref.ref[Group] | None
    row: int

    @property
    def group(self) -> Group | None:
        """The layers of the pass, while the capture is alive."""
        return None if self.of is None else self.of()


class Tape:
    """(heads, tokens, width), growing at its end; what is there already never changes.

    Attributes:
        base: the number of its first token in the sequence: 0, unless the cache held others before it that nobody saw.
        length: the number of the next token.
    """

    def __init__(self, first: torch.Tensor, length: int) -> None:
        self._buffer = first
        self.base = length - first.shape[1]
        self.length = length

    def part(self, start: int, stop: int) -> torch.Tensor:
        """(heads, stop - start, width): tokens by their numbers in the sequence, without a copy."""
        return self._buffer[:, start - self.base : stop - self.base]

    def append(self, new: torch.Tensor) -> None:
        """Add tokens at the end."""
        used, stop = self.length - self.base, self.length - self.base + new.shape[1]
        if stop > self._buffer.shape[1]:
            room = self._buffer.new_empty(len(new), max(stop, 2 * used), new.shape[2])
            room[:, :used] = self._buffer[:, :used]
            self._buffer = room
        self._buffer[:, used:stop] = new
        self.length += new.shape[1]

    def holds(self, known: torch.Tensor, end: int) -> bool:
        """Whether these tokens are on the tape, the last of them just before `end`."""
        start = end - known.shape[1]
        return self.base <= start and end <= self.length and torch.equal(self.part(start, end), known)

    def ends(self, last: torch.Tensor) -> list[int]:
        """Where the tape has this token, (heads, 1, width); just behind it."""
        alike = (self.part(self.base, self.length) == last).all(-1).all(0)
        return [self.base + at + 1 for at in torch.nonzero(alike).flatten().tolist()]

    def cut_back(self, stop: int) -> Tape:
        """A tape of its own that begins as this one does."""
        return Tape(self.part(self.base, stop).clone(), stop)


@dataclass(eq=False)
class Strand:
    """One sequence in one stack.

    Attributes:
        tapes: its keys and values.
        origins: who brought its tokens, in order.
        readers: how many forward passes saw some of it.
        doubtful: whether what a cache held fits other sequences too, whose tokens before that are others.
    """

    tapes: dict[Part, Tape]
    origins: list[Origin] = field(default_factory=list)
    readers: int = 0
    doubtful: bool = False

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return next(iter(self.tapes.values())).length

    def find(self, known: Tensors) -> int | None:
        """Where what a cache held ends in this sequence, the same place in every layer; None where it isn't in it."""
        if known.keys() != self.tapes.keys():
            return None
        if any(known[part].shape[::2] != tape.part(0, 0).shape[::2] for part, tape in self.tapes.items()):
            return None
        part = max(known, key=lambda one: known[one].shape[1])
        for end in (self.length, *reversed(self.tapes[part].ends(known[part][:, -1:]))):
            if all(tape.holds(known[one], end) for one, tape in self.tapes.items()):
                return end
        return None

    def cut_back(self, stop: int) -> Strand:
        """A sequence of its own that begins as this one does."""
        origins = [
            Origin(one.start, min(one.stop, stop), one.forward, one.of, one.row)
            for one in self.origins
            if one.start < stop
        ]
        tapes = {part: tape.cut_back(stop) for part, tape in self.tapes.items()}
        return Strand(tapes, origins, doubtful=self.doubtful)

    def begins_as(self, other: Strand, end: int) -> bool:
        """Whether two sequences have the same tokens up to there."""
        return all(
            tape.base == 0 and tape.holds(other.tapes[part].part(0, end), end) for part, tape in self.tapes.items()
        )


@dataclass(frozen=True, eq=False)
class Stretch:
    """What one forward pass saw of a sequence's keys or values."""

    strand: Strand
    part: Part
    start: int
    stop: int

    def tensor(self) -> torch.Tensor:
        """(heads, tokens, width), without a copy."""
        return self.strand.tapes[self.part].part(self.start, self.stop)

    @property
    def shared(self) -> bool:
        """Whether other forward passes see it too."""
        return self.strand.readers > 1

    @property
    def origins(self) -> list[Origin]:
        """Whose tokens these are, from the sequence's beginning to the end of the stretch."""
        return [one for one in self.strand.origins if one.start < self.stop]


class Strands:
    """The sequences of one capture."""

    def __init__(self) -> None:
        self._latest: dict[tuple[Series, int], Strand] = {}
        self._all: dict[Series, list[Strand]] = {}

    def keep(
        self, series: Series, row: int, seen: Tensors, fresh: int, forward: Forward, group: Group
    ) -> dict[Part, Stretch]:
        """Keep what a forward pass saw of keys and values in a stack's layers, the last `fresh` tokens of it new."""
        known = {part: one[:, : one.shape[1] - fresh] for part, one in seen.items()}
        held = max(one.shape[1] for one in known.values())
        found = self._continued(series, row, known, held) if held else None
        if found is None:
            strand, end = Strand({part: Tape(one, held) for part, one in known.items()}), held
            if held:
                strand.origins.append(Origin(0, held, None, None, row))
        else:
            strand, end, doubtful = found
            if fresh and end < strand.length:
                strand = strand.cut_back(end)
            strand.doubtful |= doubtful
        if fresh:
            for part, one in seen.items():
                strand.tapes[part].append(one[:, one.shape[1] - fresh :])
            strand.origins.append(Origin(end, end + fresh, forward, weakref.ref(group), row))
        strands = self._all.setdefault(series, [])
        if strand not in strands[-MOST_STRANDS:]:
            strands.append(strand)
        self._latest[series, row] = strand
        strand.readers += 1
        stop = end + fresh
        return {part: Stretch(strand, part, stop - one.shape[1], stop) for part, one in seen.items()}

    def _continued(self, series: Series, row: int, known: Tensors, held: int) -> tuple[Strand, int, bool] | None:
        """The sequence that holds what the cache held, this row's own or else another one; where that ends; doubts."""
        own = self._latest.get((series, row))
        others = (one for one in reversed(self._all.get(series, [])[-MOST_STRANDS:]) if one is not own)
        first: tuple[Strand, int] | None = None
        for strand in (*([] if own is None else [own]), *others):
            end = strand.find(known)
            if end is None:
                continue
            if end == held:
                return strand, end, False  # the cache held all of it
            if first is None:
                first = strand, end
            elif end != first[1] or not first[0].begins_as(strand, end):
                return *first, True
        return None if first is None else (*first, False)

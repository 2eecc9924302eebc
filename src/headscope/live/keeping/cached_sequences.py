"""Keys and values that a cache passes from one forward pass to the next, stored once for all passes that see them.

A cache is identified by its contents: if the cached keys and values of a pass equal, bit for bit and in every layer,
the last ones of an earlier pass, this pass continues that sequence. This distinguishes a new sequence from a continued
one, and follows rows that changed places (beam search) or were truncated (assisted decoding), for any kind of cache.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from headscope.live.calls import Forward
    from headscope.live.keeping.copies import Group, Series

MOST_SEQUENCES = 64
"""Maximum number of a stack's sequences that are searched for a cache's contents, latest first."""

Part = tuple[int, str]
"""Index of a call within the stack, and "k" or "v"."""

Tensors = Mapping[Part, torch.Tensor]
"""Part -> (heads, tokens, width); layers with windows have fewer tokens than others."""


@dataclass(frozen=True, eq=False)
class Origin:
    """The tokens of a sequence that one forward pass computed: the first stop - start queries of a row of its batch.

    Attributes:
        start, stop: their range in the sequence.
        forward: the pass; None if the cache held the tokens before the capture began.
        group_ref: weak reference to layers of that pass.
        row: the row of its batch.
    """

    start: int
    stop: int
    forward: Forward | None
    group_ref: weakref.ref[Group] | None
    row: int

    @property
    def count(self) -> int:
        """Number of the tokens."""
        return self.stop - self.start

    @property
    def group(self) -> Group | None:
        """Layers of the pass; None once the capture no longer exists."""
        return None if self.group_ref is None else self.group_ref()


class _GrowingTensor:
    """(heads, tokens, width): a tensor that grows at its end; existing tokens never change.

    Attributes:
        base: position of its first token in the sequence: 0, unless the cache held earlier tokens that were never seen.
        length: position of the next token.
    """

    def __init__(self, first: torch.Tensor, length: int) -> None:
        self._buffer = first
        self.base = length - first.shape[1]
        self.length = length

    def part(self, start: int, stop: int) -> torch.Tensor:
        """(heads, stop - start, width): tokens by their positions in the sequence, without a copy."""
        return self._buffer[:, start - self.base : stop - self.base]

    def append(self, new: torch.Tensor) -> None:
        """Add tokens at the end."""
        if not new.shape[1]:
            return
        used, stop = self.length - self.base, self.length - self.base + new.shape[1]
        if stop > self._buffer.shape[1]:
            room = self._buffer.new_empty(len(new), max(stop, 2 * used), new.shape[2])
            room[:, :used] = self._buffer[:, :used]
            self._buffer = room
        self._buffer[:, used:stop] = new
        self.length += new.shape[1]

    def holds(self, known: torch.Tensor, end: int) -> bool:
        """Return True if the tensor has these tokens, ending at position `end`."""
        start = end - known.shape[1]
        return self.base <= start and end <= self.length and torch.equal(self.part(start, end), known)

    def ends(self, last: torch.Tensor) -> list[int]:
        """Positions just after each occurrence of a token, (heads, 1, width)."""
        alike = (self.part(self.base, self.length) == last).all(-1).all(0)
        return [self.base + at + 1 for at in torch.nonzero(alike).flatten().tolist()]

    def truncated(self, stop: int) -> _GrowingTensor:
        """A copy of the tokens before `stop`."""
        return _GrowingTensor(self.part(self.base, stop).clone(), stop)


@dataclass(eq=False)
class CachedSequence:
    """One sequence in one stack.

    Attributes:
        tensors: its keys and values.
        origins: the passes that computed its tokens, in order.
        readers: number of forward passes that saw any of it.
        doubtful: True if the cache's contents also fit other sequences, with different earlier tokens.
    """

    tensors: dict[Part, _GrowingTensor]
    origins: list[Origin] = field(default_factory=list)
    readers: int = 0
    doubtful: bool = False

    @property
    def length(self) -> int:
        """Number of tokens."""
        return next(iter(self.tensors.values())).length

    def find(self, known: Tensors) -> int | None:
        """Position at which a cache's contents end in this sequence, the same in every layer; None if not in it."""
        if known.keys() != self.tensors.keys():
            return None
        if any(known[part].shape[::2] != tensor.part(0, 0).shape[::2] for part, tensor in self.tensors.items()):
            return None
        longest = max(known, key=lambda part: known[part].shape[1])
        for end in (self.length, *reversed(self.tensors[longest].ends(known[longest][:, -1:]))):
            if all(tensor.holds(known[part], end) for part, tensor in self.tensors.items()):
                return end
        return None

    def truncated(self, stop: int) -> CachedSequence:
        """A copy of the sequence's first `stop` tokens."""
        origins = [replace(origin, stop=min(origin.stop, stop)) for origin in self.origins if origin.start < stop]
        tensors = {part: tensor.truncated(stop) for part, tensor in self.tensors.items()}
        return CachedSequence(tensors, origins, doubtful=self.doubtful)

    def begins_as(self, other: CachedSequence, end: int) -> bool:
        """Return True if both sequences have the same tokens before position `end`."""
        return all(
            tensor.base == 0 and tensor.holds(other.tensors[part].part(0, end), end)
            for part, tensor in self.tensors.items()
        )


@dataclass(frozen=True, eq=False)
class KeySpan:
    """The part of a sequence's keys or values that one forward pass saw."""

    sequence: CachedSequence
    part: Part
    start: int
    stop: int

    def tensor(self) -> torch.Tensor:
        """(heads, tokens, width), without a copy."""
        return self.sequence.tensors[self.part].part(self.start, self.stop)

    @property
    def shared(self) -> bool:
        """True if other forward passes see it too."""
        return self.sequence.readers > 1

    @property
    def origins(self) -> list[Origin]:
        """The passes that computed the tokens from the sequence's beginning to the end of the span."""
        return [origin for origin in self.sequence.origins if origin.start < self.stop]


class CachedSequences:
    """The sequences of one capture."""

    def __init__(self) -> None:
        self._latest: dict[tuple[Series, int], CachedSequence] = {}
        self._all: dict[Series, list[CachedSequence]] = {}

    def keep(
        self, series: Series, row: int, tensors: Tensors, fresh: int, forward: Forward, group: Group
    ) -> dict[Part, KeySpan]:
        """Store the keys and values that a forward pass saw in a stack's layers; the last `fresh` tokens are new.

        Args:
            series: the stack, and which call of its transformer it is.
            row: the row of the batch.
            tensors: the keys and values of all layers of the stack; a new sequence takes them over without a copy.
            fresh: number of tokens that this pass computed; the cache held those before them.
            forward: the pass.
            group: its layers.

        Returns:
            A span for each part, all of the same sequence and ending at the same token.
        """
        known = {part: tensor[:, : tensor.shape[1] - fresh] for part, tensor in tensors.items()}
        cached = max(tensor.shape[1] for tensor in known.values())
        continued = self._continued(series, row, known, cached) if cached else None
        if continued is None:
            sequence = CachedSequence(
                {part: _GrowingTensor(tensor, cached + fresh) for part, tensor in tensors.items()}
            )
            end = cached
            if cached and fresh:
                sequence.origins.append(Origin(0, cached, None, None, row))
            elif cached:  # another sequence's, which this pass is the first to attend to
                sequence.origins.append(Origin(0, cached, forward, weakref.ref(group), row))
        else:
            sequence, end, doubtful = continued
            if fresh and end < sequence.length:
                sequence = sequence.truncated(end)
            sequence.doubtful |= doubtful
            for part, tensor in tensors.items():
                sequence.tensors[part].append(tensor[:, tensor.shape[1] - fresh :])
        if fresh:
            sequence.origins.append(Origin(end, end + fresh, forward, weakref.ref(group), row))
        sequences = self._all.setdefault(series, [])
        if sequence not in sequences[-MOST_SEQUENCES:]:
            sequences.append(sequence)
        self._latest[series, row] = sequence
        sequence.readers += 1
        stop = end + fresh
        return {part: KeySpan(sequence, part, stop - tensor.shape[1], stop) for part, tensor in tensors.items()}

    def _continued(
        self, series: Series, row: int, known: Tensors, cached: int
    ) -> tuple[CachedSequence, int, bool] | None:
        """Find the sequence that a cache continues, first among this row's, then among the others.

        Returns:
            The sequence, the position at which the cache's contents end in it, and True if other sequences fit too;
            None if no sequence fits.
        """
        latest = self._latest.get((series, row))
        recent = reversed(self._all.get(series, [])[-MOST_SEQUENCES:])
        first: tuple[CachedSequence, int] | None = None
        for sequence in dict.fromkeys(filter(None, (latest, *recent))):
            end = sequence.find(known)
            if end is None:
                continue
            if end == cached:
                return sequence, end, False  # the cache holds the sequence from its beginning
            if first is None:
                first = sequence, end
            elif end != first[1] or not first[0].begins_as(sequence, end):
                return *first, True
        return None if first is None else (*first, False)

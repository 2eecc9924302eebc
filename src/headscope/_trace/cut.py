"""The part of a batch that a trace holds: one row, and the positions of it that were kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from headscope.checkpoint.json_text import few
from headscope.errors import TraceError


@dataclass(frozen=True)
class Cut:
    """The row of a batch that a trace holds, without the padding around it.

    Of an array that the model computed for a whole batch, `cells` (batch, heads, queries, keys), the trace holds
    `cells[row][:, queries][:, :, keys]`.

    Attributes:
        row: the row of the batch, counted from 0.
        queries: the kept positions along the query axis.
        keys: the kept positions along the key axis.
        sizes: lengths of these axes, padding included.
    """

    row: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    sizes: tuple[int, int]

    @classmethod
    def none(cls, queries: int, keys: int) -> Cut:
        """The cut of a batch with one row and no padding."""
        return cls(0, tuple(range(queries)), tuple(range(keys)), (queries, keys))

    def __post_init__(self) -> None:
        for name, positions, size in zip(("queries", "keys"), (self.queries, self.keys), self.sizes, strict=True):
            order = all(a < b for a, b in pairwise(positions))
            if self.row < 0 or not order or (positions and not 0 <= positions[0] <= positions[-1] < size):
                raise TraceError(
                    f"expected a row from 0 on and increasing positions from 0 to {size - 1}, got row {self.row} and "
                    f"positions {few(list(map(str, positions)), 4)}",
                    where=f"{name} of the batch",
                    advice="make the trace again",
                )

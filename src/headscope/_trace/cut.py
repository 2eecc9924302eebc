"""Which part of a batch a trace is: the row, and the positions of it that were kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from headscope.errors import TraceError


@dataclass(frozen=True)
class Cut:
    """The row of a batch that a trace holds, without the padding around it.

    Of what the model computed for a whole batch, (batch, heads, queries, keys), the trace has
    `cells[row][:, queries][:, :, keys]`.

    Attributes:
        row: the row of the batch, from 0.
        queries: the positions along the queries' axis that were kept.
        keys: those along the keys' axis.
        sizes: how long these axes are, padding included.
    """

    row: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    sizes: tuple[int, int]

    @classmethod
    def none(cls, queries: int, keys: int) -> Cut:
        """The only row of a batch without padding."""
        return cls(0, tuple(range(queries)), tuple(range(keys)), (queries, keys))

    def __post_init__(self) -> None:
        for name, positions, size in zip(("queries", "keys"), (self.queries, self.keys), self.sizes, strict=True):
            order = all(a < b for a, b in pairwise(positions))
            if self.row < 0 or not order or (positions and not 0 <= positions[0] <= positions[-1] < size):
                raise TraceError(
                    f"row {self.row} of a batch, positions that don't go up from 0 to {size - 1}",
                    where=f"{name} of the batch",
                    advice="make the trace again",
                )

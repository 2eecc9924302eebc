"""Maps of all pairs of queries and keys that exist only as functions: a part is computed when somebody reads it.

The masks and biases of flex attention are such functions. They are read as tensors are, a block of queries at a time;
nobody holds the whole map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

BLOCK_CELLS = 1 << 20
"""Maximum number of cells that are computed at once."""

Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Indices of rows of the batch, heads, queries and keys -> their cells, (batch, heads, queries, keys)."""


def row_blocks(heads: int, queries: int, keys: int) -> Iterator[slice]:
    """All rows of a map, in blocks of at most BLOCK_CELLS cells, but at least a row."""
    step = max(1, BLOCK_CELLS // max(1, heads * keys))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))


@dataclass(frozen=True, eq=False)
class Cells:
    """The maps of a batch, (1 or batch, 1 or heads, queries, keys): 1 if all rows, or all heads, have the same map.

    A number is the index of a row, whose map is one of three axes. Indexing that computes and returns a tensor.

    Attributes:
        compute: computes cells.
        shape: the sizes.
        dtype, device: of the cells.
        made: True if the model made them all, in parts: they may be kept if they follow no rule.
        row: of a map of three axes, the row of the batch.
    """

    compute: Compute
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    made: bool = False
    row: int = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | tuple[Any, ...]) -> Any:
        if isinstance(index, int):
            return replace(self, shape=self.shape[1:], row=index)
        axes = [torch.arange(size, device=self.device) for size in self.shape]
        whole = (*index, *(slice(None),) * (3 - len(index)))
        picked = [axis[part] for axis, part in zip(axes, whole, strict=True)]
        row = torch.tensor([self.row], device=self.device)
        cells = self.compute(row, *(part.reshape(-1) for part in picked))
        return cells.reshape([len(part) for part in picked if part.dim()])

    def of(self, *, heads: int | None = None, keys: int | None = None) -> Cells:
        """The same map of a row for the first heads and the first keys only."""
        sizes = (heads or self.shape[0], self.shape[1], keys or self.shape[2])
        return replace(self, shape=sizes)

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """All queries with their cells, in blocks, row by row."""
        for one in [self] if len(self.shape) == 3 else map(self.__getitem__, range(len(self))):
            for queries in row_blocks(*one.shape):
                yield queries, one[:, queries]

    def any(self) -> bool:
        """Return True if any cell is not 0."""
        return any(bool(block.any()) for _, block in self.blocks())

    def unfolded(self, rows: int, *, heads_first: bool) -> Cells:
        """The same maps, whose first axis has the heads of each row, one after another, or the rows of each head."""
        heads = len(self) // rows

        def compute(row: torch.Tensor, head: torch.Tensor, *places: torch.Tensor) -> torch.Tensor:
            first = head * rows + row if heads_first else row * heads + head
            return self.compute(first, torch.zeros_like(row), *places).transpose(0, 1)

        return replace(self, compute=compute, shape=(rows, heads, *self.shape[2:]))

"""How a mask's numbers are read: relative to the highest of each query's row, as softmax reads them.

A number that is added to a whole row leaves its softmax as it is. So a cell is masked if it is -inf, False, or far
below the highest of its own row. Rows that are far down as a whole are queries of padding, or queries that see what
others see, shifted: see `padding`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from headscope.errors import UnsupportedError

BLOCK_CELLS = 1 << 20
"""Cells of a mask that are looked at together."""

NEGLIGIBLE = -1e4
"""So far below the highest of its row a cell is masked: libraries write -10000, -1e9, the least finite number, -inf."""

NO_SCORE = 2.0**52
"""Beside a shift of this size fp64 keeps nothing of a score that is below 1/2."""

UNDERFLOW = 110.0
"""exp of less than minus this is 0 in fp32."""


class Levels:
    """The mask of one row of the batch.

    Attributes:
        mask: (1 or heads, rows, keys): bool, or added to the scores. One row stands for all queries.
        negligible: how far below the highest of its row a cell is masked.
        top: (1 or heads, rows), the highest of each row; None where the mask is bool.
        relied: the smallest distance at which a finite number counted as masked: it does as long as no two scores of a
            row are further apart. Infinite where there was none.
    """

    def __init__(self, mask: torch.Tensor, negligible: float, where: str) -> None:
        self.mask = mask
        self.negligible = negligible
        self.top: torch.Tensor | None = None
        self.relied = float("inf")
        self._shifted = False
        if mask.dtype == torch.bool:
            return
        self.top = torch.cat([mask[:, rows].amax(-1) for rows in self.blocks()], 1)
        if bool((self.top.isnan() | (self.top == float("inf"))).any()):
            raise UnsupportedError(
                f"the mask that is added to the scores holds {'NaN' if bool(self.top.isnan().any()) else 'infinity'}",
                where=where,
                advice="softmax gives NaN for such a row: use finite numbers, -inf, or a bool mask",
            )
        self._shifted = bool((self.top != 0).any())

    def blocks(self) -> Iterator[slice]:
        """All rows, a block at a time."""
        step = max(1, BLOCK_CELLS // max(1, self.mask.shape[2] * len(self.mask)))
        for start in range(0, self.mask.shape[1], step):
            yield slice(start, min(start + step, self.mask.shape[1]))

    def allowed(self, rows: slice) -> torch.Tensor:
        """(1 or heads, n, keys): the cells of some rows that are not masked."""
        below = self._below(rows)
        if below is None:
            return self.mask[:, rows]
        masked = (below <= self.negligible) & (below > float("-inf"))
        self.relied = min(self.relied, -float(torch.where(masked, below, float("-inf")).amax()))
        return below > self.negligible

    def numbers(self, rows: slice) -> torch.Tensor:
        """(n,): rows with cells that are neither 0 nor masked."""
        below = self._below(rows)
        if below is None:
            return self.mask.new_zeros(rows.stop - rows.start)
        return ((self.mask[:, rows] != 0) & (below > self.negligible)).any(-1).any(0)

    def bias(self) -> torch.Tensor:
        """(1 or heads, rows, keys): the mask in fp32, -inf where it is masked. What is finite stays finite.

        fp64 keeps a score beside shifts of which fp32 would leave nothing: there a row's shift is taken off.
        """
        if self.top is None:
            return torch.zeros(self.mask.shape, device=self.mask.device).masked_fill_(~self.mask, float("-inf"))
        limits = torch.finfo(torch.float32)
        found = torch.empty(self.mask.shape, device=self.mask.device)
        for rows in self.blocks():
            block = self.mask[:, rows]
            if block.dtype == torch.float64:
                top = self.top[:, rows, None]
                block = (block - torch.where(top.abs() < NO_SCORE, top, 0.0)).clamp(limits.min, limits.max)
            found[:, rows] = block
            found[:, rows].masked_fill_(~self.allowed(rows), float("-inf"))
        return found

    def seen(self, some: np.ndarray | None = None) -> np.ndarray:
        """(keys,): keys that some rows may look at in some head.

        Args:
            some: (rows,) bool, which rows; None for all.
        """
        found = torch.zeros(self.mask.shape[2], dtype=torch.bool, device=self.mask.device)
        for rows in self.blocks():
            allowed = self.allowed(rows).any(0)
            found |= (allowed if some is None else allowed[self._flags(some[rows])]).any(0)
        return found.cpu().numpy()

    def padding(self, tokens: slice) -> np.ndarray | None:
        """(rows,): queries of padding among rows that are far down as a whole; None where there are none.

        Such a row is padding if no other query looks at its key, and if it is down by the very number that hides this
        key. At the end of a causal map a key is hidden by causality alone, which says nothing: those rows are kept. So
        are all rows that one which is kept looks at.

        Args:
            tokens: where the queries stand among the keys.
        """
        if self.top is None or not self._shifted:
            return None
        top = self.top.amax(0)
        far = (top <= NEGLIGIBLE).cpu().numpy()
        if not far.any() or far.all():
            return None
        places = np.arange(self.mask.shape[2])[tokens]
        plain = self._flags(~far)
        highest = torch.stack(
            [self.mask[:, rows][:, plain[rows]].amax((0, 1)) for rows in self.blocks() if plain[rows].any()]
        )
        hides = highest.amax(0)[tokens]
        seen = self.seen(~far)
        padding = far & ~seen[tokens] & (hides == top).cpu().numpy()
        if not self._sees_ahead(~far, places):
            padding[int(np.flatnonzero(~far)[-1]) + 1 :] = False
        kept = far & ~padding
        while kept.any():
            seen |= self.seen(kept)
            kept = padding & seen[tokens]
            padding &= ~kept
        return padding if padding.any() else None

    def _sees_ahead(self, some: np.ndarray, places: np.ndarray) -> bool:
        """Whether one of these rows looks at a key behind its own."""
        columns = torch.arange(self.mask.shape[2], device=self.mask.device)
        own = torch.from_numpy(places).to(columns.device)
        flags = self._flags(some)
        return any(
            bool((self.allowed(rows).any(0) & (columns > own[rows, None]) & flags[rows, None]).any())
            for rows in self.blocks()
        )

    def _flags(self, some: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(some).to(self.mask.device)

    def _below(self, rows: slice) -> torch.Tensor | None:
        """How far below the highest of its row each cell is, NaN in rows of -inf; None where the mask is bool."""
        if self.top is None:
            return None
        block = self.mask[:, rows]
        if not self._shifted:
            return block
        wide = torch.promote_types(block.dtype, torch.float32)
        return block.to(wide) - self.top[:, rows, None].to(wide)

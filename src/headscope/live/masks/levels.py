"""Read a numeric mask as softmax does: relative to the highest value of each query's row.

Adding a number to a whole row doesn't change its softmax. So a cell is masked if it is -inf, False, or far below the
highest value of its row. A row that is far below 0 as a whole belongs to a padding query, or to an ordinary query whose
row is shifted: see `padding`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from headscope.errors import UnsupportedError
from headscope.live.masks.cells import Cells, row_blocks

NEGLIGIBLE = -1e4
"""Cells this far below the highest of their row are masked: libraries write -10000, -1e9, the lowest float or -inf."""

NO_SCORE = 2.0**52
"""Added to a shift of this size, a score below 1/2 is lost completely in fp64."""

UNDERFLOW = 110.0
"""exp(x) is 0 in fp32 for x below minus this."""


def span(flags: np.ndarray) -> np.ndarray:
    """(n,): True from the first True in `flags` to the last."""
    between = np.zeros_like(flags)
    places = np.flatnonzero(flags)
    if len(places):
        between[places[0] : places[-1] + 1] = True
    return between


class Levels:
    """The mask of one row of the batch.

    Attributes:
        mask: (1 or heads, rows, keys): bool, or numbers added to the scores. A single row applies to all queries. The
            mask of flex attention is a function of its cells.
        negligible: distance below the highest value of its row at which a cell is masked.
        top: (1 or heads, rows), the highest value of each row; None if the mask is bool.
        relied: the smallest distance at which a finite number was taken as masked, which is valid as long as no two
            scores of a row are further apart. Infinity if there was none.
    """

    def __init__(self, mask: torch.Tensor | Cells, negligible: float, where: str) -> None:
        self.mask = mask
        self.negligible = negligible
        self._where = where
        self.top: torch.Tensor | None = None
        self.relied = float("inf")
        self._shifted = False
        if mask.dtype == torch.bool:
            return
        self.top = torch.cat([mask[:, rows].amax(-1) for rows in self.blocks()], 1)
        if bool((self.top.isnan() | (self.top == float("inf"))).any()):
            raise UnsupportedError(
                f"the additive mask contains {'NaN' if bool(self.top.isnan().any()) else 'infinity'}",
                where=where,
                advice="use finite numbers, -inf, or a bool mask: the softmax of such a row is NaN",
            )
        self._shifted = bool((self.top != 0).any())

    def blocks(self) -> Iterator[slice]:
        """All rows, in blocks."""
        return row_blocks(*self.mask.shape)

    def allowed(self, rows: slice) -> torch.Tensor:
        """(1 or heads, n, keys): True for the cells of these rows that are not masked."""
        below = self._below(rows)
        if below is None:
            return self.mask[:, rows]
        masked = (below <= self.negligible) & (below > float("-inf"))
        self.relied = min(self.relied, -float(torch.where(masked, below, float("-inf")).amax()))
        return below > self.negligible

    def numbers(self, rows: slice) -> torch.Tensor:
        """(n,): True for rows with cells that are neither 0 nor masked."""
        below = self._below(rows)
        if below is None:
            return torch.zeros(rows.stop - rows.start, dtype=torch.bool, device=self.mask.device)
        return ((self.mask[:, rows] != 0) & (below > self.negligible)).any(-1).any(0)

    def bias(self) -> torch.Tensor:
        """(1 or heads, rows, keys): the mask in fp32, -inf where masked; finite numbers stay finite.

        fp64 preserves a score next to shifts that would erase it in fp32, so a row's shift is subtracted there.

        Raises:
            UnsupportedError: the mask exists only as a function of its cells.
        """
        if isinstance(self.mask, Cells) and not self.mask.made:
            raise UnsupportedError(
                "flex attention's mask or score_mod follows no rule: a trace keeps causal masks, windows, padding and "
                "numbers by key or by distance, and no map of all pairs that the model never made",
                where=self._where,
                advice="pass the mask as a tensor, which is kept as it is: with scaled_dot_product_attention, or in "
                'transformers with model.set_attn_implementation("sdpa")',
            )
        if self.top is None:
            return torch.zeros(self.mask.shape, device=self.mask.device).masked_fill_(~self.mask[:, :], float("-inf"))
        limits = torch.finfo(torch.float32)
        bias = torch.empty(self.mask.shape, device=self.mask.device)
        for rows in self.blocks():
            block = self.mask[:, rows]
            if block.dtype == torch.float64:
                top = self.top[:, rows, None]
                block = (block - torch.where(top.abs() < NO_SCORE, top, 0.0)).clamp(limits.min, limits.max)
            bias[:, rows] = block
            bias[:, rows].masked_fill_(~self.allowed(rows), float("-inf"))
        return bias

    def seen(self, some: np.ndarray | None = None) -> np.ndarray:
        """(keys,): True for keys that any of the given rows may look at, in any head.

        Args:
            some: (rows,) bool, the rows; None for all.
        """
        keys = torch.zeros(self.mask.shape[2], dtype=torch.bool, device=self.mask.device)
        for rows in self.blocks():
            allowed = self.allowed(rows).any(0)
            keys |= (allowed if some is None else allowed[self._flags(some[rows])]).any(0)
        return keys.cpu().numpy()

    def padding(self, tokens: slice) -> np.ndarray | None:
        """(rows,): True for padding queries among the rows that are far below 0 as a whole; None if there are none.

        Such a row is padding if no other query looks at its key, and if the row is shifted by the same number that
        masks this key. At the end of a causal map, causality alone hides a key, which proves nothing: those rows are
        kept, and so are all rows that a kept row looks at, and those between them, which a trace keeps too.

        Args:
            tokens: positions of the queries among the keys.
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
        kept = far & ~(padding & ~span(seen)[tokens])
        while kept.any():
            padding &= ~kept
            seen |= self.seen(kept)
            kept = padding & span(seen)[tokens]
        return padding if padding.any() else None

    def _sees_ahead(self, some: np.ndarray, places: np.ndarray) -> bool:
        """Return True if any of these rows looks at a key after its own position."""
        columns = torch.arange(self.mask.shape[2], device=self.mask.device)
        positions = torch.from_numpy(places).to(columns.device)
        flags = self._flags(some)
        return any(
            bool((self.allowed(rows).any(0) & (columns > positions[rows, None]) & flags[rows, None]).any())
            for rows in self.blocks()
        )

    def _flags(self, some: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(some).to(self.mask.device)

    def _below(self, rows: slice) -> torch.Tensor | None:
        """Each cell minus the highest value of its row, NaN in rows of -inf; None if the mask is bool."""
        if self.top is None:
            return None
        block = self.mask[:, rows]
        if not self._shifted:
            return block
        wide = torch.promote_types(block.dtype, torch.float32)
        return block.to(wide) - self.top[:, rows, None].to(wide)

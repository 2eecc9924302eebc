"""Guess the rule behind a mask's cells, or the table behind a bias, and compare it with every cell.

A mask's rule (padding, causal, window) is guessed from each query's first and last key; where no rule reproduces every
cell, the mask stays a dense bias. headscope.live.masks.analyst says what masks there are, and keeps what was found.

A position bias that a model passes to its attention is a map of all pairs, but it is usually made from a small table:
T5's and MPNet's from a number per head and distance, ALiBi from a number per head and key. The table is read from a few
cells and then compared with every cell, a block of queries at a time; if any cell differs, the bias is kept as it is.

`Levels` read a numeric mask as softmax does, relative to the highest value of each query's row. Adding a number to a
whole row doesn't change its softmax. So a cell is masked if it is -inf, False, or far below the highest value of its
row. A row that is far below 0 as a whole belongs to a padding query, or to an ordinary query whose row is shifted: see
`padding`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
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
    between: np.ndarray = np.logical_or.accumulate(flags) & np.logical_or.accumulate(flags[::-1])[::-1]
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

    def has_numbers(self, padding: np.ndarray | None) -> bool:
        """Return True if rows that are not padding contain numbers other than 0 in cells that are not masked."""
        for rows in self.blocks():
            if (below := self._below(rows)) is None:
                return False
            flags = ((self.mask[:, rows] != 0) & (below > self.negligible)).any(-1).any(0).cpu().numpy()
            if (flags if padding is None else flags & ~padding[rows]).any():
                return True
        return False

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


Allowed = Callable[[slice], torch.Tensor]
"""Rows of the map -> (1, n, keys), True for the cells that the mask allows."""


def terms_of(bias: torch.Tensor | Cells, queries: int, allowed: Allowed | None = None) -> Terms | None:
    """The terms that a bias consists of; None if it depends on more than the key or the distance.

    Args:
        bias: (1 or heads, 1 or queries, keys).
        queries: number of queries.
        allowed: the cells to compare; None for all, which must then be finite.
    """
    if isinstance(bias, torch.Tensor) and bias.stride(1) == 0:
        bias = bias[:, :1]
    by_key = _by_key(bias, allowed)
    if by_key is not None:
        return Terms(by_key=by_key)
    return None if allowed is not None or bias.shape[1] != queries else _by_distance(bias)


def _small(table: torch.Tensor) -> bool:
    """Return True for numbers that are added to scores, not used to mask them or to shift whole rows."""
    return bool((table.abs() < -NEGLIGIBLE).all())


def _by_key(bias: torch.Tensor | Cells, allowed: Allowed | None) -> torch.Tensor | None:
    """(1 or heads, keys), the number of each key; None if the rows differ."""
    if allowed is None:
        table = bias[:, -1]
        same = all(bool((bias[:, rows] == table[:, None]).all()) for rows in row_blocks(*bias.shape))
    else:
        table = torch.full_like(bias[:, 0], float("-inf"))
        for rows in row_blocks(*bias.shape):
            table = torch.maximum(table, bias[:, rows].masked_fill(~allowed(rows), float("-inf")).amax(1))
        same = all(bool(((bias[:, rows] == table[:, None]) | ~allowed(rows)).all()) for rows in row_blocks(*bias.shape))
        table = table.masked_fill(table == float("-inf"), 0)  # keys that no query sees
    return table.to(torch.float32, copy=True) if same and _small(table) else None


def _by_distance(bias: torch.Tensor | Cells) -> Terms | None:
    """The number of each distance, as a table of distinct columns; None if a diagonal has different numbers."""
    table = line_of(bias)
    if table is None or not _small(table):
        return None
    columns, buckets = torch.unique(table, dim=1, return_inverse=True)
    return Terms(buckets=buckets.to(torch.int32).cpu().numpy(), by_distance=columns.float())


def line_of(bias: torch.Tensor | Cells) -> torch.Tensor | None:
    """(1 or heads, queries + keys - 1), the number of each distance; None if a diagonal has different numbers."""
    queries, keys = bias.shape[1:]
    table = torch.cat([bias[:, :, 0].flip(1), bias[:, 0, 1:]], 1)
    for rows in row_blocks(*bias.shape):
        # Query i sees the distances of keys 0, 1, … in the columns from queries - 1 - i on.
        expected = table[:, queries - rows.stop : queries + keys - 1 - rows.start].unfold(1, keys, 1).flip(1)
        if not torch.equal(bias[:, rows], expected):
            return None
    return table


def first_keys(part: torch.Tensor | Cells, keys: int) -> Any:
    """The part of a map for the first keys."""
    return part.of(keys=keys) if isinstance(part, Cells) else part[..., :keys]


def levels_of(mask: torch.Tensor | Cells, negligible: float, where: str) -> Levels:
    """The mask of one row of the batch, (1 or heads, 1 or queries, keys), with identical rows and heads merged."""
    if isinstance(mask, torch.Tensor):
        mask = mask[:, :1] if mask.shape[-2] == 1 or mask.stride(-2) == 0 else mask
        mask = mask[:1] if mask.stride(0) == 0 else mask
    levels = Levels(mask, negligible, where)
    if len(mask) < 2 or not _alike(mask[:, rows] for rows in levels.blocks()):
        return levels
    return Levels(mask.of(heads=1) if isinstance(mask, Cells) else mask[:1], negligible, where)


def _alike(parts: Iterable[torch.Tensor]) -> bool:
    """Return True if all heads have the same cells."""
    return all(bool((part[1:] == part[:1]).all()) for part in parts)


def rule_of(levels: Levels, queries: int, keys: int, tokens: slice | None) -> tuple[Mask, Terms]:
    """The rule of one row of the batch, or its mask as a dense bias if no rule fits; and what it adds by key.

    Models that add ALiBi to their causal mask pass a mask with a number for each key.
    """
    heads, rows, _ = levels.mask.shape
    padding = levels.padding(tokens) if tokens is not None and rows > 1 else None
    real = levels.seen(None if padding is None else ~padding)
    shown = Mask(keys=None if real.all() else real)
    plain = heads == 1 and not levels.has_numbers(padding)
    rule = None
    if plain or _alike(map(levels.allowed, levels.blocks())):
        rule = shown if rows == 1 else _guess(levels, real, queries, keys, tokens)
    terms = NO_TERMS if plain else None
    if rule is not None and not plain:
        kept = torch.ones(rows, dtype=torch.bool, device="cpu")
        if tokens is not None and rows > 1:
            kept = torch.from_numpy(span(real)[tokens])

        def compared(rows: slice) -> torch.Tensor:
            return levels.allowed(rows)[:1] & kept[rows].to(levels.mask.device)[None, :, None]

        terms = terms_of(levels.mask, queries, compared)
    if rule is None or terms is None:
        return replace(shown, bias=levels.bias().expand(-1, queries, -1)), NO_TERMS
    return rule, terms


def _guess(levels: Levels, real: np.ndarray, queries: int, keys: int, tokens: slice | None) -> Mask | None:
    """The rule of a mask of one head; None if no rule reproduces the mask cell for cell.

    Args:
        real: (keys,) bool, True for keys that are not padding.
    """
    blocks = (levels.allowed(rows)[0] for rows in levels.blocks())
    ends = [(x.any(1), x.byte().argmax(1), keys - 1 - x.flip(1).byte().argmax(1)) for x in blocks]
    compared, first, last = (torch.cat(side).cpu().numpy() for side in zip(*ends, strict=True))
    kept = np.ones(queries, dtype=bool) if tokens is None else span(real)[tokens]
    compared = compared & kept
    if not compared.any():
        return Mask(keys=real) if not real.any() else None
    place = np.arange(queries) + keys - queries
    lowest, highest = int(np.flatnonzero(real)[0]), int(np.flatnonzero(real)[-1])
    right = int((last - place)[compared].max())
    left = int((place - first)[compared].max())
    causal = right <= 0
    bounded_left = bool((compared & (place - lowest > left)).any())
    bounded_right = not causal and bool((compared & (highest - place > right)).any())
    window = (left if bounded_left else None, right if bounded_right else None)
    rule = Mask(
        causal=causal and queries > 1,
        window=window if window != (None, None) else None,
        keys=None if real.all() else real,
    )
    columns = np.arange(keys)
    for part in levels.blocks():
        rows = np.arange(part.start, part.stop)[kept[part]]
        if not len(rows):
            continue
        expected = levels.allowed(part)[0].cpu().numpy()[kept[part]]
        predicted = rule.allowed(rows, columns, (queries, keys))
        if not (expected.all() if predicted is None else np.array_equal(predicted, expected)):
            return None
    return rule

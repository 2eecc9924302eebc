"""Guess the rule behind a mask's cells, or the table behind a bias, and compare it with every cell.

A mask's rule (padding, causal, window) is guessed from each query's first and last key; where no rule reproduces every
cell, the mask stays a dense bias. headscope.live.masks.analyst says what masks there are, and keeps what was found.

A position bias that a model passes to its attention is a map of all pairs, but it is usually made from a small table:
T5's and MPNet's from a number per head and distance, ALiBi from a number per head and key. The table is read from a few
cells and then compared with every cell, a block of queries at a time; if any cell differs, the bias is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
from headscope.live.masks.cells import Cells, row_blocks
from headscope.live.masks.levels import NEGLIGIBLE, Levels, span

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
    queries, keys = bias.shape[1:]
    table = torch.cat([bias[:, :, 0].flip(1), bias[:, 0, 1:]], 1)
    if not _small(table):
        return None
    for rows in row_blocks(*bias.shape):
        # Query i sees the distances of keys 0, 1, … in the columns from queries - 1 - i on.
        expected = table[:, queries - rows.stop : queries + keys - 1 - rows.start].unfold(1, keys, 1).flip(1)
        if not torch.equal(bias[:, rows], expected):
            return None
    columns, buckets = torch.unique(table, dim=1, return_inverse=True)
    return Terms(buckets=buckets.to(torch.int32).cpu().numpy(), by_distance=columns.float())


def first_keys(part: torch.Tensor | Cells, keys: int) -> Any:
    """The part of a map for the first keys."""
    return part.of(keys=keys) if isinstance(part, Cells) else part[..., :keys]


def levels_of(mask: torch.Tensor | Cells, negligible: float, where: str) -> Levels:
    """The mask of one row of the batch, (1 or heads, 1 or queries, keys), with identical rows and heads merged."""
    if isinstance(mask, Cells):
        levels = Levels(mask, negligible, where)
        return Levels(mask.of(heads=1), negligible, where) if _alike(levels) else levels
    if mask.shape[-2] == 1 or mask.stride(-2) == 0:
        mask = mask[:, :1]
    if mask.stride(0) == 0:
        mask = mask[:1]
    levels = Levels(mask, negligible, where)
    return Levels(mask[:1], negligible, where) if _alike(levels) else levels


def _alike(levels: Levels) -> bool:
    """Return True if there are several heads and all have the same mask."""
    mask = levels.mask
    return len(mask) > 1 and all(
        bool((part[1:] == part[:1]).all()) for part in (mask[:, rows] for rows in levels.blocks())
    )


def rule_of(levels: Levels, queries: int, keys: int, tokens: slice | None) -> tuple[Mask, Terms]:
    """The rule of one row of the batch, or its mask as a dense bias if no rule fits; and what it adds by key."""
    heads, rows, _ = levels.mask.shape
    padding = levels.padding(tokens) if tokens is not None and rows > 1 else None
    real = levels.seen(None if padding is None else ~padding)
    if heads > 1 or _numbers(levels, padding):
        return _numeric(levels, real, queries, keys, tokens)
    if rows == 1:
        return Mask(keys=real), NO_TERMS
    rule = _guess(levels, real, queries, keys, tokens)
    if rule is None:
        return Mask(keys=None if real.all() else real, bias=levels.bias()), NO_TERMS
    return rule, NO_TERMS


def _numeric(levels: Levels, real: np.ndarray, queries: int, keys: int, tokens: slice | None) -> tuple[Mask, Terms]:
    """A mask with numbers, or one that differs between heads: a rule and a number for each key, or a dense bias.

    Models that add ALiBi to their causal mask pass such a mask.
    """
    alike = all(bool((allowed[1:] == allowed[:1]).all()) for allowed in map(levels.allowed, levels.blocks()))
    rows, rule = levels.mask.shape[1], None
    kept = torch.ones(rows, dtype=torch.bool)
    if levels.top is not None and alike and rows == 1:
        rule = Mask(keys=None if real.all() else real)
    elif levels.top is not None and alike:
        rule = _guess(levels, real, queries, keys, tokens)
        kept = kept if tokens is None else torch.from_numpy(span(real)[tokens])

    def compared(rows: slice) -> torch.Tensor:
        return levels.allowed(rows)[:1] & kept[rows].to(levels.mask.device)[None, :, None]

    terms = None if rule is None else terms_of(levels.mask, queries, compared)
    if rule is not None and terms is not None:
        return rule, terms
    return Mask(keys=None if real.all() else real, bias=levels.bias().expand(-1, queries, -1)), NO_TERMS


def _numbers(levels: Levels, padding: np.ndarray | None) -> bool:
    """Return True if rows that are not padding contain numbers other than 0 in cells that are not masked."""
    for rows in levels.blocks():
        flags = levels.numbers(rows).cpu().numpy()
        if (flags if padding is None else flags & ~padding[rows]).any():
            return True
    return False


def _guess(levels: Levels, real: np.ndarray, queries: int, keys: int, tokens: slice | None) -> Mask | None:
    """The rule of a mask of one head; None if no rule reproduces the mask cell for cell.

    Args:
        real: (keys,) bool, True for keys that are not padding.
    """
    firsts, lasts, anys = [], [], []
    for rows in levels.blocks():
        block = levels.allowed(rows)[0]
        anys.append(block.any(1))
        firsts.append(block.byte().argmax(1))
        lasts.append(keys - 1 - block.flip(1).byte().argmax(1))
    first, last = torch.cat(firsts).cpu().numpy(), torch.cat(lasts).cpu().numpy()
    compared = torch.cat(anys).cpu().numpy()
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

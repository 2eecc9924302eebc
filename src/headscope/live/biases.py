"""Recognise biases that are score terms: numbers that depend only on the key, or only on the distance.

A position bias that a model passes to its attention is a map of all pairs, but it is usually made from a small table:
T5's and MPNet's from a number per head and distance, ALiBi from a number per head and key. The table is read from a few
cells and then compared with every cell, a block of queries at a time; if any cell differs, the bias is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from headscope.attention.terms import Terms
from headscope.live.cells import Cells, row_blocks
from headscope.live.levels import NEGLIGIBLE

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

"""Attention of some queries, or within a window, in blocks of queries and the keys that they see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import Mask, scores
from headscope.attention.terms import NO_TERMS, Terms
from headscope.results.tiled import TILE_CELLS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

FEWEST_ROWS = 16
"""Queries in a block, at least: fewer would spend their time on calls instead of products."""


def attend_nearby(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    v: Float[np.ndarray, "kv_heads keys d_value"],
    *,
    scale: float,
    mask: Mask,
    terms: Terms = NO_TERMS,
    places: Int[np.ndarray, " queries"],
) -> tuple[Float[np.ndarray, "heads queries d_value"], Float[np.ndarray, "heads queries"]]:
    """Contexts (heads, queries, d_value) and log-sum-exps (heads, queries), as `attention.scores.attend` gives.

    Each block of queries is multiplied with the keys that some query of it sees, and with no others. So a text of S
    tokens and a window of w keys cost S w products and the memory of one block.

    Args:
        q: some of the queries, in ascending order of their positions.
        k: all keys.
        v: all values.
        scale: factor of q . k.
        mask: the mask of the whole map; every query sees at least one key.
        terms: what the model adds to scale * q . k over the whole map.
        places: positions of the queries among the keys.
    """
    heads, queries, _ = q.shape
    kv_heads, keys, d_value = v.shape
    shared = heads // kv_heads
    context = np.empty((heads, queries, d_value), dtype=q.dtype)
    lse = np.empty((heads, queries), dtype=q.dtype)
    first, end = mask.reach(places, keys)
    width = int((end - first).max(initial=1))
    # n queries side by side reach n + width keys, so that heads * n * (n + width) cells fit in a tile
    step = max(FEWEST_ROWS, int((width**2 / 4 + TILE_CELLS / heads) ** 0.5 - width / 2))
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        low, high = int(first[rows].min()), int(end[rows].max())
        columns = np.arange(low, high)
        tile = scores(
            q[:, rows],
            k[:, low:high],
            scale=scale,
            mask=mask,
            terms=terms,
            rows=places[rows],
            columns=columns,
            sizes=(keys, keys),
        )
        highest = tile.max(-1, keepdims=True)
        tile -= highest
        np.exp(tile, out=tile)
        total = tile.sum(-1)
        grouped = tile.reshape(kv_heads, shared, *tile.shape[1:])
        mixed = (grouped @ v[:, None, low:high]).reshape(heads, -1, d_value)
        context[:, rows] = mixed / total[..., None]
        lse[:, rows] = np.log(total) + highest[..., 0]
    return context, lse

"""Attention in NumPy: of every token to every token in few passes, or within a window in linear time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import Mask, scores
from headscope.attention.terms import NO_TERMS, Terms
from headscope.results import lazy_maps

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int

    Scratch = Callable[[str, tuple[int, ...]], Float[np.ndarray, "..."]]

TILE_CELLS = 1 << 17
"""Maximum number of cells of a tile: 512 KiB, which stay in a core's cache through all passes."""

LARGEST_EXPONENT = 60.0
"""Scores from -60 to 60 need no shift: exp is at most 1e26 and at least 1e-26, far within fp32's normal numbers."""

FEWEST_ROWS = 16
"""Queries in a block, at least: fewer would spend their time on calls instead of products."""


def attend_everywhere(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    v: Float[np.ndarray, "kv_heads keys d_value"],
    *,
    scale: float,
    scratch: Scratch,
) -> tuple[Float[np.ndarray, "heads queries d_value"], Float[np.ndarray, "heads queries"]]:
    """Contexts (heads, queries, d_value) and log-sum-exps (heads, queries), as `attention.scores.attend` gives.

    No score is larger in absolute value than max |q_i| max |k_j| (Cauchy and Schwarz). If that is small, the highest
    score of a row needn't be found and subtracted before exp.

    Args:
        q: queries.
        k: all keys.
        v: all values.
        scale: factor of q . k.
        scratch: gives an array to overwrite, by its purpose and shape.
    """
    heads, queries, _ = q.shape
    kv_heads, keys, d_value = v.shape
    shared = heads // kv_heads
    context = np.empty((queries, heads, d_value), dtype=q.dtype).swapaxes(0, 1)  # in the order of join_heads
    lse = np.empty((heads, queries), dtype=q.dtype)
    scaled = np.multiply(q, np.float32(scale), out=scratch("scaled", q.shape))
    bound = _longest(scaled) * np.repeat(_longest(k), shared)
    small = bound < LARGEST_EXPONENT  # False where it is NaN
    ones = np.ones(keys, dtype=q.dtype)
    together = max(1, TILE_CELLS // (queries * keys)) if shared == 1 else 1
    step = max(1, TILE_CELLS // keys)
    for first in range(0, heads, together):
        some = slice(first, min(first + together, heads))
        pairs = some if shared == 1 else slice(first // shared, first // shared + 1)
        for start in range(0, queries, step):
            rows = slice(start, min(start + step, queries))
            tile = scratch("tile", (some.stop - some.start, rows.stop - rows.start, keys))
            np.matmul(scaled[some, rows], k[pairs].swapaxes(-1, -2), out=tile)
            highest = None
            if not small[some].all():
                highest = tile.max(-1, keepdims=True)
                tile -= highest
            np.exp(tile, out=tile)
            total = tile @ ones
            mixed = np.matmul(tile, v[pairs], out=context[some, rows])
            mixed /= total[..., None]
            np.log(total, out=total)
            lse[some, rows] = total if highest is None else total + highest[..., 0]
    return context, lse


def _longest(x: Float[np.ndarray, "heads tokens d_head"]) -> Float[np.ndarray, " heads"]:
    """(heads,): the largest norm of a head's vectors."""
    return np.sqrt(np.einsum("htd,htd->ht", x, x).max(axis=-1))


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
    step = max(FEWEST_ROWS, int((width**2 / 4 + lazy_maps.TILE_CELLS / heads) ** 0.5 - width / 2))
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

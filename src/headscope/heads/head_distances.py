"""Distances: Jensen-Shannon's between all pairs of heads, in blocks of queries; of vectors, in their lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import softmax_rows
from headscope.errors import TraceError
from headscope.heads.reference import roles_of
from headscope.results.head_values import HeadDistances
from headscope.results.lazy_maps import TILE_CELLS

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.traces import Trace


def head_distances(trace: Trace, *, special: bool = True) -> HeadDistances:
    """The Jensen-Shannon distances between heads, (heads_total, heads_total), layer 0's heads first.

        D_ab = sqrt(mean_i JS(p_a,i || p_b,i)),  JS(p || q) = H((p + q) / 2) - (H(p) + H(q)) / 2    in nats

    D is 0 if two heads have the same weights, and sqrt(log 2) = 0.83 if they never look at the same key. Each query's
    JS is the square of a metric (Endres and Schindelin 2003), so D is a metric, too. Clark et al. 2019, section 6, sum
    JS over tokens: their number is queries * D^2. Time is quadratic in heads and in tokens; memory isn't.

    Args:
        trace: whose heads to compare.
        special: include queries that the tokenizer added. Queries without a key in some head are always excluded.

    Raises:
        TraceError: no query is left.
    """
    roles = roles_of(trace)
    heads = sum(len(record.q) for record in trace.layers)
    queries, keys = len(trace.queries), len(trace.keys)
    use = np.ones(queries, dtype=bool) if special else ~roles.query_special
    for record in trace.layers:
        use &= np.isfinite(record.lse).all(0)
    if not use.any():
        raise TraceError(
            "no query is left to compare heads on",
            where="trace.head_distances",
            advice="special=True includes special tokens",
        )
    step = max(1, 4 * TILE_CELLS // max(1, heads * keys))
    total = np.zeros((heads, heads))
    for start in range(0, queries, step):
        rows = np.flatnonzero(use[start : start + step]) + start
        if len(rows):
            total += _divergences(_rows(trace, rows))
    distances = np.sqrt(np.clip(total / use.sum(), 0, np.log(2.0))).astype(np.float32)
    return HeadDistances.of(distances, [(layer, head) for layer in trace.numbers for head in trace.head_numbers(layer)])


def _rows(trace: Trace, rows: np.ndarray) -> Float[np.ndarray, "heads_total cells"]:
    """The weights of some queries, flattened to one row per head."""
    tiles = []
    sinks = any(record.terms.sinks is not None for record in trace.layers)
    for record in trace.layers:
        q, k = record.q.astype(np.float32, copy=False), record.k.astype(np.float32, copy=False)
        cells = len(record.q) * len(rows) * k.shape[1]
        (part,) = softmax_rows(q, k, scale=record.scale, mask=record.mask, terms=record.terms, rows=rows, cells=cells)
        weights = part.weights
        if sinks:  # one more place in every row
            share = np.zeros_like(part.total) if part.sink_weights is None else part.sink_weights
            weights = np.concatenate([weights, share[..., None]], -1)
        tiles.append(weights.reshape(len(record.q), -1))
    return np.concatenate(tiles)


def _divergences(p: Float[np.ndarray, "heads_total cells"]) -> Float[np.ndarray, "heads_total heads_total"]:
    """JS between all pairs of heads, summed over a block's queries."""
    heads = len(p)
    entropies = _negative_entropies(p)
    sums = np.zeros((heads, heads))
    pairs = entropies[:, None] + entropies[None, :]
    for a in range(heads - 1):
        # With m = (p + q) / 2: sum m log m = (sum (p + q) log(p + q) - log 2 sum (p + q)) / 2.
        together = p[a + 1 :] + p[a]
        mixed = _negative_entropies(together) / 2 - np.log(2.0) * together.sum(-1, dtype=np.float64) / 2
        sums[a, a + 1 :] = pairs[a, a + 1 :] / 2 - mixed
    return sums + sums.T


def relative(a: Float[np.ndarray, "*n d"], b: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n"]:
    """|b - a| / |a| of each row in fp64: NaN where either has NaN; for 0, see `ratio`."""
    wide = a.astype(np.float64)
    return ratio(np.linalg.norm(b.astype(np.float64) - wide, axis=-1), np.linalg.norm(wide, axis=-1))


def ratio(change: Float[np.ndarray, "*n"], base: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """The change relative to the base: 0 where nothing changed, infinity where something came from nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(change == 0, 0.0, change / base)


def turned(a: Float[np.ndarray, "*n d"], b: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n"]:
    """1 - the cosine of each row of `a` and its counterpart in `b`, in fp64."""
    one, other = a.astype(np.float64), b.astype(np.float64)
    return 1 - (one * other).sum(-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1))


def _negative_entropies(p: Float[np.ndarray, "n cells"]) -> Float[np.ndarray, " n"]:
    """sum p log p of each row, 0 log 0 being 0."""
    logs = np.log(np.maximum(p, np.float32(1e-38)))
    sums: np.ndarray = np.einsum("nc,nc->n", p, logs, dtype=np.float64, casting="unsafe")
    return sums

"""The weights in blocks of queries, never a map of all pairs, and the means over queries that the page shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention import EVERYTHING, TILE_CELLS, Mask, scores
from headscope.statistics.definitions import allowed_counts, measured
from headscope.statistics.roles import Roles

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

STATISTICS = {
    "entropy": "entropy of a query's weights in nats; log S where every key weighs the same",
    "previous": "weight on the token before; without the first query",
    "next": "weight on the token after; without the last query",
    "same": "weight on the token itself",
    "first": "weight on the first token, [CLS] in BERT",
    "separator": "weight on the other special tokens, [SEP] in BERT",
    "distance": "mean distance between query and key, in tokens",
    "strongest": "the largest weight of a query",
}
"""What is measured, per query; a head's number is the mean over its queries."""


@dataclass(frozen=True)
class Block:
    """The weights of a few neighbouring queries of all heads.

    Attributes:
        rows: which queries.
        scores: (heads, n, keys), before the softmax; -inf where masked.
        weights: (heads, n, keys), after it; rows that see nothing are 0.
        lse: (heads, n), log-sum-exp of the scores, in fp64; -inf where a row sees nothing.
    """

    rows: slice
    scores: Float[np.ndarray, "heads n keys"]
    weights: Float[np.ndarray, "heads n keys"]
    lse: Float[np.ndarray, "heads n"]


def blocks(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
) -> Iterator[Block]:
    """A layer's weights in blocks of queries, each used and let go before the next."""
    heads, queries, _ = q.shape
    keys = k.shape[1]
    step = max(1, TILE_CELLS // max(1, heads * keys))
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        positions = np.arange(rows.start, rows.stop)
        tile = scores(
            q[:, rows], k, scale=scale, mask=mask, rows=positions, columns=np.arange(keys), sizes=(queries, keys)
        )
        highest = tile.max(-1, keepdims=True)
        if not mask.everything:  # as in headscope.attention.attend
            highest = np.where(np.isneginf(highest), np.float32(0), highest)
        weights = np.exp(tile - highest)
        total = weights.sum(-1)
        unseen = total == 0
        safe = np.where(unseen, np.float32(1), total)
        weights /= safe[..., None]
        lse = np.where(unseen, -np.inf, np.log(safe.astype(np.float64)) + highest[..., 0])
        yield Block(rows, tile, weights, lse)


def block_statistics(
    block: Block, special: Bool[np.ndarray, " keys"], queries: int
) -> dict[str, Float[np.ndarray, "heads n"]]:
    """Every statistic of a block's queries, (heads, n) each; NaN where a query has no such neighbour.

    Args:
        special: which keys the tokenizer added; the first key counts as `first`, all others as `separator`.
        queries: how many queries the whole map has. Query i stands at key i + keys - queries.
    """
    weights = block.weights
    _, n, keys = weights.shape
    at = np.arange(block.rows.start, block.rows.stop) + keys - queries
    positions = np.arange(keys)
    others = special.copy()
    others[:1] = False

    def on(offset: int) -> Float[np.ndarray, "heads n"]:
        there = (at + offset >= 0) & (at + offset < keys)
        taken = weights[:, np.arange(n), np.clip(at + offset, 0, keys - 1)]
        return np.where(there, taken, np.float32(np.nan))

    seen = ~np.isneginf(block.lse)
    expected = np.einsum("hnm,hnm->hn", weights, np.where(weights > 0, block.scores, np.float32(0)))
    entropy = np.where(seen, np.where(seen, block.lse, 0) - expected, np.float32(0))
    gaps = np.abs(positions[None, :] - at[:, None]).astype(np.float32)
    return {
        "entropy": np.maximum(entropy, 0),
        "previous": on(-1),
        "next": on(1),
        "same": on(0),
        "first": weights[..., 0],
        "separator": weights[..., others].sum(-1),
        "distance": np.einsum("hnm,nm->hn", weights, gaps),
        "strongest": weights.max(-1),
    }


def measured_statistics(
    block: Block, roles: Roles, mask: Mask, queries: int
) -> dict[str, Float[np.ndarray, "heads n"]]:
    """As block_statistics; NaN wherever there is nothing to measure, by the rules of docs/statistics.md."""
    found = block_statistics(block, roles.special, queries)
    use = measured(found, allowed_counts(mask, queries, len(roles.special))[None], mask, roles)
    seeing = ~np.isneginf(block.lse)  # a bias, too, may leave a query no key
    return {name: np.where(seeing & use[name][:, block.rows], values, np.nan) for name, values in found.items()}


def head_statistics(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    *,
    scale: float,
    special: Bool[np.ndarray, " keys"],
    mask: Mask = EVERYTHING,
    aligned: bool = True,
) -> dict[str, Float[np.ndarray, " heads"]]:
    """Every statistic of a layer's heads, (heads,) each: the mean over the queries that have one.

    Args:
        aligned: whether queries and keys are one sequence; False in cross-attention.
    """
    queries = q.shape[1]
    roles = replace(Roles.none(queries, k.shape[1]), special=special, aligned=aligned)
    parts = [measured_statistics(block, roles, mask, queries) for block in blocks(q, k, scale=scale, mask=mask)]
    return mean_over_queries(parts)


def mean_over_queries(parts: list[dict[str, Float[np.ndarray, "heads n"]]]) -> dict[str, Float[np.ndarray, " heads"]]:
    """Blocks' statistics, averaged over all queries that have one; NaN where none has."""
    found = {}
    for name in parts[0] if parts else ():
        rows = np.concatenate([part[name] for part in parts], axis=-1)
        there = ~np.isnan(rows)
        count = there.sum(-1)
        found[name] = np.where(count > 0, np.where(there, rows, 0).sum(-1) / np.maximum(count, 1), np.nan)
    return found

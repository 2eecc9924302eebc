"""Every statistic from the weights themselves, in blocks of queries: the definitions, written out literally.

`reference_statistics` computes them in fp64, and the fast ways are tested against it. The page, which shows three
digits, computes the same formulas in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention import EVERYTHING, Mask, Rows, softmax_rows
from headscope.statistics.catalog import CELLS, MASSES, chosen, need_values
from headscope.statistics.measurable import allowed_counts, measured
from headscope.statistics.norms import norms_from, value_norms
from headscope.statistics.roles import Roles
from headscope.terms import NO_TERMS, Terms

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    PerQuery = Float[np.ndarray, "heads n"]


@dataclass(frozen=True, eq=False)
class Block:
    """A few queries of all heads, with the quantities that the formulas share.

    Attributes:
        rows: the softmax of these queries, with their scores.
        roles: of the tokens.
        mask: of the whole map.
        queries: number of queries in the whole map. Query i is at key i + keys - queries.
        norms: (heads, keys), |v_j W_O|; None if no statistic needs it.
    """

    rows: Rows
    roles: Roles
    mask: Mask
    queries: int
    norms: Float[np.ndarray, "heads keys"] | None = None

    @property
    def weights(self) -> Float[np.ndarray, "heads n keys"]:
        """p_ij, (heads, n, keys); 0 for a query without keys."""
        return self.rows.weights

    @property
    def keys(self) -> int:
        """Number of keys."""
        return len(self.roles.special)

    @cached_property
    def at(self) -> Int[np.ndarray, " n"]:
        """The key at each query's own position, (n,)."""
        return self.rows.rows + self.keys - self.queries

    @cached_property
    def offsets(self) -> Float[np.ndarray, "n keys"]:
        """j - i, from the query to the key, (n, keys)."""
        return (np.arange(self.keys)[None, :] - self.at[:, None]).astype(self.weights.dtype)

    @cached_property
    def counts(self) -> Int[np.ndarray, "heads_or_1 n"]:
        """Number of keys that each query may look at, (heads or 1, n)."""
        if self.mask.bias is None:
            return allowed_counts(self.mask, self.queries, self.keys)[None, self.rows.rows]
        assert self.rows.scores is not None
        return (self.rows.scores > -np.inf).sum(-1)

    @cached_property
    def entropy(self) -> PerQuery:
        """lse_i - sum_j p_ij s_ij, (heads, n), with a sink as one more place; 0 for a query without keys."""
        seeing = ~np.isneginf(self.rows.lse)
        return np.maximum(np.where(seeing, np.where(seeing, self.rows.lse, 0) - self.rows.energy, 0), 0)

    @cached_property
    def norm(self) -> PerQuery:
        """sum_j p_ij |v_j W_O|, (heads, n)."""
        assert self.norms is not None
        return np.einsum("hnm,hm->hn", self.weights, self.norms)


def cell(block: Block, offset: int) -> PerQuery:
    """p_i,i+offset, 0 beyond the ends."""
    place = block.at + offset
    inside = (place >= 0) & (place < block.keys)
    picked = block.weights[:, np.arange(len(place)), np.clip(place, 0, block.keys - 1)]
    return np.where(inside, picked, 0)


def mass(block: Block, role: str) -> PerQuery:
    """sum of p_ij over keys j of a role."""
    summed: PerQuery = block.weights[..., getattr(block.roles, role)].sum(-1)
    return summed


def normalised_entropy(block: Block) -> PerQuery:
    """H_i / log n_i; a sink counts as one more place."""
    return block.entropy / np.log(block.counts + (block.rows.sinks is not None))


def effective_tokens(block: Block) -> PerQuery:
    """1 / sum_j p_ij^2; a sink counts as one more place."""
    squares = np.einsum("hnm,hnm->hn", block.weights, block.weights)
    if block.rows.sink_weights is not None:
        squares += np.square(block.rows.sink_weights)
    return 1 / squares


def other_sentence(block: Block) -> PerQuery:
    """sum of p_ij over the tokens of the text that query i is not in."""
    keys, queries = block.roles.sentences, block.roles.query_sentences[block.rows.rows]
    others = (keys[None, :] >= 0) & (keys[None, :] != queries[:, None])
    summed: PerQuery = np.where(others, block.weights, 0).sum(-1)
    return summed


def offset(block: Block) -> PerQuery:
    """sum_j p_ij (j - i)."""
    return np.einsum("hnm,nm->hn", block.weights, block.offsets)


def distance(block: Block) -> PerQuery:
    """sum_j p_ij |j - i|."""
    return np.einsum("hnm,nm->hn", block.weights, np.abs(block.offsets))


def norm_special(block: Block) -> PerQuery:
    """sum of p_ij |v_j W_O| over special tokens j, divided by that over all."""
    assert block.norms is not None
    special = np.where(block.roles.special, block.norms, 0)
    return np.einsum("hnm,hm->hn", block.weights, special) / block.norm


FORMULAS: dict[str, Callable[[Block], PerQuery]] = {
    "entropy": lambda block: block.entropy,
    "normalised_entropy": normalised_entropy,
    "effective_tokens": effective_tokens,
    "strongest": lambda block: block.weights.max(-1),
    "first": lambda block: block.weights[..., 0],
    "other_sentence": other_sentence,
    "offset": offset,
    "distance": distance,
    "norm": lambda block: block.norm,
    "norm_special": norm_special,
    **{name: partial(cell, offset=place) for name, place in CELLS.items()},
    **{name: partial(mass, role=role) for name, role in MASSES.items()},
}
"""Name -> formula of a block's queries, (heads, n); undefined where there is nothing to measure."""


def block_statistics(block: Block, names: Sequence[str]) -> dict[str, PerQuery]:
    """These statistics of a block's queries, (heads, n) each; NaN where there is nothing to measure."""
    use = measured(names, block.counts, block.mask, block.roles, rows=block.rows.rows, queries=block.queries)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {name: FORMULAS[name](block) for name in names}
    nan = block.weights.dtype.type(np.nan)
    return {name: np.where(use[name], value, nan) for name, value in values.items()}


def reference_statistics(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    v: Float[np.ndarray, "kv_heads keys d_value"] | None = None,
    *,
    scale: float,
    roles: Roles,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
    W_O: Float[np.ndarray, "heads d_value d_model"] | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, Float[np.ndarray, "heads queries"]]:
    """Statistics of every query of a layer in fp64, (heads, queries) each; NaN where there is nothing to measure.

    Args:
        q: queries of the layer.
        k: its keys.
        v: for the norm-weighted statistics, which are left out without v and W_O.
        scale: factor of q . k.
        roles: of the tokens.
        mask: rules and bias.
        terms: what the model adds to scale * q . k.
        W_O: each head's rows of the output weight.
        names: of the statistics; None for all.

    Raises:
        InputError: there is no such statistic, or it needs v and W_O.
    """
    names = chosen(names, values=v is not None and W_O is not None)
    norms = None
    if need_values(names):
        values, output = norms_from(v, W_O, names)
        norms = value_norms(values.astype(np.float64), output.astype(np.float64))
    wide = (q.astype(np.float64), k.astype(np.float64))
    parts = [
        block_statistics(Block(rows, roles, mask, q.shape[1], norms), names)
        for rows in softmax_rows(*wide, scale=scale, mask=mask, terms=terms, keep_scores=True)
    ]
    if not parts:
        return {name: np.zeros(q.shape[:2]) for name in names}
    return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in names}


def head_means(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    *,
    scale: float,
    roles: Roles,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
    names: Sequence[str],
) -> dict[str, Float[np.ndarray, " heads"]]:
    """Statistics of a layer's heads, (heads,) each, in the precision of q and k; NaN where no query has one."""
    return mean_over_queries(
        [
            block_statistics(Block(rows, roles, mask, q.shape[1]), names)
            for rows in softmax_rows(q, k, scale=scale, mask=mask, terms=terms, keep_scores=True)
        ]
    )


def mean_over_queries(parts: list[dict[str, PerQuery]]) -> dict[str, Float[np.ndarray, " heads"]]:
    """Statistics of blocks, averaged over all queries that have them; NaN if none has."""
    means = {}
    for name in parts[0] if parts else ():
        rows = np.concatenate([part[name] for part in parts], axis=-1)
        counted = ~np.isnan(rows)
        count = counted.sum(-1)
        means[name] = np.where(count > 0, np.where(counted, rows, 0).sum(-1) / np.maximum(count, 1), np.nan)
    return means

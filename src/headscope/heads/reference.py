"""Every statistic from the weights themselves, in blocks of queries: the definitions, written out literally.

`reference_statistics` computes them in fp64, and the fast ways are tested against it. The page and the overview, which
show few digits, compute the same formulas in the precision of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import Mask, Rows, softmax_rows
from headscope.heads.catalog import CELLS, MASSES, chosen, need_values
from headscope.heads.norms import LayerArrays, norms_from, value_norms
from headscope.heads.roles import Roles, allowed_counts, measured

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
    position = block.at + offset
    inside = (position >= 0) & (position < block.keys)
    picked = block.weights[:, np.arange(len(position)), np.clip(position, 0, block.keys - 1)]
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
    return np.einsum("hnm,nm->hn", block.weights, others.astype(block.weights.dtype))


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
    **{name: partial(cell, offset=gap) for name, gap in CELLS.items()},
    **{name: partial(mass, role=role) for name, role in MASSES.items()},
}
"""Name -> formula of a block's queries, (heads, n); undefined where there is nothing to measure."""


def measured_blocks(
    layer: LayerArrays,
    roles: Roles,
    names: Sequence[str],
    *,
    rows: Int[np.ndarray, " n"] | None = None,
    cells: int | None = None,
    dtype: type[np.floating] | None = None,
) -> Iterator[tuple[Rows, dict[str, PerQuery]]]:
    """A layer in blocks of queries: their softmax, and the statistics of each; NaN where there is nothing to measure.

    Args:
        layer: of a trace, in whatever precision.
        roles: of the tokens.
        names: of the statistics, in the order of CATALOG.
        rows: positions of the queries; all by default.
        cells: most cells of a block; see `softmax_rows`.
        dtype: to compute in; by default that of q and k.

    Raises:
        InputError: a statistic needs v and W_O.
    """

    def cast(array: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return array if dtype is None else array.astype(dtype)

    # What is cast is bound to no name: memory held beside the blocks makes the allocator map fresh pages for each.
    norms = value_norms(*map(cast, norms_from(layer.v, layer.W_O, names))) if need_values(names) else None
    assert isinstance(layer.mask, Mask)
    for part in softmax_rows(
        cast(layer.q),
        cast(layer.k),
        scale=layer.scale,
        mask=layer.mask,
        terms=layer.terms,  # type: ignore[arg-type]  # those of one row
        rows=rows,
        cells=cells,
        keep_scores=True,
    ):
        yield part, _measured_block(Block(part, roles, layer.mask, layer.q.shape[1], norms), names)


def _measured_block(block: Block, names: Sequence[str]) -> dict[str, PerQuery]:
    """The statistics of a block's queries; NaN where there is nothing to measure."""
    use = measured(names, block.counts, block.mask, block.roles, rows=block.rows.rows, queries=block.queries)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {name: FORMULAS[name](block) for name in names}
    nan = block.weights.dtype.type(np.nan)
    return {name: np.where(use[name], value, nan) for name, value in values.items()}


def reference_statistics(
    layer: LayerArrays,
    roles: Roles,
    names: Iterable[str] | None = None,
    *,
    dtype: type[np.floating] | None = np.float64,
) -> dict[str, Float[np.ndarray, "heads queries"]]:
    """Statistics of every query of a layer from its weights; arguments and errors are those of `measure.measure`."""
    names = chosen(names, values=layer.v is not None and layer.W_O is not None)
    parts = [values for _, values in measured_blocks(layer, roles, names, dtype=dtype)]
    if not parts:
        return {name: np.zeros(layer.q.shape[:2]) for name in names}
    return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in names}


def over_queries(
    values: Float[np.ndarray, "*heads queries"], dtype: type[np.floating] | None = None
) -> Float[np.ndarray, "*heads"]:
    """The mean over the queries that have a value, summed in `dtype`, by default theirs; NaN if none has one."""
    defined = ~np.isnan(values)
    count = defined.sum(-1)
    total = np.where(defined, values, 0).sum(-1, dtype=dtype)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)

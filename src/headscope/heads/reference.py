"""Every statistic from the weights themselves, in blocks of queries: the definitions, written out literally.

`measure.measure` computes them in fp64, and `fast` is tested against it. The page and the overview, which show
few digits, compute the same formulas in the precision of the trace. Before them stand the roles of a trace's
tokens ([CLS], [SEP], punctuation, texts of a pair) and the queries that have each statistic; for the other queries it
is NaN, by the rules of docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import EVERYTHING, Mask, Rows, softmax_rows
from headscope.attention.terms import NO_TERMS, Array, Terms, namespace
from headscope.errors import InputError
from headscope.heads.catalog import CATALOG, CELLS, MASSES, ROLE_TOKENS, need_values
from headscope.results.arrays import full
from headscope.results.tokens import punctuation

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope.results.tokens import TokenAxis
    from headscope.traces import LayerRecord, Trace

    PerQuery = Float[np.ndarray, "heads n"]


@dataclass(frozen=True, eq=False)
class LayerArrays:
    """A layer to measure: arrays of NumPy, or tensors, which may have a batch axis.

    Attributes:
        q: (heads, queries, d_head).
        k: (kv_heads, keys, d_head).
        v: (kv_heads, keys, d_value), for the norm-weighted statistics alone.
        scale: factor of q . k.
        mask: rules and bias; of a batch one for all rows, or one for each, which may differ only in `keys`.
        terms: what the model adds to scale * q . k; of a batch for all rows, or for each.
        W_O: (heads, d_value, d_model), each head's rows of the output weight; likewise for the norms.
    """

    q: Array
    k: Array
    v: Array | None = None
    scale: float = 1.0
    mask: Mask | Sequence[Mask] = EVERYTHING
    terms: Terms | Sequence[Terms] = NO_TERMS
    W_O: Array | None = None

    @staticmethod
    def of(record: LayerRecord, W_O: Array | None = None) -> LayerArrays:
        """The layer of a trace, fp16 in fp32, for scores outgrow fp16; with its values if W_O is given."""
        v = None if W_O is None or record.v is None else full(record.v)
        return LayerArrays(full(record.q), full(record.k), v, record.scale, record.mask, record.terms, W_O)


def norms_from(v: Array | None, W_O: Array | None, names: Iterable[str]) -> tuple[Array, Array]:
    """Return v and W_O (or its gram), which the norm-weighted statistics among `names` need.

    Raises:
        InputError: one of them is missing.
    """
    if v is None or W_O is None:
        raise InputError(
            f"{', '.join(need_values(names))} requires v and W_O",
            where="statistics",
            advice="pass v (kv_heads, keys, d_value) and W_O (heads, d_value, d_model)",
        )
    return v, W_O


def value_norms(
    v: Float[Array, "... kv_heads keys d_value"], W_O: Float[Array, "heads d_value d_model"]
) -> Float[Array, "... heads keys"]:
    """|v_j W_O| of every head, (…, heads, keys)."""
    return norms_by_gram(v, gram_of(W_O))


def gram_of(W_O: Float[Array, "heads d_value d_model"]) -> Float[Array, "heads d_value d_value"]:
    """W_O W_O^T of every head, (heads, d_value, d_value): all that norms of v W_O depend on."""
    return W_O @ W_O.swapaxes(-1, -2)


def norms_by_gram(
    v: Float[Array, "... kv_heads keys d_value"], gram: Float[Array, "heads d_value d_value"]
) -> Float[Array, "... heads keys"]:
    """|v_j W_O| of every head, (…, heads, keys): the root of v_j W_O W_O^T v_j^T."""
    heads, d_value, _ = gram.shape
    kv_heads, keys, _ = v.shape[-3:]
    xp = namespace(v)
    # Squares of very large or small values leave fp32's range: a power of two, which changes no digit, keeps them in.
    peak = xp.amax(xp.abs(v), -1)[..., None]
    one = xp.ones_like(peak)
    factor = xp.where(peak > 2.0**40, one * 2.0**-70, xp.where(peak < 2.0**-40, one * 2.0**60, one))
    values = (v * factor)[..., None, :, :]
    grouped = gram.reshape(kv_heads, heads // kv_heads, d_value, d_value)
    squares = ((values @ grouped) * values).sum(-1)
    roots = xp.sqrt(xp.where(squares < 0, xp.zeros_like(squares), squares)) / factor[..., None, :, 0]
    return roots.reshape(*v.shape[:-3], heads, keys)


@dataclass(frozen=True, eq=False)
class Roles:
    """The roles of tokens that the statistics depend on.

    Attributes:
        cls, sep: (keys,), tokens that begin a text and tokens that end one.
        punctuation: (keys,), tokens of the text that are punctuation only.
        rarest: (keys,), tokens of the rarest word.
        special: (keys,), tokens that the tokenizer added.
        sentences: (keys,), 0 or 1 for tokens of the first or second text of a pair; -1 for special tokens, and for all
            tokens of a single text.
        query_sentences: (queries,), the same for queries.
        query_special: (queries,), queries that the tokenizer added.
        aligned: True if queries and keys are one sequence, so that query i is at key i + keys - queries. False in
            cross-attention, which has neither neighbours nor distances.
    """

    cls: Bool[np.ndarray, " keys"]
    sep: Bool[np.ndarray, " keys"]
    punctuation: Bool[np.ndarray, " keys"]
    rarest: Bool[np.ndarray, " keys"]
    special: Bool[np.ndarray, " keys"]
    sentences: Int[np.ndarray, " keys"]
    query_sentences: Int[np.ndarray, " queries"]
    query_special: Bool[np.ndarray, " queries"]
    aligned: bool = True

    @staticmethod
    def none(queries: int, keys: int) -> Roles:
        """The roles of a sequence of unknown tokens."""
        no = np.zeros(keys, dtype=bool)
        return Roles(no, no, no, no, no, np.full(keys, -1), np.full(queries, -1), np.zeros(queries, dtype=bool))


def roles_of(trace: Trace) -> Roles:
    """The roles of a trace's tokens, by the rules of docs/statistics.md."""
    return roles_of_tokens(trace.queries, trace.keys, trace.text, trace.pair)


def roles_of_tokens(queries: TokenAxis, keys: TokenAxis, text: str | None, pair: str | None = None) -> Roles:
    """The roles of tokens, by the rules of docs/statistics.md. The same axis object twice means self-attention."""
    special = np.array(keys.special, dtype=bool)
    sentences = _sentences(keys, pair is not None)
    signs = np.array(punctuation(keys, text, pair), dtype=bool)
    return Roles(
        cls=special & np.array([token in ROLE_TOKENS["cls"] for token in keys.tokens], dtype=bool),
        sep=special & np.array([token in ROLE_TOKENS["sep"] for token in keys.tokens], dtype=bool),
        punctuation=signs,
        rarest=_rarest(keys, special | signs),
        special=special,
        sentences=sentences,
        query_sentences=_sentences(queries, pair is not None),
        query_special=np.array(queries.special, dtype=bool),
        aligned=keys is queries,
    )


def _rarest(axis: TokenAxis, others: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """The tokens of the rarest word, wherever it stands in the text; `others` are not words.

    Vocabularies list their tokens by frequency, and by Zipf's law the token of rank r has a probability of about 1 / r:
    so the sum of log r over its tokens says how rare a word is.
    """
    ids = np.array(axis.ids, dtype=np.float64)
    if (ids < 0).all():
        return np.zeros(len(ids), dtype=bool)
    begins = [True, *(a is None or a != b for a, b in zip(axis.words[1:], axis.words, strict=False))]
    number = np.cumsum(begins[: len(ids)]) - 1
    rarity = np.bincount(number, np.where(others | (ids < 0), 0, np.log1p(np.maximum(ids, 0))))[number]
    return ~others & (rarity > 0) & (rarity == rarity.max())


def _sentences(axis: TokenAxis, pair: bool) -> Int[np.ndarray, " n"]:
    """0 and 1 for the texts of a pair, -1 for special tokens; all -1 for a single text.

    By the model's segments, or by the separator for models that give both texts segment 0 (RoBERTa).
    """
    special = np.array(axis.special, dtype=bool)
    sentences = np.array(axis.segments, dtype=np.int64)
    if pair and not np.any(sentences[~special] != sentences[~special][:1]):
        begun = np.cumsum(~special) > 0
        sentences = (np.cumsum(special & begun) > 0).astype(np.int64)
    if set(sentences[~special].tolist()) != {0, 1}:
        return np.full(len(special), -1)
    return np.where(special, -1, sentences)


def allowed_counts(mask: Mask, queries: int, keys: int) -> Int[np.ndarray, " queries"]:
    """Number of keys that the mask's rules (not its bias) allow each query, (queries,), without building a map."""
    first, end = mask.reach(np.arange(queries) + keys - queries, keys)
    visible = np.ones(keys, dtype=bool) if mask.keys is None else np.asarray(mask.keys, dtype=bool)
    before = np.concatenate([[0], np.cumsum(visible)])
    return np.maximum(before[np.maximum(end, first)] - before[first], 0)


def padding(mask: Mask, roles: Roles, queries: int) -> Bool[np.ndarray, " queries"]:
    """True for queries that are padding, (queries,): tokens masked as keys. Unknown, so False, in cross-attention."""
    if mask.keys is None or not roles.aligned:
        return np.zeros(queries, dtype=bool)
    return ~np.asarray(mask.keys, dtype=bool)[-queries:]


def measured(
    names: Iterable[str],
    counts: Int[np.ndarray, "heads_or_1 n"],
    mask: Mask,
    roles: Roles,
    *,
    rows: Int[np.ndarray, " n"],
    queries: int,
) -> dict[str, Bool[np.ndarray, "heads_or_1 n"]]:
    """For each statistic, True for the queries that have it.

    Args:
        names: of the statistics.
        counts: number of keys that each query may look at.
        mask: of the whole map.
        roles: of the tokens.
        rows: positions of the queries.
        queries: number of queries in the whole map.
    """
    keys = len(roles.special)
    at = rows + keys - queries
    pair = bool((roles.sentences >= 0).any()) and roles.aligned
    exists: dict[str, Any] = {
        "normalised_entropy": counts > 1,
        "other_sentence": (roles.query_sentences[rows] >= 0) & pair,
        "norm_special": roles.special.any(),
        "confidence": not roles.special.all(),
        **{name: (at + offset >= 0) & (at + offset < keys) for name, offset in CELLS.items()},
        **{name: getattr(roles, role).any() for name, role in MASSES.items()},
    }
    seeing = (counts > 0) & ~padding(mask, roles, queries)[rows]
    ordered = {name: roles.aligned or CATALOG[name].needs != "order" for name in names}
    return {name: seeing & exists.get(name, True) & ordered[name] for name in names}


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
    "confidence": lambda block: np.where(block.roles.special, 0, block.weights).max(-1),
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
        block = Block(part, roles, layer.mask, layer.q.shape[1], norms)
        use = measured(names, block.counts, block.mask, roles, rows=part.rows, queries=block.queries)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = {name: FORMULAS[name](block) for name in names}
        nan = block.weights.dtype.type(np.nan)
        yield part, {name: np.where(use[name], value, nan) for name, value in values.items()}


def over_queries(
    values: Float[np.ndarray, "*heads queries"], dtype: type[np.floating] | None = None
) -> Float[np.ndarray, "*heads"]:
    """The mean over the queries that have a value, summed in `dtype`, by default theirs; NaN if none has one."""
    defined = ~np.isnan(values)
    count = defined.sum(-1)
    total = np.where(defined, values, 0).sum(-1, dtype=dtype)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)

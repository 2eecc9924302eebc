"""Maps in place of a head's weights, under which the model runs on: c_i = sum_j m_ij v_j instead of sum_j p_ij v_j.

    uniform     m_ij = 1 / n_i on each of the n_i keys that query i sees  (Wiegreffe and Pinter 2019, section 3.2)
    shuffle     each query's weights, permuted over the keys that it sees  (Jain and Wallace 2019, algorithm 1)
    identity    m_ii = 1: the pattern “current token”  (Raganato et al. 2020, section 3)
    an array    anybody's own map
    a callable  a map made from the head's weights

The maps are NumPy arrays, whoever runs the model; `maps` makes those of one head over one text without padding, a few
queries at a time. A query that sees no key has a row of 0, as in its weights.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import Mask, softmax_rows
from headscope.attention.terms import Terms
from headscope.errors import InputError
from headscope.results.lazy_maps import TILE_CELLS

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt64

Way = str | np.ndarray | Callable[[np.ndarray], Any]
"""A change of a head: the name of a way, a map of (queries, keys), or a function from weights to such a map."""

Heads = Mapping[tuple[int, int], Any] | Iterable[tuple[int, int]]
"""Heads, (layer, head): silenced, or each with its way."""

SILENCED = ("zero", "mean")
"""Ways that replace the context itself, whatever the weights are."""

NAMED = (*SILENCED, "uniform", "shuffle", "identity")
"""Ways with a name. `shuffle:7` is another permutation than `shuffle`, which is `shuffle:0`."""

GIVEN = ("array", "callable")
"""Names of ways in a record that doesn't keep their maps."""

SUMS = 1e-3
"""Distance from 1 that the sum of a row of a given map may have: half precision rounds by so much."""

MOST_DIGITS = 20
"""Digits of the number of a permutation: it has 64 bits."""

LAST = np.uint64(2**64 - 1)


def by_head(heads: Heads) -> dict[tuple[int, int], Any]:
    """The way of each head: that of a mapping, otherwise `zero`.

    Raises:
        InputError: something is not a pair of a layer and a head.
    """
    pairs = pairs_of(heads, "ablate")
    return dict(zip(pairs, heads.values(), strict=True)) if isinstance(heads, Mapping) else dict.fromkeys(pairs, "zero")


def pairs_of(heads: Iterable[Any], where: str) -> list[tuple[int, int]]:
    """Heads as pairs of Python's integers: NumPy's and torch's become those.

    Args:
        heads: pairs, or rows of an array of (heads, 2).
        where: the argument, for errors.

    Raises:
        InputError: something is not a pair of a layer and a head.
    """
    pairs = []
    for pair in heads if isinstance(heads, Iterable) and not isinstance(heads, str) else [heads]:
        try:
            layer, head = map(operator.index, pair)
        except (TypeError, ValueError):
            raise InputError(
                f"expected heads as (layer, head), got {pair!r:.40}", where=where, advice="name heads as {(3, 5)}"
            ) from None
        pairs.append((layer, head))
    return pairs


def checked_way(way: Any, where: str) -> Way:
    """A way to change a head, with an array as NumPy's.

    Raises:
        InputError: it is neither a name of a way nor a callable nor an array of two axes.
    """
    if isinstance(way, str):
        if is_named(way):
            return way
        raise InputError(
            f"unknown way to change a head: {way!r:.40}",
            where=where,
            advice=f"use {', '.join(NAMED)}, another permutation as shuffle:1, an array or a callable",
        )
    if callable(way):
        return way
    cells = _array(way, where)
    if cells.ndim != 2:
        raise InputError(
            f"the map of a head has {cells.ndim} axes: {cells.shape}",
            where=where,
            advice="pass an array of (queries, keys), a name or a callable",
        )
    return cells


def is_named(way: str) -> bool:
    """Return True for the name of a way."""
    name, _, seed = way.partition(":")
    return way in NAMED or (name == "shuffle" and seed.isascii() and seed.isdigit() and len(seed) < MOST_DIGITS)


def name_of(way: Way) -> str:
    """The name by which a record knows a way."""
    return way if isinstance(way, str) else "callable" if callable(way) else "array"


def is_map(way: Way) -> bool:
    """Return True if a way replaces a head's weights, and not its context."""
    return not (isinstance(way, str) and way in SILENCED)


def recorded(ways: Mapping[Any, Way]) -> tuple[frozenset[Any], dict[Any, str]]:
    """The silenced heads, and the names of the ways in which a context was replaced by something else than 0."""
    names = {head: name_of(way) for head, way in ways.items()}
    silenced = frozenset(head for head, name in names.items() if name in SILENCED)
    return silenced, {head: name for head, name in names.items() if name != "zero"}


def swap_notes(swapped: Mapping[tuple[int, int], str]) -> tuple[str, ...]:
    """A sentence on the heads that attended with another map; none without any."""
    heads = ", ".join(f"{layer}.{head} ({way})" for (layer, head), way in sorted(swapped.items()) if way != "mean")
    return (f"heads attended with another map: {heads}; weights and scores are their own",) if heads else ()


@dataclass(frozen=True, eq=False)
class OneHead:
    """A head over one text without padding.

    Attributes:
        q: (1, queries, d_head), its queries.
        k: (1, keys, d_head), the keys that they look at.
        scale: factor of q . k.
        mask: its own.
        terms: its own.
        places: (queries,), positions of the queries among the keys; None if the queries are not among the keys.
        layer: its layer.
        head: its number there.
    """

    q: Float[np.ndarray, "1 queries d_head"]
    k: Float[np.ndarray, "1 keys d_head"]
    scale: float
    mask: Mask
    terms: Terms
    places: Int[np.ndarray, " queries"] | None
    layer: int
    head: int

    @property
    def where(self) -> str:
        """The head's place, for errors."""
        return f"ablate, layer {self.layer}, head {self.head}"

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of queries and of keys."""
        return self.q.shape[1], self.k.shape[1]

    def allowed(self, rows: Int[np.ndarray, " n"]) -> Bool[np.ndarray, "n keys"]:
        """(n, keys): True for each key that these queries see."""
        allowed = self.mask.allowed(rows, np.arange(self.sizes[1]), self.sizes)
        allowed = np.ones((len(rows), self.sizes[1]), dtype=bool) if allowed is None else allowed
        return allowed if self.mask.bias is None else allowed & (self.mask.bias[0, rows] > -np.inf)

    def weights(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n keys"]:
        """(n, keys): the head's own weights of these queries."""
        found = softmax_rows(self.q, self.k, scale=self.scale, mask=self.mask, terms=self.terms, rows=rows)
        return np.concatenate([part.weights[0] for part in found])


def maps(way: Way, head: OneHead) -> Iterator[Float[np.ndarray, "n keys"]]:
    """Yield the rows of a map, (n, keys), from the first query on; a given map is whole.

    Raises:
        InputError: the map doesn't fit the text, or what its queries see.
    """
    queries, keys = head.sizes
    rows = np.arange(queries)
    if not isinstance(way, str):
        cells = way(head.weights(rows)) if callable(way) else way
        yield checked_map(_array(cells, head.where).astype(head.q.dtype), head)
        return
    step = max(1, TILE_CELLS // max(1, keys))
    for part in (rows[start : start + step] for start in range(0, queries, step)):
        allowed = head.allowed(part)
        if way == "uniform":
            yield uniform(allowed).astype(head.q.dtype)
        elif way == "identity":
            yield _itself(head, part, allowed).astype(head.q.dtype)
        else:
            at = part if head.places is None else head.places[part]
            seed = int(way.partition(":")[2] or 0)
            yield shuffled(head.weights(part), allowed, draws((seed, head.layer, head.head), at, keys))


def context_under(
    way: Way, head: OneHead, v: Float[np.ndarray, "keys d_value"]
) -> Float[np.ndarray, "queries d_value"]:
    """(queries, d_value): the head's context under a map, m @ v."""
    return np.concatenate([cells.astype(v.dtype) @ v for cells in maps(way, head)])


def uniform(allowed: Bool[np.ndarray, "n keys"]) -> Float[np.ndarray, "n keys"]:
    """(n, keys): the same weight on every key that a query sees, m_ij = 1 / n_i.

    Wiegreffe and Pinter 2019, “Attention is not not Explanation”, section 3.2: what a model does with such weights says
    how much it needs its own.
    """
    return allowed / np.maximum(allowed.sum(-1, keepdims=True), 1)


def identity(places: Int[np.ndarray, " n"], keys: int) -> Float[np.ndarray, "n keys"]:
    """(n, keys): all weight on the query's own place.

    “Current token” among the fixed patterns of Raganato, Scherrer and Tiedemann 2020, “Fixed Encoder Self-Attention
    Patterns in Transformer-Based Machine Translation”, section 3.
    """
    return (places[:, None] == np.arange(keys)).astype(np.float64)


def shuffled(
    weights: Float[np.ndarray, "n keys"], allowed: Bool[np.ndarray, "n keys"], numbers: UInt64[np.ndarray, "n keys"]
) -> Float[np.ndarray, "n keys"]:
    """(n, keys): each query's weights, permuted over the keys that it sees.

    Jain and Wallace 2019, “Attention is not Explanation”, algorithm 1: if the output stays the same under permutations,
    it does not depend on where the head looks. They take the median over 100 of them.

    Args:
        weights: after the softmax.
        allowed: True for each key that a query sees.
        numbers: one for each key that a query sees, in their order: the weights come in the order of the numbers.
    """
    rank = np.maximum(np.cumsum(allowed, axis=-1) - 1, 0)
    drawn = np.where(allowed, np.take_along_axis(numbers, rank, -1), LAST)
    sources = np.argsort(drawn, axis=-1, kind="stable")
    targets = np.argsort(~allowed, axis=-1, kind="stable")
    permuted = np.zeros_like(weights)
    np.put_along_axis(permuted, targets, np.take_along_axis(np.where(allowed, weights, 0), sources, -1), -1)
    return permuted


def draws(key: tuple[int, ...], places: Int[np.ndarray, " n"], keys: int) -> UInt64[np.ndarray, "n keys"]:
    """(n, keys): pseudo-random numbers that depend on nothing but a key, a query's place and a count from 0.

    SplitMix64 (Steele, Lea and Flood 2014, “Fast Splittable Pseudorandom Number Generators”), applied to one number
    after the other. So a permutation is the same in every process, precision and batch, and in each step of generate().
    """
    state = np.zeros(1, dtype=np.uint64)
    for number in key:
        state = _mixed(state ^ np.uint64(number % 2**64))
    return _mixed(_mixed(state ^ places.astype(np.uint64))[:, None] ^ np.arange(keys, dtype=np.uint64))


def _mixed(x: UInt64[np.ndarray, "*sizes"]) -> UInt64[np.ndarray, "*sizes"]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _itself(
    head: OneHead, rows: Int[np.ndarray, " n"], allowed: Bool[np.ndarray, "n keys"]
) -> Float[np.ndarray, "n keys"]:
    """The identity; 0 for a query that sees no key, or whose token is hidden from all queries.

    Raises:
        InputError: the queries are not among the keys, or one doesn't see itself.
    """
    if head.places is None:
        raise InputError(
            "the queries are other tokens than the keys, or it is unknown which, so none can look at itself",
            where=head.where,
            advice="use uniform, shuffle, an array or a callable",
        )
    cells = identity(head.places[rows], head.sizes[1])
    lost = (cells > 0) & ~allowed
    hidden = lost.any(-1)
    visible = hidden & allowed.any(-1)
    if head.mask.keys is not None:
        visible &= np.asarray(head.mask.keys)[head.places[rows]]
    if visible.any():
        raise InputError(
            f"query {rows[visible][0]} doesn't see itself",
            where=head.where,
            advice="use uniform, shuffle, an array or a callable",
        )
    return np.where(lost, 0, cells)


def checked_map(cells: Float[np.ndarray, "..."], head: OneHead) -> Float[np.ndarray, "queries keys"]:
    """A given map, after checking that its rows are weights of this text.

    Raises:
        InputError: it has another shape, a number that is not finite or below 0, weight where the mask allows none, or
            rows that don't sum to 1.
    """
    queries, keys = head.sizes
    if cells.shape != head.sizes:
        raise InputError(
            f"the map is {cells.shape}, but the text has {queries} queries and {keys} keys",
            where=head.where,
            advice=f"pass an array of {head.sizes}, a callable that makes one for each text, or run the texts one by "
            "one: a map has no rows for padding",
        )
    allowed = head.allowed(np.arange(queries))
    for wrong, what, advice in (
        (~(np.isfinite(cells) & (cells >= 0)), "and weights are finite and at least 0", "divide what is positive"),
        ((cells > 0) & ~allowed, "which the mask hides from it", "set hidden cells to 0, and divide"),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise InputError(
                f"the map has {cells[row, column]:.3g} at query {row}, key {column}, {what}",
                where=head.where,
                advice=f"{advice} by the row's sum: cells / cells.sum(-1, keepdims=True)",
            )
    sums = cells.sum(-1, dtype=np.float64)
    off = (sums > 1 + SUMS) | ((sums < 1 - SUMS) & (head.terms.sinks is None) & allowed.any(-1))
    if off.any():
        row = int(np.argmax(off))
        raise InputError(
            f"row {row} of the map sums to {sums[row]:.4g}, not to 1",
            where=head.where,
            advice="divide each row by its sum: cells / cells.sum(-1, keepdims=True)",
        )
    return cells


def _array(cells: Any, where: str) -> Float[np.ndarray, "..."]:
    """Numbers as an array; torch tensors may be on a device, need a gradient or be in half precision.

    Raises:
        InputError: they are not numbers.
    """
    if hasattr(cells, "detach"):
        cells = cells.detach().double().cpu()
    try:
        return np.asarray(cells, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the map of a head is {cells!r:.60}",
            where=where,
            advice="pass an array of (queries, keys), a name or a callable that returns an array",
        ) from error

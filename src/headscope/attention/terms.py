"""Score terms: what models add to scale * q . k, as tables at most linear in the number of tokens.

    s_ij = scale * (q_i . k_j + q_i . rk[b] + k_j . rq[b]) + d[b] + a_j,    b = buckets[j - i + queries - 1]

then s_ij = c tanh(s_ij / c) where there is a cap c, then the mask. Each head has its own tables:

    rk  relative_keys      content to position, c2p (He et al. 2021, “DeBERTa”, eq. 2)
    rq  relative_queries   position to content, p2c
    d   by_distance        T5's and MPNet's relative position bias (Raffel et al. 2020, section 2.1)
    a   by_key             ALiBi: slope times the key's position (Press et al. 2022)
    c   cap                the soft cap of Gemma 2 (Gemma Team 2024, section 2)
    t   sinks              a logit without a key (GPT-OSS): lse_i = log(exp(t) + sum_j exp(s_ij)), so that the weights
                           on tokens add up to less than 1

A tile of any of these is computed from the tables when it is needed; none is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Array = Any
"""A NumPy array or a torch tensor; results have the same type, on the same device."""

CHUNK = 64
"""Rows of a tile whose relative terms are computed at a time; their product is 63 columns wider than the tile."""

TABLES = ("by_distance", "by_key", "relative_keys", "relative_queries", "sinks")
"""The fields of Terms with an entry for each head."""

RELATIVE = ("relative_keys", "relative_queries")
"""Those of them that are multiplied with queries or keys, and are kept in their precision; others are in fp32."""


def namespace(array: Array) -> ModuleType:
    """The array's module: numpy or torch. Only functions common to both are used: amax, exp, log, where, sum."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms that a layer adds to scale * q . k; None for those that it doesn't add. See the top of this file.

    Attributes:
        buckets: (queries + keys - 1,), the bucket of each distance: that of query i and key j is
            `buckets[j - i + queries - 1]`.
        by_distance: (heads, buckets), added to the scores.
        by_key: (1 or heads, keys), added to the scores.
        relative_keys: (heads, buckets, d_head), multiplied by the queries and the scale.
        relative_queries: (heads, buckets, d_head), multiplied by the keys and the scale.
        cap: the soft cap, applied to the sum before the mask.
        sinks: (heads,), each head's logit without a key.
    """

    buckets: Int[np.ndarray, " distances"] | None = None
    by_distance: Float[Array, "heads buckets"] | None = None
    by_key: Float[Array, "heads_or_1 keys"] | None = None
    relative_keys: Float[Array, "heads buckets d_head"] | None = None
    relative_queries: Float[Array, "heads buckets d_head"] | None = None
    cap: float | None = None
    sinks: Float[Array, " heads"] | None = None

    @property
    def nothing(self) -> bool:
        """True if the scores are scale * q . k alone."""
        return self is NO_TERMS or all(value is None for value in vars(self).values())

    @property
    def adds(self) -> bool:
        """True if anything is added to the scores before the cap."""
        return any(getattr(self, name) is not None for name in TABLES[:-1])

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the terms that the layer has."""
        return tuple(name for name in (*TABLES, "cap") if getattr(self, name) is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return sum(part.nbytes for name in ("buckets", *TABLES) if (part := getattr(self, name)) is not None)

    def of_head(self, head: int) -> Terms:
        """The terms of one head, as views."""
        return self._picked(slice(head, head + 1))

    def of_heads(self, heads: Sequence[int]) -> Terms:
        """The terms of some heads, in this order."""
        return self._picked(list(heads))

    def _picked(self, heads: slice | list[int]) -> Terms:
        if self.nothing:
            return self
        picked = {
            name: table[heads]
            for name in TABLES
            if (table := getattr(self, name)) is not None and not (name == "by_key" and len(table) == 1)
        }
        return replace(self, **picked)

    def mapped(self, function: Callable[[Array], Array], names: Sequence[str] = TABLES) -> Terms:
        """The same terms with a function applied to every table, or to those with these names."""
        tables: dict[str, Any] = {name: table for name in names if (table := getattr(self, name)) is not None}
        return replace(self, **{name: function(table) for name, table in tables.items()})

    def window(self, first_query: int, queries: int, first_key: int, keys: int, of: tuple[int, int]) -> Terms:
        """The terms of a part of the map, with only the buckets that occur in it.

        Args:
            first_query, queries: the part's queries.
            first_key, keys: the part's keys.
            of: (queries, keys) of the whole map.
        """
        by_key = None if self.by_key is None else self.by_key[:, first_key : first_key + keys]
        if self.buckets is None:
            return self if self.by_key is None else replace(self, by_key=by_key)
        start = first_key - first_query + of[0] - queries
        used, buckets = np.unique(self.buckets[start : start + queries + keys - 1], return_inverse=True)
        tables = {
            name: table[:, _index(used, table)]
            for name in ("by_distance", "relative_keys", "relative_queries")
            if (table := getattr(self, name)) is not None
        }
        return replace(self, buckets=buckets.astype(np.int32).reshape(-1), by_key=by_key, **tables)

    def reach(self, q: Array, k: Array, scale: float) -> Array:
        """An upper bound of the size of what is added before the cap, by Cauchy-Schwarz.

        Args:
            q: (heads, queries), the lengths of the queries; or a number, the largest of them.
            k: (heads, 1), the largest length of each head's keys; or a number, the largest of all.
            scale: factor of q . k.
        """
        bound = q * 0
        if self.relative_keys is not None:
            bound = bound + abs(scale) * q * _longest(self.relative_keys, q)
        if self.relative_queries is not None:
            bound = bound + abs(scale) * k * _longest(self.relative_queries, q)
        for table in (self.by_distance, self.by_key):
            if table is not None:
                largest = abs(table).max()
                bound = bound + float(largest)
        return bound

    def misfit(self, heads: int, queries: int, keys: int, d_head: int) -> str | None:
        """Describe the tables that don't match a layer of these sizes; None if all match."""
        distances, wanted = queries + keys - 1, self.by_distance is not None or self.relative
        if (self.buckets is not None) != wanted:
            return "a table of distances without the buckets of distances, or buckets without a table"
        count = 0
        if self.buckets is not None:
            if self.buckets.shape != (distances,) or self.buckets.dtype.kind != "i":
                return f"buckets {self.buckets.shape} of {self.buckets.dtype} for {distances} distances"
            count = 1 + int(self.buckets.max(initial=0))
            if self.buckets.min(initial=0) < 0:
                return f"bucket {self.buckets.min()}"
        for name, rank in (("by_distance", 2), ("relative_keys", 3), ("relative_queries", 3)):
            table = getattr(self, name)
            if table is None:
                continue
            fits = table.ndim == rank and len(table) == heads and table.shape[1] >= count
            if not fits or (rank == 3 and table.shape[2] != d_head):
                return f"{name} {table.shape} for {heads} heads of {d_head} and {count} buckets"
        if self.by_key is not None and self.by_key.shape not in ((1, keys), (heads, keys)):
            return f"by_key {self.by_key.shape} for {heads} heads and {keys} keys"
        if self.sinks is not None and self.sinks.shape != (heads,):
            return f"{self.sinks.shape} sinks for {heads} heads"
        if self.cap is not None and not 0 < self.cap < float("inf"):
            return f"a soft cap of {self.cap}"
        return None

    @property
    def relative(self) -> bool:
        """True if a term is a product of a query or a key with a vector for their distance."""
        return self.relative_keys is not None or self.relative_queries is not None


NO_TERMS = Terms()
"""The terms of most models: scores are scale * q . k."""


def add_terms(
    tile: Float[Array, "heads n m"],
    scaled: Float[Array, "heads n d_head"],
    k: Float[Array, "kv_heads m d_head"],
    terms: Terms,
    *,
    scale: float,
    rows: Int[np.ndarray, " n"],
    columns: Int[np.ndarray, " m"],
    sizes: tuple[int, int],
) -> Float[Array, "heads n m"]:
    """Add the terms to a tile of scale * q . k, in place, and apply the cap.

    Args:
        tile: (heads, n, m), overwritten.
        scaled: the tile's queries times the scale.
        k: the tile's keys.
        terms: of the whole map.
        scale: factor of q . k.
        rows: positions of the tile's queries.
        columns: positions of its keys.
        sizes: (queries, keys) of the whole map.
    """
    if terms.buckets is not None and tile.shape[1] and tile.shape[2]:
        _add_by_distance(tile, scaled, k, terms, scale, rows, columns, sizes)
    if terms.by_key is not None:
        tile += _like(terms.by_key[:, None, _index(columns, terms.by_key)], tile)
    if terms.cap is not None:
        tile = capped(tile, terms.cap)
    return tile


def capped(tile: Float[Array, "heads n m"], cap: float) -> Float[Array, "heads n m"]:
    """c tanh(s / c)."""
    return namespace(tile).tanh(tile / cap) * cap


def _add_by_distance(
    tile: Float[Array, "heads n m"],
    scaled: Float[Array, "heads n d_head"],
    k: Float[Array, "kv_heads m d_head"],
    terms: Terms,
    scale: float,
    rows: Int[np.ndarray, " n"],
    columns: Int[np.ndarray, " m"],
    sizes: tuple[int, int],
) -> None:
    """The terms by distance: of consecutive queries and keys in one block, of any others row by row."""
    assert terms.buckets is not None
    scaled_keys = None if terms.relative_queries is None else _repeated(k, len(tile)) * scale
    if not (_consecutive(rows) and _consecutive(columns)):
        for at, row in enumerate(rows):
            places = terms.buckets[columns - row + sizes[0] - 1]
            if terms.relative_keys is not None:
                vectors = _like(terms.relative_keys[:, _index(places, terms.relative_keys)], tile)
                tile[:, at] += (vectors @ scaled[:, at, :, None])[..., 0]
            if terms.relative_queries is not None:
                vectors = _like(terms.relative_queries[:, _index(places, terms.relative_queries)], tile)
                tile[:, at] += (vectors * scaled_keys).sum(-1)
            if terms.by_distance is not None:
                tile[:, at] += _like(terms.by_distance[:, _index(places, terms.by_distance)], tile)
        return
    first, other = int(rows[0]), int(columns[0])
    n, m = tile.shape[1:]
    if terms.relative_keys is not None:
        for part, added in _relative(scaled, terms.relative_keys, terms.buckets, first, other, m, sizes[0]):
            tile[:, part] += added
    if terms.relative_queries is not None:
        backwards = terms.buckets[::-1]
        for part, added in _relative(scaled_keys, terms.relative_queries, backwards, other, first, n, sizes[1]):
            turned = added.swapaxes(1, 2)
            # Transposing first takes a fifth of the time of adding across the rows.
            tile[:, :, part] += np.ascontiguousarray(turned) if isinstance(turned, np.ndarray) else turned
    if terms.by_distance is not None:
        low = other - (first + n - 1) + sizes[0] - 1
        table = _like(terms.by_distance[:, _index(terms.buckets[low : low + n + m - 1], terms.by_distance)], tile)
        if isinstance(table, np.ndarray):
            table = np.ascontiguousarray(table)
            head, step = table.strides
            tile += np.lib.stride_tricks.as_strided(table[:, n - 1 :], tile.shape, (head, -step, step), writeable=False)
        else:
            tile += table.unfold(1, m, 1).flip(1)


def _relative(
    x: Float[Array, "heads a d_head"],
    table: Float[Array, "heads buckets d_head"],
    buckets: Int[np.ndarray, " distances"],
    first: int,
    other: int,
    width: int,
    span: int,
) -> Iterator[tuple[slice, Float[Array, "heads n width"]]]:
    """x[h, i] . table[h, buckets[(other + j) - (first + i) + span - 1]] for j < width, a chunk of rows i at a time.

    A chunk of rows is multiplied by the vectors of all distances that occur in it, which gives each cell (i, j) in row
    i at column j - i; the product is then read with one element less per row.
    """
    for start in range(0, x.shape[1], CHUNK):
        part = x[:, start : start + CHUNK]
        n = part.shape[1]
        low = other - (first + start + n - 1) + span - 1
        window = buckets[low : low + n + width - 1]
        if 2 * table.shape[1] <= len(window):
            products = part @ _like(table, part).swapaxes(-1, -2)
            products = products[..., _index(window, products)]
        else:
            products = part @ _like(table[:, _index(window, table)], part).swapaxes(-1, -2)
        yield slice(start, start + n), _skewed(products, n, width)


def _skewed(products: Float[Array, "heads n distances"], n: int, width: int) -> Float[Array, "heads n width"]:
    """Row i from column n - 1 - i on, as a view."""
    if isinstance(products, np.ndarray):
        products = np.ascontiguousarray(products)
        head, row, step = products.strides
        shape = (len(products), n, width)
        return np.lib.stride_tricks.as_strided(products[..., n - 1 :], shape, (head, row - step, step), writeable=False)
    products = products.contiguous()
    strides = (products.stride(0), products.stride(1) - 1, 1)
    return products.as_strided((len(products), n, width), strides, products.storage_offset() + n - 1)


def _longest(table: Float[Array, "heads buckets d_head"], q: Array) -> Array:
    """The largest length of a head's vectors, (heads, 1); of all heads if the queries' lengths are one number."""
    lengths = np.sqrt(np.square(np.asarray(table, dtype=np.float64)).sum(-1)).max(-1, keepdims=True)
    return lengths if np.ndim(q) else float(lengths.max())


def _repeated(k: Float[Array, "kv_heads m d_head"], heads: int) -> Float[Array, "heads m d_head"]:
    """The keys of each query head."""
    shared = heads // len(k)
    return k if shared == 1 else k[np.repeat(np.arange(len(k)), shared)]


def _like(table: Array, tile: Array) -> Array:
    """A table in the precision of a tile, on its device."""
    return table.astype(tile.dtype, copy=False) if isinstance(table, np.ndarray) else table.to(tile)


def _index(places: Int[np.ndarray, " n"], table: Array) -> Array:
    """Positions as an index of a table: a torch tensor needs a tensor on its device."""
    if isinstance(table, np.ndarray):
        return places
    torch = sys.modules["torch"]
    return torch.as_tensor(np.array(places, dtype=np.int64, order="C"), device=table.device)


def _consecutive(places: Int[np.ndarray, " n"]) -> bool:
    return len(places) < 2 or bool((np.diff(places) == 1).all())

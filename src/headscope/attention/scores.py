"""The mathematics of attention: scores, weights and contexts, as pure functions of NumPy arrays or torch tensors.

    s_ij = scale * q_i . k_j + bias_ij      scores       (Vaswani et al. 2017, eq. 1, before the softmax)
                                            and the terms that some models add: see headscope.attention.terms
    lse_i = log sum_j exp(s_ij)             log-sum-exp of a query's row, over the keys that its mask allows
    p_ij = exp(s_ij - lse_i)                weights
    c_i = sum_j p_ij v_j                    context

Once lse is known, each cell costs one dot product, so nothing here builds a whole map: callers compute tiles, given by
their queries and keys. Arrays are q (heads, queries, d_head), k and v (kv_heads, keys, d_head). Under grouped-query
attention kv_heads divides heads, and query head h uses key head h // (heads / kv_heads).

A query whose keys are all masked (-inf or False) has lse = -inf, weights 0 and context 0. No other query does: adding a
finite number to a whole row doesn't change its softmax, except by the rounding of the sums (see `scores`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.terms import CHUNK, NO_TERMS, Array, Terms, add_terms, namespace
from headscope.errors import InputError
from headscope.results.lazy_maps import TILE_CELLS

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


FAR = 100.0
"""A mask's row is shifted as a whole if its highest number is larger than this in absolute value: see `scores`."""


@dataclass(frozen=True, eq=False)
class Mask:
    """The keys that each query may look at, as rules rather than a map. A cell is allowed if all rules allow it.

    Attributes:
        causal: True if query i sees key j only if j <= i + (keys - queries): the last query sees the last key.
        window: (left, right): query i sees keys from i - left to i + right; None for no bound on that side.
        keys: (keys,), True where a key may be looked at; None allows all.
        bias: (1 or heads, queries, keys), added to the scores, -inf where masked. It is used only if no rule describes
            the model's mask, and is as large as that mask.
    """

    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    keys: Bool[Array, " keys"] | None = None
    bias: Float[Array, "bias_heads queries keys"] | None = None

    def of_head(self, head: int) -> Mask:
        """The mask of one head; only a bias may differ between heads."""
        if self.bias is None or len(self.bias) == 1:
            return self
        return replace(self, bias=self.bias[head : head + 1])

    @property
    def everything(self) -> bool:
        """True if every query sees every key and nothing is added to the scores."""
        return not self.causal and self.window is None and self.keys is None and self.bias is None

    def allowed(
        self, rows: Int[np.ndarray, " n"], columns: Int[np.ndarray, " m"], sizes: tuple[int, int]
    ) -> Bool[np.ndarray, "n m"] | None:
        """(n, m): True for the cells of a tile that the rules allow; None if they allow all.

        Args:
            rows: positions of the tile's queries.
            columns: positions of its keys.
            sizes: number of queries and keys of the whole map.
        """
        allowed: Bool[np.ndarray, "n m"] | None = None
        if self.causal or self.window is not None:
            first, end = self.reach(rows + sizes[1] - sizes[0], sizes[1])
            allowed = (columns[None, :] >= first[:, None]) & (columns[None, :] < end[:, None])
        if self.keys is not None:
            keys = np.broadcast_to(np.asarray(self.keys, dtype=bool)[columns][None, :], (len(rows), len(columns)))
            allowed = keys if allowed is None else allowed & keys
        return allowed

    def reach(self, at: Int[np.ndarray, " n"], keys: int) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """(n,), (n,): the range of keys, from first to end, that causality and the window allow each query.

        The range is empty if first >= end. These two rules are defined only here, and for the page in
        web/src/trace/cells.ts; tests/data/rules.json checks that both allow the same cells.

        Args:
            at: positions of the queries among the keys.
            keys: number of keys.
        """
        left, right = self.window or (None, None)
        if self.causal:
            right = 0 if right is None else min(right, 0)
        first = np.zeros_like(at) if left is None else np.clip(at - left, 0, keys)
        end = np.full_like(at, keys) if right is None else np.clip(at + right + 1, 0, keys)
        return first, end


EVERYTHING = Mask()
"""The mask of an encoder without padding: every query sees every key."""


def scores(
    q: Float[Array, "heads n d_head"],
    k: Float[Array, "kv_heads m d_head"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
    rows: Int[np.ndarray, " n"] | None = None,
    columns: Int[np.ndarray, " m"] | None = None,
    sizes: tuple[int, int] | None = None,
) -> Float[Array, "heads n m"]:
    """A tile of scores, (heads, n, m): scale * q k^T and the terms, plus the mask's bias, -inf where masked.

    A mask may shift a whole row, by -20000 or by the lowest finite number. This doesn't change its softmax exactly, but
    kernels add the shift in fp32, which rounds the scores: to multiples of 1/512 next to -20000, and to nothing next to
    -1e9, whose rows become uniform. Here the sum is rounded in the same way, whatever the precision of q and k, and
    then the shift is removed: all computations use the scores that the model used, without the shift. Beside a sink it
    stays, for it does not shift the sink.

    Args:
        q: the tile's queries only.
        k: the tile's keys only.
        scale: factor of q . k: 1 / sqrt(d_head), or whatever the model uses.
        mask: the mask of the whole map.
        terms: what the model adds to scale * q . k over the whole map.
        rows: positions of the tile's queries in the whole map; by default, from 0 on.
        columns: positions of its keys; by default, from 0 on.
        sizes: (queries, keys) of the whole map; by default, those of the tile.

    Raises:
        InputError: the number of key heads doesn't divide the number of query heads.
    """
    heads, n, d_head = q.shape
    kv_heads, m, _ = k.shape
    if heads % kv_heads:
        raise InputError(
            f"{heads} query heads can't share {kv_heads} key heads",
            where="grouped-query attention",
            advice="pass k and v with a number of heads that divides the number of query heads",
        )
    scaled = q * scale
    rows = np.arange(n) if rows is None else rows
    columns = np.arange(m) if columns is None else columns

    def summed(scaled: Float[Array, "heads n d_head"]) -> Float[Array, "heads n m"]:
        grouped = scaled.reshape(kv_heads, heads // kv_heads, n, d_head)
        tile = (grouped @ k[:, None].swapaxes(-1, -2)).reshape(heads, n, m)
        if terms.nothing:
            return tile
        return add_terms(tile, scaled, k, terms, scale=scale, rows=rows, columns=columns, sizes=sizes or (n, m))

    tile = summed(scaled)
    if mask.everything:
        return tile
    xp = namespace(tile)
    if mask.bias is not None:
        bias = mask.bias[:, rows]
        shift = xp.amax(bias, -1, keepdims=True)
        bias = bias[:, :, columns]
        far = (abs(shift) > FAR) & (shift > float("-inf"))
        if far.any():
            removed = xp.where(far, shift, xp.zeros_like(shift)) if terms.sinks is None else xp.zeros_like(shift)
            if xp is np:  # from fp64, so that a cell is rounded the same way in every tile
                wide = summed(scaled.astype(np.float64))
                rounded = (wide.astype(np.float32) + bias) - removed
                tile = np.where(far, rounded, tile + bias).astype(tile.dtype)
            else:
                tile = xp.where(far, ((tile.float() + bias) - removed).to(tile.dtype), tile + bias)
        else:
            tile = tile + bias
    allowed = mask.allowed(rows, columns, sizes or (n, m))
    if allowed is None:
        return tile
    if xp is np:
        return np.where(allowed, tile, np.float32(-np.inf).astype(tile.dtype))
    return tile.masked_fill(xp.tensor(~allowed, device=tile.device), float("-inf"))


def weights(tile: Float[Array, "heads n m"], lse: Float[Array, "heads n"]) -> Float[Array, "heads n m"]:
    """A tile of weights, (heads, n, m): exp(scores - lse). Rows without any allowed key (lse = -inf) are 0.

    If lse is fp64 and the scores are fp32, it is subtracted in two parts, so that no precision is lost.
    """
    xp = namespace(tile)
    lse = lse[..., None]
    lse = xp.where(lse == float("-inf"), xp.zeros_like(lse), lse)
    if xp is np and lse.dtype != tile.dtype:
        whole = lse.astype(tile.dtype)
        return np.exp((tile - whole) - (lse - whole).astype(tile.dtype))
    return xp.exp(tile - lse)


@dataclass(frozen=True, eq=False)
class Rows:
    """The softmax of a few queries over all of their keys.

    Attributes:
        rows: positions of the queries.
        scores: (heads, n, keys), before the softmax, -inf where masked; None unless requested.
        powers: (heads, n, keys), exp(scores - highest).
        total: (heads, n), the sum of a query's powers, with its sink's; 0 if it sees no key.
        highest: (heads, n), the query's highest score or its sink; 0 if it sees no key.
        sinks: (heads, n), exp(sink - highest) of each query that sees a key; None if the layer has no sinks.
    """

    rows: Int[np.ndarray, " n"]
    scores: Float[Array, "heads n keys"] | None
    powers: Float[Array, "heads n keys"]
    total: Float[Array, "heads n"]
    highest: Float[Array, "heads n"]
    sinks: Float[Array, "heads n"] | None = None

    @cached_property
    def weights(self) -> Float[Array, "heads n keys"]:
        """(heads, n, keys), after the softmax; 0 if a query sees no key. Overwrites `powers`."""
        xp, weights = namespace(self.powers), self.powers
        weights /= xp.where(self.total == 0, xp.ones_like(self.total), self.total)[..., None]
        return weights

    @property
    def sink_weights(self) -> Float[Array, "heads n"] | None:
        """(heads, n), the weight that the sink takes, 0 for a query without keys; None if the layer has no sinks."""
        if self.sinks is None:
            return None
        xp = namespace(self.total)
        return self.sinks / xp.where(self.total == 0, xp.ones_like(self.total), self.total)

    @property
    def energy(self) -> Float[Array, "heads n"]:
        """(heads, n), sum_j p_ij s_ij over the keys and the sink; lse minus this is the entropy. Needs the scores."""
        assert self.scores is not None
        xp = namespace(self.scores)
        seen = xp.where(self.weights > 0, self.scores, 0)
        mean = xp.einsum("hnm,hnm->hn", self.weights, seen)
        if self.sinks is None or self.sink_weights is None:
            return mean
        lost = self.sinks == 0  # below what the precision holds beside the highest score, or a query without keys
        logits = xp.log(xp.where(lost, xp.ones_like(self.sinks), self.sinks)) + self.highest
        return mean + self.sink_weights * logits

    @cached_property
    def lse(self) -> Float[np.ndarray, "heads n"]:
        """(heads, n), log-sum-exp of the scores, in fp64; -inf if a query sees no key. For NumPy arrays only."""
        with np.errstate(divide="ignore"):
            logs: Float[np.ndarray, "heads n"] = np.log(self.total.astype(np.float64)) + self.highest
        return logs


def softmax_rows(
    q: Float[Array, "heads queries d_head"],
    k: Float[Array, "kv_heads keys d_head"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
    rows: Int[np.ndarray, " n"] | None = None,
    cells: int | None = None,
    keep_scores: bool = False,
) -> Iterator[Rows]:
    """The softmax over whole rows, a few queries at a time.

    Args:
        q: all queries of the map.
        k: all keys of the map.
        scale: factor of q . k.
        mask: the mask of the map.
        terms: what the model adds to scale * q . k over the map.
        rows: positions of the queries; all by default.
        cells: maximum number of cells at a time; TILE_CELLS by default.
        keep_scores: True to keep the scores as well as their powers.
    """
    xp = namespace(q)
    heads, queries, _ = q.shape
    keys = k.shape[1]
    columns = np.arange(keys)
    places = np.arange(queries) if rows is None else rows
    # Relative terms take up to two more products per row in narrow blocks.
    step = max(CHUNK if terms.relative else 1, (cells or TILE_CELLS) // max(1, heads * keys))
    for start in range(0, len(places), step):
        part = places[start : start + step]
        some = q[:, start : start + step] if rows is None else q[:, part]
        tile = scores(some, k, scale=scale, mask=mask, terms=terms, rows=part, columns=columns, sizes=(queries, keys))
        highest = xp.amax(tile, -1, keepdims=True)
        sinks = None
        if terms.sinks is not None:
            logits = terms.sinks.astype(tile.dtype) if xp is np else terms.sinks.to(tile)
            empty = highest == float("-inf")  # as without a sink, a query without keys has lse = -inf
            highest = xp.where(empty, highest, xp.maximum(highest, logits[:, None, None]))
            sinks = xp.where(empty, xp.zeros_like(highest), xp.exp(logits[:, None, None] - highest))[..., 0]
        if not mask.everything:  # without a mask, only infinite numbers give a row of -inf, and its weights are NaN
            highest = xp.where(highest == float("-inf"), xp.zeros_like(highest), highest)
        if xp is np:
            powers = np.subtract(tile, highest, out=None if keep_scores else tile)
            np.exp(powers, out=powers)
        else:
            powers = xp.exp(tile - highest)
        total = powers.sum(-1) if sinks is None else powers.sum(-1) + sinks
        yield Rows(part, tile if keep_scores else None, powers, total, highest[..., 0], sinks)


def log_sum_exps(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
) -> Float[np.ndarray, "heads queries"]:
    """Log-sum-exps (heads, queries) in fp64, in blocks of queries; -inf if a query sees no key.

    They are computed from the same fp32 scores as weights, so that each row of weights sums to 1 as closely as a
    softmax over that row: with a fused kernel's log-sum-exps, the error is ten times as large at 512 tokens.
    """
    shared = len(q) // len(k)
    lse = np.empty(q.shape[:2])
    for head in range(len(q)):
        at = head // shared
        queries, keys = (x.astype(np.float32, copy=False) for x in (q[head : head + 1], k[at : at + 1]))
        for part in softmax_rows(queries, keys, scale=scale, mask=mask.of_head(head), terms=terms.of_head(head)):
            lse[head, part.rows] = part.lse[0]
    return lse


def attend(
    q: Float[Array, "heads queries d_head"],
    k: Float[Array, "kv_heads keys d_head"],
    v: Float[Array, "kv_heads keys d_value"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
) -> tuple[Float[Array, "heads queries d_value"], Float[Array, "heads queries"]]:
    """Contexts (heads, queries, d_value) and log-sum-exps (heads, queries), in blocks of queries.

    The softmax is taken over whole rows, as in the paper; only a few rows are in memory at a time.
    """
    xp = namespace(q)
    heads, queries, _ = q.shape
    kv_heads, keys, d_value = v.shape
    like: dict[str, Any] = {"dtype": q.dtype} if xp is np else {"dtype": q.dtype, "device": q.device}
    context = xp.empty((heads, queries, d_value), **like)
    lse = xp.empty((heads, queries), **like)
    if xp is np and heads > 1 and heads * queries * keys > TILE_CELLS:
        # One head at a time: a few large products take less time than many small ones.
        for head in range(heads):
            at = slice(head * kv_heads // heads, head * kv_heads // heads + 1)
            one = slice(head, head + 1)
            context[one], lse[one] = attend(
                q[one], k[at], v[at], scale=scale, mask=mask.of_head(head), terms=terms.of_head(head)
            )
        return context, lse
    for part in softmax_rows(q, k, scale=scale, mask=mask, terms=terms):
        n, total = len(part.rows), part.total
        at = slice(int(part.rows[0]), int(part.rows[-1]) + 1)
        mixed = (part.powers.reshape(kv_heads, heads // kv_heads, n, keys) @ v[:, None]).reshape(heads, n, d_value)
        unseen = total == 0
        context[:, at] = mixed / xp.where(unseen, xp.ones_like(total), total)[..., None]
        empty = xp.full_like(total, float("-inf"))
        lse[:, at] = xp.where(unseen, empty, xp.log(xp.where(unseen, xp.ones_like(total), total)) + part.highest)
    return context, lse


def silent(contexts: Float[np.ndarray, "*heads tokens d_head"], method: str) -> Float[np.ndarray, "..."]:
    """The contexts of silenced heads: `zero` gives 0, `mean` gives every token the mean over the tokens."""
    if method == "mean":
        return np.broadcast_to(contexts.mean(axis=-2, keepdims=True), contexts.shape)
    return np.zeros_like(contexts)


def split_heads(x: Float[Array, "*n tokens d_model"], heads: int) -> Float[Array, "*n heads tokens d_head"]:
    """Split a fused projection into heads: (…, tokens, heads * d_head) to (…, heads, tokens, d_head)."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)


def join_heads(x: Float[Array, "*n heads tokens d_head"]) -> Float[Array, "*n tokens d_model"]:
    """Concatenate heads, Concat(head_1 .. head_h): (…, heads, tokens, d_head) to (…, tokens, heads * d_head)."""
    *n, heads, tokens, width = x.shape
    return x.swapaxes(-2, -3).reshape(*n, tokens, heads * width)

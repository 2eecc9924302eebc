"""The mathematics of attention, once: scores, weights, contexts. Pure functions of arrays, NumPy's or torch's.

    s_ij = scale * q_i . k_j + bias_ij      scores       (Vaswani et al. 2017, eq. 1, before the softmax)
    lse_i = log sum_j exp(s_ij)             log-sum-exp of a query's row, over the keys that its mask allows
    p_ij = exp(s_ij - lse_i)                weights
    c_i = sum_j p_ij v_j                    context

Once lse is known, any cell costs one dot product, so nothing here builds a whole map: whoever wants a tile names its
queries and keys. Arrays are q (heads, queries, d_head), k and v (kv_heads, keys, d_head). Under grouped-query
attention kv_heads divides heads, and query head h looks at key head h // (heads / kv_heads).

A query whose keys are all masked (-inf or False) has lse = -inf, weights 0 and context 0. No other query does: a finite
number added to a whole row leaves its softmax as it is, but for what the sum's rounding takes (see `scores`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Array = Any
"""A NumPy array or a torch tensor; results are of the same kind, on the same device."""

TILE_CELLS = 1 << 18
"""Most cells of one tile of the block-wise functions: 1 MiB in fp32, so that a tile stays in a core's cache."""


FAR = 100.0
"""A row of a mask whose highest number is beyond this is shifted as a whole: see `scores`."""


def namespace(array: Array) -> ModuleType:
    """numpy or torch, whichever made this array. Only what both spell alike is used: amax, exp, log, where, sum."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys a query may look at, as a rule rather than a map; all rules must allow a cell.

    Attributes:
        causal: query i sees key j only if j <= i + (keys - queries): the last query sees the last key.
        window: (left, right): query i sees keys from i - left to i + right; None for no bound on that side.
        keys: (keys,), True where a key may be looked at; None allows all.
        bias: (1 or heads, queries, keys), added to the scores, -inf where masked: only where the model's mask is no
            rule. This one is as large as the model made it.
    """

    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    keys: Bool[Array, " keys"] | None = None
    bias: Float[Array, "bias_heads queries keys"] | None = None

    def of_head(self, head: int) -> Mask:
        """The mask of one head: only a bias may differ from head to head."""
        if self.bias is None or len(self.bias) == 1:
            return self
        return replace(self, bias=self.bias[head : head + 1])

    @property
    def everything(self) -> bool:
        """Whether every query sees every key, with nothing added."""
        return not self.causal and self.window is None and self.keys is None and self.bias is None

    def allowed(
        self, rows: Int[np.ndarray, " n"], columns: Int[np.ndarray, " m"], sizes: tuple[int, int]
    ) -> Bool[np.ndarray, "n m"] | None:
        """(n, m): which cells of a tile the rules allow; None where all.

        Args:
            rows: positions of the tile's queries.
            columns: positions of its keys.
            sizes: how many queries and keys the whole map has.
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
        """(n,), (n,): the first key that causality and the window leave each query, and the end; none if first >= end.

        This is the one place where the two rules are spelled out. The page has its own (web/src/trace/cells.ts), and
        tests/data/rules.json holds both to the same cells.

        Args:
            at: where the queries stand among the keys.
            keys: the number of keys.
        """
        left, right = self.window or (None, None)
        if self.causal:
            right = 0 if right is None else min(right, 0)
        first = np.zeros_like(at) if left is None else np.clip(at - left, 0, keys)
        end = np.full_like(at, keys) if right is None else np.clip(at + right + 1, 0, keys)
        return first, end


EVERYTHING = Mask()
"""Every query sees every key: an encoder without padding."""


def scores(
    q: Float[Array, "heads n d_head"],
    k: Float[Array, "kv_heads m d_head"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    rows: Int[np.ndarray, " n"] | None = None,
    columns: Int[np.ndarray, " m"] | None = None,
    sizes: tuple[int, int] | None = None,
) -> Float[Array, "heads n m"]:
    """A tile of scores, (heads, n, m): scale * q k^T, plus the bias, -inf where masked.

    A row of a mask may be shifted as a whole, by -20000 or by the least finite number. Softmax doesn't mind, but the
    kernels add the shift in fp32, which keeps of a score what fits beside it: 1/512 beside -20000, nothing beside -1e9,
    whose rows come out uniform. Here such a sum is rounded in the same way, whatever the precision of q and k, and then
    the shift is removed: every computation sees the scores that the model saw, and none has to carry the shift.

    Args:
        q: the tile's queries, cut out already.
        k: its keys, likewise.
        scale: 1 / sqrt(d_head), or what the model uses.
        mask: the rule of the whole map.
        rows: where the tile's queries stand in the whole map; from 0 on unless told.
        columns: where its keys stand, likewise.
        sizes: (queries, keys) of the whole map; the tile's own unless told.
    """
    heads, n, d_head = q.shape
    kv_heads, m, _ = k.shape
    if heads % kv_heads:
        raise InputError(
            f"{heads} query heads can't share {kv_heads} key heads",
            where="grouped-query attention",
            advice="pass k and v with a number of heads that divides the number of query heads",
        )
    grouped = (q * scale).reshape(kv_heads, heads // kv_heads, n, d_head)
    tile = (grouped @ k[:, None].swapaxes(-1, -2)).reshape(heads, n, m)
    if mask.everything:
        return tile
    xp = namespace(tile)
    rows = np.arange(n) if rows is None else rows
    columns = np.arange(m) if columns is None else columns
    if mask.bias is not None:
        bias = mask.bias[:, rows]
        shift = xp.amax(bias, -1, keepdims=True)
        bias = bias[:, :, columns]
        far = (abs(shift) > FAR) & (shift > float("-inf"))
        if far.any():
            if xp is np:  # from fp64, so that a cell is rounded alike in every tile
                wide = (grouped.astype(np.float64) @ k[:, None].swapaxes(-1, -2)).reshape(heads, n, m)
                rounded = (wide.astype(np.float32) + bias) - xp.where(far, shift, xp.zeros_like(shift))
                tile = np.where(far, rounded, tile + bias).astype(tile.dtype)
            else:
                tile = xp.where(far, ((tile.float() + bias) - shift).to(tile.dtype), tile + bias)
        else:
            tile = tile + bias
    allowed = mask.allowed(rows, columns, sizes or (n, m))
    if allowed is None:
        return tile
    if xp is np:
        return np.where(allowed, tile, np.float32(-np.inf).astype(tile.dtype))
    return tile.masked_fill(xp.tensor(~allowed, device=tile.device), float("-inf"))


def weights(tile: Float[Array, "heads n m"], lse: Float[Array, "heads n"]) -> Float[Array, "heads n m"]:
    """A tile of weights, (heads, n, m): exp(scores - lse). Rows that see nothing (lse = -inf) are 0.

    A lse in fp64 beside scores in fp32 is subtracted in two parts, so that none of it is lost.
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
        scores: (heads, n, keys), before the softmax, -inf where masked; only where they were asked for.
        powers: (heads, n, keys), exp(scores - highest).
        total: (heads, n), the sum of a query's powers; 0 where it sees no key.
        highest: (heads, n), its highest score; 0 where it sees no key.
    """

    rows: Int[np.ndarray, " n"]
    scores: Float[Array, "heads n keys"] | None
    powers: Float[Array, "heads n keys"]
    total: Float[Array, "heads n"]
    highest: Float[Array, "heads n"]

    @cached_property
    def weights(self) -> Float[Array, "heads n keys"]:
        """(heads, n, keys), after the softmax; 0 where a query sees no key. Overwrites `powers`."""
        xp, weights = namespace(self.powers), self.powers
        weights /= xp.where(self.total == 0, xp.ones_like(self.total), self.total)[..., None]
        return weights

    @cached_property
    def lse(self) -> Float[np.ndarray, "heads n"]:
        """(heads, n), log-sum-exp of the scores, in fp64; -inf where a query sees no key. Of NumPy arrays."""
        with np.errstate(divide="ignore"):
            logs: Float[np.ndarray, "heads n"] = np.log(self.total.astype(np.float64)) + self.highest
        return logs


def softmax_rows(
    q: Float[Array, "heads queries d_head"],
    k: Float[Array, "kv_heads keys d_head"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    rows: Int[np.ndarray, " n"] | None = None,
    cells: int | None = None,
    keep_scores: bool = False,
) -> Iterator[Rows]:
    """The softmax over whole rows, a few queries at a time, each used and let go before the next.

    Args:
        rows: the queries, all by default.
        cells: the most cells at a time; TILE_CELLS by default.
        keep_scores: whether the scores are kept beside their powers.
    """
    xp = namespace(q)
    heads, queries, _ = q.shape
    keys = k.shape[1]
    columns = np.arange(keys)
    places = np.arange(queries) if rows is None else rows
    step = max(1, (cells or TILE_CELLS) // max(1, heads * keys))
    for start in range(0, len(places), step):
        part = places[start : start + step]
        some = q[:, start : start + step] if rows is None else q[:, part]
        tile = scores(some, k, scale=scale, mask=mask, rows=part, columns=columns, sizes=(queries, keys))
        highest = xp.amax(tile, -1, keepdims=True)
        if not mask.everything:  # without a mask only infinite numbers make a row of -inf, and its weights are NaN
            highest = xp.where(highest == float("-inf"), xp.zeros_like(highest), highest)
        if xp is np:
            powers = np.subtract(tile, highest, out=None if keep_scores else tile)
            np.exp(powers, out=powers)
        else:
            powers = xp.exp(tile - highest)
        yield Rows(part, tile if keep_scores else None, powers, powers.sum(-1), highest[..., 0])


def log_sum_exps(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
) -> Float[np.ndarray, "heads queries"]:
    """Log-sum-exps (heads, queries) in fp64, in blocks of queries: -inf where a query sees no key.

    They are taken from the scores in fp32 of which weights are made, so that each row of weights sums to 1 as closely
    as a softmax over that row does: a fused kernel's own log-sum-exps are ten times as far off at 512 tokens.
    """
    shared = len(q) // len(k)
    found = np.empty(q.shape[:2])
    for head in range(len(q)):
        at = head // shared
        one, keys = (x.astype(np.float32, copy=False) for x in (q[head : head + 1], k[at : at + 1]))
        for part in softmax_rows(one, keys, scale=scale, mask=mask.of_head(head)):
            found[head, part.rows] = part.lse[0]
    return found


def attend(
    q: Float[Array, "heads queries d_head"],
    k: Float[Array, "kv_heads keys d_head"],
    v: Float[Array, "kv_heads keys d_value"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
) -> tuple[Float[Array, "heads queries d_value"], Float[Array, "heads queries"]]:
    """Contexts (heads, queries, d_value) and log-sum-exps (heads, queries), in blocks of queries.

    The softmax is taken over whole rows, as in the paper; only a few rows exist at a time.
    """
    xp = namespace(q)
    heads, queries, _ = q.shape
    kv_heads, keys, d_value = v.shape
    like: dict[str, Any] = {"dtype": q.dtype} if xp is np else {"dtype": q.dtype, "device": q.device}
    context = xp.empty((heads, queries, d_value), **like)
    lse = xp.empty((heads, queries), **like)
    for part in softmax_rows(q, k, scale=scale, mask=mask):
        n, total = len(part.rows), part.total
        at = slice(int(part.rows[0]), int(part.rows[-1]) + 1)
        mixed = (part.powers.reshape(kv_heads, heads // kv_heads, n, keys) @ v[:, None]).reshape(heads, n, d_value)
        unseen = total == 0
        context[:, at] = mixed / xp.where(unseen, xp.ones_like(total), total)[..., None]
        empty = xp.full_like(total, float("-inf"))
        lse[:, at] = xp.where(unseen, empty, xp.log(xp.where(unseen, xp.ones_like(total), total)) + part.highest)
    return context, lse


def entropy(
    q: Float[Array, "heads queries d_head"],
    k: Float[Array, "kv_heads keys d_head"],
    lse: Float[Array, "heads queries"],
    *,
    scale: float,
    mask: Mask = EVERYTHING,
) -> Float[Array, "heads queries"]:
    """Entropy of each query's weights in nats, (heads, queries), at the price of attention and without its map.

    H_i = lse_i - sum_j p_ij s_ij, and sum_j p_ij s_ij = scale * q_i . (P K)_i: attention with K in the place of V.
    A query that sees nothing has entropy 0.

    Raises:
        InputError: the mask has an additive bias, whose expectation this identity leaves out.
    """
    if mask.bias is not None:
        raise InputError(
            "the entropy identity holds without an additive bias",
            where="mask.bias",
            advice="take the entropy from the weights themselves, in blocks of queries",
        )
    xp = namespace(q)
    mixed, _ = attend(q, k, k, scale=scale, mask=mask)
    found = lse - scale * (q * mixed).sum(-1)
    return xp.where(lse == float("-inf"), xp.zeros_like(found), found)


def split_heads(x: Float[Array, "tokens d_model"], heads: int) -> Float[Array, "heads tokens d_head"]:
    """The fused way's split: (tokens, heads * d_head) to (heads, tokens, d_head)."""
    tokens, width = x.shape
    return x.reshape(tokens, heads, width // heads).swapaxes(0, 1)


def join_heads(x: Float[Array, "heads tokens d_head"]) -> Float[Array, "tokens d_model"]:
    """Concat(head_1 .. head_h): (heads, tokens, d_head) to (tokens, heads * d_head)."""
    heads, tokens, width = x.shape
    return x.swapaxes(0, 1).reshape(tokens, heads * width)

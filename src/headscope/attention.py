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
        distance = columns[None, :] - (rows[:, None] + sizes[1] - sizes[0])
        allowed: Bool[np.ndarray, "n m"] | None = None
        if self.causal:
            allowed = distance <= 0
        if self.window is not None:
            left, right = self.window
            near = np.ones(distance.shape, dtype=bool)
            if left is not None:
                near &= distance >= -left
            if right is not None:
                near &= distance <= right
            allowed = near if allowed is None else allowed & near
        if self.keys is not None:
            keys = np.broadcast_to(np.asarray(self.keys, dtype=bool)[columns][None, :], distance.shape)
            allowed = keys if allowed is None else allowed & keys
        return allowed


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


def _powers(
    q: Float[Array, "heads queries d_head"],
    k: Float[Array, "kv_heads keys d_head"],
    *,
    scale: float,
    mask: Mask,
) -> Iterator[tuple[slice, Array, Array, Array]]:
    """A softmax over whole rows, a few at a time: which rows, exp(s - max s) of them, its sum, and max s (0 for -inf).

    The three are (heads, n, keys), (heads, n) and (heads, n).
    """
    xp = namespace(q)
    heads, queries, _ = q.shape
    keys = k.shape[1]
    columns = np.arange(keys)
    step = max(1, TILE_CELLS // max(1, heads * keys))
    for start in range(0, queries, step):
        part = slice(start, min(start + step, queries))
        rows = np.arange(part.start, part.stop)
        tile = scores(q[:, part], k, scale=scale, mask=mask, rows=rows, columns=columns, sizes=(queries, keys))
        highest = xp.amax(tile, -1, keepdims=True)
        if not mask.everything:  # without a mask only infinite numbers make a row of -inf, and its weights are NaN
            highest = xp.where(highest == float("-inf"), xp.zeros_like(highest), highest)
        tile = xp.exp(tile - highest) if xp is not np else np.exp(np.subtract(tile, highest, out=tile), out=tile)
        yield part, tile, tile.sum(-1), highest[..., 0]


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
        for rows, _, total, highest in _powers(one, keys, scale=scale, mask=mask.of_head(head)):
            with np.errstate(divide="ignore"):
                found[head, rows] = np.log(total[0].astype(np.float64)) + highest[0]
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
    for part, tile, total, highest in _powers(q, k, scale=scale, mask=mask):
        n = part.stop - part.start
        mixed = (tile.reshape(kv_heads, heads // kv_heads, n, keys) @ v[:, None]).reshape(heads, n, d_value)
        unseen = total == 0
        context[:, part] = mixed / xp.where(unseen, xp.ones_like(total), total)[..., None]
        empty = xp.full_like(total, float("-inf"))
        lse[:, part] = xp.where(unseen, empty, xp.log(xp.where(unseen, xp.ones_like(total), total)) + highest)
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

"""Every statistic on torch tensors where they lie, from fused attention calls: no map is built, memory is O(S).

What is linear in the weights is attention with features in the place of values; entropy is attention with K there; what
depends on powers of the weights follows from log-sum-exps of scaled scores. See docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.attention import EVERYTHING, Mask
from headscope.errors import InputError
from headscope.kernels import attend_with_lse
from headscope.statistics.definitions import NORMS, allowed_counts, chosen, value_norms, without_the_unmeasured
from headscope.statistics.roles import Roles

if TYPE_CHECKING:
    from jaxtyping import Float

SHARPENING = 2.0**16
"""lse(a s) / a is at most log(ties) / a above the largest score, and exp of it at most 1 / (e a) above the weight."""

FP32_SCORES = 128.0
"""Where a score may be larger than this, fp32's spacing comes near 1e-4 of a weight: fp64 is used."""

ALIGNMENT = 8
"""Fused kernels want widths that are multiples of this."""


@torch.no_grad()
def fast_statistics(
    q: Float[torch.Tensor, "heads queries d_head"],
    k: Float[torch.Tensor, "kv_heads keys d_head"],
    v: Float[torch.Tensor, "kv_heads keys d_value"] | None = None,
    *,
    scale: float,
    roles: Roles,
    mask: Mask = EVERYTHING,
    W_O: Float[torch.Tensor, "heads d_value d_model"] | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, Float[torch.Tensor, "heads queries"]]:
    """Statistics of every query of a layer, (heads, queries) each, on q's device; NaN where there is none.

    Half precision is widened to fp32 first. One fused call gives all that is linear in the weights and the entropy;
    `effective_tokens` and `strongest` take one more each, `distance` a causal one. Windows, and causal masks with fewer
    queries than keys, have no fused kernel: attend_with_lse takes those in blocks of queries, in O(S) memory too.

    Args:
        v, W_O: for the norm-weighted statistics; without both, these are left out.
        mask: which keys a query may look at.
        names: which; all if None.

    Raises:
        InputError: the mask is an additive bias; there is no such statistic, or it needs v and W_O.
    """
    if mask.bias is not None:
        raise InputError(
            "the identities of the fast statistics hold without an additive bias",
            where="mask.bias",
            advice="use headscope.statistics.plain_statistics, or trace.statistics() with its default engine",
        )
    names = chosen(names, () if v is not None and W_O is not None else NORMS)
    if set(names) & set(NORMS) and (v is None or W_O is None):
        raise InputError(
            f"{', '.join(name for name in names if name in NORMS)} can't be had without v and W_O",
            where="statistics",
            advice="pass v (kv_heads, keys, d_value) and W_O (heads, d_value, d_model)",
        )
    queries, keys = q.shape[1], k.shape[1]
    counts = allowed_counts(mask, queries, keys)
    layer = _prepare(q, k, scale, mask)
    found: dict[str, torch.Tensor] = {}
    norms = None
    if set(names) & set(NORMS):
        assert v is not None
        assert W_O is not None
        norms = value_norms(v.to(layer.k.dtype), W_O.to(layer.k.dtype))
    columns = _columns(layer, roles, names)
    mixed, lse = layer.mix(*_values(layer, columns, norms, roles))
    d_head = k.shape[-1]
    energy = scale * (layer.q[..., :d_head] * mixed[..., :d_head]).sum(-1)
    found["entropy"] = (lse - energy).clamp_min(0)
    logs = np.log(np.maximum(counts, 2))
    found["normalised_entropy"] = found["entropy"] / torch.as_tensor(logs, device=q.device, dtype=lse.dtype)
    none = torch.zeros_like(lse)
    masses = dict(zip((*columns, *NORMS), mixed[..., d_head:].unbind(-1), strict=False))
    at = torch.arange(queries, device=q.device) + (keys - queries)
    for name in ("cls", "sep", "punctuation"):
        found[name] = masses.get(name, none)
    if "cls" in names and roles.cls.sum() == 1:
        found["cls"] = _on(layer, lse, torch.full_like(at, int(roles.cls.argmax())), mask)
    first = torch.as_tensor(roles.query_sentences == 0, device=q.device)
    found["other_sentence"] = torch.where(first, masses.get("second text", none), masses.get("first text", none))
    centred = (at - keys // 2).to(lse.dtype)
    # E[j] - i E[1]: what the kernel's rounding leaves of the rows' sums beside 1 then cancels.
    found["offset"] = masses["position"] - centred * masses["one"]
    if norms is not None:
        found["norm"] = masses["norm"]
        found["norm_special"] = masses["norm_special"] / masses["norm"]
    for name, offset in (("previous", -1), ("same", 0), ("next", 1)):
        if name in names:
            found[name] = _on(layer, lse, at + offset, mask)
    if "first" in names:
        found["first"] = _on(layer, lse, torch.zeros_like(at), mask)
    if "effective_tokens" in names:
        found["effective_tokens"] = torch.exp(2 * lse - layer.log_sum(2.0))
    if "strongest" in names:
        found["strongest"] = torch.exp(layer.log_sum(SHARPENING) / SHARPENING - lse).clamp_max(1)
    if "distance" in names:
        found["distance"] = _distance(layer, lse, found["offset"], centred)
    return without_the_unmeasured({name: found[name] for name in names}, counts[None], mask, roles)


def tensor(array: Float[np.ndarray, "..."]) -> Float[torch.Tensor, "..."]:
    """A trace's array as a tensor; arrays that a file lends read-only are copied, for torch has no such tensors."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer ready for fused calls.

    Attributes:
        q, k: (heads, queries, width), (kv_heads, keys, width): the first d_head coordinates are the model's. Keys that
            may not be looked at are 0 but for one more coordinate, which gives them a score far below all others: so a
            mask of keys costs no bias, and goes with the causal kernel too.
        d_head: of the model.
        rule: what is left of the mask: causal and window.
        positions: (keys,), key positions counted from the middle, where fp32 is finest.
    """

    q: Float[torch.Tensor, "heads queries width"]
    k: Float[torch.Tensor, "kv_heads keys width"]
    scale: float
    d_head: int
    rule: Mask
    positions: Float[torch.Tensor, " keys"]

    def mix(
        self,
        k: Float[torch.Tensor, "groups keys width"],
        v: Float[torch.Tensor, "groups keys d_value"],
        rule: Mask | None = None,
    ) -> tuple[Float[torch.Tensor, "heads queries d_value"], Float[torch.Tensor, "heads queries"]]:
        """Attention with these values. The kernels want q, k and v equally wide: zeros fill what is missing."""
        width = max(k.shape[-1], v.shape[-1])
        width += -width % ALIGNMENT
        q, k, values = (_widen(one, width) for one in (self.q, k, v))
        mixed, lse = attend_with_lse(q, k, values, scale=self.scale, mask=self.rule if rule is None else rule)
        return mixed[..., : v.shape[-1]], lse.to(mixed.dtype)

    def log_sum(self, factor: float) -> Float[torch.Tensor, "heads queries"]:
        """(heads, queries): the log-sum-exp of `factor` times the scores."""
        _, lse = attend_with_lse(self.q, self.k, self.k, scale=self.scale * factor, mask=self.rule)
        return lse.to(self.q.dtype)


def _prepare(
    q: Float[torch.Tensor, "heads queries d_head"],
    k: Float[torch.Tensor, "kv_heads keys d_head"],
    scale: float,
    mask: Mask,
) -> _Layer:
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(wide), k.to(wide)
    # Cauchy-Schwarz: no score is larger than this.
    bound = abs(scale) * float(q.norm(dim=-1).max()) * float(k.norm(dim=-1).max()) if q.numel() and k.numel() else 0.0
    if bound > FP32_SCORES:
        q, k = q.double(), k.double()
    positions = torch.arange(k.shape[1], device=k.device, dtype=k.dtype) - k.shape[1] // 2
    rule = Mask(causal=mask.causal, window=mask.window)
    if mask.keys is None:
        return _Layer(q, k, scale, q.shape[-1], rule, positions)
    hidden = ~torch.as_tensor(np.asarray(mask.keys, dtype=bool), device=k.device)
    d_head = q.shape[-1]
    q, k = _widen(q, d_head + ALIGNMENT).clone(), _widen(k.masked_fill(hidden[:, None], 0), d_head + ALIGNMENT).clone()
    q[..., d_head] = 1
    k[:, hidden, d_head] = -(2 * bound + 1000) / scale
    return _Layer(q, k, scale, d_head, rule, positions)


def _columns(layer: _Layer, roles: Roles, names: tuple[str, ...]) -> dict[str, Float[torch.Tensor, " keys"]]:
    """What goes beside K, by name: the fewer, the cheaper. A single [CLS] is one dot product instead."""
    pair = "other_sentence" in names
    flags = {
        "cls": roles.cls if "cls" in names and roles.cls.sum() > 1 else None,
        "sep": roles.sep if "sep" in names and roles.sep.any() else None,
        "punctuation": roles.punctuation if "punctuation" in names and roles.punctuation.any() else None,
        "first text": roles.sentences == 0 if pair and (roles.sentences == 0).any() else None,
        "second text": roles.sentences == 1 if pair and (roles.sentences == 1).any() else None,
    }
    k = layer.k
    columns = {"one": torch.ones_like(layer.positions), "position": layer.positions}
    for name, flag in flags.items():
        if flag is not None:
            columns[name] = torch.as_tensor(flag, device=k.device, dtype=k.dtype)
    return columns


def _values(
    layer: _Layer,
    columns: dict[str, Float[torch.Tensor, " keys"]],
    norms: Float[torch.Tensor, "heads keys"] | None,
    roles: Roles,
) -> tuple[Float[torch.Tensor, "groups keys width"], Float[torch.Tensor, "groups keys d_value"]]:
    """K, and V := [K | columns], one of each per key head; with norms per query head, each of which has its own."""
    k = layer.k
    features = torch.stack(list(columns.values()), -1)[None]
    if norms is not None:
        k = k.repeat_interleave(len(norms) // len(k), 0)
        special = torch.as_tensor(roles.special, device=k.device, dtype=k.dtype)
        features = torch.cat([features.expand(len(k), -1, -1), norms[..., None], (norms * special)[..., None]], -1)
    own = k[..., : layer.d_head]
    return k, torch.cat([own, features.expand(len(k), -1, -1)], -1)


def _on(layer: _Layer, lse: Float[torch.Tensor, "heads queries"], at: torch.Tensor, mask: Mask) -> torch.Tensor:
    """(heads, queries): the weight of query i on key at[i], from one dot product; 0 where the mask forbids it."""
    heads, queries, width = layer.q.shape
    kv_heads, keys, _ = layer.k.shape
    looked = layer.k[:, at.clamp(0, keys - 1)]
    grouped = layer.q.reshape(kv_heads, heads // kv_heads, queries, width)
    weight = torch.exp(layer.scale * (grouped * looked[:, None]).sum(-1).reshape(heads, queries) - lse)
    distance = at - (torch.arange(queries, device=at.device) + (keys - queries))
    allowed = (at >= 0) & (at < keys)
    left, right = mask.window or (None, None)
    if mask.causal:
        allowed &= distance <= 0
    if left is not None:
        allowed &= distance >= -left
    if right is not None:
        allowed &= distance <= right
    return weight.masked_fill(~allowed, 0).clamp_max(1)


def _distance(
    layer: _Layer,
    lse: Float[torch.Tensor, "heads queries"],
    offset: Float[torch.Tensor, "heads queries"],
    centred: Float[torch.Tensor, " queries"],
) -> Float[torch.Tensor, "heads queries"]:
    """E|j - i| = E[j - i] + 2 sum_{j <= i} p_ij (i - j): what lies behind comes from one causal call."""
    if layer.rule.causal:
        return -offset
    columns = torch.stack([torch.ones_like(layer.positions), layer.positions], -1)[None]
    causal = Mask(causal=True, window=layer.rule.window)
    mixed, lse_behind = layer.mix(layer.k, columns.expand(len(layer.k), -1, -1), causal)
    behind = torch.exp(lse_behind - lse) * (centred * mixed[..., 0] - mixed[..., 1])
    return offset + 2 * behind.clamp_min(0)


def _widen(x: Float[torch.Tensor, "heads n d"], width: int) -> Float[torch.Tensor, "heads n width"]:
    """Zeros to the right, up to this width."""
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))

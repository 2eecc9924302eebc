"""The fused way: every statistic from fused attention calls, with columns and keys instead of values."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.attention import Mask
from headscope.kernels import attend_with_lse
from headscope.statistics.catalog import CELLS
from headscope.statistics.layer import ALIGNMENT, Layer, Sums

if TYPE_CHECKING:
    from jaxtyping import Float

SHARPENING = 2.0**16
"""Factor a of the scores: lse(a s) / a exceeds the largest score by at most log(ties) / a, its exp by 1 / (e a)."""


def sums_by_fused_calls(layer: Layer, names: Collection[str]) -> Sums:
    """Make one call for the entropy and everything linear in the weights, and one more for each of three others.

    `effective_tokens` and `strongest` follow from log-sum-exps of scaled scores, `distance` from a causal call.
    """
    model_keys = layer.k[..., : layer.d_head]
    keys, columns = layer.k, layer.columns
    if columns.shape[1] > keys.shape[1]:  # norms differ between the query heads that share a key head
        shared = columns.shape[1] // keys.shape[1]
        keys, model_keys = keys.repeat_interleave(shared, 1), model_keys.repeat_interleave(shared, 1)
    columns = columns.expand(-1, keys.shape[1], -1, -1)
    mixed, lse = _mix(layer, keys, torch.cat([model_keys, columns], -1))
    energy = layer.scale * (layer.q[..., : layer.d_head] * mixed[..., : layer.d_head]).sum(-1)
    sums = {"entropy": (lse - energy).clamp_min(0)}
    at = torch.arange(layer.q.shape[2], device=lse.device) + layer.at
    for name, offset in CELLS.items():
        if name in names:
            sums[name] = _on(layer, lse, at + offset)
    if "first" in names:
        sums["first"] = _on(layer, lse, torch.zeros_like(at))
    if "effective_tokens" in names:
        sums["effective_tokens"] = torch.exp(2 * lse - _log_sum(layer, 2.0))
    if "strongest" in names:
        sums["strongest"] = torch.exp(_log_sum(layer, SHARPENING) / SHARPENING - lse).clamp_max(1)
    mixed = mixed[..., layer.d_head :]
    # Corrects the kernel's rounding of a row's sum, which should be 1.
    mixed = mixed / mixed[..., :1]
    sums["offset"] = mixed[..., 1] - layer.centred
    if layer.two_sided:
        # E|j - i| = E[j - i] + 2 sum_{j <= i} p_ij (i - j)
        sums["distance"] = sums["offset"] + 2 * _behind(layer, lse)
    return Sums(sums, mixed[..., 2:])


def _mix(
    layer: Layer,
    k: Float[torch.Tensor, "batch groups keys width"],
    v: Float[torch.Tensor, "batch groups keys d_value"],
    rule: Mask | None = None,
) -> tuple[Float[torch.Tensor, "batch heads queries d_value"], Float[torch.Tensor, "batch heads queries"]]:
    """Attention with these values. Zeros pad q, k and v to equal widths, as the kernels require."""
    width = max(k.shape[-1], v.shape[-1])
    width += -width % ALIGNMENT
    q, k, values = (torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (layer.q, k, v))
    mixed, lse = attend_with_lse(q, k, values, scale=layer.scale, mask=layer.rule if rule is None else rule)
    return mixed[..., : v.shape[-1]], lse.to(mixed.dtype)


def _log_sum(layer: Layer, factor: float) -> Float[torch.Tensor, "batch heads queries"]:
    """The log-sum-exp of `factor` times the scores."""
    _, lse = attend_with_lse(layer.q, layer.k, layer.k, scale=layer.scale * factor, mask=layer.rule)
    return lse.to(layer.q.dtype)


def _on(
    layer: Layer, lse: Float[torch.Tensor, "batch heads queries"], at: torch.Tensor
) -> Float[torch.Tensor, "batch heads queries"]:
    """The weight of query i on key at[i], from one dot product; 0 if the rule forbids it."""
    batch, heads, queries, width = layer.q.shape
    kv_heads, keys = layer.k.shape[1:3]
    looked = layer.k[:, :, at.clamp(0, keys - 1)]
    grouped = layer.q.reshape(batch, kv_heads, heads // kv_heads, queries, width)
    weight = torch.exp(layer.scale * (grouped * looked[:, :, None]).sum(-1).view(batch, heads, queries) - lse)
    first, end = (
        torch.as_tensor(bound, device=at.device) for bound in layer.rule.reach(np.arange(queries) + layer.at, keys)
    )
    allowed = (at >= first) & (at < end)
    return weight.masked_fill(~allowed, 0).clamp_max(1)


def _behind(
    layer: Layer, lse: Float[torch.Tensor, "batch heads queries"]
) -> Float[torch.Tensor, "batch heads queries"]:
    """sum_{j <= i} p_ij (i - j) = exp(lse_causal - lse) E_causal[i - j], from a causal call at half the cost."""
    columns = layer.columns[:, :1, :, :2].expand(-1, layer.k.shape[1], -1, -1)
    mixed, lse_behind = _mix(layer, layer.k, columns, Mask(causal=True, window=layer.rule.window))
    behind = torch.exp(lse_behind - lse) * (layer.centred * mixed[..., 0] - mixed[..., 1])
    return behind.clamp_min(0)

"""Which fused kernel gives attention's output together with each query's log-sum-exp: the one place that chooses.

PyTorch's scaled_dot_product_attention computes log-sum-exps in its fused kernels and drops them. A `KernelWatch` looks
on while it runs and picks them up: nothing is computed twice and the output is what it would have been, bit for bit.
`attend_with_lse` runs it for our own purposes, and takes blocks of queries where only the unfused kernel is left, which
would build the whole map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from headscope.attention import EVERYTHING, Mask, attend

aten = torch.ops.aten

COMPOSITE = aten.scaled_dot_product_attention.default
"""Seen whole under inference_mode; it is taken apart there so that the kernel inside shows."""

FUSED = tuple(
    getattr(aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    if hasattr(aten, name)
)
"""The kernels behind scaled_dot_product_attention that return (output, log-sum-exp, …)."""

ON_REQUEST = tuple(
    getattr(aten, name).default
    for name in ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
    if hasattr(aten, name)
)
"""Of these, the ones that compute log-sum-exps only where their fifth argument says so."""

MATH = int(torch.nn.attention.SDPBackend.MATH.value)
"""The unfused kernel, which builds the whole map."""


class KernelWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, picks up the log-sum-exp of the fused attention kernel that runs.

    Attributes:
        calls: how many fused kernels ran.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self._found: torch.Tensor | None = None

    def lse(self, batch: int, heads: int, queries: int) -> torch.Tensor | None:
        """(batch, heads, queries) in fp32 or wider, or None where other than one fused kernel ran on that shape."""
        found = self._found
        if self.calls != 1 or found is None:
            return None
        if found.dim() == 4:
            found = found.squeeze(-1)
        if found.dim() == 3 and found.shape[:2] == (batch, heads) and found.shape[2] >= queries:
            return found[..., :queries].detach()
        if queries == 1 and found.numel() == batch * heads:
            return found.detach().reshape(batch, heads, 1)
        return None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        if func not in FUSED:
            return func(*args, **kwargs)
        if func in ON_REQUEST:
            if len(args) > 4:
                args = (*args[:4], True, *args[5:])
            else:
                kwargs = {**kwargs, "compute_log_sumexp": True}
        result = func(*args, **kwargs)
        self.calls += 1
        self._found = result[1]
        return result


def is_fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float
) -> bool:
    """Whether scaled_dot_product_attention would run a fused kernel on these: (batch, heads, queries, d_head) …."""
    choose: Callable[..., int] = torch._fused_sdp_choice
    return choose(q, k, v, bias, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]) != MATH


def attend_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, mask: Mask = EVERYTHING
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts and log-sum-exps by the fastest kernel there is, without ever building a map.

    Args:
        q: (heads, queries, d_head), or with a batch in front; the mask holds for all of the batch.
        k, v: (kv_heads, keys, d_head) and (kv_heads, keys, d_value), likewise.
        scale: what q . k is multiplied by.
        mask: which keys a query may look at. A bias is a torch tensor on q's device.

    Returns:
        Contexts (…, heads, queries, d_value) in q's precision and log-sum-exps (…, heads, queries) in fp32 or wider.
        A query whose keys are all masked has context 0 and log-sum-exp -inf.
    """
    if q.dim() == 3:
        context, lse = attend_with_lse(q[None], k[None], v[None], scale=scale, mask=mask)
        return context[0], lse[0]
    queries, keys = q.shape[2], k.shape[2]
    form = _fused_form(mask, queries, keys, q)
    if form is not None:
        bias, causal, unseen = form
        if is_fused(q, k, v, bias, causal, scale):
            watch = KernelWatch()
            with watch:
                context = scaled_dot_product_attention(
                    q, k, v, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
                )
            found = watch.lse(q.shape[0], q.shape[1], queries)
            if found is not None:
                if unseen is None:
                    return context, found
                return (
                    context.masked_fill(unseen[..., None], 0.0),
                    found.masked_fill(unseen.expand(found.shape), float("-inf")),
                )
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = [attend(one.to(wide), k[i].to(wide), v[i].to(wide), scale=scale, mask=mask) for i, one in enumerate(q)]
    return torch.stack([row[0] for row in rows]).to(q.dtype), torch.stack([row[1] for row in rows])


def _fused_form(
    mask: Mask, queries: int, keys: int, q: torch.Tensor
) -> tuple[torch.Tensor | None, bool, torch.Tensor | None] | None:
    """A mask as scaled_dot_product_attention takes it without building a map: (bias, is_causal, unseen rows).

    None where it would need one: windows, and causal masks with padding or with more keys than queries.
    """
    if mask.window is not None:
        return None
    if mask.causal:
        plain = mask.keys is None and mask.bias is None and queries == keys
        return (None, True, None) if plain else None
    bias = None
    unseen = None
    if mask.bias is not None:
        bias = torch.as_tensor(mask.bias, device=q.device, dtype=q.dtype)[None]
        if mask.keys is not None:
            return None
        unseen = (bias == float("-inf")).all(-1)
    elif mask.keys is not None:
        allowed = torch.from_numpy(np.array(mask.keys)).to(q.device)
        bias = torch.zeros(keys, device=q.device, dtype=q.dtype).masked_fill(~allowed, float("-inf"))
        bias = bias.expand(q.shape[0], 1, queries, keys)
        unseen = (~allowed.any()).expand(1, 1, queries)
    return bias, False, unseen

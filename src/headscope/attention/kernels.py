"""Choose the kernel that computes attention's output together with each query's log-sum-exp.

PyTorch's scaled_dot_product_attention computes log-sum-exps in its fused kernels and discards them. A `KernelWatch`
collects them while it runs: nothing is computed twice, and the output is identical bit for bit. `attend_with_lse`
runs a fused kernel, or computes in blocks of scores (headscope.attention.blocks) if only the unfused kernel applies,
which would build the whole map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from headscope.attention.blocks import attend_in_blocks
from headscope.attention.scores import EVERYTHING, Mask, scores
from headscope.attention.terms import NO_TERMS, Terms
from headscope.errors import UnsupportedError

aten = torch.ops.aten

COMPOSITE = aten.scaled_dot_product_attention.default
"""Under inference_mode, the dispatcher reports this operator instead of the kernel in it, so it is decomposed there."""

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

ON_REQUEST = tuple(kernel for kernel in FUSED if any(part in kernel.name() for part in ("efficient", "cudnn")))
"""Those of them that compute log-sum-exps only if their fifth argument is True."""

MATH = int(torch.nn.attention.SDPBackend.MATH.value)
"""The unfused kernel, which builds the whole map."""


class KernelNotes:
    """Notes on the fused attention kernels that run in a call.

    Attributes:
        calls: number of fused kernels that ran.
        kernel: name of the last one.
        dtype: dtype of the last one's queries, after any cast by autocast.
        attended: called with the arguments and the result of each scaled_dot_product_attention, right after it ran.
    """

    def __init__(self) -> None:
        self.attended: Callable[[tuple[Any, ...], dict[str, Any], torch.Tensor], None] | None = None
        self.calls = 0
        self.kernel = ""
        self.dtype: torch.dtype | None = None
        self._lse: torch.Tensor | None = None

    def lse(self, batch: int, heads: int, queries: int) -> torch.Tensor | None:
        """(batch, heads, queries) in fp32 or wider; None unless exactly one fused kernel ran, with this shape."""
        lse = self._lse
        if self.calls != 1 or lse is None:
            return None
        if lse.dim() == 4:
            lse = lse.squeeze(-1)
        if lse.dim() == 3 and lse.shape[:2] == (batch, heads) and lse.shape[2] >= queries:
            return lse[..., :queries].detach()
        if queries == 1 and lse.numel() == batch * heads:
            return lse.detach().reshape(batch, heads, 1)
        return None

    def run(self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a fused kernel and note what it computed.

        Args:
            kernel: the operator, one of FUSED.
            run: runs it.
            args, kwargs: its arguments.
        """
        if kernel in ON_REQUEST:
            if len(args) > 4:
                args = (*args[:4], True, *args[5:])
            else:
                kwargs = {**kwargs, "compute_log_sumexp": True}
        result = run(*args, **kwargs)
        self.calls += 1
        self.kernel = kernel.name()
        self.dtype = args[0].dtype
        self._lse = result[1]
        return result


class KernelWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the fused attention kernels that run in its block.

    Attributes:
        notes: the notes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes = KernelNotes()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        return self.notes.run(func, func, args, kwargs) if func in FUSED else func(*args, **kwargs)


def autocast_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of a tensor in attention's products: autocast casts all tensors except those in fp64."""
    kind = x.device.type
    if x.dtype == torch.float64 or not x.is_floating_point() or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def autocast_now(kinds: set[str]) -> dict[str, torch.dtype | None]:
    """Device type -> the precision to which autocast currently casts; None if it is off."""
    return {kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds}


def is_fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, scale: float
) -> bool:
    """Return True if scaled_dot_product_attention would run a fused kernel on q, k and v, (batch, heads, tokens, d)."""
    choose: Callable[..., int] = torch._fused_sdp_choice
    return choose(q, k, v, bias, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]) != MATH


def attend_with_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts and log-sum-exps from the fastest available kernel, without building a map.

    Args:
        q: (heads, queries, d_head), or (batch, heads, queries, d_head); the mask applies to the whole batch.
        k, v: (kv_heads, keys, d_head) and (kv_heads, keys, d_value), with a batch axis if q has one.
        scale: factor of q . k.
        mask: the mask; a bias is a torch tensor on q's device.
        terms: what the model adds to scale * q . k, as torch tensors; no fused kernel knows them.

    Returns:
        Contexts (…, heads, queries, d_value) in q's precision and log-sum-exps (…, heads, queries) in fp32 or wider.
        A query whose keys are all masked has context 0 and log-sum-exp -inf.
    """
    if q.dim() == 3:
        context, lse = attend_with_lse(q[None], k[None], v[None], scale=scale, mask=mask, terms=terms)
        return context[0], lse[0]
    queries, keys = q.shape[2], k.shape[2]
    form = _fused_form(mask, queries, keys, q) if terms.nothing else None
    if form is not None:
        bias, causal, unseen = form
        if is_fused(q, k, v, bias, causal, scale):
            watch = KernelWatch()
            with watch:
                context = scaled_dot_product_attention(
                    q, k, v, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
                )
            lse_of_kernel = watch.notes.lse(q.shape[0], q.shape[1], queries)
            if lse_of_kernel is not None:
                check_log_sum_exps(watch.notes.kernel, lse_of_kernel, q, k, scale=scale, mask=mask)
                if unseen is None:
                    return context, lse_of_kernel
                return (
                    context.masked_fill(unseen[..., None], 0.0),
                    lse_of_kernel.masked_fill(unseen.expand(lse_of_kernel.shape), float("-inf")),
                )
    return attend_in_blocks(q, k, v, scale, mask, terms)


_CHECKED: set[tuple[str, str, torch.dtype]] = set()
"""Kernels whose log-sum-exps have been compared with their definition, with the device's type and the precision."""


def check_log_sum_exps(
    kernel: str, lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, *, scale: float, mask: Mask = EVERYTHING
) -> None:
    """Compare a query's log-sum-exp with its definition, once for each kernel, type of device and precision.

    Kernels compute in powers of 2. One that returns its log-sum-exps so (as the operator below flex_attention does) is
    off by a factor of ln 2.

    Args:
        kernel: its name.
        lse: (batch, heads, queries), what it returned.
        q, k: (batch, heads, queries, d_head) and (batch, kv_heads, keys, d_head).
        scale: factor of q . k.
        mask: the mask; calls with a bias are not compared, as a bias may shift whole rows.

    Raises:
        UnsupportedError: the log-sum-exp is another number.
    """
    place = (kernel, q.device.type, q.dtype)
    if place in _CHECKED or mask.bias is not None or not lse.numel() or not k.numel():
        return
    wide = torch.promote_types(q.dtype, torch.float32)
    last, sizes = q.shape[2] - 1, (q.shape[2], k.shape[2])
    row = scores(
        q[0, :1, last:].to(wide), k[0, :1].to(wide), scale=scale, mask=mask, rows=np.array([last]), sizes=sizes
    )
    expected, returned = float(row.logsumexp(-1)), float(lse[0, 0, last])
    if math.isinf(expected) or abs(expected) < 1:
        return  # another call tells more
    if not abs(returned - expected) <= 0.05 * abs(expected):
        base = ": it counts in powers of 2" if abs(returned * math.log(2) - expected) <= 0.05 * abs(expected) else ""
        raise UnsupportedError(
            f"{kernel} returned the log-sum-exp {returned:.4g} for a query whose scores have {expected:.4g}{base}",
            where=f"{q.dtype} on {q.device.type}",
            advice="choose another kernel: with torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        )
    _CHECKED.add(place)


def _fused_form(
    mask: Mask, queries: int, keys: int, q: torch.Tensor
) -> tuple[torch.Tensor | None, bool, torch.Tensor | None] | None:
    """A mask as arguments of scaled_dot_product_attention: (bias, is_causal, rows that see no key).

    None if the bias would have to be built as a map: for windows, and causal masks with padding or other sizes.
    """
    if mask.window is not None:
        return None
    if mask.causal:
        plain = mask.keys is None and mask.bias is None and queries == keys
        return (None, True, None) if plain else None
    bias = None
    unseen = None
    if mask.bias is not None:
        bias = torch.as_tensor(mask.bias, device=q.device)[None]
        if bias.dtype != q.dtype:
            # A finite number beyond the range of q's dtype stays finite: a row of them is not masked.
            wide = bias.to(torch.promote_types(bias.dtype, q.dtype))
            finite = wide.clamp(torch.finfo(q.dtype).min, torch.finfo(q.dtype).max)
            bias = torch.where(wide == float("-inf"), wide, finite).to(q.dtype)
        if mask.keys is not None:
            return None
        unseen = (bias == float("-inf")).all(-1)
    elif mask.keys is not None:
        allowed = torch.from_numpy(np.array(mask.keys)).to(q.device)
        bias = torch.zeros(keys, device=q.device, dtype=q.dtype).masked_fill(~allowed, float("-inf"))
        bias = bias.expand(q.shape[0], 1, queries, keys)
        unseen = (~allowed.any()).expand(1, 1, queries)
    return bias, False, unseen

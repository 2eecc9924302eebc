"""PyTorch's fused attention kernels: notes on those that run in a call, and the precision that they run in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FUSED = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    if hasattr(torch.ops.aten, name)
)
"""The kernels behind scaled_dot_product_attention that build no map."""


class KernelNotes:
    """Notes on the fused attention kernels that run in a call.

    Attributes:
        queries: (batch, heads, queries, d_head), the shape of its queries if one ran; empty if none did or several,
            or of nested ones.
        dtype: dtype of the last one's queries, after any cast by autocast.
        attended: called with the arguments and the result of each scaled_dot_product_attention, right after it ran.
    """

    def __init__(self) -> None:
        self.attended: Callable[[tuple[Any, ...], dict[str, Any], torch.Tensor], None] | None = None
        self.queries: tuple[int, ...] = ()
        self.dtype: torch.dtype | None = None

    def note(self, query: torch.Tensor) -> None:
        """Note a fused kernel that runs on these queries."""
        self.queries = () if query.is_nested or self.dtype is not None else query.shape
        self.dtype = query.dtype


def autocast_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of a tensor in attention's products: autocast casts all tensors except those in fp64."""
    kind = x.device.type
    if x.dtype == torch.float64 or not x.is_floating_point() or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def autocast_now(kinds: set[str]) -> dict[str, torch.dtype | None]:
    """Device type -> the precision to which autocast currently casts; None if it is off."""
    return {kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds}

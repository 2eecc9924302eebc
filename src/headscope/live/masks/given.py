"""The meaning of the mask that a call is given, by who was called.

The same tensor means different things. Flash attention takes a mask of two axes, which hides keys of padding; flex
attention only masks with a block mask, and adds any tensor; eager attention adds its mask and ignores all hints;
scaled_dot_product_attention is causal from the first key on if it is given no mask. `raw_mask` has a row for each.
Where a reader computes a class's attention (headscope.live.seeing.readers), the reader says what the mask means.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headscope.errors import UnsupportedError
from headscope.live.masks.analyst import RawMask
from headscope.live.masks.cells import Cells
from headscope.live.masks.flex import Flexed
from headscope.live.plan.classes import FLEX_NAME


def with_four_axes(mask: torch.Tensor | None, one_head: bool, keys: int) -> torch.Tensor | None:
    """A mask as (1 or batch, 1 or heads, 1 or queries, keys), by PyTorch's broadcasting rules."""
    if mask is None:
        return None
    if mask.shape[-1] != keys:
        mask = mask.expand(*mask.shape[:-1], keys)
    if one_head and mask.dim() == 3:
        return mask.unsqueeze(1)
    return mask[(None,) * (4 - mask.dim())]


def raw_mask(
    name: str, module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, kwargs: dict[str, Any]
) -> tuple[RawMask, int]:
    """The mask that an attention function applies for these arguments, and how many of the keys it uses.

    Raises:
        UnsupportedError: the mask is not a tensor.
    """
    queries, keys = query.shape[2], key.shape[2]
    bias = kwargs.get("position_bias")
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    flexed = Flexed.of(mask)
    if flexed is not None:
        sizes = (max(len(query), len(key)), query.shape[1], queries, keys)
        return replace(flexed.raw(sizes, query.device, type(module).__name__), bias=bias), keys
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise UnsupportedError(
            f"{name} masks with a {type(mask).__name__}, which capture can't read",
            where=type(module).__name__,
            advice='switch the attention implementation first: model.set_attn_implementation("sdpa")',
        )
    if name == FLEX_NAME:
        # Only a block mask masks: a tensor is added, whatever its type, the same for all heads, and nothing is causal.
        return RawMask.added(None if mask is None else mask[:, :1, :, :keys], bias), keys
    if name.startswith("flash") or (mask is not None and mask.dim() == 2):
        keys = keys if mask is None else min(keys, mask.shape[-1])
        width = kwargs.get("sliding_window")
        window = None if width is None or keys <= width else (int(width) - 1, None if causal else int(width) - 1)
        return RawMask(keys=mask, causal=bool(causal) and queries > 1, window=window, bias=bias), keys
    if name.endswith(("eager_attention_forward", "eager")):
        return RawMask.added(mask, bias), keys
    if mask is None and bool(causal) and queries > 1:
        used = keys if kwargs.get("same_tokens") is not None else min(queries, keys)
        bias, moved = None if bias is None else bias[..., :used], queries != used  # query i sees key j only if j <= i
        return RawMask(causal=not moved, window=(None, queries - used) if moved else None, bias=bias), used
    if bias is not None and mask is not None and mask.dtype == torch.bool:
        return RawMask.filled(mask, bias), keys
    return RawMask(mask=mask, bias=bias), keys


def used_keys(mask: torch.Tensor | Cells, queries: int, kept: str | None = None) -> int:
    """Number of keys without the trailing ones that no query sees, which are the unused slots of a static cache.

    In a numeric mask, only -inf and the lowest finite number count as masked, and only in rows that also hold other
    values, or that are padding: before a query that sees a key, with a key of their own that no query sees.

    Args:
        mask: the mask.
        queries: their number.
        kept: the module's name, for an error, if padding is kept.

    Raises:
        UnsupportedError: padding that is kept, or is all that a row has, looks at unused slots.
    """
    blocks = [mask] if isinstance(mask, torch.Tensor) else (block for _, block in mask.blocks())
    last, looked_at = (max(ends) for ends in zip(*(_last_seen(block, queries) for block in blocks), strict=True))
    blind = isinstance(mask, torch.Tensor) and _has_blind_row(mask)
    if blind or (kept is not None and looked_at != last >= 0):
        raise UnsupportedError(
            "padding looks at all slots of a static cache alike, at unused ones, too",
            where=kept or "attention mask",
            advice=("" if blind else 'leave out padding="keep", or ')
            + 'switch to model.set_attn_implementation("sdpa")',
        )
    return max(queries, last + 1 if last >= 0 else mask.shape[-1])


def _last_seen(mask: torch.Tensor, queries: int) -> tuple[int, int]:
    """The last key that a query sees, -1 if none sees any; and the last one that a query or padding sees."""
    if mask.dtype == torch.bool:
        return (_last(mask),) * 2
    seen = mask > torch.finfo(mask.dtype).min
    some = seen.any(-1, keepdim=True)
    hidden = shifted = ~some
    if mask.shape[-2] == queries:
        used = max(queries, _last(seen) + 1)
        unseen = ~seen.any(-2)[..., used - queries : used, None]
        shifted = hidden & ~(unseen & some.flip(-2).cummax(-2)[0].flip(-2))
    return _last(seen | shifted), _last(seen | hidden)


def _has_blind_row(mask: torch.Tensor) -> bool:
    """Return True if a mask of numbers hides every key from a row of the batch, and only the last ones from others."""
    if mask.dtype == torch.bool:
        return False
    seen = mask > torch.finfo(mask.dtype).min
    return 0 <= _last(seen) < mask.shape[-1] - 1 and not bool(seen.flatten(1).any(1).all())


def _last(seen: torch.Tensor) -> int:
    places = seen.flatten(0, -2).any(0).nonzero()
    return int(places[-1]) if len(places) else -1

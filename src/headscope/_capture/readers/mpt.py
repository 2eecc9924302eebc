"""MPT (MosaicML 2023): ALiBi by key, and optionally queries, keys and values that are clipped (clip_qkv)."""

from __future__ import annotations

from typing import Any

from headscope._capture.masks import RawMask
from headscope._capture.readers.reading import Arguments, Reader, Reading, Run, from_cache, heads_of


def read(module: Any, arguments: Arguments, run: Run) -> Reading:
    """Read a call of MptAttention."""
    fused = run(module.Wqkv, arguments["hidden_states"])
    if module.clip_qkv:
        fused = fused.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (heads_of(part, module.head_dim) for part in fused.chunk(3, -1))
    cache, queries = arguments["past_key_values"], q.shape[2]
    if cache is not None:
        k, v = from_cache(cache, module.layer_idx, False)
        queries += cache.get_seq_length()
    mask, bias = arguments["attention_mask"], arguments["position_bias"]
    if bias is not None:
        bias = bias[None, :, max(0, bias.shape[1] - queries) :, max(0, bias.shape[2] - k.shape[2]) :]
    allowed = None if mask is None else ~mask.bool()
    return Reading(q, k, v, scale=module.softmax_scale, mask=RawMask(mask=allowed, bias=bias))


READER = Reader(read, projection="out_proj", dropouts=("attn_dropout_p",))

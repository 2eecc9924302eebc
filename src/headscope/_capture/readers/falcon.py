"""Falcon (Almazrouei et al. 2023), where it computes its attention itself: with rotated queries and keys, or ALiBi.

With SDPA, which is the default, the module calls scaled_dot_product_attention with ALiBi in the mask. Its eager
attention, which also runs if weights are requested, adds ALiBi once more to a mask that has it already, so the weights
that it returns are not those of the default. Both are read as they run.
"""

from __future__ import annotations

import sys
from typing import Any

from headscope._capture.masks import RawMask
from headscope._capture.readers.reading import Arguments, Reader, Reading, Run, from_cache


def read(module: Any, arguments: Arguments, run: Run) -> Reading | None:
    """Read a call of FalconAttention; None if it calls scaled_dot_product_attention."""
    if module.config._attn_implementation == "sdpa" and not arguments["output_attentions"]:
        return None
    q, k, v = (
        part.transpose(1, 2) for part in module._split_heads(run(module.query_key_value, arguments["hidden_states"]))
    )
    alibi = arguments["alibi"]
    if alibi is None:
        rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
        q, k = rotate(q, k, *arguments["position_embeddings"])
    if arguments["layer_past"] is not None:
        k, v = from_cache(arguments["layer_past"], module.layer_idx, False)
    bias = None if alibi is None else alibi.reshape(len(q), module.num_heads, 1, -1) * module.inv_norm_factor
    mask = RawMask(mask=arguments["attention_mask"].to(q.dtype), bias=bias)  # a bool mask is added, as 0 and 1
    stage = "projected" if alibi is not None else "rotated"
    return Reading(q, k, v, scale=module.inv_norm_factor, mask=mask, stage=stage)


def differs(module: Any) -> str | None:
    """The reason why the weights that Falcon returns are not those of its default attention."""
    if module.config.alibi and module.config._attn_implementation == "sdpa":
        return "Falcon's eager attention counts ALiBi twice, the attention that ran counts it once"
    return None


READER = Reader(read, projection="dense", dropouts=("attention_dropout",), differs=differs)

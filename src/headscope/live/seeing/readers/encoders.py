"""MPNet and RoFormer, encoders like BERT with other positions.

MPNet (Song et al. 2020) has T5's relative position bias, the same in every layer, with a scale of 1 / sqrt(d_head).
RoFormer (Su et al. 2021) rotates queries and keys, and values where the config sets rotary_value.
"""

from __future__ import annotations

from typing import Any

import torch

from headscope.live.masks.analyst import RawMask
from headscope.live.seeing.readers.reading import Arguments, Reader, Reading, RunPart, cache_of, from_cache, heads_of


def read_mpnet(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of MPNetSelfAttention."""
    d_head = module.attention_head_size
    q, k, v = (heads_of(run(part, arguments["hidden_states"]), d_head) for part in (module.q, module.k, module.v))
    bias = arguments["position_bias"]
    if bias is not None and all(torch.equal(row, bias[0]) for row in bias[1:]):
        bias = bias[:1]  # the model repeats it for every text of the batch
    return Reading(q, k, v, scale=d_head**-0.5, mask=RawMask.added(arguments["attention_mask"], bias))


MPNET = Reader(read_mpnet, projection="o")


def read_roformer(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of RoFormerSelfAttention."""
    d_head, hidden = module.attention_head_size, arguments["hidden_states"]
    cross = arguments["encoder_hidden_states"] is not None
    q = heads_of(run(module.query, hidden), d_head)
    seen = arguments["encoder_hidden_states"] if cross else hidden
    k, v = heads_of(run(module.key, seen), d_head), heads_of(run(module.value, seen), d_head)
    positions = arguments["sinusoidal_pos"]
    rotated = not cross and positions is not None
    if rotated:
        values = (v,) if module.rotary_value else ()
        q, k, *turned = module.apply_rotary_position_embeddings(positions, q, k, *values)
        v = turned[0] if turned else v
    if (cache := cache_of(arguments)) is not None:
        k, v = from_cache(cache, module.layer_idx, cross)
    return Reading(
        q,
        k,
        v,
        scale=d_head**-0.5,
        mask=RawMask.added(arguments["attention_mask"]),
        cross=cross,
        stage="rotated" if rotated else "projected",
    )


ROFORMER = Reader(read_roformer)

"""Attention whose module writes its products out, in encoders and in decoders with ALiBi.

MegatronBERT, RemBERT, TAPAS, VisualBERT, FLAVA, LXMERT, ViLT, and the text of BLIP and of GIT have BERT's attention
(Devlin et al. 2018) as it was published. XLM and FlauBERT (Lample and Conneau 2019; Le et al. 2020) fill scores where
a mask is 0. The images of BLIP (Li et al. 2022) have one matrix for queries, keys and values.
MPNet (Song et al. 2020) has T5's relative position bias, the same in every layer, with a scale of 1 / sqrt(d_head).
RoFormer (Su et al. 2021) rotates queries and keys, and values where the config sets rotary_value.

BLOOM, Falcon and MPT are decoders with ALiBi (Press et al. 2022), a number for each head and key. BLOOM (Le Scao et al.
2022) doesn't count padding. MPT (MosaicML 2023) may clip queries, keys and values (clip_qkv). Falcon (Almazrouei et al.
2023) may rotate queries and keys instead. With SDPA, which is the default, its module calls
scaled_dot_product_attention with ALiBi in the mask. Its eager attention, which also runs if weights are requested, adds
ALiBi once more to a mask that has it already, so the weights that it returns are not those of the default. Both are
read as they run.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from headscope.live.masks.analyst import RawMask
from headscope.live.seeing.readers.reading import Arguments, Reader, Reading, RunPart, cached, heads_of


def read_mpnet(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of MPNetSelfAttention."""
    d_head = module.attention_head_size
    q, k, v = (heads_of(run(part, arguments["hidden_states"]), d_head) for part in (module.q, module.k, module.v))
    bias = arguments["position_bias"]
    if bias is not None and all(torch.equal(row, bias[0]) for row in bias[1:]):
        bias = bias[:1]  # the model repeats it for every text of the batch
    return Reading(q, k, v, scale=d_head**-0.5, mask=RawMask.added(arguments["attention_mask"], bias))


MPNET = Reader(read_mpnet, projection="o")


def read_written_out(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of BERT's attention as it was published, with matrices: query, key, value, and a mask that is added.

    With RoFormer's positions, queries and keys (and values, with rotary_value) are rotated by them.
    """
    d_head, hidden, other = module.attention_head_size, arguments["hidden_states"], arguments.seen
    seen = hidden if other is None else other
    inputs = ((module.query, hidden), (module.key, seen), (module.value, seen))
    q, k, v = (heads_of(run(part, x), d_head) for part, x in inputs)
    positions = arguments.get("sinusoidal_pos")
    rotated = other is None and positions is not None
    if rotated:
        values = (v,) if module.rotary_value else ()
        q, k, *turned = module.apply_rotary_position_embeddings(positions, q, k, *values)
        v = turned[0] if turned else v
    k, v = cached(module, arguments, k, v, cross=other is not None)
    its_own = other is not None and "encoder_attention_mask" in arguments
    mask = RawMask.added(arguments["encoder_attention_mask" if its_own else "attention_mask"])
    stage = "rotated" if rotated else "projected"
    return Reading(q, k, v, scale=d_head**-0.5, mask=mask, cross=other is not None, stage=stage)


WRITTEN_OUT = Reader(read_written_out)


def read_xlm(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of the MultiHeadAttention of XLM and FlauBERT."""
    parts, d_head = (module.q_lin, module.k_lin, module.v_lin), module.head_dim
    q, k, v = (heads_of(run(part, arguments["hidden_states"]), d_head) for part in parts)
    k, v = cached(module, arguments, k, v)
    allowed = arguments["attention_mask"].reshape(len(q), 1, -1, k.shape[2]) != 0
    return Reading(q, k, v, scale=d_head**-0.5, mask=RawMask.filled(allowed))


XLM = Reader(read_xlm, projection="out_lin")


def read_blip(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of BlipAttention, of images: one matrix makes queries, keys and values."""
    fused = run(module.qkv, arguments["hidden_states"])
    q, k, v = (heads_of(part, module.head_dim) for part in fused.chunk(3, -1))
    return Reading(q, k, v, scale=module.scale, mask=RawMask.added(arguments.get("attention_mask")))


BLIP = Reader(read_blip, projection="projection")


def read_bloom(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of BloomAttention."""
    q, k, v = module._reshape(run(module.query_key_value, arguments["hidden_states"]))
    k, v = cached(module, arguments, k, v)
    alibi = arguments["alibi"].reshape(len(q), module.num_heads, 1, -1)
    mask = RawMask.added(arguments["attention_mask"], alibi)
    return Reading(q, k, v, scale=module.inv_norm_factor, mask=mask)


def refusal_bloom(module: Any) -> str | None:
    """The reason why a BLOOM attention can't be read."""
    if module.pretraining_tp > 1 and module.slow_but_exact:
        return "slow_but_exact is set: the output projection is computed in slices"
    return None


BLOOM = Reader(read_bloom, projection="dense", refusal=refusal_bloom, dropouts=("attention_dropout",))


def read_falcon(module: Any, arguments: Arguments, run: RunPart) -> Reading | None:
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
    k, v = cached(module, arguments, k, v)
    bias = None if alibi is None else alibi.reshape(len(q), module.num_heads, 1, -1) * module.inv_norm_factor
    mask = RawMask.added(arguments["attention_mask"], bias)
    stage = "projected" if alibi is not None else "rotated"
    return Reading(q, k, v, scale=module.inv_norm_factor, mask=mask, stage=stage)


def differs_falcon(module: Any, implementation: str) -> str | None:
    """The reason why the weights that Falcon returns are not those of its default attention."""
    if module.config.alibi and implementation == "sdpa":
        return "Falcon's eager attention counts ALiBi twice, the attention that ran counts it once"
    return None


FALCON = Reader(read_falcon, projection="dense", dropouts=("attention_dropout",), differs=differs_falcon)


def read_mpt(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of MptAttention."""
    fused = run(module.Wqkv, arguments["hidden_states"])
    if module.clip_qkv:
        fused = fused.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (heads_of(part, module.head_dim) for part in fused.chunk(3, -1))
    k, v = cached(module, arguments, k, v)
    queries = q.shape[2] + (0 if arguments.cache is None else arguments.cache.get_seq_length())
    mask, bias = arguments["attention_mask"], arguments["position_bias"]
    if bias is not None:
        bias = bias[None, :, max(0, bias.shape[1] - queries) :, max(0, bias.shape[2] - k.shape[2]) :]
    allowed = None if mask is None else ~mask.bool()
    return Reading(q, k, v, scale=module.softmax_scale, mask=RawMask.filled(allowed, bias))


MPT = Reader(read_mpt, projection="out_proj", dropouts=("attn_dropout_p",))

"""DeBERTa (He et al. 2021): content to position and position to content, with vectors for distances up to a limit.

    s_ij = (q_i . k_j + q_i . rk[delta(i, j)] + k_j . rq[delta(i, j)]) / sqrt(d_head (1 + number of terms))

delta(i, j) = clip(i - j + span, 0, 2 span - 1). One projection holds W_Q, W_K and W_V head by head; only queries and
values have biases.

DeBERTa v2 and v3 (He et al. 2021, 2023) have the same scores with distances in logarithmic buckets: delta(i, j) =
clip(bucket(i - j) + span, 0, 2 span - 1). Relative keys and queries come from the layer's own W_K and W_Q
(share_att_key), or from projections of their own.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from headscope.attention.terms import NO_TERMS, Terms
from headscope.errors import UnsupportedError
from headscope.live.masks.analyst import RawMask
from headscope.live.masks.guess import line_of
from headscope.live.seeing.readers.reading import Arguments, Reader, Reading, RunPart, heads_of

KNOWN = frozenset({"c2p", "p2c"})

_LINES: Any = WeakTensorKeyDictionary()
"""Relative positions, as the model passes them to all its layers -> the position of each distance."""


def read(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of DeBERTa's DisentangledSelfAttention."""
    hidden = arguments["hidden_states"]
    if arguments["query_states"] is not None:
        raise UnsupportedError(
            "DeBERTa's attention was called with query_states, which it can't compute on batches",
            where=type(module).__name__,
            advice="call it with hidden_states alone",
        )
    heads, d_head = module.num_attention_heads, module.attention_head_size
    fused = run(module.in_proj, hidden)
    q, k, v = fused.reshape(*fused.shape[:2], heads, 3 * d_head).transpose(1, 2).chunk(3, -1)
    q = q + heads_of(module.q_bias[None, None], d_head)
    v = v + heads_of(module.v_bias[None, None], d_head)
    return Reading(
        q,
        k,
        v,
        scale=(d_head * (1 + len(module.pos_att_type))) ** -0.5,
        mask=RawMask.filled(arguments["attention_mask"].bool()),
        terms=_terms(module, arguments, run, hidden.shape[1]),
    )


def _terms(module: Any, arguments: Arguments, run: RunPart, tokens: int) -> Terms:
    embeddings, relative = arguments["rel_embeddings"], arguments["relative_pos"]
    if not module.relative_attention or embeddings is None or relative is None or not module.pos_att_type:
        return NO_TERMS
    limit = module.max_relative_positions
    span = min(tokens, limit)
    vectors = embeddings[limit - span : limit + span][None]
    d_head = module.attention_head_size
    # The module scales what pos_q_proj returns in place, so it is run again.
    return Terms(
        buckets=buckets_of(relative, span, type(module).__name__),
        relative_keys=heads_of(run(module.pos_proj, vectors), d_head)[0] if "c2p" in module.pos_att_type else None,
        relative_queries=heads_of(module.pos_q_proj(vectors), d_head)[0] if "p2c" in module.pos_att_type else None,
    )


def buckets_of(relative: torch.Tensor, span: int, name: str) -> np.ndarray:
    """(2 tokens - 1,): the vector of each distance, clip(relative + span), from (1, tokens, tokens).

    Raises:
        UnsupportedError: the relative positions are not a function of the distance, odd in it.
    """
    line = _LINES.get(relative)
    if line is None:
        line = _LINES[relative] = line_of(relative.reshape(1, *relative.shape[-2:]).long())
    both = torch.zeros(2, 1, device="cpu") if line is None else (torch.cat((line, -line)) + span).clamp(0, 2 * span - 1)
    vectors, backwards = both.to(torch.int32).cpu().numpy()
    if line is None or relative.shape[-2] != relative.shape[-1] or not np.array_equal(vectors[::-1], backwards):
        raise UnsupportedError(
            "the relative positions are not an odd function of the distance between two tokens",
            where=name,
            advice="call the model without relative_pos, so that it computes them itself",
        )
    return vectors


def refusal(module: Any) -> str | None:
    """The reason why a DeBERTa attention can't be read."""
    if getattr(module, "talking_head", False):
        return "talking_head is set: it mixes the scores of different heads, so no head has weights of its own"
    unknown = sorted({*module.pos_att_type} - KNOWN)
    return f"unknown pos_att_type {', '.join(unknown)}" if unknown else None


READER = Reader(read, refusal=refusal, dropouts=("dropout", "pos_dropout"))


def read_v2(module: Any, arguments: Arguments, run: RunPart) -> Reading:
    """Read a call of DeBERTa v2's DisentangledSelfAttention."""
    hidden, d_head = arguments["hidden_states"], module.attention_head_size
    asking = hidden if arguments["query_states"] is None else arguments["query_states"]
    q, k, v = (
        heads_of(run(part, x), d_head)
        for part, x in ((module.query_proj, asking), (module.key_proj, hidden), (module.value_proj, hidden))
    )
    return Reading(
        q,
        k,
        v,
        scale=(d_head * (1 + len(KNOWN & {*module.pos_att_type}))) ** -0.5,
        mask=RawMask.filled(arguments["attention_mask"].bool()),
        terms=_terms_v2(module, arguments, run, q, k),
    )


def _terms_v2(module: Any, arguments: Arguments, run: RunPart, q: Any, k: Any) -> Terms:
    if not module.relative_attention or not KNOWN & {*module.pos_att_type}:
        return NO_TERMS
    relative = arguments["relative_pos"]
    if relative is None:
        build = sys.modules[type(module).__module__].build_relative_position
        relative = build(q, k, bucket_size=module.position_buckets, max_position=module.max_relative_positions)
    span, d_head = module.pos_ebd_size, module.attention_head_size
    vectors = arguments["rel_embeddings"][: 2 * span][None]
    prefix = "" if module.share_att_key else "pos_"
    keys, queries = (
        heads_of(run(getattr(module, prefix + name), vectors), d_head)[0] if kind in module.pos_att_type else None
        for kind, name in (("c2p", "key_proj"), ("p2c", "query_proj"))
    )
    buckets = buckets_of(relative, span, type(module).__name__)
    return Terms(buckets=buckets, relative_keys=keys, relative_queries=queries)


READER_V2 = Reader(read_v2, refusal=refusal, dropouts=("dropout", "pos_dropout"))

"""DeBERTa v2 and v3 (He et al. 2021, 2023): as DeBERTa, with distances in logarithmic buckets.

    s_ij = (q_i . k_j + q_i . rk[delta(i, j)] + k_j . rq[delta(i, j)]) / sqrt(d_head (1 + number of terms))

delta(i, j) = clip(bucket(i - j) + span, 0, 2 span - 1). Relative keys and queries come from the layer's own W_K and W_Q
(share_att_key), or from projections of their own.
"""

from __future__ import annotations

import sys
from typing import Any

from headscope.attention.terms import NO_TERMS, Terms
from headscope.live.seeing.readers.deberta import KNOWN, buckets_of, mask_of, refusal
from headscope.live.seeing.readers.reading import Arguments, Reader, Reading, Run, heads_of


def read(module: Any, arguments: Arguments, run: Run) -> Reading:
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
        mask=mask_of(arguments["attention_mask"]),
        terms=_terms(module, arguments, run, q, k),
    )


def _terms(module: Any, arguments: Arguments, run: Run, q: Any, k: Any) -> Terms:
    if not module.relative_attention or not KNOWN & {*module.pos_att_type}:
        return NO_TERMS
    relative = arguments["relative_pos"]
    if relative is None:
        build = sys.modules[type(module).__module__].build_relative_position
        relative = build(q, k, bucket_size=module.position_buckets, max_position=module.max_relative_positions)
    span, d_head = module.pos_ebd_size, module.attention_head_size
    vectors = arguments["rel_embeddings"][: 2 * span][None]
    shared = module.share_att_key
    relative_keys = relative_queries = None
    if "c2p" in module.pos_att_type:
        relative_keys = heads_of(run(module.key_proj if shared else module.pos_key_proj, vectors), d_head)[0]
    if "p2c" in module.pos_att_type:
        relative_queries = heads_of(run(module.query_proj if shared else module.pos_query_proj, vectors), d_head)[0]
    return Terms(
        buckets=buckets_of(relative, span, type(module).__name__),
        relative_keys=relative_keys,
        relative_queries=relative_queries,
    )


READER = Reader(read, refusal=refusal, dropouts=("dropout", "pos_dropout"))

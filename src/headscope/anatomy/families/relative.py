"""MPNet and DeBERTa v2 and v3: encoders whose scores depend on the distance of two tokens.

MPNet adds a number per head and distance (Song et al. 2020), DeBERTa products with vectors for the distance (He et al.
2021, 2023).
"""

from __future__ import annotations

from headscope.anatomy.families.bert import (
    BERT_CONFIG,
    BERT_DEFAULTS,
    CLASSIFIER,
    COMMON_DEFAULTS,
    DENSE_CLASSIFIER,
    POOLER,
    QA_OUTPUTS,
    ROBERTA_LM_HEAD,
    embeddings_norm,
    positions,
    predictions,
    words,
)
from headscope.anatomy.families.kin import CHOICE
from headscope.anatomy.schema import Family, Spec, Top, linear, norm, table

L = "encoder.layer.{l}"
FEED_FORWARD = (
    *linear(f"{L}.intermediate.dense", "layer.ffn_in", "d_ffn", "d_model"),
    *linear(f"{L}.output.dense", "layer.ffn_out", "d_model", "d_ffn"),
    *norm(f"{L}.output.LayerNorm", "layer.output_norm", "d_model"),
)

MPNET = Family(
    name="mpnet",
    model_types={"mpnet": "MPNet"},
    prefix="mpnet.",
    embeddings=(*words("d_model"), *positions("d_model"), *embeddings_norm("d_model")),
    layer=(
        *linear(f"{L}.attention.attn.q", "layer.query", "d_model", "d_model"),
        *linear(f"{L}.attention.attn.k", "layer.key", "d_model", "d_model"),
        *linear(f"{L}.attention.attn.v", "layer.value", "d_model", "d_model"),
        *linear(f"{L}.attention.attn.o", "layer.attention_output", "d_model", "d_model"),
        *norm(f"{L}.attention.LayerNorm", "layer.attention_norm", "d_model"),
        *FEED_FORWARD,
    ),
    after_layers=table("encoder.relative_attention_bias", "distances", "relative", "heads"),
    pooler=POOLER,
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, ROBERTA_LM_HEAD),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), True, CHOICE),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config={
        **{name: field for name, field in BERT_CONFIG.items() if name not in ("types", "padding_id")},
        "distances": "relative_attention_num_buckets",
    },
    defaults={
        **COMMON_DEFAULTS,
        **{name: BERT_DEFAULTS[name] for name in ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob")},
        "layer_norm_eps": 1e-12,
        "relative_attention_num_buckets": 32,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    fixed={"padding_id": 1},
    position_offset=1,
    masked_lm_activation="gelu",
    sequence_activation="tanh",
    terms="by_distance",
)

OWN = "relative_attention&!share_att_key&pos_att_type~"
DEBERTA_PREDICTIONS = (
    *predictions("d_embedding", when="legacy"),
    Spec("lm_predictions.lm_head.bias", "masked_lm.bias", ("vocab",), when="!legacy"),
    *linear("lm_predictions.lm_head.dense", "masked_lm.transform", "d_model", "d_model", when="!legacy"),
    *norm("lm_predictions.lm_head.LayerNorm", "masked_lm.norm", "d_model", when="!legacy"),
)
CONTEXT_POOLER = linear("pooler.dense", "sequence.dense", "d_model", "d_model")

DEBERTA_V2 = Family(
    name="deberta-v2",
    model_types={"deberta-v2": "DebertaV2"},
    prefix="deberta.",
    embeddings=(
        *words("d_embedding"),
        Spec(
            "embeddings.position_embeddings.weight",
            "embeddings.position.weight",
            ("positions", "d_embedding"),
            when="position_biased_input",
        ),
        Spec(
            "embeddings.token_type_embeddings.weight",
            "embeddings.token_type.weight",
            ("types", "d_embedding"),
            when="type_vocab_size",
        ),
        *embeddings_norm("d_model"),
    ),
    projection=linear("embeddings.embed_proj", "projection", "d_model", "d_embedding")[:1],
    layer=(
        *linear(f"{L}.attention.self.query_proj", "layer.query", "d_model", "d_model"),
        *linear(f"{L}.attention.self.key_proj", "layer.key", "d_model", "d_model"),
        *linear(f"{L}.attention.self.value_proj", "layer.value", "d_model", "d_model"),
        *linear(f"{L}.attention.self.pos_key_proj", "layer.relative_key", "d_model", "d_model", when=f"{OWN}c2p"),
        *linear(f"{L}.attention.self.pos_query_proj", "layer.relative_query", "d_model", "d_model", when=f"{OWN}p2c"),
        *linear(f"{L}.attention.output.dense", "layer.attention_output", "d_model", "d_model"),
        *norm(f"{L}.attention.output.LayerNorm", "layer.attention_norm", "d_model"),
        *FEED_FORWARD,
    ),
    after_layers=(
        Spec("encoder.rel_embeddings.weight", "distances.weight", ("relative", "d_model"), when="relative_attention"),
        *norm("encoder.LayerNorm", "distances_norm", "d_model", when="norm_rel_ebd~layer_norm"),
        Spec(
            "encoder.conv.conv.weight", "convolution.weight", ("d_model", "d_conv", "kernel"), when="conv_kernel_size"
        ),
        Spec("encoder.conv.conv.bias", "convolution.bias", ("d_model",), when="conv_kernel_size"),
        *norm("encoder.conv.LayerNorm", "convolution_norm", "d_model", when="conv_kernel_size"),
    ),
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, DEBERTA_PREDICTIONS),
        Top(
            "ForSequenceClassification",
            ("sequence",),
            False,
            (*CONTEXT_POOLER, *linear("classifier", "sequence.out", "labels", "d_model")),
        ),
        Top(
            "ForMultipleChoice",
            ("choice",),
            False,
            (*CONTEXT_POOLER, *linear("classifier", "sequence.out", 1, "d_model")),
        ),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config={
        **BERT_CONFIG,
        "d_embedding": "embedding_size",
        "kernel": "conv_kernel_size",
        "conv_groups": "conv_groups",
        "head_activation": "pooler_hidden_act",
    },
    defaults={
        **COMMON_DEFAULTS,
        **{name: BERT_DEFAULTS[name] for name in ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob")},
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_position_embeddings": 512,
        "max_relative_positions": -1,
        "position_biased_input": True,
        "pos_att_type": None,
        "pooler_dropout": 0.0,
        "pooler_hidden_act": "gelu",
        "legacy": True,
    },
    absent=("share_att_key", "norm_rel_ebd", "conv_kernel_size"),
    buffers=("embeddings.position_ids", "embeddings.token_type_ids", "embeddings.position_embeddings.weight"),
    projects_first=True,
    terms="disentangled",
)

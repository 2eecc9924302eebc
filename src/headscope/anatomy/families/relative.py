"""Families whose scores depend on the distance of two tokens: by rotations, numbers or vectors.

ModernBERT, NomicBERT, GTE and EuroBERT rotate queries and keys by their positions; NomicBERT's and GTE's tables have
the names of the published files, which transformers renames while loading. MPNet adds a number per head and distance
(Song et al. 2020), DeBERTa v2 and v3 products with vectors for the distance (He et al. 2021, 2023).
"""

from __future__ import annotations

from dataclasses import replace

from headscope.anatomy.families.bert import (
    BERT_CONFIG,
    BERT_DEFAULTS,
    BERT_LAYER,
    CHOICE,
    CHOICE_OUT,
    CLASSIFIER,
    COMMON_DEFAULTS,
    POOLER,
    ROBERTA,
    SEQUENCE_OUT,
    TOKENS_AND_ANSWERS,
    WORDS,
    embeddings_norm,
    positions,
    predictions,
    projections,
    token_types,
    without,
    words,
)
from headscope.anatomy.schema import Family, Rotary, Spec, Top, linear, matrix, norm, scale, stacked, table

L = "encoder.layer.{l}"
QKV = ("layer.query", "layer.key", "layer.value")
UP_GATE = ("layer.ffn_in", "layer.ffn_gate")
GATE_UP = ("layer.ffn_gate", "layer.ffn_in")
"""Roles of what files stack in one tensor, one above the other."""


def head(task: str) -> tuple[Spec, ...]:
    """ModernBERT's dense layer and norm before the last layer of a class."""
    return (
        *linear("head.dense", f"{task}.{'transform' if task == 'masked_lm' else 'dense'}", "d_model", "d_model",
                "classifier_bias"),
        *norm("head.norm", f"{task}.norm", "d_model", "norm_bias"),
    )  # fmt: skip


MODERN_PREDICTIONS = (
    *head("masked_lm"),
    Spec("decoder.weight", "masked_lm.decoder", ("vocab", "d_model"), tied_to="embeddings.tok_embeddings.weight"),
    Spec("decoder.bias", "masked_lm.bias", ("vocab",), when="decoder_bias"),
)
QUESTION = linear("classifier", "question", "labels", "d_model")
MODERN_LAYER = "layers.{l}"
MODERNBERT = Family(
    name="modernbert",
    model_types={"modernbert": "ModernBert"},
    prefix="model.",
    embeddings=(
        *table("embeddings.tok_embeddings", "embeddings.word", "vocab", "d_model"),
        *norm("embeddings.norm", "embeddings.norm", "d_model", "norm_bias"),
    ),
    layer=(
        *norm(f"{MODERN_LAYER}.attn_norm", "layer.attention_input_norm", "d_model", "norm_bias", first=1),
        *stacked(f"{MODERN_LAYER}.attn.Wqkv", "layer.qkv", "d_qkv", "d_model", QKV, "attention_bias"),
        *linear(f"{MODERN_LAYER}.attn.Wo", "layer.attention_output", "d_model", "d_model", "attention_bias"),
        *norm(f"{MODERN_LAYER}.mlp_norm", "layer.ffn_input_norm", "d_model", "norm_bias"),
        *stacked(f"{MODERN_LAYER}.mlp.Wi", "layer.ffn_gated", "d_gated", "d_model", GATE_UP, "mlp_bias"),
        *linear(f"{MODERN_LAYER}.mlp.Wo", "layer.ffn_out", "d_model", "d_ffn", "mlp_bias"),
    ),
    after_layers=norm("final_norm", "last_norm", "d_model", "norm_bias"),
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, MODERN_PREDICTIONS),
        Top("ForSequenceClassification", ("sequence",), False, (*head("sequence"), *SEQUENCE_OUT)),
        Top("ForTokenClassification", ("token",), False, (*head("token"), *CLASSIFIER)),
        Top("ForQuestionAnswering", ("question",), False, (*head("question"), *QUESTION)),
        Top("ForMultipleChoice", ("choice",), False, (*head("choice"), *CHOICE)),
    ),
    config={
        **without(BERT_CONFIG, "types"),
        "activation": "hidden_activation",
        "head_activation": "classifier_activation",
        "masked_lm_activation": "classifier_activation",
        "pooling": "classifier_pooling",
        "norm_eps": "norm_eps",
    },
    defaults={
        **COMMON_DEFAULTS,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "initializer_cutoff_factor": 2.0,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "pad_token_id": 50283,
        "eos_token_id": 50282,
        "bos_token_id": 50281,
        "cls_token_id": 50281,
        "sep_token_id": 50282,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "local_attention": 128,
        "embedding_dropout": 0.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_dropout": 0.0,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "deterministic_flash_attn": False,
        "sparse_prediction": False,
        "sparse_pred_ignore_index": -100,
    },
    layer_form="pre_norm",
    rotary=Rotary(base=160000.0, local_base=10000.0),
    position_types=(),
)

CLASS_NAMES = {
    "embeddings.norm": "embeddings.LayerNorm",
    "layer.attention_norm": "layers.{l}.post_attention_layernorm",
    "layer.query": "layers.{l}.self_attn.q_proj",
    "layer.key": "layers.{l}.self_attn.k_proj",
    "layer.value": "layers.{l}.self_attn.v_proj",
    "layer.attention_output": "layers.{l}.self_attn.o_proj",
    "layer.ffn_gate": "layers.{l}.mlp.gate_proj",
    "layer.ffn_in": "layers.{l}.mlp.up_proj",
    "layer.ffn_out": "layers.{l}.mlp.down_proj",
    "layer.output_norm": "layers.{l}.post_mlp_layernorm",
}
"""Names in NomicBERT's and GTE's classes, where they are not those in the files."""

NOMIC_LAYER = "encoder.layers.{l}"
NOMIC_BERT = Family(
    name="nomic_bert",
    model_types={"nomic_bert": "NomicBert"},
    prefix="nomic_bert.",
    embeddings=(*words("d_model"), *token_types("d_model"), *norm("emb_ln", "embeddings.norm", "d_model")),
    layer=(
        *norm(f"{NOMIC_LAYER}.norm1", "layer.attention_norm", "d_model"),
        *matrix(f"{NOMIC_LAYER}.mlp.fc12", "layer.ffn_gate", "d_ffn", "d_model"),
        *matrix(f"{NOMIC_LAYER}.mlp.fc11", "layer.ffn_in", "d_ffn", "d_model"),
        *matrix(f"{NOMIC_LAYER}.mlp.fc2", "layer.ffn_out", "d_model", "d_ffn"),
        *stacked(f"{NOMIC_LAYER}.attn.Wqkv", "layer.qkv", "d_qkv", "d_model", QKV)[:1],
        *matrix(f"{NOMIC_LAYER}.attn.out_proj", "layer.attention_output", "d_model", "d_heads"),
        *norm(f"{NOMIC_LAYER}.norm2", "layer.output_norm", "d_model"),
    ),
    pooler=POOLER,
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, predictions("d_model", norm_name="layer_norm")),
        Top("ForSequenceClassification", ("sequence",), True, CLASSIFIER),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
    ),
    config={**BERT_CONFIG, "d_head": "head_dim"},
    aliases={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    defaults={
        **without(COMMON_DEFAULTS, "tie_word_embeddings"),
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 2048,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "classifier_dropout": None,
    },
    base_pooler=False,
    class_names=CLASS_NAMES,
    rotary=Rotary(base=1000.0, alias="rotary_emb_base"),
    published_prefix="bert.",
    custom_code="modeling_hf_nomic_bert.NomicBert",
    computed={
        "activation_function": "swiglu",
        "causal": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "use_rms_norm": False,
    },
)

GTE_LM_HEAD = (
    *linear("lm_head.dense", "masked_lm.transform", "d_model", "d_model"),
    *norm("lm_head.norm", "masked_lm.norm", "d_model"),
    Spec("lm_head.decoder.weight", "masked_lm.decoder", ("vocab", "d_model"), tied_to=WORDS),
    Spec("lm_head.decoder.bias", "masked_lm.bias", ("vocab",)),
)
GTE = Family(
    name="gte",
    model_types={"gte": "Gte"},
    prefix="gte.",
    embeddings=(*words("d_model"), *token_types("d_model", when="type_vocab_size"), *embeddings_norm("d_model")),
    pooler=POOLER,
    layer=(
        *norm(f"{L}.attn_ln", "layer.attention_norm", "d_model"),
        *stacked(f"{L}.mlp.up_gate_proj", "layer.ffn_gated", "d_gated", "d_model", UP_GATE)[:1],
        *linear(f"{L}.mlp.down_proj", "layer.ffn_out", "d_model", "d_ffn"),
        *stacked(f"{L}.attention.qkv_proj", "layer.qkv", "d_qkv", "d_model", QKV),
        *linear(f"{L}.attention.o_proj", "layer.attention_output", "d_model", "d_model"),
        *norm(f"{L}.mlp_ln", "layer.output_norm", "d_model"),
    ),
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, GTE_LM_HEAD),
        Top("ForSequenceClassification", ("sequence",), True, CLASSIFIER),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
    ),
    config=BERT_CONFIG,
    defaults={
        **COMMON_DEFAULTS,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 8192,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 1,
        "classifier_dropout": None,
    },
    base_pooler=False,
    class_names={**CLASS_NAMES, "masked_lm.norm": "lm_head.layer_norm"},
    masked_lm_activation="gelu",
    rotary=Rotary(base=160000.0),
    position_types=("absolute", "rope"),
    published_prefix="new.",
)

EUROBERT_PREDICTIONS = (
    Spec("lm_head.weight", "masked_lm.decoder", ("vocab", "d_model"), tied_to="embed_tokens.weight"),
    Spec("lm_head.bias", "masked_lm.bias", ("vocab",), when="mlp_bias"),
)
EUROBERT_DENSE = linear("dense", "sequence.dense", "d_model", "d_model")
EUROBERT = Family(
    name="eurobert",
    model_types={"eurobert": "EuroBert"},
    prefix="model.",
    embeddings=table("embed_tokens", "embeddings.word", "vocab", "d_model"),
    layer=(
        *linear(f"{MODERN_LAYER}.self_attn.q_proj", "layer.query", "d_heads", "d_model", "attention_bias"),
        *linear(f"{MODERN_LAYER}.self_attn.k_proj", "layer.key", "d_keys", "d_model", "attention_bias"),
        *linear(f"{MODERN_LAYER}.self_attn.v_proj", "layer.value", "d_keys", "d_model", "attention_bias"),
        *linear(f"{MODERN_LAYER}.self_attn.o_proj", "layer.attention_output", "d_model", "d_heads", "attention_bias"),
        *linear(f"{MODERN_LAYER}.mlp.gate_proj", "layer.ffn_gate", "d_ffn", "d_model", "mlp_bias"),
        *linear(f"{MODERN_LAYER}.mlp.up_proj", "layer.ffn_in", "d_ffn", "d_model", "mlp_bias"),
        *linear(f"{MODERN_LAYER}.mlp.down_proj", "layer.ffn_out", "d_model", "d_ffn", "mlp_bias"),
        *scale(f"{MODERN_LAYER}.input_layernorm", "layer.attention_input_norm", "d_model"),
        *scale(f"{MODERN_LAYER}.post_attention_layernorm", "layer.ffn_input_norm", "d_model"),
    ),
    after_layers=scale("norm", "last_norm", "d_model"),
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, EUROBERT_PREDICTIONS),
        Top("ForSequenceClassification", ("sequence",), False, (*EUROBERT_DENSE, *SEQUENCE_OUT)),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
    ),
    config={
        **without(BERT_CONFIG, "types"),
        "kv_heads": "num_key_value_heads",
        "d_head": "head_dim",
        "pooling": "classifier_pooling",
        "norm_eps": "rms_norm_eps",
    },
    defaults={
        **COMMON_DEFAULTS,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "use_cache": True,
        "pad_token_id": 128001,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "mask_token_id": 128002,
        "pretraining_tp": 1,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "classifier_pooling": "late",
    },
    aliases={"classifier_pooling": "clf_pooling"},
    custom_code="modeling_eurobert.EuroBert",
    sequence_activation="gelu",
    layer_form="pre_norm",
    rms_norm=True,
    rotary=Rotary(),
)

FEED_FORWARD = BERT_LAYER[-6:]

MPNET = replace(
    ROBERTA,
    name="mpnet",
    model_types={"mpnet": "MPNet"},
    prefix="mpnet.",
    embeddings=(*words("d_model"), *positions("d_model"), *embeddings_norm("d_model")),
    layer=(
        *projections(f"{L}.attention.attn", *"qkvo"),
        *norm(f"{L}.attention.LayerNorm", "layer.attention_norm", "d_model"),
        *FEED_FORWARD,
    ),
    after_layers=table("encoder.relative_attention_bias", "distances", "relative", "heads"),
    tops=tuple(top for top in ROBERTA.tops if top.suffix != "ForCausalLM"),
    config={**without(BERT_CONFIG, "types", "padding_id"), "distances": "relative_attention_num_buckets"},
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
        *positions("d_embedding", when="position_biased_input"),
        *token_types("d_embedding", when="type_vocab_size"),
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
        Top("ForSequenceClassification", ("sequence",), False, (*CONTEXT_POOLER, *SEQUENCE_OUT)),
        Top("ForMultipleChoice", ("choice",), False, (*CONTEXT_POOLER, *CHOICE_OUT)),
        *TOKENS_AND_ANSWERS,
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

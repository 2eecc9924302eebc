"""ALBERT, ERNIE, MegatronBERT, RoFormer and ESM-2: BERT's matrices, used in another way.

ALBERT's layers share their parameters (Lan et al. 2019), MegatronBERT's norms come before attention and feed-forward
(Shoeybi et al. 2019), RoFormer rotates queries and keys instead of adding positions (Su et al. 2021), and ESM-2 does
both (Lin et al. 2023).
"""

from __future__ import annotations

from headscope.anatomy.families.bert import (
    BERT_CONFIG,
    BERT_DEFAULTS,
    BERT_LAYER,
    BERT_NEXT_SENTENCE,
    BERT_PREDICTIONS,
    CLASSIFIER,
    COMMON_DEFAULTS,
    DENSE_CLASSIFIER,
    POOLER,
    QA_OUTPUTS,
    ROBERTA_LM_HEAD,
    WORDS,
    bert_embeddings,
    embeddings_norm,
    positions,
    predictions,
    token_types,
    words,
)
from headscope.anatomy.schema import Family, Rotary, Spec, Top, linear, norm, table

CHOICE = linear("classifier", "classifier", 1, "d_model")
BERT_TOPS = (
    Top("ForPreTraining", ("masked_lm", "next_sentence"), True, (*BERT_PREDICTIONS, *BERT_NEXT_SENTENCE)),
    Top("ForMaskedLM", ("masked_lm",), False, BERT_PREDICTIONS),
    Top("ForCausalLM", ("masked_lm",), False, BERT_PREDICTIONS),
    Top("ForNextSentencePrediction", ("next_sentence",), True, BERT_NEXT_SENTENCE),
    Top("ForSequenceClassification", ("sequence",), True, CLASSIFIER),
    Top("ForMultipleChoice", ("choice",), True, CHOICE),
    Top("ForTokenClassification", ("token",), False, CLASSIFIER),
    Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
)
"""BERT's classes on top, as later families name them."""

SHARED = "encoder.albert_layer_groups.{l}.albert_layers.{i}"
ALBERT_PREDICTIONS = (
    Spec("predictions.bias", "masked_lm.bias", ("vocab",)),
    *norm("predictions.LayerNorm", "masked_lm.norm", "d_embedding"),
    *linear("predictions.dense", "masked_lm.transform", "d_embedding", "d_model"),
    Spec("predictions.decoder.weight", "masked_lm.decoder", ("vocab", "d_embedding"), tied_to=WORDS),
    Spec("predictions.decoder.bias", "masked_lm.decoder_bias", ("vocab",), tied_to="predictions.bias"),
)
SENTENCE_ORDER = linear("sop_classifier.classifier", "sentence_order", "labels", "d_model")

ALBERT = Family(
    name="albert",
    model_types={"albert": "Albert"},
    prefix="albert.",
    embeddings=(
        *bert_embeddings("d_embedding"),
        *linear("encoder.embedding_hidden_mapping_in", "projection", "d_model", "d_embedding"),
    ),
    layer=(
        *norm(f"{SHARED}.full_layer_layer_norm", "layer.output_norm", "d_model"),
        *linear(f"{SHARED}.attention.query", "layer.query", "d_model", "d_model"),
        *linear(f"{SHARED}.attention.key", "layer.key", "d_model", "d_model"),
        *linear(f"{SHARED}.attention.value", "layer.value", "d_model", "d_model"),
        *linear(f"{SHARED}.attention.dense", "layer.attention_output", "d_model", "d_model"),
        *norm(f"{SHARED}.attention.LayerNorm", "layer.attention_norm", "d_model"),
        *linear(f"{SHARED}.ffn", "layer.ffn_in", "d_ffn", "d_model"),
        *linear(f"{SHARED}.ffn_output", "layer.ffn_out", "d_model", "d_ffn"),
    ),
    pooler=linear("pooler", "pooler", "d_model", "d_model"),
    tops=(
        Top("ForPreTraining", ("masked_lm", "sentence_order"), True, (*ALBERT_PREDICTIONS, *SENTENCE_ORDER)),
        Top("ForMaskedLM", ("masked_lm",), False, ALBERT_PREDICTIONS),
        Top("ForSequenceClassification", ("sequence",), True, CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), True, CHOICE),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config={
        **BERT_CONFIG,
        "d_embedding": "embedding_size",
        "groups": "num_hidden_groups",
        "inner": "inner_group_num",
    },
    defaults={
        **COMMON_DEFAULTS,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "classifier_dropout_prob": 0.1,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
)

ERNIE = Family(
    name="ernie",
    model_types={"ernie": "Ernie"},
    prefix="ernie.",
    embeddings=(
        *bert_embeddings("d_model"),
        Spec(
            "embeddings.task_type_embeddings.weight",
            "embeddings.task_type.weight",
            ("task_types", "d_model"),
            when="use_task_id",
        ),
    ),
    layer=BERT_LAYER,
    pooler=POOLER,
    tops=BERT_TOPS,
    config={**BERT_CONFIG, "task_types": "task_type_vocab_size"},
    defaults={**BERT_DEFAULTS, "use_task_id": False, "task_type_vocab_size": 3},
)

PRE_NORM_LAYER = "encoder.layer.{l}"
PROJECTIONS = ("layer.query", "layer.key", "layer.value", "layer.attention_output")
MEGATRON_BERT = Family(
    name="megatron-bert",
    model_types={"megatron-bert": "MegatronBert"},
    prefix="bert.",
    embeddings=(*words("d_model"), *positions("d_model"), *token_types("d_model")),
    layer=(
        *norm(f"{PRE_NORM_LAYER}.attention.ln", "layer.attention_input_norm", "d_model"),
        *(spec for spec in BERT_LAYER if spec.role.startswith(PROJECTIONS)),
        *norm(f"{PRE_NORM_LAYER}.ln", "layer.ffn_input_norm", "d_model"),
        *(spec for spec in BERT_LAYER if spec.role.startswith("layer.ffn")),
    ),
    after_layers=norm("encoder.ln", "last_norm", "d_model"),
    pooler=POOLER,
    tops=BERT_TOPS,
    config=BERT_CONFIG,
    defaults={name: value for name, value in BERT_DEFAULTS.items() if name != "classifier_dropout"},
    layer_form="pre_norm",
)

ROFORMER_PREDICTIONS = predictions("d_embedding")
ROFORMER = Family(
    name="roformer",
    model_types={"roformer": "RoFormer"},
    prefix="roformer.",
    embeddings=(*words("d_embedding"), *token_types("d_embedding"), *embeddings_norm("d_embedding")),
    projection=linear("embeddings_project", "projection", "d_model", "d_embedding"),
    before_layers=table("encoder.embed_positions", "rotation", "positions", "d_head"),
    layer=BERT_LAYER,
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, ROFORMER_PREDICTIONS),
        Top("ForCausalLM", ("masked_lm",), False, ROFORMER_PREDICTIONS),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), False, CHOICE),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config={**BERT_CONFIG, "d_embedding": "embedding_size"},
    defaults={
        **{name: value for name, value in BERT_DEFAULTS.items() if name != "classifier_dropout"},
        "rotary_value": False,
    },
    rotary=Rotary(pairs=True),
)

ESM = Family(
    name="esm",
    model_types={"esm": "Esm"},
    prefix="esm.",
    embeddings=(
        *words("d_model"),
        *(
            Spec(spec.name, spec.role, spec.shape, when="emb_layer_norm_before")
            for spec in norm("embeddings.layer_norm", "embeddings.norm", "d_model")
        ),
        Spec(
            "embeddings.position_embeddings.weight",
            "embeddings.position.weight",
            ("positions", "d_model"),
            when="position_embedding_type=absolute",
        ),
    ),
    layer=(
        *(spec for spec in BERT_LAYER if spec.role.startswith(PROJECTIONS)),
        *norm(f"{PRE_NORM_LAYER}.attention.LayerNorm", "layer.attention_input_norm", "d_model"),
        *(spec for spec in BERT_LAYER if spec.role.startswith("layer.ffn")),
        *norm(f"{PRE_NORM_LAYER}.LayerNorm", "layer.ffn_input_norm", "d_model"),
    ),
    after_layers=norm("encoder.emb_layer_norm_after", "last_norm", "d_model"),
    pooler=POOLER,
    beside=linear("contact_head.regression", "contacts", 1, "all_heads"),
    tops=(
        Top(
            "ForMaskedLM",
            ("masked_lm",),
            False,
            tuple(spec for spec in ROBERTA_LM_HEAD if spec.role != "masked_lm.decoder_bias"),
        ),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
    ),
    config={
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
        "d_model": "hidden_size",
        "d_ffn": "intermediate_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "norm_eps": "layer_norm_eps",
        "padding_id": "pad_token_id",
        "mask_id": "mask_token_id",
    },
    defaults={
        **COMMON_DEFAULTS,
        "mask_token_id": None,
        "pad_token_id": None,
        "eos_token_id": 2,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 1026,
        "rope_theta": 10000.0,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "use_cache": True,
        "emb_layer_norm_before": None,
        "token_dropout": False,
        "is_folding_model": False,
        "esmfold_config": None,
        "vocab_list": None,
        "is_decoder": False,
        "add_cross_attention": False,
    },
    fixed={"activation": "gelu"},
    position_offset=1,
    buffers=(
        "embeddings.position_ids",
        "embeddings.position_embeddings.weight",
        "rotary_embeddings.inv_freq",
        "encoder.layer.*.attention.self.rotary_embeddings.inv_freq",
    ),
    masked_lm_activation="gelu",
    sequence_activation="tanh",
    layer_form="pre_norm",
    rotary=Rotary(when="position_embedding_type=rotary"),
    position_types=("absolute", "rotary"),
)

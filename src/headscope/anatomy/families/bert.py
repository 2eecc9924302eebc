"""BERT and its kin: BERT's matrices under their own names, or used in another way.

RoBERTa, DistilBERT, ELECTRA and ERNIE have BERT's layer. ALBERT's layers share their parameters (Lan et al. 2019),
MegatronBERT's norms come before attention and feed-forward (Shoeybi et al. 2019), RoFormer rotates queries and keys
instead of adding positions (Su et al. 2021), and ESM-2 does both (Lin et al. 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headscope.anatomy.schema import Family, Rotary, Spec, Top, linear, norm, table

WORDS = "embeddings.word_embeddings.weight"
"""The parameter that output layers share."""


def words(width: str) -> tuple[Spec]:
    return table("embeddings.word_embeddings", "embeddings.word", "vocab", width)


def positions(width: str, when: str | None = None) -> tuple[Spec]:
    return table("embeddings.position_embeddings", "embeddings.position", "positions", width, when)


def token_types(width: str, when: str | None = None) -> tuple[Spec]:
    return table("embeddings.token_type_embeddings", "embeddings.token_type", "types", width, when)


def embeddings_norm(width: str) -> tuple[Spec, Spec]:
    return norm("embeddings.LayerNorm", "embeddings.norm", width)


def bert_embeddings(width: str) -> tuple[Spec, ...]:
    return (*words(width), *positions(width), *token_types(width), *embeddings_norm(width))


def predictions(width: str, when: str | None = None, norm_name: str = "LayerNorm") -> tuple[Spec, ...]:
    """BERT's masked-LM head, over embeddings of some width."""
    on_top = "cls.predictions"
    return (
        Spec(f"{on_top}.bias", "masked_lm.bias", ("vocab",), when=when),
        *linear(f"{on_top}.transform.dense", "masked_lm.transform", width, "d_model", when=when),
        *norm(f"{on_top}.transform.{norm_name}", "masked_lm.norm", width, when=when),
        Spec(f"{on_top}.decoder.weight", "masked_lm.decoder", ("vocab", width), tied_to=WORDS, when=when),
        Spec(f"{on_top}.decoder.bias", "masked_lm.decoder_bias", ("vocab",), tied_to=f"{on_top}.bias", when=when),
    )


PROJECTIONS = ("layer.query", "layer.key", "layer.value", "layer.attention_output")


def projections(path: str, *names: str) -> tuple[Spec, ...]:
    """The matrices of an attention by their names, in the order of PROJECTIONS."""
    pairs = zip(names, PROJECTIONS, strict=True)
    return tuple(spec for name, role in pairs for spec in linear(f"{path}.{name}", role, "d_model", "d_model"))


BERT_LAYER = (
    *projections("encoder.layer.{l}.attention", "self.query", "self.key", "self.value", "output.dense"),
    *norm("encoder.layer.{l}.attention.output.LayerNorm", "layer.attention_norm", "d_model"),
    *linear("encoder.layer.{l}.intermediate.dense", "layer.ffn_in", "d_ffn", "d_model"),
    *linear("encoder.layer.{l}.output.dense", "layer.ffn_out", "d_model", "d_ffn"),
    *norm("encoder.layer.{l}.output.LayerNorm", "layer.output_norm", "d_model"),
)

POOLER = linear("pooler.dense", "pooler", "d_model", "d_model")


def without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Fields that another family has, without some of them."""
    return {name: value for name, value in fields.items() if name not in names}


BERT_CONFIG = {
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
    "d_model": "hidden_size",
    "d_ffn": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "padding_id": "pad_token_id",
}

COMMON_DEFAULTS = {
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": True,
    "chunk_size_feed_forward": 0,
    "is_encoder_decoder": False,
    "problem_type": None,
}
BERT_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "use_cache": True,
    "classifier_dropout": None,
    "is_decoder": False,
    "add_cross_attention": False,
    **COMMON_DEFAULTS,
}

CLASSIFIER = linear("classifier", "classifier", "labels", "d_model")
QA_OUTPUTS = linear("qa_outputs", "question", "labels", "d_model")
CHOICE = linear("classifier", "classifier", 1, "d_model")
SEQUENCE_OUT = linear("classifier", "sequence.out", "labels", "d_model")
CHOICE_OUT = linear("classifier", "sequence.out", 1, "d_model")
"""The last layers of classifiers that have a dense one before."""
TOKENS_AND_ANSWERS = (
    Top("ForTokenClassification", ("token",), False, CLASSIFIER),
    Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
)

BERT_PREDICTIONS = predictions("d_model")
BERT_NEXT_SENTENCE = linear("cls.seq_relationship", "next_sentence", 2, "d_model")

BERT_TOPS = (
    Top("ForPreTraining", ("masked_lm", "next_sentence"), True, (*BERT_PREDICTIONS, *BERT_NEXT_SENTENCE)),
    Top("ForMaskedLM", ("masked_lm",), False, BERT_PREDICTIONS),
    Top("ForCausalLM", ("masked_lm",), False, BERT_PREDICTIONS),
    Top("ForNextSentencePrediction", ("next_sentence",), True, BERT_NEXT_SENTENCE),
    Top("ForSequenceClassification", ("sequence",), True, CLASSIFIER),
    Top("ForMultipleChoice", ("choice",), True, CHOICE),
    *TOKENS_AND_ANSWERS,
)
"""BERT's classes on top, as later families name them."""

BERT = Family(
    name="bert",
    model_types={"bert": "Bert"},
    prefix="bert.",
    embeddings=bert_embeddings("d_model"),
    layer=BERT_LAYER,
    pooler=POOLER,
    tops=tuple(replace(top, suffix="LMHeadModel") if top.suffix == "ForCausalLM" else top for top in BERT_TOPS),
    config=BERT_CONFIG,
    defaults=BERT_DEFAULTS,
)

ROBERTA_LM_HEAD = (
    Spec("lm_head.bias", "masked_lm.bias", ("vocab",)),
    *linear("lm_head.dense", "masked_lm.transform", "d_model", "d_model"),
    *norm("lm_head.layer_norm", "masked_lm.norm", "d_model"),
    Spec("lm_head.decoder.weight", "masked_lm.decoder", ("vocab", "d_model"), tied_to=WORDS),
    Spec("lm_head.decoder.bias", "masked_lm.decoder_bias", ("vocab",), tied_to="lm_head.bias"),
)
DENSE_CLASSIFIER = (
    *linear("classifier.dense", "sequence.dense", "d_model", "d_model"),
    *linear("classifier.out_proj", "sequence.out", "labels", "d_model"),
)

ROBERTA = replace(
    BERT,
    name="roberta",
    model_types={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    prefix="roberta.",
    embeddings=(*words("d_model"), *token_types("d_model"), *embeddings_norm("d_model"), *positions("d_model")),
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, ROBERTA_LM_HEAD),
        Top("ForCausalLM", ("masked_lm",), False, ROBERTA_LM_HEAD),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), True, CHOICE),
        *TOKENS_AND_ANSWERS,
    ),
    defaults={**BERT_DEFAULTS, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    position_offset=1,
    masked_lm_activation="gelu",
    sequence_activation="tanh",
)

PRE_CLASSIFIER = linear("pre_classifier", "sequence.dense", "d_model", "d_model")
DISTILBERT_PREDICTIONS = (
    *linear("vocab_transform", "masked_lm.transform", "d_model", "d_model"),
    *norm("vocab_layer_norm", "masked_lm.norm", "d_model"),
    Spec("vocab_projector.weight", "masked_lm.decoder", ("vocab", "d_model"), tied_to=WORDS),
    Spec("vocab_projector.bias", "masked_lm.bias", ("vocab",)),
)

DISTILBERT = Family(
    name="distilbert",
    model_types={"distilbert": "DistilBert"},
    prefix="distilbert.",
    embeddings=(*words("d_model"), *positions("d_model"), *embeddings_norm("d_model")),
    layer=(
        *projections("transformer.layer.{l}.attention", "q_lin", "k_lin", "v_lin", "out_lin"),
        *norm("transformer.layer.{l}.sa_layer_norm", "layer.attention_norm", "d_model"),
        *linear("transformer.layer.{l}.ffn.lin1", "layer.ffn_in", "d_ffn", "d_model"),
        *linear("transformer.layer.{l}.ffn.lin2", "layer.ffn_out", "d_model", "d_ffn"),
        *norm("transformer.layer.{l}.output_layer_norm", "layer.output_norm", "d_model"),
    ),
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, DISTILBERT_PREDICTIONS),
        Top("ForSequenceClassification", ("sequence",), False, (*PRE_CLASSIFIER, *SEQUENCE_OUT)),
        Top("ForMultipleChoice", ("choice",), False, (*PRE_CLASSIFIER, *CHOICE_OUT)),
        *TOKENS_AND_ANSWERS,
    ),
    config={
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
        "d_model": "dim",
        "d_ffn": "hidden_dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "activation": "activation",
        "padding_id": "pad_token_id",
    },
    aliases={"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"},
    defaults={
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        **COMMON_DEFAULTS,
    },
    fixed={"norm_eps": 1e-12},
    sequence_activation="relu",
)

DETECTION = (
    *linear("discriminator_predictions.dense", "detection.dense", "d_model", "d_model"),
    *linear("discriminator_predictions.dense_prediction", "detection.out", 1, "d_model"),
)
SUMMARY = linear("sequence_summary.summary", "summary", "d_model", "d_model", when="summary_use_proj")
ELECTRA_GENERATOR = (
    *norm("generator_predictions.LayerNorm", "masked_lm.norm", "d_embedding"),
    *linear("generator_predictions.dense", "masked_lm.transform", "d_embedding", "d_model"),
    Spec("generator_lm_head.weight", "masked_lm.decoder", ("vocab", "d_embedding"), tied_to=WORDS),
    Spec("generator_lm_head.bias", "masked_lm.bias", ("vocab",)),
)

ELECTRA = Family(
    name="electra",
    model_types={"electra": "Electra"},
    prefix="electra.",
    embeddings=bert_embeddings("d_embedding"),
    projection=linear("embeddings_project", "projection", "d_model", "d_embedding"),
    layer=BERT_LAYER,
    tops=(
        Top("ForPreTraining", ("detection",), False, DETECTION),
        Top("ForMaskedLM", ("masked_lm",), False, ELECTRA_GENERATOR),
        Top("ForCausalLM", ("masked_lm",), False, ELECTRA_GENERATOR),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), False, (*SUMMARY, *CHOICE)),
        *TOKENS_AND_ANSWERS,
    ),
    config={**BERT_CONFIG, "d_embedding": "embedding_size"},
    defaults={
        **BERT_DEFAULTS,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    },
    masked_lm_activation="gelu",
    sequence_activation="gelu",
)

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
        *projections(f"{SHARED}.attention", "query", "key", "value", "dense"),
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
        *TOKENS_AND_ANSWERS,
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

ERNIE = replace(
    BERT,
    name="ernie",
    model_types={"ernie": "Ernie"},
    prefix="ernie.",
    embeddings=(
        *bert_embeddings("d_model"),
        *table("embeddings.task_type_embeddings", "embeddings.task_type", "task_types", "d_model", when="use_task_id"),
    ),
    tops=BERT_TOPS,
    config={**BERT_CONFIG, "task_types": "task_type_vocab_size"},
    defaults={**BERT_DEFAULTS, "use_task_id": False, "task_type_vocab_size": 3},
)

PRE_NORM_LAYER = "encoder.layer.{l}"
MEGATRON_BERT = replace(
    BERT,
    name="megatron-bert",
    model_types={"megatron-bert": "MegatronBert"},
    embeddings=(*words("d_model"), *positions("d_model"), *token_types("d_model")),
    layer=(
        *norm(f"{PRE_NORM_LAYER}.attention.ln", "layer.attention_input_norm", "d_model"),
        *(spec for spec in BERT_LAYER if spec.role.startswith(PROJECTIONS)),
        *norm(f"{PRE_NORM_LAYER}.ln", "layer.ffn_input_norm", "d_model"),
        *(spec for spec in BERT_LAYER if spec.role.startswith("layer.ffn")),
    ),
    after_layers=norm("encoder.ln", "last_norm", "d_model"),
    tops=BERT_TOPS,
    defaults=without(BERT_DEFAULTS, "classifier_dropout"),
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
        *TOKENS_AND_ANSWERS,
    ),
    config={**BERT_CONFIG, "d_embedding": "embedding_size"},
    defaults={**without(BERT_DEFAULTS, "classifier_dropout"), "rotary_value": False},
    rotary=Rotary(pairs=True),
)

ESM_LM_HEAD = tuple(spec for spec in ROBERTA_LM_HEAD if spec.role != "masked_lm.decoder_bias")
ESM = Family(
    name="esm",
    model_types={"esm": "Esm"},
    prefix="esm.",
    embeddings=(
        *words("d_model"),
        *norm("embeddings.layer_norm", "embeddings.norm", "d_model", when="emb_layer_norm_before"),
        *positions("d_model", when="position_embedding_type=absolute"),
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
        Top("ForMaskedLM", ("masked_lm",), False, ESM_LM_HEAD),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
    ),
    config={**without(BERT_CONFIG, "types", "activation"), "mask_id": "mask_token_id"},
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

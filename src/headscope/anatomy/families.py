"""The families whose heads headscope knows: tables from roles to tensor names, from our config fields to theirs.

A family is data. Everything else (anatomy, heads, encoder) speaks roles: `layer.query.weight` of layer 3, never
`encoder.layer.3.attention.self.query.weight`. To add a family is to add a table to this file.

Names are relative to the base model (`BertModel`); a checkpoint of a larger class carries them behind a prefix
(`bert.`). Order is the order in which the class lists its parameters. Shapes are spelled in symbols, see `Spec.shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter as a class declares it.

    Attributes:
        name: the class's name for it; `{l}` stands for the layer.
        role: what it is, in headscope's words.
        shape: integers and symbols: vocab, positions, types, d_embedding, d_model, d_ffn, labels.
        tied_to: the class's name of the parameter whose storage it shares, if any.
        when: the config field that the class has it by, where it has it only by one; true where the config is silent.
    """

    name: str
    role: str
    shape: tuple[str | int, ...]
    tied_to: str | None = None
    when: str | None = None


@dataclass(frozen=True, slots=True)
class Top:
    """What a class puts on top of the base model: `BertForMaskedLM` is (`bert`, suffix `ForMaskedLM`).

    Attributes:
        suffix: the class's name behind the family's.
        tasks: what it computes: masked_lm, next_sentence, sequence, token, question, choice, or detection (which
            tokens were replaced: ELECTRA's discriminator).
        pooler: whether the base model inside has a pooler.
        specs: the parameters on top, in the class's order, names from the root of the class.
    """

    suffix: str
    tasks: tuple[str, ...]
    pooler: bool
    specs: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """How one family names its parts.

    Attributes:
        name: the family's name.
        model_types: values of config.json's model_type, each with the class's name before `Model` and `For…`.
        prefix: what stands before the base model's names in a class with something on top.
        embeddings, layer, pooler: the base model's parameters, in the class's order.
        projection: the parameters between embeddings and encoder where d_embedding differs from d_model.
        tops: the classes on top.
        config: our field -> the family's field.
        aliases: the family's field -> another name that transformers takes for it.
        defaults: the family's field -> what its config class assumes where config.json is silent, for fields that
            change no shape.
        fixed: our field -> its value, where the class has no config field for it.
        position_offset: the position of the first token, where it is not 0: the padding index plus this.
        buffers: names a checkpoint may hold that are no parameters.
        masked_lm_activation: the activation of the masked-LM transform; None says config's own.
        sequence_activation: the activation inside the sequence classifier's dense layer, where it has one.
    """

    name: str
    model_types: Mapping[str, str]
    prefix: str
    embeddings: tuple[Spec, ...]
    layer: tuple[Spec, ...]
    tops: tuple[Top, ...]
    config: Mapping[str, str]
    pooler: tuple[Spec, ...] = ()
    projection: tuple[Spec, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    position_offset: int | None = None
    buffers: tuple[str, ...] = ("embeddings.position_ids", "embeddings.token_type_ids")
    masked_lm_activation: str | None = None
    sequence_activation: str | None = None


def linear(name: str, role: str, out: str | int, into: str | int) -> tuple[Spec, Spec]:
    """torch's Linear: weight (out, in), bias (out,)."""
    return Spec(f"{name}.weight", f"{role}.weight", (out, into)), Spec(f"{name}.bias", f"{role}.bias", (out,))


def norm(name: str, role: str, size: str) -> tuple[Spec, Spec]:
    """A LayerNorm: weight (size,), bias (size,)."""
    return Spec(f"{name}.weight", f"{role}.weight", (size,)), Spec(f"{name}.bias", f"{role}.bias", (size,))


def table(name: str, role: str, rows: str, width: str) -> tuple[Spec]:
    """An embedding table: weight (rows, width)."""
    return (Spec(f"{name}.weight", f"{role}.weight", (rows, width)),)


def words(width: str) -> tuple[Spec]:
    return table("embeddings.word_embeddings", "embeddings.word", "vocab", width)


def positions(width: str) -> tuple[Spec]:
    return table("embeddings.position_embeddings", "embeddings.position", "positions", width)


def token_types(width: str) -> tuple[Spec]:
    return table("embeddings.token_type_embeddings", "embeddings.token_type", "types", width)


def embeddings_norm(width: str) -> tuple[Spec, Spec]:
    return norm("embeddings.LayerNorm", "embeddings.norm", width)


def bert_embeddings(width: str) -> tuple[Spec, ...]:
    return (*words(width), *positions(width), *token_types(width), *embeddings_norm(width))


BERT_LAYER = (
    *linear("encoder.layer.{l}.attention.self.query", "layer.query", "d_model", "d_model"),
    *linear("encoder.layer.{l}.attention.self.key", "layer.key", "d_model", "d_model"),
    *linear("encoder.layer.{l}.attention.self.value", "layer.value", "d_model", "d_model"),
    *linear("encoder.layer.{l}.attention.output.dense", "layer.attention_output", "d_model", "d_model"),
    *norm("encoder.layer.{l}.attention.output.LayerNorm", "layer.attention_norm", "d_model"),
    *linear("encoder.layer.{l}.intermediate.dense", "layer.ffn_in", "d_ffn", "d_model"),
    *linear("encoder.layer.{l}.output.dense", "layer.ffn_out", "d_model", "d_ffn"),
    *norm("encoder.layer.{l}.output.LayerNorm", "layer.output_norm", "d_model"),
)

POOLER = linear("pooler.dense", "pooler", "d_model", "d_model")

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

BERT_PREDICTIONS = (
    Spec("cls.predictions.bias", "masked_lm.bias", ("vocab",)),
    *linear("cls.predictions.transform.dense", "masked_lm.transform", "d_model", "d_model"),
    *norm("cls.predictions.transform.LayerNorm", "masked_lm.norm", "d_model"),
    Spec(
        "cls.predictions.decoder.weight",
        "masked_lm.decoder",
        ("vocab", "d_model"),
        tied_to="embeddings.word_embeddings.weight",
    ),
    Spec("cls.predictions.decoder.bias", "masked_lm.decoder_bias", ("vocab",), tied_to="cls.predictions.bias"),
)
BERT_NEXT_SENTENCE = linear("cls.seq_relationship", "next_sentence", 2, "d_model")

BERT = Family(
    name="bert",
    model_types={"bert": "Bert"},
    prefix="bert.",
    embeddings=bert_embeddings("d_model"),
    layer=BERT_LAYER,
    pooler=POOLER,
    tops=(
        Top("ForPreTraining", ("masked_lm", "next_sentence"), True, (*BERT_PREDICTIONS, *BERT_NEXT_SENTENCE)),
        Top("ForMaskedLM", ("masked_lm",), False, BERT_PREDICTIONS),
        Top("LMHeadModel", ("masked_lm",), False, BERT_PREDICTIONS),
        Top("ForNextSentencePrediction", ("next_sentence",), True, BERT_NEXT_SENTENCE),
        Top("ForSequenceClassification", ("sequence",), True, CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), True, linear("classifier", "classifier", 1, "d_model")),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config=BERT_CONFIG,
    defaults=BERT_DEFAULTS,
)

ROBERTA_LM_HEAD = (
    Spec("lm_head.bias", "masked_lm.bias", ("vocab",)),
    *linear("lm_head.dense", "masked_lm.transform", "d_model", "d_model"),
    *norm("lm_head.layer_norm", "masked_lm.norm", "d_model"),
    Spec(
        "lm_head.decoder.weight",
        "masked_lm.decoder",
        ("vocab", "d_model"),
        tied_to="embeddings.word_embeddings.weight",
    ),
    Spec("lm_head.decoder.bias", "masked_lm.decoder_bias", ("vocab",), tied_to="lm_head.bias"),
)
DENSE_CLASSIFIER = (
    *linear("classifier.dense", "sequence.dense", "d_model", "d_model"),
    *linear("classifier.out_proj", "sequence.out", "labels", "d_model"),
)

ROBERTA = Family(
    name="roberta",
    model_types={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    prefix="roberta.",
    embeddings=(*words("d_model"), *token_types("d_model"), *embeddings_norm("d_model"), *positions("d_model")),
    layer=BERT_LAYER,
    pooler=POOLER,
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, ROBERTA_LM_HEAD),
        Top("ForCausalLM", ("masked_lm",), False, ROBERTA_LM_HEAD),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), True, linear("classifier", "classifier", 1, "d_model")),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config=BERT_CONFIG,
    defaults={**BERT_DEFAULTS, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    position_offset=1,
    masked_lm_activation="gelu",
    sequence_activation="tanh",
)

DISTILBERT = Family(
    name="distilbert",
    model_types={"distilbert": "DistilBert"},
    prefix="distilbert.",
    embeddings=(*words("d_model"), *positions("d_model"), *embeddings_norm("d_model")),
    layer=(
        *linear("transformer.layer.{l}.attention.q_lin", "layer.query", "d_model", "d_model"),
        *linear("transformer.layer.{l}.attention.k_lin", "layer.key", "d_model", "d_model"),
        *linear("transformer.layer.{l}.attention.v_lin", "layer.value", "d_model", "d_model"),
        *linear("transformer.layer.{l}.attention.out_lin", "layer.attention_output", "d_model", "d_model"),
        *norm("transformer.layer.{l}.sa_layer_norm", "layer.attention_norm", "d_model"),
        *linear("transformer.layer.{l}.ffn.lin1", "layer.ffn_in", "d_ffn", "d_model"),
        *linear("transformer.layer.{l}.ffn.lin2", "layer.ffn_out", "d_model", "d_ffn"),
        *norm("transformer.layer.{l}.output_layer_norm", "layer.output_norm", "d_model"),
    ),
    tops=(
        Top(
            "ForMaskedLM",
            ("masked_lm",),
            False,
            (
                *linear("vocab_transform", "masked_lm.transform", "d_model", "d_model"),
                *norm("vocab_layer_norm", "masked_lm.norm", "d_model"),
                Spec(
                    "vocab_projector.weight",
                    "masked_lm.decoder",
                    ("vocab", "d_model"),
                    tied_to="embeddings.word_embeddings.weight",
                ),
                Spec("vocab_projector.bias", "masked_lm.bias", ("vocab",)),
            ),
        ),
        Top(
            "ForSequenceClassification",
            ("sequence",),
            False,
            (
                *linear("pre_classifier", "sequence.dense", "d_model", "d_model"),
                *linear("classifier", "sequence.out", "labels", "d_model"),
            ),
        ),
        Top(
            "ForMultipleChoice",
            ("choice",),
            False,
            (
                *linear("pre_classifier", "sequence.dense", "d_model", "d_model"),
                *linear("classifier", "sequence.out", 1, "d_model"),
            ),
        ),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
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

ELECTRA_GENERATOR = (
    *norm("generator_predictions.LayerNorm", "masked_lm.norm", "d_embedding"),
    *linear("generator_predictions.dense", "masked_lm.transform", "d_embedding", "d_model"),
    Spec(
        "generator_lm_head.weight",
        "masked_lm.decoder",
        ("vocab", "d_embedding"),
        tied_to="embeddings.word_embeddings.weight",
    ),
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
        Top(
            "ForPreTraining",
            ("detection",),
            False,
            (
                *linear("discriminator_predictions.dense", "detection.dense", "d_model", "d_model"),
                *linear("discriminator_predictions.dense_prediction", "detection.out", 1, "d_model"),
            ),
        ),
        Top("ForMaskedLM", ("masked_lm",), False, ELECTRA_GENERATOR),
        Top("ForCausalLM", ("masked_lm",), False, ELECTRA_GENERATOR),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top(
            "ForMultipleChoice",
            ("choice",),
            False,
            (
                Spec(
                    "sequence_summary.summary.weight", "summary.weight", ("d_model", "d_model"), when="summary_use_proj"
                ),
                Spec("sequence_summary.summary.bias", "summary.bias", ("d_model",), when="summary_use_proj"),
                *linear("classifier", "classifier", 1, "d_model"),
            ),
        ),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
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

FAMILIES = (BERT, ROBERTA, DISTILBERT, ELECTRA)


def family_of(model_type: str | None, architectures: tuple[str, ...] = ()) -> tuple[Family, str] | None:
    """The family of a config, with its classes' prefix (`XLMRoberta`); None where headscope has no table for it.

    `model_type` decides. Configs older than that field are known by their first architecture.
    """
    if model_type is not None:
        for family in FAMILIES:
            if model_type in family.model_types:
                return family, family.model_types[model_type]
        return None
    for family in FAMILIES:
        for stem in family.model_types.values():
            names = {f"{stem}Model", *(stem + top.suffix for top in family.tops)}
            if names & set(architectures[:1]):
                return family, stem
    return None

"""The modules of ALBERT, ERNIE, MegatronBERT and RoFormer."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.anatomy.modules.bert import (
    BERT_ENCODER,
    CLASSIFIER,
    EMBEDDINGS,
    ONLY_PREDICTIONS,
    POOLER,
    PREDICTIONS,
    QA_OUTPUTS,
)
from headscope.anatomy.modules.parts import Module, activation, dropout, linears, norms, tables

G = "encoder.albert_layer_groups.{l}"
A = f"{G}.albert_layers.{{i}}"
ALBERT = (
    *EMBEDDINGS,
    Module("encoder", "{stem}Transformer"),
    *linears("encoder.embedding_hidden_mapping_in"),
    Module("encoder.albert_layer_groups", "ModuleList"),
    Module(G, "{stem}LayerGroup"),
    Module(f"{G}.albert_layers", "ModuleList"),
    Module(A, "{stem}Layer"),
    *norms(f"{A}.full_layer_layer_norm"),
    Module(f"{A}.attention", "{stem}Attention"),
    *linears(*(f"{A}.attention.{name}" for name in ("query", "key", "value"))),
    dropout(f"{A}.attention.attention_dropout", "attention_probs_dropout_prob"),
    dropout(f"{A}.attention.output_dropout", "hidden_dropout_prob"),
    *linears(f"{A}.attention.dense"),
    *norms(f"{A}.attention.LayerNorm"),
    *linears(f"{A}.ffn", f"{A}.ffn_output"),
    activation(f"{A}.activation", "hidden_act"),
    dropout(f"{A}.dropout", "hidden_dropout_prob"),
    *linears("pooler"),
    Module("pooler_activation", "Tanh"),
)
ALBERT_PREDICTIONS = (
    Module("predictions", "{stem}MLMHead"),
    *norms("predictions.LayerNorm"),
    *linears("predictions.dense", "predictions.decoder"),
    activation("predictions.activation", "hidden_act"),
)
ALBERT_CLASSIFIER = (dropout("dropout", "classifier_dropout_prob"), *linears("classifier"))

ERNIE_EMBEDDINGS = (
    *EMBEDDINGS,
    Module("embeddings.task_type_embeddings", "Embedding", when="use_task_id"),
)

L = "encoder.layer.{l}"
MEGATRON = (
    Module("embeddings", "{stem}Embeddings"),
    *tables(*(f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type"))),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    Module("encoder", "{stem}Encoder"),
    Module("encoder.layer", "ModuleList"),
    Module(L, "{stem}Layer"),
    Module(f"{L}.attention", "{stem}Attention"),
    *norms(f"{L}.attention.ln"),
    *(module for module in BERT_ENCODER if module.path.startswith(f"{L}.attention.self")),
    Module(f"{L}.attention.output", "{stem}SelfOutput"),
    *linears(f"{L}.attention.output.dense"),
    dropout(f"{L}.attention.output.dropout", "hidden_dropout_prob"),
    *norms(f"{L}.ln"),
    *(module for module in BERT_ENCODER if module.path.startswith(f"{L}.intermediate")),
    Module(f"{L}.output", "{stem}Output"),
    *linears(f"{L}.output.dense"),
    dropout(f"{L}.output.dropout", "hidden_dropout_prob"),
    *norms("encoder.ln"),
    *POOLER,
)

ROFORMER = (
    Module("embeddings", "{stem}Embeddings"),
    *tables(*(f"embeddings.{name}_embeddings" for name in ("word", "token_type"))),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    *linears("embeddings_project"),
    BERT_ENCODER[0],
    Module("encoder.embed_positions", "RoFormerSinusoidalPositionalEmbedding"),
    *BERT_ENCODER[1:],
)

BASE: Mapping[str, tuple[Module, ...]] = {
    "albert": ALBERT,
    "ernie": (*ERNIE_EMBEDDINGS, *BERT_ENCODER, *POOLER),
    "megatron-bert": MEGATRON,
    "roformer": ROFORMER,
}
"""Family -> the modules of its base model, in the order that the class prints them."""

PRETRAINING = (Module("cls", "{stem}PreTrainingHeads"), *PREDICTIONS, *linears("cls.seq_relationship"))
NEXT_SENTENCE = (Module("cls", "{stem}OnlyNSPHead"), *linears("cls.seq_relationship"))


def berts(family: str, classifier: tuple[Module, ...]) -> dict[tuple[str, str], tuple[Module, ...]]:
    """The classes of a family that has BERT's."""
    return {
        (family, "ForPreTraining"): PRETRAINING,
        (family, "ForMaskedLM"): ONLY_PREDICTIONS,
        (family, "ForCausalLM"): ONLY_PREDICTIONS,
        (family, "ForNextSentencePrediction"): NEXT_SENTENCE,
        (family, "ForSequenceClassification"): classifier,
        (family, "ForMultipleChoice"): classifier,
        (family, "ForTokenClassification"): classifier,
        (family, "ForQuestionAnswering"): QA_OUTPUTS,
    }


PLAIN_CLASSIFIER = (dropout("dropout", "hidden_dropout_prob"), *linears("classifier"))

TOPS: Mapping[tuple[str, str], tuple[Module, ...]] = {
    ("albert", "ForPreTraining"): (
        *ALBERT_PREDICTIONS,
        Module("sop_classifier", "{stem}SOPHead"),
        dropout("sop_classifier.dropout", "classifier_dropout_prob"),
        *linears("sop_classifier.classifier"),
    ),
    ("albert", "ForMaskedLM"): ALBERT_PREDICTIONS,
    ("albert", "ForSequenceClassification"): ALBERT_CLASSIFIER,
    ("albert", "ForMultipleChoice"): ALBERT_CLASSIFIER,
    ("albert", "ForTokenClassification"): ALBERT_CLASSIFIER,
    ("albert", "ForQuestionAnswering"): QA_OUTPUTS,
    **berts("ernie", CLASSIFIER),
    **berts("megatron-bert", PLAIN_CLASSIFIER),
    ("roformer", "ForMaskedLM"): ONLY_PREDICTIONS,
    ("roformer", "ForCausalLM"): ONLY_PREDICTIONS,
    ("roformer", "ForSequenceClassification"): (
        Module("classifier", "{stem}ClassificationHead"),
        *linears("classifier.dense"),
        dropout("classifier.dropout", "hidden_dropout_prob"),
        *linears("classifier.out_proj"),
    ),
    ("roformer", "ForMultipleChoice"): (Module("sequence_summary", "{stem}SequenceSummary"), *linears("classifier")),
    ("roformer", "ForTokenClassification"): PLAIN_CLASSIFIER,
    ("roformer", "ForQuestionAnswering"): QA_OUTPUTS,
}
"""Family and suffix of a class -> its modules on top, in the order that it prints them."""

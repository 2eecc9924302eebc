"""The modules of ALBERT, ERNIE, MegatronBERT, RoFormer, MPNet, and DeBERTa v2 and v3."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.anatomy.modules.bert import (
    BERT_ENCODER,
    CLASSIFIER,
    DENSE_CLASSIFIER,
    EMBEDDINGS,
    LM_HEAD,
    ONLY_PREDICTIONS,
    POOLER,
    PREDICTIONS,
    QA_OUTPUTS,
)
from headscope.anatomy.modules.module import Module, activation, dropout, linears, norms, tables

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

FEED_FORWARD = tuple(module for module in BERT_ENCODER if module.path.startswith((f"{L}.intermediate", f"{L}.output")))
MPNET = (
    Module("embeddings", "{stem}Embeddings"),
    *tables("embeddings.word_embeddings", "embeddings.position_embeddings"),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    Module("encoder", "{stem}Encoder"),
    Module("encoder.layer", "ModuleList"),
    Module(L, "{stem}Layer"),
    Module(f"{L}.attention", "{stem}Attention"),
    Module(f"{L}.attention.attn", "{stem}SelfAttention"),
    *linears(*(f"{L}.attention.attn.{name}" for name in ("q", "k", "v", "o"))),
    dropout(f"{L}.attention.attn.dropout", "attention_probs_dropout_prob"),
    *norms(f"{L}.attention.LayerNorm"),
    dropout(f"{L}.attention.dropout", "hidden_dropout_prob"),
    *FEED_FORWARD,
    *tables("encoder.relative_attention_bias"),
    *POOLER,
)

OWN = "relative_attention&!share_att_key&pos_att_type~"
DEBERTA_V2 = (
    Module("embeddings", "{stem}Embeddings"),
    *tables("embeddings.word_embeddings"),
    Module("embeddings.position_embeddings", "Embedding", when="position_biased_input"),
    Module("embeddings.token_type_embeddings", "Embedding", when="type_vocab_size"),
    *linears("embeddings.embed_proj"),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    Module("encoder", "{stem}Encoder"),
    Module("encoder.layer", "ModuleList"),
    Module(L, "{stem}Layer"),
    Module(f"{L}.attention", "{stem}Attention"),
    Module(f"{L}.attention.self", "DisentangledSelfAttention"),
    *linears(*(f"{L}.attention.self.{name}_proj" for name in ("query", "key", "value"))),
    Module(f"{L}.attention.self.pos_key_proj", "Linear", when=f"{OWN}c2p"),
    Module(f"{L}.attention.self.pos_query_proj", "Linear", when=f"{OWN}p2c"),
    dropout(f"{L}.attention.self.dropout", "attention_probs_dropout_prob"),
    *(module for module in BERT_ENCODER if module.path.startswith(f"{L}.attention.output")),
    *FEED_FORWARD,
    Module("encoder.rel_embeddings", "Embedding", when="relative_attention"),
    Module("encoder.LayerNorm", "LayerNorm", when="norm_rel_ebd~layer_norm"),
    Module("encoder.conv", "ConvLayer", when="conv_kernel_size"),
    Module("encoder.conv.conv", "Conv1d", when="conv_kernel_size"),
    Module("encoder.conv.LayerNorm", "LayerNorm", when="conv_kernel_size"),
)

BASE: Mapping[str, tuple[Module, ...]] = {
    "albert": ALBERT,
    "ernie": (*ERNIE_EMBEDDINGS, *BERT_ENCODER, *POOLER),
    "megatron-bert": MEGATRON,
    "roformer": ROFORMER,
    "mpnet": MPNET,
    "deberta-v2": DEBERTA_V2,
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

CONTEXT = (
    Module("pooler", "ContextPooler"),
    *linears("pooler.dense"),
    dropout("pooler.dropout", "pooler_dropout"),
    *linears("classifier"),
)
LEGACY = tuple(
    Module(module.path, module.kind.replace("{stem}", "Legacy{stem}"), module.fields, "legacy")
    for module in ONLY_PREDICTIONS
)
LM_PREDICTIONS = (
    Module("lm_predictions", "{stem}OnlyMLMHead", when="!legacy"),
    Module("lm_predictions.lm_head", "{stem}LMPredictionHead", when="!legacy"),
    Module("lm_predictions.lm_head.dense", "Linear", when="!legacy"),
    Module("lm_predictions.lm_head.LayerNorm", "LayerNorm", when="!legacy"),
)

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
    ("roformer", "ForSequenceClassification"): DENSE_CLASSIFIER,
    ("roformer", "ForMultipleChoice"): (Module("sequence_summary", "{stem}SequenceSummary"), *linears("classifier")),
    ("roformer", "ForTokenClassification"): PLAIN_CLASSIFIER,
    ("roformer", "ForQuestionAnswering"): QA_OUTPUTS,
    ("mpnet", "ForMaskedLM"): LM_HEAD,
    ("mpnet", "ForSequenceClassification"): DENSE_CLASSIFIER,
    ("mpnet", "ForMultipleChoice"): PLAIN_CLASSIFIER,
    ("mpnet", "ForTokenClassification"): PLAIN_CLASSIFIER,
    ("mpnet", "ForQuestionAnswering"): QA_OUTPUTS,
    ("deberta-v2", "ForMaskedLM"): (*LEGACY, *LM_PREDICTIONS),
    ("deberta-v2", "ForSequenceClassification"): CONTEXT,
    ("deberta-v2", "ForMultipleChoice"): CONTEXT,
    ("deberta-v2", "ForTokenClassification"): PLAIN_CLASSIFIER,
    ("deberta-v2", "ForQuestionAnswering"): QA_OUTPUTS,
}
"""Family and suffix of a class -> its modules on top, in the order that it prints them."""

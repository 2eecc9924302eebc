"""The modules of MPNet and DeBERTa v2 and v3."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.anatomy.modules.bert import (
    BERT_ENCODER,
    LM_HEAD,
    ONLY_PREDICTIONS,
    POOLER,
    QA_OUTPUTS,
)
from headscope.anatomy.modules.kin import PLAIN_CLASSIFIER
from headscope.anatomy.modules.parts import Module, dropout, linears, norms, tables

L = "encoder.layer.{l}"
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

BASE: Mapping[str, tuple[Module, ...]] = {"mpnet": MPNET, "deberta-v2": DEBERTA_V2}
"""Family -> the modules of its base model, in the order that the class prints them."""

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
    ("mpnet", "ForMaskedLM"): LM_HEAD,
    ("mpnet", "ForSequenceClassification"): (
        Module("classifier", "{stem}ClassificationHead"),
        *linears("classifier.dense"),
        dropout("classifier.dropout", "hidden_dropout_prob"),
        *linears("classifier.out_proj"),
    ),
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

"""The modules of ModernBERT, ESM-2, NomicBERT, GTE and EuroBERT.

NomicBERT's and GTE's have the paths of the published files, which transformers renames while loading.
"""

from __future__ import annotations

from collections.abc import Mapping

from headscope.anatomy.modules.bert import CLASSIFIER, DENSE_CLASSIFIER, LM_HEAD, POOLER
from headscope.anatomy.modules.module import Module, activation, dropout, linears, norms, tables

M = "layers.{l}"
MODERNBERT = (
    Module("embeddings", "{stem}Embeddings"),
    *tables("embeddings.tok_embeddings"),
    *norms("embeddings.norm"),
    dropout("embeddings.drop", "embedding_dropout"),
    Module("layers", "ModuleList"),
    Module(M, "{stem}EncoderLayer"),
    Module(f"{M}.attn_norm", "LayerNorm", first=1),
    Module(f"{M}.attn", "{stem}Attention"),
    *linears(f"{M}.attn.Wqkv", f"{M}.attn.Wo"),
    *norms(f"{M}.mlp_norm"),
    Module(f"{M}.mlp", "{stem}MLP"),
    *linears(f"{M}.mlp.Wi"),
    activation(f"{M}.mlp.act", "hidden_activation"),
    dropout(f"{M}.mlp.drop", "mlp_dropout"),
    *linears(f"{M}.mlp.Wo"),
    *norms("final_norm"),
)
HEAD = (
    Module("head", "{stem}PredictionHead"),
    *linears("head.dense"),
    activation("head.act", "classifier_activation"),
    *norms("head.norm"),
)
HEAD_CLASSIFIER = (*HEAD, dropout("drop", "classifier_dropout"), *linears("classifier"))

E = "encoder.layer.{l}"
ESM = (
    Module("embeddings", "{stem}Embeddings"),
    *tables("embeddings.word_embeddings"),
    Module("embeddings.layer_norm", "LayerNorm", when="emb_layer_norm_before"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    Module("embeddings.position_embeddings", "Embedding", when="position_embedding_type=absolute"),
    Module("encoder", "{stem}Encoder"),
    Module("encoder.layer", "ModuleList"),
    Module(E, "{stem}Layer"),
    Module(f"{E}.attention", "{stem}Attention"),
    Module(f"{E}.attention.self", "{stem}SelfAttention"),
    *linears(*(f"{E}.attention.self.{name}" for name in ("query", "key", "value"))),
    Module(f"{E}.attention.output", "{stem}SelfOutput"),
    *linears(f"{E}.attention.output.dense"),
    dropout(f"{E}.attention.output.dropout", "hidden_dropout_prob"),
    *norms(f"{E}.attention.LayerNorm"),
    Module(f"{E}.intermediate", "{stem}Intermediate"),
    *linears(f"{E}.intermediate.dense"),
    Module(f"{E}.output", "{stem}Output"),
    *linears(f"{E}.output.dense"),
    dropout(f"{E}.output.dropout", "hidden_dropout_prob"),
    *norms(f"{E}.LayerNorm", "encoder.emb_layer_norm_after"),
    *POOLER,
    Module("contact_head", "{stem}ContactPredictionHead"),
    *linears("contact_head.regression"),
    Module("contact_head.activation", "Sigmoid"),
)

N = "encoder.layers.{l}"
NOMIC_BERT = (
    Module("embeddings", "{stem}Embeddings"),
    *tables("embeddings.word_embeddings", "embeddings.token_type_embeddings"),
    *norms("emb_ln"),
    Module("encoder.layers", "ModuleList"),
    Module(N, "{stem}Layer"),
    *norms(f"{N}.norm1"),
    Module(f"{N}.mlp", "{stem}MLP"),
    *linears(*(f"{N}.mlp.{name}" for name in ("fc12", "fc11", "fc2"))),
    Module(f"{N}.attn", "{stem}Attention"),
    *linears(f"{N}.attn.Wqkv", f"{N}.attn.out_proj"),
    *norms(f"{N}.norm2"),
    *POOLER,
)
T = "encoder.layer.{l}"
GTE = (
    Module("embeddings", "{stem}Embeddings"),
    *tables("embeddings.word_embeddings"),
    Module("embeddings.token_type_embeddings", "Embedding", when="type_vocab_size"),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    Module("encoder.layer", "ModuleList"),
    Module(T, "{stem}Layer"),
    *norms(f"{T}.attn_ln"),
    Module(f"{T}.mlp", "{stem}MLP"),
    *linears(f"{T}.mlp.up_gate_proj", f"{T}.mlp.down_proj"),
    Module(f"{T}.attention", "{stem}Attention"),
    *linears(f"{T}.attention.qkv_proj", f"{T}.attention.o_proj"),
    *norms(f"{T}.mlp_ln"),
    *POOLER,
)
U = "layers.{l}"
EUROBERT = (
    *tables("embed_tokens"),
    Module("layers", "ModuleList"),
    Module(U, "{stem}DecoderLayer"),
    Module(f"{U}.self_attn", "{stem}Attention"),
    *linears(*(f"{U}.self_attn.{name}_proj" for name in ("q", "k", "v", "o"))),
    Module(f"{U}.mlp", "{stem}MLP"),
    *linears(*(f"{U}.mlp.{name}_proj" for name in ("gate", "up", "down"))),
    activation(f"{U}.mlp.act_fn", "hidden_act"),
    Module(f"{U}.input_layernorm", "{stem}RMSNorm"),
    Module(f"{U}.post_attention_layernorm", "{stem}RMSNorm"),
    Module("norm", "{stem}RMSNorm"),
)

BASE: Mapping[str, tuple[Module, ...]] = {
    "modernbert": MODERNBERT,
    "esm": ESM,
    "nomic_bert": NOMIC_BERT,
    "gte": GTE,
    "eurobert": EUROBERT,
}
"""Family -> the modules of its base model, in the order that the class prints them."""

TOPS: Mapping[tuple[str, str], tuple[Module, ...]] = {
    ("modernbert", "ForMaskedLM"): (*HEAD, *linears("decoder")),
    ("modernbert", "ForSequenceClassification"): HEAD_CLASSIFIER,
    ("modernbert", "ForTokenClassification"): HEAD_CLASSIFIER,
    ("modernbert", "ForQuestionAnswering"): HEAD_CLASSIFIER,
    ("modernbert", "ForMultipleChoice"): HEAD_CLASSIFIER,
    ("esm", "ForMaskedLM"): LM_HEAD,
    ("esm", "ForSequenceClassification"): DENSE_CLASSIFIER,
    ("esm", "ForTokenClassification"): (dropout("dropout", "hidden_dropout_prob"), *linears("classifier")),
    ("nomic_bert", "ForMaskedLM"): (
        Module("cls", "{stem}OnlyMLMHead"),
        Module("cls.predictions", "{stem}LMPredictionHead"),
        Module("cls.predictions.transform", "{stem}PredictionHeadTransform"),
        *linears("cls.predictions.transform.dense"),
        activation("cls.predictions.transform.transform_act_fn", "hidden_act"),
        *norms("cls.predictions.transform.layer_norm"),
        *linears("cls.predictions.decoder"),
    ),
    ("nomic_bert", "ForSequenceClassification"): CLASSIFIER,
    ("nomic_bert", "ForTokenClassification"): CLASSIFIER,
    ("gte", "ForMaskedLM"): (
        Module("lm_head", "{stem}LMHead"),
        *linears("lm_head.dense"),
        *norms("lm_head.norm"),
        *linears("lm_head.decoder"),
    ),
    ("gte", "ForSequenceClassification"): CLASSIFIER,
    ("gte", "ForTokenClassification"): CLASSIFIER,
    ("eurobert", "ForMaskedLM"): linears("lm_head"),
    ("eurobert", "ForSequenceClassification"): (
        *linears("dense"),
        Module("activation", "GELU"),
        *linears("classifier"),
    ),
    ("eurobert", "ForTokenClassification"): linears("classifier"),
}
"""Family and suffix of a class -> its modules on top, in the order that it prints them."""

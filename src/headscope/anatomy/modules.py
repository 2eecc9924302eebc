"""The modules of each family's classes, with the class names that transformers prints.

Every path has the class of its module; `{stem}` stands for the family's class prefix and `{l}` for the layer.
Embedding, Linear and LayerNorm take their sizes from their parameters. A module without parameters may name the config
fields that set it (`Dropout`, and `Activation`, which is printed as the class of that activation). NomicBERT's and
GTE's have the paths of the published files, which transformers renames while loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ACTIVATION_CLASSES = {
    "gelu": "GELUActivation",
    "gelu_fast": "FastGELUActivation",
    "gelu_new": "NewGELUActivation",
    "gelu_python": "GELUActivation",
    "gelu_pytorch_tanh": "GELUTanh",
    "mish": "MishActivation",
    "quick_gelu": "QuickGELUActivation",
    "relu": "ReLU",
    "silu": "SiLUActivation",
    "swish": "SiLU",
    "tanh": "Tanh",
}
"""Activation's name in a config -> the class that transformers prints."""


@dataclass(frozen=True, slots=True)
class Module:
    """One module of a class.

    Attributes:
        path: its path, relative to the base model or, for modules on top, to the root of the class.
        kind: its class.
        fields: the config fields that set it; the first that is not null applies.
        when: the config field that switches it on, as in `Spec.when`.
        first: the first layer that has it.
    """

    path: str
    kind: str
    fields: tuple[str, ...] = ()
    when: str | None = None
    first: int = 0


def dropout(path: str, *fields: str) -> Module:
    """A Dropout with the config fields that set its probability."""
    return Module(path, "Dropout", fields)


def activation(path: str, field: str) -> Module:
    """An activation with the config field that names it."""
    return Module(path, "Activation", (field,))


def linears(*paths: str) -> tuple[Module, ...]:
    """Linear modules."""
    return tuple(Module(path, "Linear") for path in paths)


def norms(*paths: str) -> tuple[Module, ...]:
    """LayerNorm modules."""
    return tuple(Module(path, "LayerNorm") for path in paths)


def tables(*paths: str) -> tuple[Module, ...]:
    """Embedding modules."""
    return tuple(Module(path, "Embedding") for path in paths)


def embeddings(*names: str) -> tuple[Module, ...]:
    """BERT's embeddings with these tables."""
    return (
        Module("embeddings", "{stem}Embeddings"),
        *tables(*(f"embeddings.{name}_embeddings" for name in names)),
        *norms("embeddings.LayerNorm"),
        dropout("embeddings.dropout", "hidden_dropout_prob"),
    )


L = "encoder.layer.{l}"
LAYERS = (
    Module("encoder", "{stem}Encoder"),
    Module("encoder.layer", "ModuleList"),
    Module(L, "{stem}Layer"),
    Module(f"{L}.attention", "{stem}Attention"),
)
BERT_ENCODER = (
    *LAYERS,
    Module(f"{L}.attention.self", "{stem}SelfAttention"),
    *linears(f"{L}.attention.self.query", f"{L}.attention.self.key", f"{L}.attention.self.value"),
    dropout(f"{L}.attention.self.dropout", "attention_probs_dropout_prob"),
    Module(f"{L}.attention.output", "{stem}SelfOutput"),
    *linears(f"{L}.attention.output.dense"),
    *norms(f"{L}.attention.output.LayerNorm"),
    dropout(f"{L}.attention.output.dropout", "hidden_dropout_prob"),
    Module(f"{L}.intermediate", "{stem}Intermediate"),
    *linears(f"{L}.intermediate.dense"),
    activation(f"{L}.intermediate.intermediate_act_fn", "hidden_act"),
    Module(f"{L}.output", "{stem}Output"),
    *linears(f"{L}.output.dense"),
    *norms(f"{L}.output.LayerNorm"),
    dropout(f"{L}.output.dropout", "hidden_dropout_prob"),
)
POOLER = (
    Module("pooler", "{stem}Pooler"),
    *linears("pooler.dense"),
    Module("pooler.activation", "Tanh"),
)
EMBEDDINGS = embeddings("word", "position", "token_type")
T = "transformer.layer.{l}"
DISTILBERT = (
    Module("embeddings", "Embeddings"),
    *tables("embeddings.word_embeddings", "embeddings.position_embeddings"),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "dropout"),
    Module("transformer", "Transformer"),
    Module("transformer.layer", "ModuleList"),
    Module(T, "TransformerBlock"),
    Module(f"{T}.attention", "{stem}SelfAttention"),
    *linears(*(f"{T}.attention.{name}_lin" for name in ("q", "k", "v", "out"))),
    dropout(f"{T}.attention.dropout", "attention_dropout"),
    *norms(f"{T}.sa_layer_norm"),
    Module(f"{T}.ffn", "FFN"),
    dropout(f"{T}.ffn.dropout", "dropout"),
    *linears(f"{T}.ffn.lin1", f"{T}.ffn.lin2"),
    activation(f"{T}.ffn.activation", "activation"),
    *norms(f"{T}.output_layer_norm"),
)

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
MEGATRON = (
    *(module for module in EMBEDDINGS if module.kind != "LayerNorm"),
    *LAYERS,
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
    *embeddings("word", "token_type"),
    *linears("embeddings_project"),
    BERT_ENCODER[0],
    Module("encoder.embed_positions", "RoFormerSinusoidalPositionalEmbedding"),
    *BERT_ENCODER[1:],
)

FEED_FORWARD = tuple(module for module in BERT_ENCODER if module.path.startswith((f"{L}.intermediate", f"{L}.output")))
MPNET = (
    *embeddings("word", "position"),
    *LAYERS,
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
    *LAYERS,
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
ESM = (
    Module("embeddings", "{stem}Embeddings"),
    *tables("embeddings.word_embeddings"),
    Module("embeddings.layer_norm", "LayerNorm", when="emb_layer_norm_before"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    Module("embeddings.position_embeddings", "Embedding", when="position_embedding_type=absolute"),
    *LAYERS,
    Module(f"{L}.attention.self", "{stem}SelfAttention"),
    *linears(*(f"{L}.attention.self.{name}" for name in ("query", "key", "value"))),
    Module(f"{L}.attention.output", "{stem}SelfOutput"),
    *linears(f"{L}.attention.output.dense"),
    dropout(f"{L}.attention.output.dropout", "hidden_dropout_prob"),
    *norms(f"{L}.attention.LayerNorm"),
    Module(f"{L}.intermediate", "{stem}Intermediate"),
    *linears(f"{L}.intermediate.dense"),
    Module(f"{L}.output", "{stem}Output"),
    *linears(f"{L}.output.dense"),
    dropout(f"{L}.output.dropout", "hidden_dropout_prob"),
    *norms(f"{L}.LayerNorm", "encoder.emb_layer_norm_after"),
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
GTE = (
    Module("embeddings", "{stem}Embeddings"),
    *tables("embeddings.word_embeddings"),
    Module("embeddings.token_type_embeddings", "Embedding", when="type_vocab_size"),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    Module("encoder.layer", "ModuleList"),
    Module(L, "{stem}Layer"),
    *norms(f"{L}.attn_ln"),
    Module(f"{L}.mlp", "{stem}MLP"),
    *linears(f"{L}.mlp.up_gate_proj", f"{L}.mlp.down_proj"),
    Module(f"{L}.attention", "{stem}Attention"),
    *linears(f"{L}.attention.qkv_proj", f"{L}.attention.o_proj"),
    *norms(f"{L}.mlp_ln"),
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

BASE_MODULES: Mapping[str, tuple[Module, ...]] = {
    "bert": (*EMBEDDINGS, *BERT_ENCODER, *POOLER),
    "roberta": (
        *embeddings("word", "token_type"),
        *tables("embeddings.position_embeddings"),
        *BERT_ENCODER,
        *POOLER,
    ),
    "distilbert": DISTILBERT,
    "electra": (*EMBEDDINGS, *linears("embeddings_project"), *BERT_ENCODER),
    "albert": ALBERT,
    "ernie": (
        *EMBEDDINGS,
        Module("embeddings.task_type_embeddings", "Embedding", when="use_task_id"),
        *BERT_ENCODER,
        *POOLER,
    ),
    "megatron-bert": MEGATRON,
    "roformer": ROFORMER,
    "mpnet": MPNET,
    "deberta-v2": DEBERTA_V2,
    "modernbert": MODERNBERT,
    "esm": ESM,
    "nomic_bert": NOMIC_BERT,
    "gte": GTE,
    "eurobert": EUROBERT,
}
"""Family -> the modules of its base model, in the order that the class prints them."""

PREDICTIONS = (
    Module("cls.predictions", "{stem}LMPredictionHead"),
    Module("cls.predictions.transform", "{stem}PredictionHeadTransform"),
    *linears("cls.predictions.transform.dense"),
    activation("cls.predictions.transform.transform_act_fn", "hidden_act"),
    *norms("cls.predictions.transform.LayerNorm"),
    *linears("cls.predictions.decoder"),
)
ONLY_PREDICTIONS = (Module("cls", "{stem}OnlyMLMHead"), *PREDICTIONS)
CLASSIFIER = (dropout("dropout", "classifier_dropout", "hidden_dropout_prob"), *linears("classifier"))
QA_OUTPUTS = linears("qa_outputs")
LM_HEAD = (
    Module("lm_head", "{stem}LMHead"),
    *linears("lm_head.dense"),
    *norms("lm_head.layer_norm"),
    *linears("lm_head.decoder"),
)
DISTILBERT_CLASSIFIER = (*linears("pre_classifier", "classifier"), dropout("dropout", "seq_classif_dropout"))
GENERATOR = (
    Module("generator_predictions", "{stem}GeneratorPredictions"),
    Module("generator_predictions.activation", "GELUActivation"),
    *norms("generator_predictions.LayerNorm"),
    *linears("generator_predictions.dense", "generator_lm_head"),
)

DENSE_CLASSIFIER = (
    Module("classifier", "{stem}ClassificationHead"),
    *linears("classifier.dense"),
    dropout("classifier.dropout", "hidden_dropout_prob"),
    *linears("classifier.out_proj"),
)

ALBERT_PREDICTIONS = (
    Module("predictions", "{stem}MLMHead"),
    *norms("predictions.LayerNorm"),
    *linears("predictions.dense", "predictions.decoder"),
    activation("predictions.activation", "hidden_act"),
)
ALBERT_CLASSIFIER = (dropout("dropout", "classifier_dropout_prob"), *linears("classifier"))

HEAD = (
    Module("head", "{stem}PredictionHead"),
    *linears("head.dense"),
    activation("head.act", "classifier_activation"),
    *norms("head.norm"),
)
HEAD_CLASSIFIER = (*HEAD, dropout("drop", "classifier_dropout"), *linears("classifier"))

PRETRAINING = (Module("cls", "{stem}PreTrainingHeads"), *PREDICTIONS, *linears("cls.seq_relationship"))
NEXT_SENTENCE = (Module("cls", "{stem}OnlyNSPHead"), *linears("cls.seq_relationship"))


def berts(
    family: str, classifier: tuple[Module, ...], causal: str = "ForCausalLM"
) -> dict[tuple[str, str], tuple[Module, ...]]:
    """The classes of a family that has BERT's."""
    return {
        (family, "ForPreTraining"): PRETRAINING,
        (family, "ForMaskedLM"): ONLY_PREDICTIONS,
        (family, causal): ONLY_PREDICTIONS,
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

TOP_MODULES: Mapping[tuple[str, str], tuple[Module, ...]] = {
    **berts("bert", CLASSIFIER, "LMHeadModel"),
    ("roberta", "ForMaskedLM"): LM_HEAD,
    ("roberta", "ForCausalLM"): LM_HEAD,
    ("roberta", "ForSequenceClassification"): (
        Module("classifier", "{stem}ClassificationHead"),
        *linears("classifier.dense"),
        dropout("classifier.dropout", "classifier_dropout", "hidden_dropout_prob"),
        *linears("classifier.out_proj"),
    ),
    ("roberta", "ForMultipleChoice"): PLAIN_CLASSIFIER,
    ("roberta", "ForTokenClassification"): CLASSIFIER,
    ("roberta", "ForQuestionAnswering"): QA_OUTPUTS,
    ("distilbert", "ForMaskedLM"): (
        activation("activation", "activation"),
        *linears("vocab_transform"),
        *norms("vocab_layer_norm"),
        *linears("vocab_projector"),
    ),
    ("distilbert", "ForSequenceClassification"): DISTILBERT_CLASSIFIER,
    ("distilbert", "ForMultipleChoice"): DISTILBERT_CLASSIFIER,
    ("distilbert", "ForTokenClassification"): (dropout("dropout", "dropout"), *linears("classifier")),
    ("distilbert", "ForQuestionAnswering"): (*QA_OUTPUTS, dropout("dropout", "qa_dropout")),
    ("electra", "ForPreTraining"): (
        Module("discriminator_predictions", "{stem}DiscriminatorPredictions"),
        *linears("discriminator_predictions.dense"),
        activation("discriminator_predictions.activation", "hidden_act"),
        *linears("discriminator_predictions.dense_prediction"),
    ),
    ("electra", "ForMaskedLM"): GENERATOR,
    ("electra", "ForCausalLM"): GENERATOR,
    ("electra", "ForSequenceClassification"): (
        Module("classifier", "{stem}ClassificationHead"),
        *linears("classifier.dense"),
        Module("classifier.activation", "GELUActivation"),
        dropout("classifier.dropout", "classifier_dropout", "hidden_dropout_prob"),
        *linears("classifier.out_proj"),
    ),
    ("electra", "ForMultipleChoice"): (
        Module("sequence_summary", "{stem}SequenceSummary"),
        *linears("sequence_summary.summary"),
        activation("sequence_summary.activation", "summary_activation"),
        dropout("sequence_summary.last_dropout", "summary_last_dropout"),
        *linears("classifier"),
    ),
    ("electra", "ForTokenClassification"): CLASSIFIER,
    ("electra", "ForQuestionAnswering"): QA_OUTPUTS,
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
    ("modernbert", "ForMaskedLM"): (*HEAD, *linears("decoder")),
    ("modernbert", "ForSequenceClassification"): HEAD_CLASSIFIER,
    ("modernbert", "ForTokenClassification"): HEAD_CLASSIFIER,
    ("modernbert", "ForQuestionAnswering"): HEAD_CLASSIFIER,
    ("modernbert", "ForMultipleChoice"): HEAD_CLASSIFIER,
    ("esm", "ForMaskedLM"): LM_HEAD,
    ("esm", "ForSequenceClassification"): DENSE_CLASSIFIER,
    ("esm", "ForTokenClassification"): PLAIN_CLASSIFIER,
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

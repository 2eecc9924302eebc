"""The modules of each family's classes, with the class names that transformers prints.

Embeddings, Linears, norms and convolutions follow from the family's parameters. The tables here have what doesn't: the
classes of the modules above them, and modules without parameters, which may name the config fields that set them
(`Dropout`, and `Activation`, which is printed as the class of that activation). `{stem}` stands for the family's class
prefix and `{l}` for the layer. NomicBERT's and GTE's modules have the paths of the published files, which transformers
renames while loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from headscope.anatomy.schema import Family, Spec

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
        before: the module beside it that the class prints next; empty if it is the last, or has parameters.
    """

    path: str
    kind: str
    fields: tuple[str, ...] = ()
    when: str | None = None
    before: str = ""


TABLES = ("embeddings.", "distances.", "rotation.")
"""Beginnings of the roles of embedding tables."""


def modules_of(specs: Iterable[Spec], family: Family) -> Iterator[Module]:
    """Yield the modules that have weights of their own, in the order of their parameters."""
    norm = "{stem}RMSNorm" if family.rms_norm else "LayerNorm"
    for spec in specs:
        path, _, last = spec.name.rpartition(".")
        if last == "weight":
            matrix = "Embedding" if spec.role.startswith(TABLES) else "Linear"
            yield Module(path, (norm, matrix, "Conv1d")[len(spec.shape) - 1])


def dropout(path: str, *fields: str, before: str = "") -> Module:
    """A Dropout with the config fields that set its probability."""
    return Module(path, "Dropout", fields, before=before)


def activation(path: str, field: str, before: str = "") -> Module:
    """An activation with the config field that names it."""
    return Module(path, "Activation", (field,), before=before)


def embeddings(before: str = "") -> tuple[Module, ...]:
    """BERT's embeddings, with the table that comes after their dropout, if one does."""
    return (
        Module("embeddings", "{stem}Embeddings"),
        dropout("embeddings.dropout", "hidden_dropout_prob", before=before),
    )


L = "encoder.layer.{l}"
LAYERS = (
    Module("encoder", "{stem}Encoder"),
    Module("encoder.layer", "ModuleList"),
    Module(L, "{stem}Layer"),
    Module(f"{L}.attention", "{stem}Attention"),
)
FEED_FORWARD = (
    Module(f"{L}.intermediate", "{stem}Intermediate"),
    activation(f"{L}.intermediate.intermediate_act_fn", "hidden_act"),
    Module(f"{L}.output", "{stem}Output"),
    dropout(f"{L}.output.dropout", "hidden_dropout_prob"),
)
BERT_ENCODER = (
    *LAYERS,
    Module(f"{L}.attention.self", "{stem}SelfAttention"),
    dropout(f"{L}.attention.self.dropout", "attention_probs_dropout_prob"),
    Module(f"{L}.attention.output", "{stem}SelfOutput"),
    dropout(f"{L}.attention.output.dropout", "hidden_dropout_prob"),
    *FEED_FORWARD,
)
POOLER = (Module("pooler", "{stem}Pooler"), Module("pooler.activation", "Tanh"))
BERT = (*embeddings(), *BERT_ENCODER, *POOLER)

T = "transformer.layer.{l}"
DISTILBERT = (
    Module("embeddings", "Embeddings"),
    dropout("embeddings.dropout", "dropout"),
    Module("transformer", "Transformer"),
    Module("transformer.layer", "ModuleList"),
    Module(T, "TransformerBlock"),
    Module(f"{T}.attention", "{stem}SelfAttention"),
    dropout(f"{T}.attention.dropout", "attention_dropout"),
    Module(f"{T}.ffn", "FFN"),
    dropout(f"{T}.ffn.dropout", "dropout", before="lin1"),
    activation(f"{T}.ffn.activation", "activation"),
)

G = "encoder.albert_layer_groups.{l}"
A = f"{G}.albert_layers.{{i}}"
ALBERT = (
    *embeddings(),
    Module("encoder", "{stem}Transformer"),
    Module("encoder.albert_layer_groups", "ModuleList"),
    Module(G, "{stem}LayerGroup"),
    Module(f"{G}.albert_layers", "ModuleList"),
    Module(A, "{stem}Layer"),
    Module(f"{A}.attention", "{stem}Attention"),
    dropout(f"{A}.attention.attention_dropout", "attention_probs_dropout_prob", before="dense"),
    dropout(f"{A}.attention.output_dropout", "hidden_dropout_prob", before="dense"),
    activation(f"{A}.activation", "hidden_act"),
    dropout(f"{A}.dropout", "hidden_dropout_prob"),
    Module("pooler_activation", "Tanh"),
)
ROFORMER = (
    *embeddings(),
    *BERT_ENCODER,
    Module("encoder.embed_positions", "RoFormerSinusoidalPositionalEmbedding"),
)
MPNET = (
    *embeddings(),
    *LAYERS,
    Module(f"{L}.attention.attn", "{stem}SelfAttention"),
    dropout(f"{L}.attention.attn.dropout", "attention_probs_dropout_prob"),
    dropout(f"{L}.attention.dropout", "hidden_dropout_prob"),
    *FEED_FORWARD,
    *POOLER,
)
DEBERTA_V2 = (
    *embeddings(),
    *BERT_ENCODER,
    Module(f"{L}.attention.self", "DisentangledSelfAttention"),
    Module("encoder.conv", "ConvLayer", when="conv_kernel_size"),
)

M = "layers.{l}"
MODERNBERT = (
    Module("embeddings", "{stem}Embeddings"),
    dropout("embeddings.drop", "embedding_dropout"),
    Module("layers", "ModuleList"),
    Module(M, "{stem}EncoderLayer"),
    Module(f"{M}.attn", "{stem}Attention"),
    Module(f"{M}.mlp", "{stem}MLP"),
    activation(f"{M}.mlp.act", "hidden_activation", before="Wo"),
    dropout(f"{M}.mlp.drop", "mlp_dropout", before="Wo"),
)
ESM = (
    *embeddings(before="position_embeddings"),
    *(module for module in BERT_ENCODER if not module.path.endswith((".self.dropout", ".intermediate_act_fn"))),
    *POOLER,
    Module("contact_head", "{stem}ContactPredictionHead"),
    Module("contact_head.activation", "Sigmoid"),
)

N = "encoder.layers.{l}"
NOMIC_BERT = (
    Module("embeddings", "{stem}Embeddings"),
    Module("encoder.layers", "ModuleList"),
    Module(N, "{stem}Layer"),
    Module(f"{N}.mlp", "{stem}MLP"),
    Module(f"{N}.attn", "{stem}Attention"),
    *POOLER,
)
GTE = (
    *embeddings(),
    Module("encoder.layer", "ModuleList"),
    Module(L, "{stem}Layer"),
    Module(f"{L}.mlp", "{stem}MLP"),
    Module(f"{L}.attention", "{stem}Attention"),
    *POOLER,
)
EUROBERT = (
    Module("layers", "ModuleList"),
    Module(M, "{stem}DecoderLayer"),
    Module(f"{M}.self_attn", "{stem}Attention"),
    Module(f"{M}.mlp", "{stem}MLP"),
    activation(f"{M}.mlp.act_fn", "hidden_act"),
)

BASE_MODULES: Mapping[str, tuple[Module, ...]] = {
    "bert": BERT,
    "roberta": (*embeddings(before="position_embeddings"), *BERT_ENCODER, *POOLER),
    "distilbert": DISTILBERT,
    "electra": (*embeddings(), *BERT_ENCODER),
    "albert": ALBERT,
    "ernie": (*embeddings(before="task_type_embeddings"), *BERT_ENCODER, *POOLER),
    "megatron-bert": BERT,
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


def predictions(norm: str = "LayerNorm") -> tuple[Module, ...]:
    """BERT's masked-LM head, with the name of its norm."""
    return (
        Module("cls.predictions", "{stem}LMPredictionHead"),
        Module("cls.predictions.transform", "{stem}PredictionHeadTransform"),
        activation("cls.predictions.transform.transform_act_fn", "hidden_act", before=norm),
    )


ONLY_PREDICTIONS = (Module("cls", "{stem}OnlyMLMHead"), *predictions())
CLASSIFIER = (dropout("dropout", "classifier_dropout", "hidden_dropout_prob", before="classifier"),)
PLAIN_CLASSIFIER = (dropout("dropout", "hidden_dropout_prob", before="classifier"),)
DENSE_CLASSIFIER = (
    Module("classifier", "{stem}ClassificationHead"),
    dropout("classifier.dropout", "hidden_dropout_prob", before="out_proj"),
)
LM_HEAD = (Module("lm_head", "{stem}LMHead"),)
DISTILBERT_CLASSIFIER = (dropout("dropout", "seq_classif_dropout"),)
GENERATOR = (
    Module("generator_predictions", "{stem}GeneratorPredictions"),
    Module("generator_predictions.activation", "GELUActivation", before="LayerNorm"),
)
SUMMARY = Module("sequence_summary", "{stem}SequenceSummary", before="classifier")
ALBERT_PREDICTIONS = (Module("predictions", "{stem}MLMHead"), activation("predictions.activation", "hidden_act"))
ALBERT_CLASSIFIER = (dropout("dropout", "classifier_dropout_prob", before="classifier"),)
HEAD = (
    Module("head", "{stem}PredictionHead"),
    activation("head.act", "classifier_activation", before="norm"),
)
HEAD_CLASSIFIER = (*HEAD, dropout("drop", "classifier_dropout", before="classifier"))


def berts(
    family: str, classifier: tuple[Module, ...], causal: str = "ForCausalLM"
) -> dict[tuple[str, str], tuple[Module, ...]]:
    """The classes of a family that has BERT's."""
    return {
        (family, "ForPreTraining"): (Module("cls", "{stem}PreTrainingHeads"), *predictions()),
        (family, "ForMaskedLM"): ONLY_PREDICTIONS,
        (family, causal): ONLY_PREDICTIONS,
        (family, "ForNextSentencePrediction"): (Module("cls", "{stem}OnlyNSPHead"),),
        (family, "ForSequenceClassification"): classifier,
        (family, "ForMultipleChoice"): classifier,
        (family, "ForTokenClassification"): classifier,
    }


CONTEXT = (Module("pooler", "ContextPooler"), dropout("pooler.dropout", "pooler_dropout"))
LEGACY = tuple(
    replace(module, kind=module.kind.replace("{stem}", "Legacy{stem}"), when="legacy") for module in ONLY_PREDICTIONS
)
LM_PREDICTIONS = (
    Module("lm_predictions", "{stem}OnlyMLMHead", when="!legacy"),
    Module("lm_predictions.lm_head", "{stem}LMPredictionHead", when="!legacy"),
)

TOP_MODULES: Mapping[tuple[str, str], tuple[Module, ...]] = {
    **berts("bert", CLASSIFIER, "LMHeadModel"),
    ("roberta", "ForMaskedLM"): LM_HEAD,
    ("roberta", "ForCausalLM"): LM_HEAD,
    ("roberta", "ForSequenceClassification"): (
        Module("classifier", "{stem}ClassificationHead"),
        dropout("classifier.dropout", "classifier_dropout", "hidden_dropout_prob", before="out_proj"),
    ),
    ("roberta", "ForMultipleChoice"): PLAIN_CLASSIFIER,
    ("roberta", "ForTokenClassification"): CLASSIFIER,
    ("distilbert", "ForMaskedLM"): (activation("activation", "activation", before="vocab_transform"),),
    ("distilbert", "ForSequenceClassification"): DISTILBERT_CLASSIFIER,
    ("distilbert", "ForMultipleChoice"): DISTILBERT_CLASSIFIER,
    ("distilbert", "ForTokenClassification"): (dropout("dropout", "dropout", before="classifier"),),
    ("distilbert", "ForQuestionAnswering"): (dropout("dropout", "qa_dropout"),),
    ("electra", "ForPreTraining"): (
        Module("discriminator_predictions", "{stem}DiscriminatorPredictions"),
        activation("discriminator_predictions.activation", "hidden_act", before="dense_prediction"),
    ),
    ("electra", "ForMaskedLM"): GENERATOR,
    ("electra", "ForCausalLM"): GENERATOR,
    ("electra", "ForSequenceClassification"): (
        Module("classifier", "{stem}ClassificationHead"),
        Module("classifier.activation", "GELUActivation", before="out_proj"),
        dropout("classifier.dropout", "classifier_dropout", "hidden_dropout_prob", before="out_proj"),
    ),
    ("electra", "ForMultipleChoice"): (
        SUMMARY,
        activation("sequence_summary.activation", "summary_activation"),
        dropout("sequence_summary.last_dropout", "summary_last_dropout"),
    ),
    ("electra", "ForTokenClassification"): CLASSIFIER,
    ("albert", "ForPreTraining"): (
        *ALBERT_PREDICTIONS,
        Module("sop_classifier", "{stem}SOPHead"),
        dropout("sop_classifier.dropout", "classifier_dropout_prob", before="classifier"),
    ),
    ("albert", "ForMaskedLM"): ALBERT_PREDICTIONS,
    ("albert", "ForSequenceClassification"): ALBERT_CLASSIFIER,
    ("albert", "ForMultipleChoice"): ALBERT_CLASSIFIER,
    ("albert", "ForTokenClassification"): ALBERT_CLASSIFIER,
    **berts("ernie", CLASSIFIER),
    **berts("megatron-bert", PLAIN_CLASSIFIER),
    ("roformer", "ForMaskedLM"): ONLY_PREDICTIONS,
    ("roformer", "ForCausalLM"): ONLY_PREDICTIONS,
    ("roformer", "ForSequenceClassification"): DENSE_CLASSIFIER,
    ("roformer", "ForMultipleChoice"): (SUMMARY,),
    ("roformer", "ForTokenClassification"): PLAIN_CLASSIFIER,
    ("mpnet", "ForMaskedLM"): LM_HEAD,
    ("mpnet", "ForSequenceClassification"): DENSE_CLASSIFIER,
    ("mpnet", "ForMultipleChoice"): PLAIN_CLASSIFIER,
    ("mpnet", "ForTokenClassification"): PLAIN_CLASSIFIER,
    ("deberta-v2", "ForMaskedLM"): (*LEGACY, *LM_PREDICTIONS),
    ("deberta-v2", "ForSequenceClassification"): CONTEXT,
    ("deberta-v2", "ForMultipleChoice"): CONTEXT,
    ("deberta-v2", "ForTokenClassification"): PLAIN_CLASSIFIER,
    ("modernbert", "ForMaskedLM"): HEAD,
    ("modernbert", "ForSequenceClassification"): HEAD_CLASSIFIER,
    ("modernbert", "ForTokenClassification"): HEAD_CLASSIFIER,
    ("modernbert", "ForQuestionAnswering"): HEAD_CLASSIFIER,
    ("modernbert", "ForMultipleChoice"): HEAD_CLASSIFIER,
    ("esm", "ForMaskedLM"): LM_HEAD,
    ("esm", "ForSequenceClassification"): DENSE_CLASSIFIER,
    ("esm", "ForTokenClassification"): PLAIN_CLASSIFIER,
    ("nomic_bert", "ForMaskedLM"): (Module("cls", "{stem}OnlyMLMHead"), *predictions("layer_norm")),
    ("nomic_bert", "ForSequenceClassification"): CLASSIFIER,
    ("nomic_bert", "ForTokenClassification"): CLASSIFIER,
    ("gte", "ForMaskedLM"): LM_HEAD,
    ("gte", "ForSequenceClassification"): CLASSIFIER,
    ("gte", "ForTokenClassification"): CLASSIFIER,
    ("eurobert", "ForSequenceClassification"): (Module("activation", "GELU", before="classifier"),),
}
"""Family and suffix of a class -> its modules on top, in the order that it prints them, if it has any of these."""

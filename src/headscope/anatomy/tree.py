"""The module tree of a checkpoint, as transformers prints its class, with a count at every node.

Embeddings, Linears, norms and convolutions follow from the family's parameters. The tables here have what doesn't: the
classes of the modules above them, and modules without parameters, which may name the config fields that set them
(`Dropout`, and `Activation`, which is printed as the class of that activation). `{stem}` stands for the family's class
prefix and `{l}` for the layer. NomicBERT's and GTE's modules have the paths of the published files, which transformers
renames while loading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from headscope.anatomy.anatomy_record import Anatomy
from headscope.anatomy.families import named_architectures
from headscope.anatomy.glossary import ACTIVATIONS
from headscope.anatomy.parameters import Parameter
from headscope.anatomy.read_anatomy import base_specs
from headscope.anatomy.schema import Family, Spec, Top


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


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """One module, or one parameter in a module of unknown class. `print(node)` shows it and all below it.

    Attributes:
        name: its name in its parent; `0-11` if the node stands for equal modules; the model's class at the root.
        label: its class with its sizes, as in `Linear(768, 3072)`; `12 x BertLayer` if the node stands for equal
            modules; a parameter's dtype; empty at the root and if the class is unknown.
        count: number of elements of its parameters; of one module, if the node stands for several.
        shape: a parameter's shape; None for a module.
        repeat: number of equal modules that the node stands for.
        children: its submodules and parameters.
    """

    name: str
    label: str
    count: int
    shape: tuple[int, ...] | None = None
    repeat: int = 1
    children: tuple[Node, ...] = ()

    @property
    def total(self) -> int:
        """Number of elements of all the modules that the node stands for."""
        return self.count * self.repeat

    def __repr__(self) -> str:
        label = f"{self.label} {self.shape}" if self.shape is not None else self.label
        lines = [f"{': '.join(filter(None, (self.name, label)))}  {self.count:,}", *map(repr, self.children)]
        return "\n".join(lines).replace("\n", "\n  ")


@dataclass
class _Growing:
    """A module while its parameters are being collected."""

    module: Module | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)
    children: dict[str, _Growing] = field(default_factory=dict)

    def at(self, path: str) -> _Growing:
        """Return the module at a path below this one, created if necessary."""
        node = self
        for part in filter(None, path.split(".", DEEPEST)):
            node = node.children.setdefault(part, _Growing())
        return node

    def put(self, path: str, module: Module) -> None:
        """Set the module at a path below this one, before the one that the class prints next."""
        self.at(path).module = module
        *parents, name = path.split(".", DEEPEST)
        siblings = self.at(".".join(parents)).children
        if module.before in siblings:
            names = [other for other in siblings if other != name]
            for later in names[names.index(module.before) :]:
                siblings[later] = siblings.pop(later)


DEEPEST = 50
"""Maximum depth of the tree; the rest of a longer name stays in one part."""

OPTIONAL = {
    "pooler": "pooler",
    "embeddings_project": "projection",
    "embeddings.embed_proj": "projection",
    "contact_head": "contact_head",
}
"""First words of modules that a checkpoint may lack -> the component of their parameters."""

LEAVES = ("Embedding", "Linear", "LayerNorm", "RoFormerSinusoidalPositionalEmbedding")
"""Classes that the tree shows with their sizes instead of their parameters."""


def tree(anatomy: Anatomy) -> Node:
    """Return the module tree of a checkpoint, with runs of equal modules collapsed into one node.

    Modules of a known family have the class names that transformers prints. Parameters that fit no module of the class
    and models of other families have only the names in the file.
    """
    root = _Growing()
    names = {row.name for row in anatomy.extra}
    # The class with the most parameters on top; among equals, the one that config.json names.
    top = max(anatomy.tops, key=lambda top: sum(spec.name in names for spec in top.specs), default=None)
    base_path = ""
    family, sizes = anatomy.family, anatomy.dimensions
    if family is not None and anatomy.prefix is not None and sizes is not None:
        base_path = anatomy.prefix.removeprefix(anatomy.outer)
        components = {row.component for row in anatomy.parameters}
        lacking = tuple(path for path, part in OPTIONAL.items() if part not in components)
        root.put(base_path, Module(base_path, "{stem}Model"))
        specs = [spec for spec, _ in base_specs(family, sizes, anatomy.config)]
        for module in (*modules_of(specs, family), *BASE_MODULES[family.name]):
            if module.path.startswith(lacking) or not family.holds(module.when, anatomy.config):
                continue
            for layer in range(sizes.stored_layers) if "{l}" in module.path else (0,):
                root.put(base_path + module.path.format(l=layer // sizes.inner, i=layer % sizes.inner), module)
        specs = family.held(top.specs if top else (), anatomy.config)
        others = TOP_MODULES.get((family.name, top.suffix), ()) if top else ()
        for module in (*modules_of(specs, family), *others):
            if family.holds(module.when, anatomy.config):
                root.put(module.path, module)
    for row in anatomy.parameters:
        path, _, last = (base_path + row.name).rpartition(".")
        root.at(path).parameters[last] = row
    for row in anatomy.extra:
        path, _, last = row.name.rpartition(".")
        root.at(path).parameters[last] = row
    return replace(finished(root, "", root_name(anatomy, top), anatomy, top), label="")


def root_name(anatomy: Anatomy, top: Top | None) -> str:
    """Return the name of the root: its class, if that is unambiguous."""
    if anatomy.family is None:
        return "model"
    if top is None:
        return anatomy.base_class if not anatomy.extra else "checkpoint"
    named = anatomy.class_stem + top.suffix in named_architectures(anatomy.config)
    names = {row.name for row in anatomy.extra}
    rivals = [other for other in anatomy.tops if names <= {spec.name for spec in other.specs}]
    return anatomy.class_stem + top.suffix if named or rivals == [top] else f"{anatomy.base_class} and more"


def finished(growing: _Growing, path: str, name: str, anatomy: Anatomy, top: Top | None) -> Node:
    """Return a module and everything below it as a record."""
    children = [
        finished(child, f"{path}.{part}" if path else part, part, anatomy, top)
        for part, child in growing.children.items()
    ]
    module = growing.module
    rows = growing.parameters
    direct = sum(row.count for row in rows.values())
    if module is None or module.kind not in LEAVES:
        children = [Node(last, row.dtype, row.count, row.shape) for last, row in rows.items()] + children
    return Node(
        name=name,
        label=label_of(growing, path, anatomy, top),
        count=direct + sum(child.total for child in children if child.shape is None),
        children=tuple(collapsed(children)),
    )


def label_of(growing: _Growing, path: str, anatomy: Anatomy, top: Top | None) -> str:
    """Return a module's class with its sizes; empty if the class is unknown."""
    module = growing.module
    if module is None:
        return ""
    kind = module.kind.format(stem=anatomy.class_stem)
    if kind in LEAVES:
        weight = growing.parameters.get("weight")
        if weight is None:
            return tied_label(kind, path, anatomy, top)
        sizes = [str(size) for size in (reversed(weight.shape) if kind == "Linear" else weight.shape)]
        if kind == "LayerNorm":
            sizes.append(f"eps={anatomy.setting('norm_eps')}")
        return f"{kind}({', '.join(sizes)})"
    settings = {**(anatomy.family.defaults if anatomy.family else {}), **anatomy.config}
    value = next((settings[name] for name in module.fields if settings.get(name) is not None), None)
    if kind == "Dropout":
        return f"Dropout({value})"
    printed, _ = ACTIVATIONS.get(str(value), (str(value), ""))
    return printed if kind == "Activation" else kind


def tied_label(kind: str, path: str, anatomy: Anatomy, top: Top | None) -> str:
    """Return the label of a module whose weight is tied or missing."""
    for spec in top.specs if top else ():
        if spec.name == f"{path}.weight" and spec.tied_to and anatomy.ties and anatomy.dimensions:
            out, into = anatomy.dimensions.shape(spec)
            return f"{kind}({into}, {out}), tied to {spec.tied_to.removesuffix('.weight')}"
    return f"{kind}, missing"


def collapsed(nodes: Sequence[Node]) -> Iterable[Node]:
    """Yield siblings in order, with runs of numbered siblings that differ only in their number collapsed into one."""

    def key(node: Node) -> object:
        return replace(node, name="") if node.name.isdecimal() else node.name

    for _, run in groupby(nodes, key):
        same = list(run)
        first, last = same[0], same[-1]
        if len(same) == 1:
            yield first
        else:
            label = f"{len(same)} x {first.label}" if first.label else f"{len(same)} equal modules"
            yield replace(first, name=f"{first.name}-{last.name}", label=label, repeat=len(same))

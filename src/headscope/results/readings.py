"""Answers that read a checkpoint or check a model, as JSON. See headscope.results.answers for those that run one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.results.answers import PartRow
from headscope.results.report import Check


@dataclass(frozen=True)
class ParameterRow:
    """A tensor of a checkpoint.

    Attributes:
        name: its name in the file.
        shape: its shape.
        dtype: its type in the file.
        count: number of parameters.
        component: the part of the model that it belongs to.
    """

    name: str
    shape: list[int]
    dtype: str
    count: int
    component: str


@dataclass(frozen=True)
class ShapesAnswer:
    """Every tensor of a checkpoint.

    Attributes:
        model: the model's name.
        total: parameters of the base model.
        parameters: tensors of the base model.
        extra: tensors on top of it.
        total_with_extra: parameters of all of them.
    """

    model: str
    total: int
    parameters: list[ParameterRow]
    extra: list[ParameterRow]
    total_with_extra: int


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a model.

    Attributes:
        layers: number of layers.
        heads: heads in a layer.
        d_model: width of the hidden states.
        d_head: width of a head.
        d_ffn: width of the feed-forward.
        vocab: number of tokens in the vocabulary.
        positions: number of position embeddings; null where there are none.
        types: number of token types; null where there are none.
    """

    layers: int | None
    heads: int | None
    d_model: int | None
    d_head: int | None
    d_ffn: int | None
    vocab: int | None
    positions: int | None
    types: int | None


@dataclass(frozen=True)
class ComponentRow:
    """A part of a model.

    Attributes:
        component: its name.
        count: number of parameters.
        share: of all parameters, 0 to 1.
        parameters: number of tensors.
        meaning: what it does.
    """

    component: str
    count: int
    share: float | None
    parameters: int
    meaning: str | None


@dataclass(frozen=True)
class MemoryRow:
    """The memory that the weights take in a precision.

    Attributes:
        precision: fp32, fp16 and the like.
        base_bytes: of the base model.
        whole_bytes: with what is on top of it.
    """

    precision: str
    base_bytes: int
    whole_bytes: int


@dataclass(frozen=True)
class SummaryAnswer:
    """The contents of a checkpoint.

    Attributes:
        model: the model's name.
        where: where its files are.
        format: safetensors or torch.
        files: the files with its weights.
        class_: class of the base model; null if it isn't known.
        family: family of models; null if it isn't known.
        total: parameters of the base model.
        total_with_extra: with what is on top of it.
        dtypes: type in the file -> number of tensors.
        dimensions: its sizes; null if the config doesn't give them.
        expansion_rates: of each layer, the factor by which its W_V W_O lengthens vectors; null where they aren't read.
        components: parts of the base model.
        extra: parts on top of it.
        memory: bytes in several precisions.
        tied: tensor -> the tensor whose weights it shares.
        buffers: tensors that are no parameters.
        missing: tensors that the family has and the file lacks.
        problems: what keeps headscope from running it.
    """

    model: str
    where: str
    format: str
    files: list[str]
    class_: str | None
    family: str | None
    total: int
    total_with_extra: int
    dtypes: dict[str, int]
    dimensions: Dimensions | None
    expansion_rates: list[float] | None
    components: list[ComponentRow]
    extra: list[ComponentRow]
    memory: list[MemoryRow]
    tied: dict[str, str]
    buffers: list[str]
    missing: list[str]
    problems: list[str]


@dataclass(frozen=True)
class ConfigField:
    """A field of a config.

    Attributes:
        name: its name.
        value: its value.
        meaning: what it means; empty if headscope doesn't know the field.
        implies: what follows from it for this model, in numbers.
        source: the config, or a default of the class.
    """

    name: str
    value: Any
    meaning: str | None
    implies: str | None
    source: str


@dataclass(frozen=True)
class ConfigAnswer:
    """A config, explained.

    Attributes:
        model: the model's name.
        fields: its fields.
        problems: what keeps headscope from running it.
    """

    model: str
    fields: list[ConfigField]
    problems: list[str]


@dataclass(frozen=True)
class TreeNode:
    """A module, or several equal ones.

    Attributes:
        name: its name.
        label: its class or meaning.
        shape: of a parameter; null for a module.
        count: parameters of one of them.
        repeat: how many there are.
        children: the modules in it.
    """

    name: str
    label: str
    shape: list[int] | None
    count: int
    repeat: int
    children: list[TreeNode]


@dataclass(frozen=True)
class TreeAnswer:
    """The tree of modules.

    Attributes:
        model: the model's name.
        tree: its root.
    """

    model: str
    tree: TreeNode


@dataclass(frozen=True)
class Parameter:
    """A parameter of a class.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: its type in the file; missing for one that the file lacks.
    """

    name: str
    shape: list[int]
    dtype: str | None = None


@dataclass(frozen=True)
class Mismatch:
    """A tensor that the class expects in another shape.

    Attributes:
        name: its name.
        stored: its shape in the file.
        wanted: the shape that the class expects.
    """

    name: str
    stored: list[int]
    wanted: list[int]


@dataclass(frozen=True)
class FitAnswer:
    """The use that a class would make of a checkpoint.

    Attributes:
        model: the model's name.
        class_: the class.
        loaded: number of parameters that it would load.
        initialised: parameters that it would initialise at random.
        ignored: tensors of the checkpoint that it would ignore.
        mismatched: tensors that it can't load.
        tied: parameter -> the one whose weights it shares.
        notes: what has to be known besides.
    """

    model: str
    class_: str
    loaded: int
    initialised: list[Parameter]
    ignored: list[Parameter]
    mismatched: list[Mismatch]
    tied: dict[str, str]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class CheckRow(Check):
    """One comparison; a number that isn't finite is null.

    Attributes:
        agrees: true if the difference is within the tolerance.
    """

    worst: float | None  # type: ignore[assignment]
    tolerance: float | None  # type: ignore[assignment]
    agrees: bool


@dataclass(frozen=True)
class SkippedRow:
    """A comparison that was not possible.

    Attributes:
        name: the quantity.
        reason: why.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class ReportAnswer:
    """The result of several comparisons.

    Attributes:
        model: the model's name.
        agrees: true if all of them agree.
        checks: the comparisons.
        notes: what has to be known about them.
        skipped: comparisons that were not possible.
    """

    model: str
    agrees: bool
    checks: list[CheckRow]
    notes: list[str]
    skipped: list[SkippedRow]


@dataclass(frozen=True)
class PairShare:
    """A pair of input tokens, with what it adds to a score.

    Attributes:
        query_part: on the query's side; a token or the biases.
        key_part: on the key's side, likewise.
        share: what the pair adds to the difference of the scores.
    """

    query_part: str
    key_part: str
    share: float


@dataclass(frozen=True)
class WhyAnswer:
    """The reasons why a head looks from one token to another.

    Attributes:
        model: the model's name.
        text: the text.
        layer: from 0.
        head: from 0.
        query: position of the token that looks.
        key: position of the token that it looks at.
        weight: the weight.
        score: the score.
        others: the mean of the query's scores of other keys.
        kappa: what cancels: the sum of the pairs' absolute shares over that of their sum.
        rest: what biases and distances add to the difference.
        pairs: the strongest pairs.
        checks: tokens that were masked for real.
    """

    model: str
    text: str
    layer: int
    head: int
    query: int
    key: int
    weight: float
    score: float
    others: float
    kappa: float | None
    rest: float
    pairs: list[PairShare]
    checks: list[PartRow]

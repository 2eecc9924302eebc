"""Answers that read a checkpoint or check a model, as JSON. See headscope.results.answers for those that run one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Of
from typing import Any

from headscope.results.answers import PartRow
from headscope.results.verify_report import Check


@dataclass(frozen=True)
class ParameterRow:
    """A tensor of a checkpoint."""

    name: Of[str, "its name in the file."]
    shape: Of[list[int], "its shape."]
    dtype: Of[str, "its type in the file."]
    count: Of[int, "number of parameters."]
    component: Of[str, "the part of the model that it belongs to."]


@dataclass(frozen=True)
class ShapesAnswer:
    """Every tensor of a checkpoint."""

    model: Of[str, "the model's name."]
    total: Of[int, "parameters of the base model."]
    parameters: Of[list[ParameterRow], "tensors of the base model."]
    extra: Of[list[ParameterRow], "tensors on top of it."]
    total_with_extra: Of[int, "parameters of all of them."]


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a model."""

    layers: Of[int | None, "number of layers."]
    heads: Of[int | None, "heads in a layer."]
    d_model: Of[int | None, "width of the hidden states."]
    d_head: Of[int | None, "width of a head."]
    d_ffn: Of[int | None, "width of the feed-forward."]
    vocab: Of[int | None, "number of tokens in the vocabulary."]
    positions: Of[int | None, "number of position embeddings; null where there are none."]
    types: Of[int | None, "number of token types; null where there are none."]


@dataclass(frozen=True)
class ComponentRow:
    """A part of a model."""

    component: Of[str, "its name."]
    count: Of[int, "number of parameters."]
    share: Of[float | None, "of all parameters, 0 to 1."]
    parameters: Of[int, "number of tensors."]
    meaning: Of[str | None, "what it does."]


@dataclass(frozen=True)
class MemoryRow:
    """The memory that the weights take in a precision."""

    precision: Of[str, "fp32, fp16 and the like."]
    base_bytes: Of[int, "of the base model."]
    whole_bytes: Of[int, "with what is on top of it."]


@dataclass(frozen=True)
class SummaryAnswer:
    """The contents of a checkpoint."""

    model: Of[str, "the model's name."]
    where: Of[str, "where its files are."]
    format: Of[str, "safetensors or torch."]
    files: Of[list[str], "the files with its weights."]
    class_: Of[str | None, "class of the base model; null if it isn't known."]
    family: Of[str | None, "family of models; null if it isn't known."]
    total: Of[int, "parameters of the base model."]
    total_with_extra: Of[int, "with what is on top of it."]
    dtypes: Of[dict[str, int], "type in the file -> number of tensors."]
    dimensions: Of[Dimensions | None, "its sizes; null if the config doesn't give them."]
    expansion_rates: Of[
        list[float] | None,
        "of each layer, the factor by which its W_V W_O lengthens vectors; null where they aren't read.",
    ]
    components: Of[list[ComponentRow], "parts of the base model."]
    extra: Of[list[ComponentRow], "parts on top of it."]
    memory: Of[list[MemoryRow], "bytes in several precisions."]
    tied: Of[dict[str, str], "tensor -> the tensor whose weights it shares."]
    buffers: Of[list[str], "tensors that are no parameters."]
    missing: Of[list[str], "tensors that the family has and the file lacks."]
    problems: Of[list[str], "what keeps headscope from running it."]


@dataclass(frozen=True)
class ConfigField:
    """A field of a config."""

    name: Of[str, "its name."]
    value: Of[Any, "its value."]
    meaning: Of[str | None, "what it means; empty if headscope doesn't know the field."]
    implies: Of[str | None, "what follows from it for this model, in numbers."]
    source: Of[str, "the config, or a default of the class."]


@dataclass(frozen=True)
class ConfigAnswer:
    """A config, explained."""

    model: Of[str, "the model's name."]
    fields: Of[list[ConfigField], "its fields."]
    problems: Of[list[str], "what keeps headscope from running it."]


@dataclass(frozen=True)
class TreeNode:
    """A module, or several equal ones."""

    name: Of[str, "its name."]
    label: Of[str, "its class or meaning."]
    shape: Of[list[int] | None, "of a parameter; null for a module."]
    count: Of[int, "parameters of one of them."]
    repeat: Of[int, "how many there are."]
    children: Of[list[TreeNode], "the modules in it."]


@dataclass(frozen=True)
class TreeAnswer:
    """The tree of modules."""

    model: Of[str, "the model's name."]
    tree: Of[TreeNode, "its root."]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a class."""

    name: Of[str, "its name."]
    shape: Of[list[int], "its shape."]
    dtype: Of[str | None, "its type in the file; missing for one that the file lacks."] = None


@dataclass(frozen=True)
class Mismatch:
    """A tensor that the class expects in another shape."""

    name: Of[str, "its name."]
    stored: Of[list[int], "its shape in the file."]
    wanted: Of[list[int], "the shape that the class expects."]


@dataclass(frozen=True)
class FitAnswer:
    """The use that a class would make of a checkpoint."""

    model: Of[str, "the model's name."]
    class_: Of[str, "the class."]
    loaded: Of[int, "number of parameters that it would load."]
    initialised: Of[list[Parameter], "parameters that it would initialise at random."]
    ignored: Of[list[Parameter], "tensors of the checkpoint that it would ignore."]
    mismatched: Of[list[Mismatch], "tensors that it can't load."]
    tied: Of[dict[str, str], "parameter -> the one whose weights it shares."]
    notes: Of[list[str], "what has to be known besides."]


@dataclass(frozen=True, kw_only=True)
class CheckRow(Check):
    """One comparison; a number that isn't finite is null."""

    worst: Of[float | None, "the largest absolute difference."]  # type: ignore[assignment]
    tolerance: Of[float | None, "the largest difference that is accepted."]  # type: ignore[assignment]
    agrees: Of[bool, "true if the difference is within the tolerance."]


@dataclass(frozen=True)
class SkippedRow:
    """A comparison that was not possible."""

    name: Of[str, "the quantity."]
    reason: Of[str, "why."]


@dataclass(frozen=True)
class ReportAnswer:
    """The result of several comparisons."""

    model: Of[str, "the model's name."]
    agrees: Of[bool, "true if all of them agree."]
    checks: Of[list[CheckRow], "the comparisons."]
    notes: Of[list[str], "what has to be known about them."]
    skipped: Of[list[SkippedRow], "comparisons that were not possible."]


@dataclass(frozen=True)
class PairShare:
    """A pair of input tokens, with what it adds to a score."""

    query_part: Of[str, "on the query's side; a token or the biases."]
    key_part: Of[str, "on the key's side, likewise."]
    share: Of[float, "what the pair adds to the difference of the scores."]


@dataclass(frozen=True)
class WhyAnswer:
    """The reasons why a head looks from one token to another."""

    model: Of[str, "the model's name."]
    text: Of[str, "the text."]
    layer: Of[int, "from 0."]
    head: Of[int, "from 0."]
    query: Of[int, "position of the token that looks."]
    key: Of[int, "position of the token that it looks at."]
    weight: Of[float, "the weight."]
    score: Of[float, "the score."]
    others: Of[float, "the mean of the query's scores of other keys."]
    kappa: Of[float | None, "what cancels: the sum of the pairs' absolute shares over that of their sum."]
    rest: Of[float, "what biases and distances add to the difference."]
    pairs: Of[list[PairShare], "the strongest pairs."]
    checks: Of[list[PartRow], "tokens that were masked for real."]

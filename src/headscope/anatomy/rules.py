"""Consequences of a config field for a model, in a sentence: rules over its value and the model's sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from headscope.anatomy.record import Anatomy
from headscope.anatomy.sizes import Dimensions


class Facts:
    """The facts that rules refer to: an anatomy's sizes, and sums of them."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy

    @property
    def s(self) -> Dimensions:
        """The dimensions; for rules that run only if they are known."""
        assert self.anatomy.dimensions is not None
        return self.anatomy.dimensions

    @cached_property
    def longest(self) -> int:
        """The maximum number of tokens in one input, by the position table."""
        return self.anatomy.longest_text

    @cached_property
    def longest_reason(self) -> str:
        """The derivation of that number."""
        if self.longest == self.s.positions:
            return f"one row of the position table per token: {self.s.positions}"
        return (
            f"the position table has {self.s.positions} rows, but text never uses the first "
            f"{self.s.positions - self.longest}: positions start after the padding id"
        )

    @cached_property
    def per_layer(self) -> int:
        """Number of parameters in layer 0."""
        return sum(row.count for row in self.anatomy.parameters if row.layer == 0)

    @cached_property
    def per_layer_sum(self) -> str:
        """That number as a sum over the layer's matrices."""
        d, f = self.s.d_model, self.s.d_ffn
        return (
            f"4 ({d} x {d} + {d}) + ({d} x {f} + {f}) + ({f} x {d} + {d}) + 4 x {d} = "
            f"{4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d:,}"
        )


Rule = Callable[[Any, Facts], str]


def nothing(_value: Any, _facts: Facts) -> str:
    """The rule for fields without consequences."""
    return ""


def fixed(text: str) -> Rule:
    """Return a rule that gives the same sentence for every value."""
    return lambda _value, _facts: text


NO_EFFECT = fixed("affects no weight and no output")


def heads(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"d_head = {s.d_model} / {s.heads} = {s.d_head}; {s.layers * s.heads} heads in all; "
        "the number of heads changes no parameter count"
    )


def width(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"every token is a vector of {s.d_model} values in every layer; W_Q, W_K, W_V and W_O of a layer are "
        f"({s.d_model}, {s.d_model}) each, {s.d_model * s.d_model:,} parameters"
    )


def layers(_value: Any, facts: Facts) -> str:
    layers, each = facts.s.layers, facts.per_layer
    return f"{layers} layers of {each:,} parameters: {each * layers:,}; counted from 0, the last is {layers - 1}"


def ffn(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"{s.d_ffn / s.d_model:.3g} times d_model; two matrices per layer of {s.d_model * s.d_ffn:,} parameters each, "
        f"{2 * s.d_model * s.d_ffn * s.layers:,} in all layers"
    )


def vocab(_value: Any, facts: Facts) -> str:
    s = facts.s
    count = s.vocab * s.d_embedding
    share = count / (facts.anatomy.parameters.total or 1)
    table = f"a table ({s.vocab}, {s.d_embedding}): {count:,} parameters"
    return f"{table}, {share:.1%} of the base model; ids 0 to {s.vocab - 1}"


def positions(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"a table ({s.positions}, {s.d_embedding}): {s.positions * s.d_embedding:,} parameters; "
        f"a text has at most {facts.longest} tokens"
    )


def types(_value: Any, facts: Facts) -> str:
    s = facts.s
    size = f"a table ({s.types}, {s.d_embedding}): {s.types * s.d_embedding:,} parameters; "
    return size + ("it does not distinguish the texts of a pair" if s.types == 1 else f"segments 0 to {s.types - 1}")


def embedding(_value: Any, facts: Facts) -> str:
    s = facts.s
    if s.d_embedding == s.d_model:
        return f"as wide as the layers ({s.d_model}), so no projection is needed"
    return (
        f"not as wide as the layers: embeddings_project ({s.d_model}, {s.d_embedding}) projects "
        f"{s.d_embedding} values to {s.d_model}"
    )


ACTIVATIONS = {
    "gelu": "x times the normal distribution function of x, exactly, by erf",
    "gelu_new": "gelu's approximation by tanh",
    "gelu_pytorch_tanh": "gelu's approximation by tanh",
    "gelu_fast": "gelu's approximation by tanh, in another form",
    "gelu_python": "gelu by erf",
    "quick_gelu": "gelu's approximation x * sigmoid(1.702 x)",
    "relu": "max(x, 0)",
    "silu": "x * sigmoid(x)",
    "swish": "x * sigmoid(x)",
    "tanh": "tanh(x)",
    "mish": "x * tanh(log(1 + exp(x)))",
}


def activation(value: Any, facts: Facts) -> str:
    text = ACTIVATIONS.get(value) if isinstance(value, str) else None
    width = f"applied to {facts.s.d_ffn} values per token and layer"
    return f"{text}; {width}" if text else width


def labels(value: Any, _facts: Facts) -> str:
    if not isinstance(value, Mapping):
        return ""
    names = ", ".join(str(name) for name in list(value.values())[:4])
    return f"a classifier has {len(value)} outputs: {names}" + (", …" if len(value) > 4 else "")


def label_ids(value: Any, _facts: Facts) -> str:
    return f"{len(value)} labels" if isinstance(value, Mapping) else ""


def padding(value: Any, facts: Facts) -> str:
    offset = facts.anatomy.family.position_offset if facts.anatomy.family else None
    if offset is None or not isinstance(value, int):
        return "no token attends to padding"
    return (
        f"positions count from {value} + {offset} = {value + offset}, so text never uses rows 0 to {value + offset - 1}"
    )


def dtype(value: Any, facts: Facts) -> str:
    stored = ", ".join(facts.anatomy.parameters.dtypes)
    return f"the file stores {stored}" if stored else ""


def architectures(value: Any, facts: Facts) -> str:
    count = facts.anatomy.extra.total
    if facts.anatomy.family is None or not count:
        return ""
    return f"{count:,} parameters on top of {facts.anatomy.base_class}"


def tied(value: Any, _facts: Facts) -> str:
    if value is False:
        return "a masked-LM head has a separate output table"
    return "a masked-LM head has no separate output table: the shared table counts once, as word embeddings"


def positions_kind(value: Any, _facts: Facts) -> str:
    if value in (None, "absolute"):
        return "one learned vector per position, added to the word's"
    return "scores depend on distances between tokens; headscope's encoder doesn't support this model"


def decoder(value: Any, _facts: Facts) -> str:
    return (
        "each token attends only to earlier tokens"
        if value
        else "every token attends to all tokens, in both directions"
    )


def pruned(value: Any, _facts: Facts) -> str:
    removed = (
        [f"layer {layer}: {heads}" for layer, heads in value.items() if heads] if isinstance(value, Mapping) else []
    )
    return "; ".join(removed) if removed else "none removed"


def dropout(value: Any, _facts: Facts) -> str:
    part = f"{value:.0%} of the values at random, " if isinstance(value, (int, float)) else ""
    return f"{part}only during training; a trace drops nothing"


def classifier_dropout(value: Any, _facts: Facts) -> str:
    return "the same as hidden_dropout_prob" if value is None else dropout(value, _facts)

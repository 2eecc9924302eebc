"""What follows from a config's field for a model, in a sentence: rules of its value and of the model's sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from headscope.anatomy.record import Anatomy
from headscope.anatomy.sizes import Dimensions


class Facts:
    """What the rules may speak of: an anatomy's sizes, and sums of them."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy

    @property
    def s(self) -> Dimensions:
        """The dimensions, for rules that only run where they are known."""
        assert self.anatomy.dimensions is not None
        return self.anatomy.dimensions

    @cached_property
    def longest(self) -> int:
        """The most tokens that the position table has room for."""
        return self.anatomy.longest_text

    @cached_property
    def longest_reason(self) -> str:
        """How that number comes about."""
        if self.longest == self.s.positions:
            return f"one row of the position table per token: {self.s.positions}"
        return (
            f"{self.s.positions} rows of the position table, of which the first {self.s.positions - self.longest} are "
            f"never used by text: positions start behind the padding id"
        )

    @cached_property
    def per_layer(self) -> int:
        """Numbers in layer 0."""
        return sum(row.count for row in self.anatomy.parameters if row.layer == 0)

    @cached_property
    def per_layer_sum(self) -> str:
        """The same, spelled out."""
        d, f = self.s.d_model, self.s.d_ffn
        return (
            f"4 ({d} x {d} + {d}) + ({d} x {f} + {f}) + ({f} x {d} + {d}) + 4 x {d} = "
            f"{4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d:,}"
        )


Rule = Callable[[Any, Facts], str]


def nothing(_value: Any, _facts: Facts) -> str:
    """The rule of fields from which nothing follows."""
    return ""


def fixed(text: str) -> Rule:
    """The rule of fields from which the same follows whatever they say."""
    return lambda _value, _facts: text


NO_EFFECT = fixed("changes no weight and no output")


def heads(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"d_head = {s.d_model} / {s.heads} = {s.d_head}; {s.layers * s.heads} heads in all; "
        "the number of heads changes no parameter count"
    )


def width(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"every token is {s.d_model} numbers in every layer; W_Q, W_K, W_V and W_O of a layer are "
        f"({s.d_model}, {s.d_model}) each, {s.d_model * s.d_model:,} numbers"
    )


def layers(_value: Any, facts: Facts) -> str:
    layers, each = facts.s.layers, facts.per_layer
    return f"{layers} layers of {each:,} numbers: {each * layers:,}; counted from 0, the last is {layers - 1}"


def ffn(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"{s.d_ffn / s.d_model:.3g} times d_model; two matrices per layer of {s.d_model * s.d_ffn:,} numbers each, "
        f"{2 * s.d_model * s.d_ffn * s.layers:,} in all layers"
    )


def vocab(_value: Any, facts: Facts) -> str:
    s = facts.s
    count = s.vocab * s.d_embedding
    share = count / (facts.anatomy.parameters.total or 1)
    table = f"a table ({s.vocab}, {s.d_embedding}): {count:,} numbers"
    return f"{table}, {share:.1%} of the base model; ids 0 to {s.vocab - 1}"


def positions(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"a table ({s.positions}, {s.d_embedding}): {s.positions * s.d_embedding:,} numbers; "
        f"a text has at most {facts.longest} tokens"
    )


def types(_value: Any, facts: Facts) -> str:
    s = facts.s
    first = f"a table ({s.types}, {s.d_embedding}): {s.types * s.d_embedding:,} numbers; "
    return first + ("pairs of texts are not told apart by it" if s.types == 1 else f"segments 0 to {s.types - 1}")


def embedding(_value: Any, facts: Facts) -> str:
    s = facts.s
    if s.d_embedding == s.d_model:
        return f"as wide as the layers ({s.d_model}), so nothing has to widen them"
    return (
        f"narrower than the layers: embeddings_project ({s.d_model}, {s.d_embedding}) widens "
        f"{s.d_embedding} numbers to {s.d_model}"
    )


ACTIVATIONS = {
    "gelu": "x times the share of a normal distribution below x, exactly, by erf",
    "gelu_new": "gelu's approximation by tanh",
    "gelu_pytorch_tanh": "gelu's approximation by tanh",
    "gelu_fast": "gelu's approximation by tanh, written another way",
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
    width = f"applied to {facts.s.d_ffn} numbers per token and layer"
    return f"{text}; {width}" if text else width


def labels(value: Any, _facts: Facts) -> str:
    if not isinstance(value, Mapping):
        return ""
    shown = ", ".join(str(name) for name in list(value.values())[:4])
    return f"a classifier has {len(value)} outputs: {shown}" + (", …" if len(value) > 4 else "")


def label_ids(value: Any, _facts: Facts) -> str:
    return f"{len(value)} labels" if isinstance(value, Mapping) else ""


def padding(value: Any, facts: Facts) -> str:
    offset = facts.anatomy.family.position_offset if facts.anatomy.family else None
    if offset is None or not isinstance(value, int):
        return "no token looks at padding"
    return (
        f"positions count from {value} + {offset} = {value + offset}, so rows 0 to {value + offset - 1} serve no text"
    )


def dtype(value: Any, facts: Facts) -> str:
    stored = ", ".join(facts.anatomy.parameters.dtypes)
    return f"the file itself stores {stored}" if stored else ""


def architectures(value: Any, facts: Facts) -> str:
    count = facts.anatomy.extra.total
    if facts.anatomy.family is None or not count:
        return ""
    return f"{count:,} numbers sit on top of {facts.anatomy.base_class}"


def tied(value: Any, _facts: Facts) -> str:
    if value is False:
        return "a masked-LM head has an output table of its own"
    return "a masked-LM head has no output table of its own: it is counted once, as word embeddings"


def positions_kind(value: Any, _facts: Facts) -> str:
    if value in (None, "absolute"):
        return "one learned vector per position, added to the word's"
    return "scores depend on distances between tokens; headscope's encoder refuses this model"


def decoder(value: Any, _facts: Facts) -> str:
    return "each token would see only those before it" if value else "every token sees all tokens, before and after it"


def pruned(value: Any, _facts: Facts) -> str:
    removed = (
        [f"layer {layer}: {heads}" for layer, heads in value.items() if heads] if isinstance(value, Mapping) else []
    )
    return "; ".join(removed) if removed else "none removed"


def dropout(value: Any, _facts: Facts) -> str:
    part = f"{value:.0%} of the numbers at random, " if isinstance(value, (int, float)) else ""
    return f"{part}only while training; nothing is dropped in a trace"


def classifier_dropout(value: Any, _facts: Facts) -> str:
    return "as hidden_dropout_prob says" if value is None else dropout(value, _facts)

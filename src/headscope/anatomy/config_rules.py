"""Consequences of a config field for a model, in a sentence: rules over its value and the model's sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from headscope.anatomy.anatomy_record import Anatomy
from headscope.anatomy.parameters import Parameter
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
        if not self.anatomy.has("embeddings.position.weight"):
            return f"no table limits it: {self.positions_act}; the config says how long a text the model was made for"
        if self.longest == self.s.positions:
            return f"one row of the position table per token: {self.s.positions}"
        return (
            f"the position table has {self.s.positions} rows, but text never uses the first "
            f"{self.s.positions - self.longest}: positions start after the padding id"
        )

    @property
    def positions_act(self) -> str:
        """Effect of positions in a family that adds none."""
        if self.anatomy.rotates:
            return "queries and keys are rotated by their positions"
        return "scores depend on distances"

    @cached_property
    def per_layer(self) -> int:
        """Number of parameters in layer 0."""
        return sum(row.count for row in self.rows_of(0))

    def rows_of(self, layer: int) -> list[Parameter]:
        """The parameters of one layer of the file."""
        return [row for row in self.anatomy.parameters if row.layer == layer]

    @cached_property
    def gated(self) -> bool:
        """True if the feed-forward network has a gate, and so three matrices instead of two."""
        return self.anatomy.has("layer.ffn_gate.weight", 0)

    @cached_property
    def per_layer_sum(self) -> str:
        """That number as a sum over the layer's matrices."""
        d, f = self.s.d_model, self.s.d_ffn
        berts = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d
        if berts == self.per_layer:
            return f"4 ({d} x {d} + {d}) + ({d} x {f} + {f}) + ({f} x {d} + {d}) + 4 x {d} = {berts:,}"
        shapes = Counter(" x ".join(map(str, row.shape)) for row in self.rows_of(0))
        parts = [f"{count} ({shape})" if count > 1 else shape for shape, count in shapes.items()]
        return f"{' + '.join(parts)} = {self.per_layer:,}"


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
    if s.d_heads != s.d_model:
        return f"d_head = {s.d_head}; {s.all_heads} heads in all"
    return (
        f"d_head = {s.d_model} / {s.heads} = {s.d_head}; {s.layers * s.heads} heads in all; "
        "the number of heads changes no parameter count"
    )


def groups(_value: Any, facts: Facts) -> str:
    s = facts.s
    return f"{s.layers} layers use the parameters of {s.stored_layers}"


def key_heads(_value: Any, facts: Facts) -> str:
    s = facts.s
    if s.kv_heads == s.heads:
        return "every query head has a key head of its own"
    return f"{s.heads // s.kv_heads} query heads share each key head (grouped-query attention)"


def width(_value: Any, facts: Facts) -> str:
    s = facts.s
    text = f"every token is a vector of {s.d_model} values in every layer; "
    if s.d_heads == s.d_keys == s.d_model:
        size = f"({s.d_model}, {s.d_model}) each, {s.d_model * s.d_model:,} parameters"
        return f"{text}W_Q, W_K, W_V and W_O of a layer are {size}"
    return f"{text}W_Q of a layer is ({s.d_model}, {s.d_heads}), W_K and W_V are ({s.d_model}, {s.d_keys})"


def layers(_value: Any, facts: Facts) -> str:
    layers, each = facts.s.layers, facts.per_layer
    stored = facts.s.stored_layers
    whole = sum(row.count for row in facts.anatomy.parameters if row.layer is not None)
    if stored != layers:
        return f"{layers} layers share the parameters of {stored}: {whole:,}; counted from 0, the last is {layers - 1}"
    if whole != each * layers:
        return f"{layers} layers with {whole:,} parameters; counted from 0, the last is {layers - 1}"
    return f"{layers} layers of {each:,} parameters: {each * layers:,}; counted from 0, the last is {layers - 1}"


def ffn(_value: Any, facts: Facts) -> str:
    s = facts.s
    number, word = (3, "three") if facts.gated else (2, "two")
    return (
        f"{s.d_ffn / s.d_model:.3g} times d_model; {word} matrices per layer of {s.d_model * s.d_ffn:,} parameters "
        f"each, {number * s.d_model * s.d_ffn * s.stored_layers:,} in all layers"
    )


def vocab(_value: Any, facts: Facts) -> str:
    s = facts.s
    count = s.vocab * s.d_embedding
    share = count / (facts.anatomy.parameters.total or 1)
    table = f"a table ({s.vocab}, {s.d_embedding}): {count:,} parameters"
    return f"{table}, {share:.1%} of the base model; ids 0 to {s.vocab - 1}"


def positions(_value: Any, facts: Facts) -> str:
    s = facts.s
    if not facts.anatomy.has("embeddings.position.weight"):
        return f"no table is added: {facts.positions_act}; the model was made for texts of {facts.longest} tokens"
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
    held = facts.anatomy.has("projection.weight")
    projection = facts.anatomy.parameter("projection.weight").name.split(".")[-2] if held else "a projection"
    return (
        f"not as wide as the layers: {projection} ({s.d_model}, {s.d_embedding}) projects {s.d_embedding} values to "
        f"{s.d_model}"
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


def norms(_value: Any, facts: Facts) -> str:
    rows = [row for row in facts.anatomy.parameters if (row.role or "").endswith("norm.weight")]
    kind = "RMSNorms" if facts.anatomy.family and facts.anatomy.family.rms_norm else "LayerNorms"
    return f"{len(rows)} {kind} in embeddings and layers"


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
    if not facts.anatomy.has("embeddings.position.weight"):
        offset = None
    if offset is None or not isinstance(value, int):
        return "no token looks at padding"
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
    if value == "rotary":
        return "queries and keys are rotated by their positions, so scores depend on distances"
    return "scores depend on distances between tokens; headscope's encoder doesn't support this model"


def decoder(value: Any, _facts: Facts) -> str:
    return "each token looks only at earlier tokens" if value else "every token looks at all tokens, in both directions"


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

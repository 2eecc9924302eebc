"""The records of a family's table: parameters, classes on top, and families.

Names are relative to the base model (`BertModel`); a checkpoint of a larger class has them with a prefix (`bert.`).
Shapes are written in symbols, see `Spec.shape`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter as a class declares it.

    Attributes:
        name: its name in the class; `{l}` stands for the layer.
        role: headscope's name for its role.
        shape: integers and symbols: the names of attributes of `Dimensions`.
        tied_to: the name of the parameter whose storage it shares, if any.
        when: the config field that switches it on, if it is optional. See `Family.holds`.
        first: the first layer that has it.
        stacks: the roles of the parameters that it holds one above the other, if it is several in one.
    """

    name: str
    role: str
    shape: tuple[str | int, ...]
    tied_to: str | None = None
    when: str | None = None
    first: int = 0
    stacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotation of queries and keys by their positions (Su et al. 2021).

    Attributes:
        base: the default of rope_theta; of global layers, if local ones have another.
        local_base: the default of rope_theta in local layers.
        pairs: True if dimensions 2i and 2i + 1 are rotated together; False for i and i + d_head / 2.
        when: as in `Spec`.
        alias: another name of rope_theta, in published configs.
    """

    base: float = 10000.0
    local_base: float | None = None
    pairs: bool = False
    when: str | None = None
    alias: str = "rope_theta"


@dataclass(frozen=True, slots=True)
class Top:
    """A class with parameters on top of the base model: `BertForMaskedLM` is (`bert`, suffix `ForMaskedLM`).

    Attributes:
        suffix: the class's name without the family's prefix.
        tasks: the tasks it computes: masked_lm, next_sentence, sequence, token, question, choice, or detection (which
            tokens were replaced: ELECTRA's discriminator).
        pooler: True if its base model has a pooler.
        specs: the parameters on top, in the class's order; names are relative to the root of the class.
    """

    suffix: str
    tasks: tuple[str, ...]
    pooler: bool
    specs: tuple[Spec, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Family:
    """The names of one family's parameters, classes and config fields.

    Attributes:
        name: the family's name.
        model_types: values of config.json's model_type -> the prefix of their class names, before `Model` and `For…`.
        prefix: the prefix of the base model's names in a class with parameters on top.
        embeddings: the embeddings' parameters, in the class's order.
        layer: the parameters of each layer, in the class's order.
        pooler: the pooler's parameters, in the class's order.
        projection: the parameters between embeddings and encoder if d_embedding differs from d_model.
        tops: the classes on top.
        config: headscope's field -> the family's field.
        aliases: the family's field -> another name for it, which transformers accepts or published configs use.
        defaults: the family's field -> the default of its config class, for fields that affect no shape or may be
            left out.
        fixed: headscope's field -> its value, if the class has no config field for it.
        position_offset: None if positions count from 0; otherwise the first token's position is the padding id plus
            this.
        buffers: patterns of the names of tensors in a checkpoint that are not parameters.
        before_layers: parameters of the encoder that the class lists before its layers.
        after_layers: parameters of the encoder that the class lists after its layers, such as a last norm.
        beside: parameters of the base model after the pooler; a checkpoint may lack them.
        absent: fields that the config class doesn't have, and that are off if config.json leaves them out.
        projects_first: True if the embeddings are projected before their norm.
        terms: what the layers add to the scores: empty, `by_distance` (MPNet) or `disentangled` (DeBERTa).
        base_pooler: True if the base model's class has the pooler.
        layer_form: where the layer's norms stand: post_norm or pre_norm; see headscope.encoder.forward.
        rms_norm: True if norms divide by the root of the mean square and neither centre nor shift.
        rotary: how queries and keys are rotated, if they are.
        class_names: role without .weight and .bias -> the name of the class's module, if the files have other names
            than the class: transformers renames and splits them while loading.
        position_types: the values of position_embedding_type that the encoder computes; none if the class never read
            the field, whose value then says nothing.
        masked_lm_activation: the activation of the masked-LM transform; None for the config's activation.
        sequence_activation: the activation of the sequence classifier's dense layer, if it has one.
        published_prefix: the base model's prefix in published files, if it isn't that of the class.
        custom_code: the beginning of the names of custom classes, in a config's auto_map, that compute what this table
            says, with the values in `computed`. By default, transformers runs its own class instead of them.
        computed: field of the custom classes' config -> its only value that the encoder computes.
    """

    name: str
    model_types: Mapping[str, str]
    prefix: str
    embeddings: tuple[Spec, ...]
    layer: tuple[Spec, ...]
    tops: tuple[Top, ...]
    config: Mapping[str, str]
    pooler: tuple[Spec, ...] = ()
    projection: tuple[Spec, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    position_offset: int | None = None
    buffers: tuple[str, ...] = ("embeddings.position_ids", "embeddings.token_type_ids")
    before_layers: tuple[Spec, ...] = ()
    after_layers: tuple[Spec, ...] = ()
    beside: tuple[Spec, ...] = ()
    absent: tuple[str, ...] = ()
    projects_first: bool = False
    terms: str = ""
    base_pooler: bool = True
    layer_form: str = "post_norm"
    rms_norm: bool = False
    rotary: Rotary | None = None
    class_names: Mapping[str, str] = field(default_factory=dict)
    position_types: tuple[str, ...] = ("absolute",)
    masked_lm_activation: str | None = None
    sequence_activation: str | None = None
    published_prefix: str | None = None
    custom_code: str | None = None
    computed: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"the family {self.name}"

    def holds(self, when: str | None, config: Mapping[str, Any]) -> bool:
        """Return True if a config meets a condition.

        A condition is a field that must be true, `!field`, `field=value` or `field~part` (the value contains it), or
        several of them joined by `&`. A field that config.json leaves out has the class's default; it counts as true if
        the family has none.
        """
        return all(self._meets(condition, config) for condition in when.split("&")) if when else True

    def held(self, specs: Iterable[Spec], config: Mapping[str, Any]) -> list[Spec]:
        """Return the parameters that a class has under a config."""
        return [spec for spec in specs if self.holds(spec.when, config)]

    def _meets(self, condition: str, config: Mapping[str, Any]) -> bool:
        name, operator, wanted = re.fullmatch(r"!?(\w+)([=~]?)(.*)", condition).groups()  # type: ignore[union-attr]
        value = config.get(name)
        if value is None:
            value = self.defaults.get(name, name not in self.absent)
        if operator == "=":
            return str(value) == wanted
        if operator == "~":
            return isinstance(value, (str, list, tuple)) and wanted in value
        return bool(value) != condition.startswith("!")


def linear(
    name: str, role: str, out: str | int, into: str | int, bias: str | None = None, when: str | None = None
) -> tuple[Spec, Spec]:
    """torch's Linear: weight (out, in), bias (out,); `bias` is the config field that switches the bias on, if any."""
    weight = Spec(f"{name}.weight", f"{role}.weight", (out, into), when=when)
    return weight, Spec(f"{name}.bias", f"{role}.bias", (out,), when=bias or when)


def matrix(name: str, role: str, out: str | int, into: str | int) -> tuple[Spec]:
    """A Linear without a bias: weight (out, in)."""
    return linear(name, role, out, into)[:1]


def stacked(
    name: str, role: str, out: str | int, into: str | int, roles: tuple[str, ...], bias: str | None = None
) -> tuple[Spec, Spec]:
    """A Linear whose rows are those of several, one above the other."""
    weight, shift = linear(name, role, out, into, bias)
    return tuple(  # type: ignore[return-value]  # two in, two out
        dataclasses.replace(spec, stacks=tuple(f"{part}.{kind}" for part in roles))
        for spec, kind in ((weight, "weight"), (shift, "bias"))
    )


def norm(
    name: str, role: str, size: str, bias: str | None = None, first: int = 0, when: str | None = None
) -> tuple[Spec, Spec]:
    """A LayerNorm: weight (size,), bias (size,)."""
    weight = Spec(f"{name}.weight", f"{role}.weight", (size,), when=when, first=first)
    return weight, Spec(f"{name}.bias", f"{role}.bias", (size,), when=bias or when, first=first)


def scale(name: str, role: str, size: str) -> tuple[Spec]:
    """A norm without a shift: weight (size,)."""
    return norm(name, role, size)[:1]


def table(name: str, role: str, rows: str, width: str, when: str | None = None) -> tuple[Spec]:
    """An embedding table: weight (rows, width)."""
    return (Spec(f"{name}.weight", f"{role}.weight", (rows, width), when=when),)

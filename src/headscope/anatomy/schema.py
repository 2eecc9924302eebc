"""The records of a family's table: parameters, classes on top, and families.

Names are relative to the base model (`BertModel`); a checkpoint of a larger class has them with a prefix (`bert.`).
Shapes are written in symbols, see `Spec.shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter as a class declares it.

    Attributes:
        name: its name in the class; `{l}` stands for the layer.
        role: headscope's name for its role.
        shape: integers and symbols: vocab, positions, types, d_embedding, d_model, d_ffn, labels.
        tied_to: the name of the parameter whose storage it shares, if any.
        when: the config field that switches it on, if it is optional; a config without that field counts as true.
    """

    name: str
    role: str
    shape: tuple[str | int, ...]
    tied_to: str | None = None
    when: str | None = None


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


@dataclass(frozen=True, slots=True)
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
        aliases: the family's field -> another name that transformers accepts for it.
        defaults: the family's field -> the default of its config class, for fields that affect no shape.
        fixed: headscope's field -> its value, if the class has no config field for it.
        position_offset: None if positions count from 0; otherwise the first token's position is the padding id plus
            this.
        buffers: names of tensors in a checkpoint that are not parameters.
        masked_lm_activation: the activation of the masked-LM transform; None for the config's activation.
        sequence_activation: the activation of the sequence classifier's dense layer, if it has one.
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
    masked_lm_activation: str | None = None
    sequence_activation: str | None = None


def linear(name: str, role: str, out: str | int, into: str | int) -> tuple[Spec, Spec]:
    """torch's Linear: weight (out, in), bias (out,)."""
    return Spec(f"{name}.weight", f"{role}.weight", (out, into)), Spec(f"{name}.bias", f"{role}.bias", (out,))


def norm(name: str, role: str, size: str) -> tuple[Spec, Spec]:
    """A LayerNorm: weight (size,), bias (size,)."""
    return Spec(f"{name}.weight", f"{role}.weight", (size,)), Spec(f"{name}.bias", f"{role}.bias", (size,))


def table(name: str, role: str, rows: str, width: str) -> tuple[Spec]:
    """An embedding table: weight (rows, width)."""
    return (Spec(f"{name}.weight", f"{role}.weight", (rows, width)),)

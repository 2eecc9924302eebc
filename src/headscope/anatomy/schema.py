"""What a family's table is made of: parameters, classes on top, and the families that hold them.

Names are relative to the base model (`BertModel`); a checkpoint of a larger class carries them behind a prefix
(`bert.`). Shapes are spelled in symbols, see `Spec.shape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter as a class declares it.

    Attributes:
        name: the class's name for it; `{l}` stands for the layer.
        role: what it is, in headscope's words.
        shape: integers and symbols: vocab, positions, types, d_embedding, d_model, d_ffn, labels.
        tied_to: the class's name of the parameter whose storage it shares, if any.
        when: the config field that the class has it by, where it has it only by one; true where the config is silent.
    """

    name: str
    role: str
    shape: tuple[str | int, ...]
    tied_to: str | None = None
    when: str | None = None


@dataclass(frozen=True, slots=True)
class Top:
    """What a class puts on top of the base model: `BertForMaskedLM` is (`bert`, suffix `ForMaskedLM`).

    Attributes:
        suffix: the class's name behind the family's.
        tasks: what it computes: masked_lm, next_sentence, sequence, token, question, choice, or detection (which
            tokens were replaced: ELECTRA's discriminator).
        pooler: whether the base model inside has a pooler.
        specs: the parameters on top, in the class's order, names from the root of the class.
    """

    suffix: str
    tasks: tuple[str, ...]
    pooler: bool
    specs: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """How one family names its parts.

    Attributes:
        name: the family's name.
        model_types: values of config.json's model_type, each with the class's name before `Model` and `For…`.
        prefix: what stands before the base model's names in a class with something on top.
        embeddings, layer, pooler: the base model's parameters, in the class's order.
        projection: the parameters between embeddings and encoder where d_embedding differs from d_model.
        tops: the classes on top.
        config: our field -> the family's field.
        aliases: the family's field -> another name that transformers takes for it.
        defaults: the family's field -> what its config class assumes where config.json is silent, for fields that
            change no shape.
        fixed: our field -> its value, where the class has no config field for it.
        position_offset: the position of the first token, where it is not 0: the padding index plus this.
        buffers: names a checkpoint may hold that are no parameters.
        masked_lm_activation: the activation of the masked-LM transform; None says config's own.
        sequence_activation: the activation inside the sequence classifier's dense layer, where it has one.
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

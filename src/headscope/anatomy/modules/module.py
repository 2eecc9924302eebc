"""One module of a class, and the functions that make common ones.

Every path has the class of its module; `{stem}` stands for the family's class prefix and `{l}` for the layer.
Embedding, Linear and LayerNorm take their sizes from their parameters. A module without parameters may name the config
fields that set it (`Dropout`, and `Activation`, which is printed as the class of that activation).
"""

from __future__ import annotations

from dataclasses import dataclass

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
        first: the first layer that has it.
    """

    path: str
    kind: str
    fields: tuple[str, ...] = ()
    when: str | None = None
    first: int = 0


def dropout(path: str, *fields: str) -> Module:
    """A Dropout with the config fields that set its probability."""
    return Module(path, "Dropout", fields)


def activation(path: str, field: str) -> Module:
    """An activation with the config field that names it."""
    return Module(path, "Activation", (field,))


def linears(*paths: str) -> tuple[Module, ...]:
    """Linear modules."""
    return tuple(Module(path, "Linear") for path in paths)


def norms(*paths: str) -> tuple[Module, ...]:
    """LayerNorm modules."""
    return tuple(Module(path, "LayerNorm") for path in paths)


def tables(*paths: str) -> tuple[Module, ...]:
    """Embedding modules."""
    return tuple(Module(path, "Embedding") for path in paths)

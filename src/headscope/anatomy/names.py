"""How a file spells a class's names: old spellings, wrappers before the model, and the prefix of the base model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headscope.anatomy.schema import Family

OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""How files older than the class spell the LayerNorm's parameters, and how the class does."""

WRAPPERS = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put before every name."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the base model lies in a file's names.

    Attributes:
        prefix: what stands before the base model's names: nothing, `bert.`, `module.bert.`, `encoder.`, ….
        outer: what stands before the names of a class with something on top: nothing, `module.`, `model.`, ….
        own: whether the names are laid out as the family's classes do; not where the base model sits in a
            foreign class (`encoder.`), of which the family's table knows nothing beyond the base model.
    """

    prefix: str
    outer: str
    own: bool


def modern_name(stored: str) -> str:
    """A stored name as the class has it: gamma and beta are the LayerNorm's weight and bias."""
    for old, new in OLD_NAMES.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored


def spellings(stored: Iterable[str]) -> dict[str, str]:
    """Class's name -> the file's; where the file holds both spellings, the class's own wins."""
    found: dict[str, str] = {}
    for name in stored:
        modern = modern_name(name)
        if modern == name or modern not in found:
            found[modern] = name
    return found


def find_bases(names: Mapping[str, str], family: Family) -> tuple[str, ...]:
    """The prefixes before which the family's word embeddings stand: one per base model in the file."""
    anchor = family.embeddings[0].name
    prefixes = (name.removesuffix(anchor) for name in names if name.endswith(anchor))
    return tuple(prefix for prefix in prefixes if not prefix or prefix.endswith("."))


def placement(prefix: str, family: Family) -> Placement:
    """What a base model's prefix says about the names around it."""
    if f".{prefix}".endswith(f".{family.prefix}"):
        return Placement(prefix=prefix, outer=prefix.removesuffix(family.prefix), own=True)
    outer = ""
    while wrapper := next((one for one in WRAPPERS if prefix.startswith(outer + one)), ""):
        outer += wrapper
    return Placement(prefix=prefix, outer=outer, own=outer == prefix)

"""Names in a file and names of a class: old spellings, wrappers' prefixes, and the prefix of the base model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headscope.anatomy.schema import Family

OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names of the LayerNorm's parameters in files older than the class -> their names in the class."""

WRAPPERS = ("module.", "_orig_mod.")
"""The prefixes that DataParallel and torch.compile add to every name."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The position of the base model in a file's names.

    Attributes:
        prefix: the prefix of the base model's names: empty, `bert.`, `module.bert.`, `encoder.`, ….
        outer: the prefix of the names of a class with parameters on top: empty, `module.`, `model.`, ….
        own: True if the names follow the layout of the family's classes; False if the base model is part of a foreign
            class (`encoder.`), whose other parameters the family's table doesn't know.
    """

    prefix: str
    outer: str
    own: bool


def modern_name(stored: str) -> str:
    """Return the class's name for a stored name: gamma and beta are the LayerNorm's weight and bias."""
    for old, new in OLD_NAMES.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored


def spellings(stored: Iterable[str]) -> dict[str, str]:
    """Class's name -> stored name; if the file has both spellings, the class's spelling wins."""
    names: dict[str, str] = {}
    for name in stored:
        modern = modern_name(name)
        if modern == name or modern not in names:
            names[modern] = name
    return names


def find_bases(names: Mapping[str, str], family: Family) -> tuple[str, ...]:
    """Return the prefixes of the family's word embeddings: one per base model in the file."""
    anchor = family.embeddings[0].name
    prefixes = (name.removesuffix(anchor) for name in names if name.endswith(anchor))
    return tuple(prefix for prefix in prefixes if not prefix or prefix.endswith("."))


def placement(prefix: str, family: Family) -> Placement:
    """Return the position of a base model, derived from its prefix."""
    for usual in (family.prefix, family.published_prefix):
        if usual is not None and f".{prefix}".endswith(f".{usual}"):
            return Placement(prefix=prefix, outer=prefix.removesuffix(usual), own=True)
    outer = ""
    while wrapper := next((name for name in WRAPPERS if prefix.startswith(outer + name)), ""):
        outer += wrapper
    return Placement(prefix=prefix, outer=outer, own=outer == prefix)

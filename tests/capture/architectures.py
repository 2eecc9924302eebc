"""Classify every architecture of the installed transformers by its classes: captured, captured in part, or refused."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from torch import nn
from transformers import models

from headscope._capture.classes import kind_of, names_used


@dataclass(frozen=True)
class Architecture:
    """One folder of transformers.models.

    Attributes:
        name: the folder's name.
        reads: True if it has attention that capture reads.
        alone: classes that compute attention themselves, which capture refuses.
        settings: features of its config that capture refuses: soft caps, sinks.
    """

    name: str
    reads: bool
    alone: tuple[str, ...]
    settings: tuple[str, ...]


def architectures() -> Iterator[Architecture]:
    """Every architecture with a modeling file that can be imported here."""
    for folder in pkgutil.iter_modules(models.__path__):
        classes = [cls for file in _modeling_files(folder.name) for cls in _modules_of(file)]
        if not classes:
            continue
        kinds = {cls: kind_of(cls) for cls in classes}
        used = frozenset(name for cls, kind in kinds.items() if not kind.is_model for name in names_used(cls))
        yield Architecture(
            folder.name,
            any(kind.uses_interface or kind.calls_sdpa for kind in kinds.values()) or "MultiheadAttention" in used,
            tuple(sorted(cls.__name__ for cls, kind in kinds.items() if kind.computes_own_attention)),
            tuple(word for name, word in (("attn_logit_softcapping", "soft cap"), ("sinks", "sinks")) if name in used),
        )


def _modeling_files(name: str) -> Iterator[ModuleType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old architectures warn that they are deprecated
        folder = importlib.import_module(f"{models.__name__}.{name}")
        for file in pkgutil.iter_modules(getattr(folder, "__path__", ())):
            if file.name.startswith("modeling_"):
                try:
                    yield importlib.import_module(f"{folder.__name__}.{file.name}")
                except ImportError:
                    continue  # it requires a library that is not installed, so it can't run here either


def _modules_of(file: ModuleType) -> list[type]:
    return [
        cls
        for cls in vars(file).values()
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and cls.__module__ == file.__name__
    ]


def as_markdown(listed: list[Architecture], compared: set[str]) -> str:
    """The lists of docs/capture.md.

    Args:
        compared: architectures whose weights the tests compare with transformers' eager attention.
    """
    read = [one for one in listed if one.reads and not one.alone]
    proven = [one.name for one in listed if one.name in compared]
    partly = [one for one in listed if one.reads and one.alone]
    refused = [one for one in listed if not one.reads and one.alone]
    none = [one for one in listed if not one.reads and not one.alone]
    set_by_config = [f"{one.name} ({', '.join(one.settings)})" for one in listed if one.settings]

    def with_classes(some: list[Architecture]) -> str:
        return ", ".join(f"{one.name} ({', '.join(f'`{cls}`' for cls in one.alone)})" for one in some)

    return "\n\n".join(
        [
            f"**Compared** ({len(proven)}): the tests build a small model and hold every weight to transformers' own "
            f"eager attention: {', '.join(proven)}.",
            f"**Read** ({len(read)}): {', '.join(one.name for one in read)}.",
            f"**Read in part** ({len(partly)}); a model with one of the classes named is refused, parts without it are "
            f"read: {with_classes(partly)}.",
            f"**Refused** ({len(refused)}), since these classes compute attention by themselves: "
            f"{with_classes(refused)}.",
            f"**Refused where the config asks for it**: {', '.join(set_by_config)}.",
            f"**Without attention of their own** ({len(none)}); whether a model inside is read depends on that model: "
            f"{', '.join(one.name for one in none)}.",
        ]
    )

"""Look-ups of a model: the integer arguments that may be words' ids, and the tables that words are looked up in."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import torch
from torch import nn

from headscope.live.plan.classes import models_in, word_embeddings

NOT_WORDS = re.compile("mask|pos|type|seg|label|len", re.IGNORECASE)
"""Names of arguments, and of tables, that are not words': masks, positions, token types, segments, labels, lengths."""

GATES = re.compile("mask|pos|len", re.IGNORECASE)
"""Names of arguments whose numbers say which tokens count and where they are, and stand for no tokens themselves."""

TRIGRAMS = "transformers.models.mobilebert.modeling_mobilebert.MobileBertEmbeddings"
"""The class that makes a token's vector of three words': the next one's, its own, and the one's before."""

DEEPEST = 3
"""Levels of containers within arguments that are searched for tensors."""

Replace = Callable[[torch.Tensor, int, int], torch.Tensor]
"""Called with ids that are about to be looked up, the number of the first one's token, and the number of rows of the
table; returns the ids to look up instead."""


class Tables:
    """The tables of a model in which ids are looked up.

    Args:
        modules: the model's modules, with their names.
    """

    def __init__(self, modules: tuple[tuple[str, nn.Module], ...]) -> None:
        self._modules = modules
        self._models = models_in(module for _, module in modules)
        parameters = (parameter for _, module in modules for parameter in module._parameters.values())
        self._offloaded = any(parameter is not None and parameter.is_meta for parameter in parameters)

    def renew(self) -> None:
        """Look at the parameters as they are now: those of an offloaded model are made right before they are used."""
        if self._offloaded:
            for name in ("words", "trigrams", "_of_models", "_names"):
                self.__dict__.pop(name, None)

    @cached_property
    def words(self) -> set[int]:
        """Ids of the tables of words in transformers models."""
        return {id(parameter) for embedding in word_embeddings(self._models) for parameter in embedding.parameters()}

    @cached_property
    def trigrams(self) -> set[int]:
        """Ids of the matrices that make a token's vector of its own and its neighbours' words, side by side."""
        return {
            id(parameter)
            for _, module in self._modules
            if f"{type(module).__module__}.{type(module).__qualname__}" == TRIGRAMS
            for parameter in module.get_submodule("embedding_transformation").parameters()
        }

    def may_hold_words(self, table: torch.Tensor) -> bool:
        """Return False for tables that, by their names or by the transformers model they are in, are not words'."""
        return id(table) not in self._of_models and not NOT_WORDS.search(self._names.get(id(table), ""))

    @cached_property
    def _of_models(self) -> set[int]:
        """Ids of the parameters of transformers models, which say which embeddings are words'."""
        return {id(parameter) for model in self._models for parameter in model.parameters()} if self.words else set()

    @cached_property
    def _names(self) -> dict[int, str]:
        """Id -> name of each parameter, or of the module that has it if it is a weight."""
        return {
            id(parameter): path.rpartition(".")[2] if name == "weight" else name
            for path, module in self._modules
            for name, parameter in module._parameters.items()
        }

    @cached_property
    def learned(self) -> list[tuple[torch.Tensor, tuple[str, ...]]]:
        """The learned tokens before an image's patches, by the names that vision models give them."""
        found: list[tuple[torch.Tensor, tuple[str, ...]]] = []
        for _, module in self._modules:
            for name, parameter in module._parameters.items():
                if name in LEARNED and parameter is not None:
                    count = parameter.shape[-2] if parameter.dim() > 1 else 1
                    numbers = [""] if count == 1 and name != "register_tokens" else [f" {at}" for at in range(count)]
                    found.append((parameter, tuple(f"[{LEARNED[name]}{number}]" for number in numbers)))
        return found


LEARNED = {"cls_token": "CLS", "class_embedding": "CLS", "distillation_token": "DIST", "register_tokens": "register"}
"""Name of a parameter -> name of the token that it is."""


def tensors_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among the arguments of a module's call, each with its argument's name, also those in containers."""
    names = _parameters_of(inspect.getattr_static(type(module), "forward"))
    for at, value in enumerate(args):
        yield from named_tensors(names[at] if at < len(names) else "", value)
    for name, value in kwargs.items():
        yield from named_tensors(name, value)


def named_tensors(name: str, value: Any, depth: int = DEEPEST) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a value and in its containers, each with its name."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, part in value.items():
            yield from named_tensors(str(key), part, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for part in value:
            yield from named_tensors(name, part, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
        for key, part in vars(value).items():
            yield from named_tensors(key, part, depth - 1)


@cache
def _parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a method's positional parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(x.name for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD))[1:]


def is_stateless(value: Any) -> bool:
    """Return True for tensors and numbers, and containers of these: arguments that a call doesn't change."""
    if isinstance(value, Mapping):
        return all(is_stateless(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return all(is_stateless(part) for part in value)
    return value is None or isinstance(value, (torch.Tensor, bool, int, float, str))

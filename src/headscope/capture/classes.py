"""What the code of a transformers class tells before anything runs: how it attends, what its queries and keys are."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from torch import nn

OWN_SOFTMAX = {
    "softmax",
    "Softmax",
    "logsumexp",
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "_flash_attention_forward",
}
"""Names that code refers to when it computes attention by itself."""


@cache
def names_used(cls: type) -> frozenset[str]:
    """The names that a class's own code refers to, that of its parents included where it isn't overridden."""
    names: set[str] = set()
    for attribute in {name for base in cls.__mro__ if base not in (nn.Module, object) for name in vars(base)}:
        function = inspect.unwrap(value) if callable(value := getattr(cls, attribute, None)) else None
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType) and not function.__module__.startswith("torch.nn"):
            names |= set(_names_of_function(function))
    return frozenset(names)


def _names_of_function(function: FunctionType) -> Iterator[str]:
    """A function's names. Attention of its own file that goes by PyTorch's name, or stands in a table, is followed."""
    for name in _names_of(function.__code__):
        found = function.__globals__.get(name)
        named = found if isinstance(found, dict) else {name: found} if name in OWN_SOFTMAX else {}
        own = [one for one in named.values() if isinstance(one, FunctionType) and one.__module__ == function.__module__]
        for one in own:
            yield from _names_of(one.__code__)
        if not own:
            yield name


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _is_model(cls: type) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and issubclass(cls, transformers.PreTrainedModel)


def uses_interface(cls: type) -> bool:
    """Whether a module's class looks its attention function up in the interface."""
    return not _is_model(cls) and "ALL_ATTENTION_FUNCTIONS" in names_used(cls)


def _may_be_attention(cls: type) -> bool:
    named = re.search("att(ention|n)", cls.__name__, re.IGNORECASE) is not None
    return named and not cls.__module__.startswith("torch.") and not _is_model(cls)


def computes_its_own(cls: type) -> bool:
    """Whether a module's class computes attention by itself, out of sight."""
    if not _may_be_attention(cls):
        return False
    return not uses_interface(cls) and not calls_sdpa(cls) and bool(OWN_SOFTMAX & names_used(cls))


def calls_sdpa(cls: type) -> bool:
    """Whether an attention class calls PyTorch's scaled_dot_product_attention by itself, as BERT's did in 4.57."""
    if not _may_be_attention(cls):
        return False
    return not uses_interface(cls) and "scaled_dot_product_attention" in names_used(cls)


def models_in(model: nn.Module) -> list[nn.Module]:
    """The modules that are transformers models: the model itself, its towers."""
    return [module for module in model.modules() if _is_model(type(module))]


def word_embeddings(model: nn.Module) -> list[nn.Embedding]:
    """The embeddings whose ids are tokens."""
    found: dict[int, nn.Embedding] = {}
    for one in models_in(model):
        try:
            embedding = one.get_input_embeddings()  # type: ignore[operator]
        except NotImplementedError:
            continue
        if isinstance(embedding, nn.Embedding):
            found[id(embedding)] = embedding
    return list(found.values())


@cache
def _stage_names(cls: type) -> bool:
    return any(re.search("rotary|rotate|rope", name, re.IGNORECASE) for name in names_used(cls))


@cache
def _scales_queries(cls: Any) -> bool:
    try:
        source = inspect.getsource(inspect.unwrap(cls.forward))
    except (OSError, TypeError):
        return False
    return re.search(r"\*\s*self\.scal|_scale_query|\*\*\s*-0\.5", source) is not None


def stage_of(module: nn.Module, scale: float, d_head: int) -> str:
    """What q and k are when they reach the attention function: projected, scaled or rotated."""
    switched_off = any(
        getattr(module, name, True) in (None, False) for name in ("rotary_embeddings", "use_rope", "rotary_emb")
    )
    kind = getattr(module, "position_embedding_type", "rotary")
    cls: type = type(module)
    if _stage_names(cls) and not switched_off and "rot" in str(kind):
        return "rotated"
    if scale == 1.0 and d_head != 1 and _scales_queries(cls):
        return "scaled"
    return "projected"

"""Inspect the code of a module's class, before anything runs: how it attends, and whether q and k are rotated."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.functional import scaled_dot_product_attention

SDPA_NAME = "scaled_dot_product_attention"
FLEX_NAME = "flex_attention"
"""Names of PyTorch's functions and operators; that of flex attention is also its name in transformers' interface."""

OWN_SOFTMAX = {
    "softmax",
    "Softmax",
    "logsumexp",
    SDPA_NAME,
    "multi_head_attention_forward",
    "_flash_attention_forward",
}
"""Names that code refers to if it computes attention itself."""

ATTENTION = re.compile("att(ention|n)", re.IGNORECASE)
"""Pattern in the names of attention classes and functions."""

OPERATOR = (OpOverload, OpOverloadPacket)

LIBRARIES = ("torch.", "transformers.")
"""Modules whose functions are identified by their names alone."""


@dataclass(frozen=True)
class Kind:
    """Properties of a module's class that matter to a capture.

    Attributes:
        is_model: True if it is a transformers model, whose parts compute the attention.
        uses_interface: True if it looks up its attention function in transformers' interface.
        calls_sdpa: True if it calls PyTorch's scaled_dot_product_attention or flex_attention, as many hand-written
            modules do.
        may_bypass: True if it calls one of these but its code has another way to attend as well.
        computes_own_attention: True if it is named like attention and computes it in a way that capture can't see.
        rotates: True if its code rotates queries and keys.
        may_attend: True if its name or its code mentions attention or a softmax.
    """

    is_model: bool
    uses_interface: bool
    calls_sdpa: bool
    may_bypass: bool
    computes_own_attention: bool
    rotates: bool
    may_attend: bool


def kind_of(cls: type) -> Kind:
    """Classify a module's class by its code. Results are cached for as long as the class keeps its forward."""
    return _kind_of(cls, getattr(cls, "forward", None))


def classes_where(modules: Iterable[nn.Module], test: Callable[[Kind], bool]) -> set[type]:
    """The classes of a model's modules whose kind passes a test; a model has many modules of few classes."""
    return {cls for cls in set(map(type, modules)) if test(kind_of(cls))}


@cache
def _kind_of(cls: type, forward: object) -> Kind:
    transformers = sys.modules.get("transformers")
    is_model = transformers is not None and issubclass(cls, transformers.PreTrainedModel)
    used = names_used(cls)
    named = ATTENTION.search(cls.__name__) is not None
    custom = not is_model and not cls.__module__.startswith("torch.")
    uses_interface = not is_model and "ALL_ATTENTION_FUNCTIONS" in used
    calls_sdpa = custom and not uses_interface and (bool({SDPA_NAME, FLEX_NAME} & used) or _leads_to_sdpa(cls))
    return Kind(
        is_model=is_model,
        uses_interface=uses_interface,
        calls_sdpa=calls_sdpa,
        may_bypass=calls_sdpa and len(OWN_SOFTMAX & used) > 1,
        computes_own_attention=custom and named and not uses_interface and not calls_sdpa and bool(OWN_SOFTMAX & used),
        rotates=any(re.search("rotary|rotate|rope", name, re.IGNORECASE) for name in used),
        may_attend=custom and (named or bool(OWN_SOFTMAX & used) or any(map(ATTENTION.search, used))),
    )


def names_used(cls: type) -> frozenset[str]:
    """The names that a class's code refers to, including inherited methods that it doesn't override."""
    return frozenset(name for function in _functions_of(cls) for name in _names_of_function(function))


def _functions_of(cls: type) -> Iterator[FunctionType]:
    """The functions of a class and of its parents, except PyTorch's."""
    for attribute in {name for base in cls.__mro__ if base not in (nn.Module, object) for name in vars(base)}:
        function = inspect.unwrap(value) if callable(value := getattr(cls, attribute, None)) else None
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType) and not function.__module__.startswith("torch.nn"):
            yield function


def _leads_to_sdpa(cls: type) -> bool:
    """Return True if a class outside the libraries can reach PyTorch's attention under another name.

    That can be an alias, a table of functions, a partial, a string for getattr, or a chain of functions outside the
    libraries.
    """
    if cls.__module__.startswith(LIBRARIES):
        return False
    waiting: list[Any] = list(_functions_of(cls))
    visited: dict[int, Any] = {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in visited:
            continue
        visited[id(thing)] = thing
        if isinstance(thing, FunctionType):
            thing = vars(thing).get("_torchdynamo_orig_callable", thing)  # flex_attention is usually compiled
        if thing is scaled_dot_product_attention or _is_flex(thing) or _names_sdpa(thing):
            return True
        if isinstance(thing, dict):
            waiting += thing.values()
        elif isinstance(thing, (list, tuple, set, frozenset)):
            waiting += thing
        elif isinstance(thing, partial):
            waiting.append(thing.func)
        elif isinstance(thing, CodeType):
            waiting += thing.co_consts
        elif isinstance(thing, FunctionType) and not thing.__module__.startswith(LIBRARIES):
            waiting += [thing.__globals__[name] for name in set(_names_of(thing.__code__)) & thing.__globals__.keys()]
            waiting += [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]
            waiting += [*thing.__code__.co_consts, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
            if SDPA_NAME in _names_of(thing.__code__):
                return True
        elif (
            isinstance(thing, type) and not issubclass(thing, nn.Module) and not thing.__module__.startswith(LIBRARIES)
        ):
            waiting += [getattr(member, "__func__", member) for member in vars(thing).values()]
    return False


def _is_flex(thing: Any) -> bool:
    """Return True for PyTorch's flex_attention, whose module is slow to import."""
    return (
        isinstance(thing, FunctionType)
        and thing.__name__ == FLEX_NAME
        and thing.__module__ == "torch.nn.attention.flex_attention"
    )


def _names_sdpa(thing: Any) -> bool:
    """Return True for the names of PyTorch's attention, and for the operator itself: torch.ops.aten.…."""
    if isinstance(thing, str):
        return thing in (SDPA_NAME, FLEX_NAME)
    return isinstance(thing, OPERATOR) and SDPA_NAME in str(thing)


def _names_of_function(function: FunctionType) -> Iterator[str]:
    """The names in a function's code, and in the code of functions it calls that may be attention.

    In the libraries, those are functions of the same file that have a name of OWN_SOFTMAX or are in a table; elsewhere,
    all functions outside the libraries.
    """
    custom = not function.__module__.startswith(LIBRARIES)
    for name in _names_of(function.__code__):
        value = function.__globals__.get(name)
        candidates = value if isinstance(value, dict) else {name: value} if custom or name in OWN_SOFTMAX else {}
        called = [
            candidate
            for candidate in candidates.values()
            if isinstance(candidate, FunctionType)
            and (
                candidate.__module__ == function.__module__
                or (custom and not candidate.__module__.startswith(LIBRARIES))
            )
        ]
        for callee in called:
            yield from _names_of(callee.__code__)
        if not called or name not in OWN_SOFTMAX:
            yield name


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def models_in(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that are transformers models: the model itself and its towers."""
    found = list(modules)
    models = classes_where(found, lambda kind: kind.is_model)
    return [module for module in found if type(module) in models]


def word_embeddings(models: Iterable[nn.Module]) -> list[nn.Embedding]:
    """The input embeddings of transformers models, each once: the ids they look up are the tokens."""
    embeddings: dict[int, nn.Embedding] = {}
    for model in models:
        try:
            embedding = model.get_input_embeddings()  # type: ignore[operator]
        except NotImplementedError:
            continue
        if isinstance(embedding, nn.Embedding):
            embeddings[id(embedding)] = embedding
    return list(embeddings.values())


@cache
def _scales_queries(cls: Any) -> bool:
    try:
        source = inspect.getsource(inspect.unwrap(cls.forward))
    except (OSError, TypeError):
        return False
    return re.search(r"\*\s*self\.scal|_scale_query|\*\*\s*-0\.5", source) is not None


def stage_of(module: nn.Module, scale: float, d_head: int) -> str:
    """State of q and k when they reach the attention function: "projected", "scaled" or "rotated"."""
    cls: type = type(module)
    if kind_of(cls).rotates and "rot" in str(getattr(module, "position_embedding_type", "rotary")):
        switches = ("rotary_embeddings", "use_rope", "rotary_emb")
        if not any(getattr(module, name, True) in (None, False) for name in switches):
            return "rotated"
    if scale == 1.0 and d_head != 1 and _scales_queries(cls):
        return "scaled"
    return "projected"

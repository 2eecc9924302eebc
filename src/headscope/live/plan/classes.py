"""Inspect the code of a module's class, before anything runs: how it attends, and whether q and k are rotated."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.functional import scaled_dot_product_attention

SDPA_NAME = "scaled_dot_product_attention"
FLEX_NAME = "flex_attention"
"""Names of PyTorch's functions and operators; that of flex attention is also its name in transformers' interface."""

OWN_SOFTMAX = {"softmax", "Softmax", "logsumexp", SDPA_NAME, "multi_head_attention_forward", "_flash_attention_forward"}
"""Names that code refers to if it computes attention itself."""

ATTENTION = re.compile("att(ention|n)", re.IGNORECASE)
"""Pattern in the names of attention classes and functions."""

LIBRARIES = ("torch.", "transformers.")
"""Modules whose functions are identified by their names alone."""

TABLES = (dict, list, tuple, set, frozenset)
MOST_ENTRIES = 256
"""Containers that may keep functions, and the number of entries that are examined: a vocabulary has more."""

NAMES_OF_ATTRIBUTES = ("__static_attributes__", "__match_args__", "__slots__", "_fields", "__annotate_func__")
"""Tables that only name a class's attributes, the first one since Python 3.13, and what makes one, since 3.14."""

RECORDS = ("__dataclass_fields__", "__attrs_attrs__", "_field_defaults")
MADE_FOR_RECORDS = {*vars(object), "__getstate__", "__setstate__", "_replace"}
"""Tables of dataclasses, attrs and named tuples, and their methods that are made from fields, which they only name."""

OF_EVERY_MODULE = vars(nn.Module()).keys()


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
    custom = not is_model and (not cls.__module__.startswith("torch.") or issubclass(cls, torch.fx.GraphModule))
    uses_interface = not is_model and "ALL_ATTENTION_FUNCTIONS" in used
    # What a constructor names is looked for where it ends up: in the module, or in the modules that it makes.
    running = names_used(cls, besides=("__init__",))
    reached = {SDPA_NAME, FLEX_NAME} & (running | {*_reached(_code_of(cls))})
    calls_sdpa = custom and not uses_interface and bool(reached)
    own_softmax = bool(OWN_SOFTMAX & (running | used - {SDPA_NAME}))
    return Kind(
        is_model=is_model,
        uses_interface=uses_interface,
        calls_sdpa=calls_sdpa,
        may_bypass=calls_sdpa and len(OWN_SOFTMAX & used) > 1,
        computes_own_attention=custom and named and not uses_interface and not calls_sdpa and own_softmax,
        rotates=any(re.search("rotary|rotate|rope", name, re.IGNORECASE) for name in used),
        may_attend=custom and (named or bool(OWN_SOFTMAX & used) or any(map(ATTENTION.search, used))),
    )


def names_used(cls: type, besides: tuple[str, ...] = ()) -> frozenset[str]:
    """The names that a class's code refers to, including inherited methods that it doesn't override."""
    return frozenset(name for function in _functions_of(cls, besides) for name in _names_of_function(function))


def _functions_of(cls: type, besides: tuple[str, ...]) -> Iterator[FunctionType]:
    """The functions of a class and of its parents, except PyTorch's, those of the names `besides`, and overridden ones.

    A function that calls super() runs the one that it overrides, too.
    """
    bases = [base for base in cls.__mro__ if base not in (nn.Module, object)]
    for attribute in {name for base in bases for name in vars(base)}.difference(besides):
        for value in [vars(base)[attribute] for base in bases if attribute in vars(base)]:
            value = getattr(value, "__func__", value)
            function = inspect.unwrap(value) if callable(value) else None
            if isinstance(function, FunctionType) and not _is_in(function, ("torch.nn",)):
                yield function
            if not isinstance(function, FunctionType) or "super" not in function.__code__.co_names:
                break


def calls_sdpa(module: nn.Module) -> bool:
    """Return True if a module's class calls PyTorch's attention, or if the module was given a function that does."""
    kind = kind_of(type(module))
    if isinstance(module, torch.jit.ScriptModule):
        return SDPA_NAME in str(getattr(module, "inlined_graph", ""))  # a part that is not called has no graph
    if kind.calls_sdpa or kind.is_model or kind.uses_interface or _is_in(type(module)):
        return kind.calls_sdpa
    own = vars(module)
    return any(_reached([own[name] for name in own.keys() - OF_EVERY_MODULE]))


def _is_in(thing: Any, libraries: tuple[str, ...] = LIBRARIES) -> bool:
    """Return True for a function or class of a library; functions that a program generates are in no module."""
    return (thing.__module__ or "").startswith(libraries)


def _code_of(cls: type) -> list[Any]:
    """The functions of a class outside the libraries, and its tables."""
    if _is_in(cls):
        return []
    tables = [value for base in cls.__mro__ for value in _members(base) if isinstance(value, TABLES)]
    return [*_functions_of(cls, ("__init__",)), *tables]


def _members(cls: type) -> list[Any]:
    """The things that a class itself defines, and that nobody made from the names of its attributes."""
    made = MADE_FOR_RECORDS if any(table in vars(cls) for table in RECORDS) else ()
    return [value for name, value in vars(cls).items() if name not in NAMES_OF_ATTRIBUTES and name not in made]


def _reached(waiting: list[Any]) -> Iterator[str]:
    """Names of PyTorch's attention that several things are or lead to.

    That can be an alias, a table of functions, a partial, a method, an object that can be called, a string for getattr,
    or a chain of functions outside the libraries.
    """
    visited: dict[int, Any] = {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in visited:
            continue
        visited[id(thing)] = thing
        if isinstance(thing, FunctionType):
            thing = vars(thing).get("_torchdynamo_orig_callable", thing)  # flex_attention is usually compiled
        if (name := _name_of(thing)) is not None:
            yield name
        elif isinstance(thing, TABLES):
            entries = dict.values(thing) if isinstance(thing, dict) else thing
            waiting.extend(entries if len(entries) <= MOST_ENTRIES else ())  # some lists refuse to be added to others
        elif isinstance(thing, (partial, MethodType)):
            waiting.append(thing.func if isinstance(thing, partial) else thing.__func__)
        elif isinstance(thing, CodeType):
            waiting += thing.co_consts
        elif isinstance(thing, FunctionType) and not _is_in(thing):
            waiting += [thing.__globals__[name] for name in set(names_in(thing.__code__)) & thing.__globals__.keys()]
            waiting += cells_of(thing)
            waiting += [*thing.__code__.co_consts, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
            yield from {SDPA_NAME, FLEX_NAME} & set(names_in(thing.__code__))
        elif isinstance(thing, type) and not issubclass(thing, nn.Module) and not _is_in(thing):
            waiting += [getattr(member, "__func__", member) for member in _members(thing)]
        elif callable(thing) and isinstance(thing.__call__, MethodType):
            waiting += [thing.__call__, *getattr(thing, "__dict__", {}).values()]


def _name_of(thing: Any) -> str | None:
    """The name of PyTorch's attention if this is one of its functions or operators, or its name; None otherwise."""
    if isinstance(thing, str):
        return thing if thing in (SDPA_NAME, FLEX_NAME) else None
    if thing is scaled_dot_product_attention:
        return SDPA_NAME
    if isinstance(thing, FunctionType) and thing.__name__ == FLEX_NAME and _is_in(thing):
        return FLEX_NAME
    if isinstance(thing, (torch.jit.ScriptFunction, OpOverload, OpOverloadPacket)):
        text = str(thing.graph) if isinstance(thing, torch.jit.ScriptFunction) else str(thing)
        return SDPA_NAME if SDPA_NAME in text else None
    return None


def _names_of_function(function: FunctionType) -> Iterator[str]:
    """The names in a function's code, and in the code of functions it calls that may be attention.

    In the libraries, those are functions of the same file that have a name of OWN_SOFTMAX or are in a table; elsewhere,
    all functions outside the libraries.
    """
    custom = not _is_in(function)
    for name in names_in(function.__code__):
        value = function.__globals__.get(name)
        candidates = value if isinstance(value, dict) else {name: value} if custom or name in OWN_SOFTMAX else {}
        called = [
            candidate
            for candidate in candidates.values()
            if isinstance(candidate, FunctionType)
            and (candidate.__module__ == function.__module__ or (custom and not _is_in(candidate)))
        ]
        for callee in called:
            yield from names_in(callee.__code__)
        if not called or name not in OWN_SOFTMAX:
            yield name


def names_in(code: CodeType) -> Iterator[str]:
    """The names that a code refers to, with those of the functions in it, but attention's where it only stores them."""
    named = {SDPA_NAME, FLEX_NAME}.intersection(code.co_names)
    steps = [step for step in dis.get_instructions(code) if step.opcode in dis.hasname] if named else []
    named -= {step.argval for step in steps if not step.opname.startswith(("STORE", "DELETE"))}
    yield from (name for name in code.co_names if name not in named)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def cells_of(function: FunctionType) -> list[Any]:
    """The values in a function's closure."""
    return [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]


@cache
def _draws(cls: type) -> bool:
    """Return True if modules of a class may compute something else in training mode: PyTorch's, if they ask for it."""
    if not cls.__module__.startswith(("torch.nn.", "torch.ao.nn.")):
        return True
    functions = [member for base in cls.__mro__ if base is not nn.Module for member in vars(base).values()]
    return any("training" in function.__code__.co_names for function in functions if isinstance(function, FunctionType))


def in_training(model: nn.Module) -> bool:
    """Return True if a module is in training mode and may draw random numbers, or keep statistics.

    A module that replaces another, such as a quantised Linear, is made in training mode, which changes nothing there.
    """
    classes: set[type] = {type(module) for module in model.modules() if getattr(module, "training", False)}
    return any(map(_draws, classes))


def models_in(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that are transformers models: the model itself and its towers."""
    found = list(modules)
    models = classes_where(found, lambda kind: kind.is_model)
    return [module for module in found if type(module) in models]


def attention_configs(modules: Iterable[nn.Module]) -> list[Any]:
    """The configs of transformers, each once, that say by which attention function modules attend."""
    configs = {id(config): config for module in modules if (config := vars(module).get("config")) is not None}
    return [config for config in configs.values() if hasattr(config, "_attn_implementation_internal")]


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

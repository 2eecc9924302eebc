"""Tell the libraries' own attention, unchanged, from any other.

The libraries' own treats all queries, heads and rows alike, so a few of them show whether a call was read right. Any
other may change a single cell, in one call and not in the next, so all of it is recomputed in every call. What counts
is the code that is about to run, not its name, which anybody may give to another function.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.modules import module as all_modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from headscope.live.plan.classes import cells_of, names_in
from headscope.live.plan.stacks import is_adapter

LIBRARIES = frozenset({"torch", "transformers", "headscope", *sys.stdlib_module_names})
"""Packages whose code is taken as it is, unless somebody replaced it."""

COMPARED = ("torch", "transformers")
"""Those of them in which a function's code must also come from the file of its module."""

ATTENTION = re.compile(r"(eager|sdpa|flash|flex)_attention_forward$")
"""Names of transformers' functions that compute softmax(scale Q K^T + mask) V for all queries alike."""

PRIMITIVES: tuple[tuple[Any, str], ...] = (
    *((F, name) for name in ("scaled_dot_product_attention", "multi_head_attention_forward", "softmax", "dropout")),
    *((torch, name) for name in ("matmul", "bmm", "baddbmm", "einsum", "softmax")),
    *((torch.Tensor, name) for name in ("matmul", "__matmul__", "softmax", "masked_fill")),
)
"""The functions of PyTorch that attention is made of, each with its owner."""

PLAIN = (bool, int, float, str)
OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}

Reached = list[tuple[Mapping[str, Any], str, Any]]
"""Names with the spaces that they are in and what they mean there."""

_SHIPPED: dict[tuple[tuple[FunctionType, ...], bool], tuple[dict[FunctionType, CodeType], Reached]] = {}
"""Functions that were found to be as shipped -> all functions with their code, and the names, that showed it."""


def is_own(function: Callable[..., Any]) -> bool:
    """Return True for an attention function of transformers that runs as it was shipped."""
    return (
        isinstance(function, FunctionType)
        and ATTENTION.search(function.__code__.co_name) is not None
        and _as_shipped((function,))
    )


def is_unchanged(module: nn.Module) -> bool:
    """Return True for a module of a library's class that runs as it was shipped, with nobody else's hooks."""
    functions = _functions_of(type(module))
    return (
        vars(module).keys().isdisjoint(functions)
        and _as_shipped(tuple(functions.values()))
        and not any(map(has_foreign_hooks, (module, *module.children())))
        and not globally_hooked()
    )


def undisturbed(*tensors: torch.Tensor) -> bool:
    """Return True if no mode and no class of tensors from outside the libraries changes what operators do."""
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())  # type: ignore[no-untyped-call]
    return all(from_library(type(thing)) for thing in (*tensors, *modes))


def from_library(thing: Any, inside: tuple[FunctionType, ...] = ()) -> bool:
    """Return True for modules, classes and functions of a library, and for objects of its classes.

    Args:
        thing: the thing.
        inside: functions whose closures it is in.
    """
    thing = _plain(thing)
    if isinstance(thing, FunctionType):
        if thing in inside:
            return True  # it calls itself
        owner = sys.modules.get(str(thing.__globals__.get("__name__")))
        return (
            owner is not None
            and vars(owner) is thing.__globals__
            and _root(owner.__name__) in LIBRARIES
            and (_root(owner.__name__) not in COMPARED or thing.__code__.co_filename == owner.__file__)
            and all(
                from_library(inner, (*inside, thing))
                for inner in cells_of(thing)
                if isinstance(_plain(inner), FunctionType)
            )
        )
    if isinstance(thing, ModuleType):
        return _root(thing.__name__) in LIBRARIES
    return _root((thing if isinstance(thing, type) else type(thing)).__module__) in LIBRARIES


def _root(name: str) -> str:
    return name.partition(".")[0]


def of_library(space: dict[str, Any]) -> bool:
    """Return True for the global names of a library's module."""
    return _root(str(space.get("__name__"))) in LIBRARIES


def code_in_place_of(function: Any) -> set[CodeType]:
    """The code that runs instead of a library's function, if somebody replaced it."""
    if from_library(function):
        return set()
    runs = (_plain(function), type(_plain(function)).__call__)
    return {run.__code__ for run in runs if isinstance(run, FunctionType)}


def _as_shipped(functions: tuple[FunctionType, ...], *, deep: bool = False) -> bool:
    """Return True for functions of libraries, if all that they name is of libraries, in modules, too, and PRIMITIVES.

    Args:
        functions: the functions.
        deep: True if so must be the functions of transformers that they name, as deep as that goes. FlashAttention's
            kernels, at the bottom of transformers' function for them, are of another library.
    """
    codes, meanings = _SHIPPED.get((functions, deep), (None, []))
    same = codes is not None and all(function.__code__ is code for function, code in codes.items())
    if same and all(space.get(name) is it for space, name, it in meanings):
        return True
    reached = [(vars(owner), name, vars(owner).get(name)) for owner, name in PRIMITIVES]
    waiting, seen = list(functions), dict[FunctionType, CodeType]()
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen[function] = function.__code__
        names, space = _names(function.__code__), function.__globals__
        modules = [vars(space[name]) for name in names if isinstance(space.get(name), ModuleType)]
        named = [(space, name, space.get(name)) for name in names if not deep or name in space]
        named += [(each, name, each[name]) for each in modules for name in names if name in each]
        reached += named
        inner = [it for it in cells_of(function) if isinstance(it, FunctionType)]
        called = [it for *_, it in named if isinstance(it, FunctionType)] if deep else []
        waiting += [*inner, *(it for it in called if _root(str(it.__module__)) == "transformers")]
    if not all(map(from_library, (*seen, *(it for *_, it in reached)))):
        return False
    _SHIPPED[functions, deep] = seen, reached
    return True


def run_as_shipped(*classes: type) -> bool:
    """Return True for classes of libraries whose methods are as shipped, with the functions that they call."""
    return _as_shipped(tuple(function for cls in classes for function in _functions_of(cls).values()), deep=True)


def own_settings(module: nn.Module) -> tuple[Any, ...] | None:
    """The plain settings among a module's attributes; None if one replaces a method or is anybody else's function."""
    settings = []
    for name, value in vars(module).items():
        if name in OF_EVERY_MODULE:
            continue
        if isinstance(value, PLAIN):
            settings.append((name, value))
        elif callable(value) and (hasattr(type(module), name) or not from_library(value)):
            return None
    return tuple(settings)


@cache
def _names(code: CodeType) -> frozenset[str]:
    return frozenset(names_in(code))


def _functions_of(cls: type) -> dict[str, FunctionType]:
    """The functions of a module's class and its parents by name, except those that only build it."""
    bases = cls.__mro__[: cls.__mro__.index(nn.Module)]
    return {
        name: value
        for base in reversed(bases)
        for name, value in vars(base).items()
        if isinstance(value, FunctionType) and name != "__init__"
    }


def globally_hooked() -> bool:
    """Return True if hooks on the forward passes of all modules are registered."""
    return bool(all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks)


def has_foreign_hooks(module: nn.Module) -> bool:
    """Return True if a module has hooks on its forward pass that are not a library's."""
    return not all(map(from_library, (*module._forward_hooks.values(), *module._forward_pre_hooks.values())))


def switches_of(modules: Iterable[nn.Module]) -> dict[int, tuple[Any, ...]]:
    """Hooks of others and adapters of peft that decide, beside the weights, what each module computes, by its id."""
    found: dict[int, tuple[Any, ...]] = {}
    for module in modules:
        hooks = {**module._forward_pre_hooks, **module._forward_hooks}.items()
        used = (module.disable_adapters, *module.active_adapters) if is_adapter(module) else ()  # type: ignore[misc]
        found[id(module)] = *used, *(key for key, hook in hooks if isinstance(key, int) and not from_library(hook))
    return found


def _plain(hook: Any) -> Any:
    """The function of a method or of a partial."""
    return _plain(hook.func) if isinstance(hook, partial) else getattr(hook, "__func__", hook)

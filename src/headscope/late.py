"""Methods whose implementation stands in a part of the package that is imported when they are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ClassVar, ParamSpec, TypeVar

from headscope.settings import meant, misspelt

P = ParamSpec("P")
R = TypeVar("R")


def late(target: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method a face of a function further down the package.

        @late("headscope.verify:verify")
        def verify(self, *, reference: bool = True) -> Report:
            \"\"\"Recompute this trace in independent ways and compare.\"\"\"

    The method's signature, defaults and docstring are its own, and it has nothing else. Its arguments are bound to the
    signature, so that the defaults stand in one place, and passed on by name where they are keyword-only.

    Args:
        target: module and function, `module:function`. Imported by the first call.
    """
    module, _, name = target.partition(":")

    def decorate(face: Callable[P, R]) -> Callable[P, R]:
        signature = functools.cache(lambda: inspect.signature(face))

        @functools.wraps(face)
        def call(*args: P.args, **options: P.kwargs) -> R:
            if args and not hasattr(type(args[0]), face.__name__):
                kind = type(args[0]).__name__
                raise TypeError(f"{face.__name__}() is a method: call it on an object, not on its class with a {kind}")
            try:
                bound = signature().bind(*args, **options)
            except TypeError as error:
                raise misspelt(error, face.__name__, signature().parameters) from None
            bound.apply_defaults()
            return getattr(import_module(module), name)(*bound.args, **bound.kwargs)

        call.late = target  # type: ignore[attr-defined]  # the tests follow it
        return call

    return decorate


class Keyed:
    """A mapping whose names IPython offers after `["`."""

    def _ipython_key_completions_(self: Mapping[str, Any]) -> list[str]:  # type: ignore[misc]  # mypy: of its subclasses
        return list(self)


class Suggesting:
    """A record that names what is meant where an attribute is misspelt, or where other libraries have it.

    Attributes:
        _elsewhere: attributes of other libraries -> what stands for them here.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {}

    def __getattr__(self, name: str) -> Any:
        hint = ""
        if not name.startswith("_"):
            use = type(self)._elsewhere.get(name)
            public = [one for one in dir(type(self)) if not one.startswith("_")]
            hint = f"; use {use}" if use else meant(name, public)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

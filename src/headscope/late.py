"""Methods whose implementation stands in a part of the package that is imported when they are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def late(target: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method a face of a function further down the package.

        @late("headscope.verify:verify")
        def verify(self, *, reference: bool = True) -> Report:
            \"\"\"Recompute this trace in independent ways and compare.\"\"\"
            raise NotImplementedError

    The method's signature, defaults and docstring are its own; its body never runs. Its arguments are bound to the
    signature, so that the defaults stand in one place, and passed on by name where they are keyword-only.

    Args:
        target: module and function, `module:function`. Imported by the first call.
    """
    module, _, name = target.partition(":")

    def decorate(face: Callable[P, R]) -> Callable[P, R]:
        signature = functools.cache(lambda: inspect.signature(face))

        @functools.wraps(face)
        def call(*args: P.args, **options: P.kwargs) -> R:
            bound = signature().bind(*args, **options)
            bound.apply_defaults()
            return getattr(import_module(module), name)(*bound.args, **bound.kwargs)

        call.late = target  # type: ignore[attr-defined]  # the tests follow it
        return call

    return decorate

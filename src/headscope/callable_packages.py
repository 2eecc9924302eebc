"""Packages that are functions as well: `hs.capture(model)`, while `headscope.capture` can be imported from."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that can be called. Help, completion and `inspect.signature` show the function that is called."""

    _function: Callable[[], Callable[..., Any]]

    @property
    def __call__(self) -> Callable[..., Any]:
        """The function, imported when somebody asks for it."""
        return self._function()

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's own."""
        return inspect.signature(self._function())


def make_callable(package: str, function: Callable[[], Callable[..., Any]]) -> None:
    """Let a package be called.

    Args:
        package: its `__name__`.
        function: gives the function that a call goes to; called at the first use, so that it may import late.
    """
    module = sys.modules[package]
    module.__class__ = CallablePackage
    module.__dict__["_function"] = function

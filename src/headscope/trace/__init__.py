"""What one forward pass leaves behind, in memory and on disk."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from headscope.trace.arrays import LazyMap, Named
from headscope.trace.file import load
from headscope.trace.record import HeadTrace, LayerRecord, Source, TokenAxis, Trace

__all__ = ["HeadTrace", "LayerRecord", "LazyMap", "Named", "Source", "TokenAxis", "Trace", "load"]


class _CallableModule(ModuleType):
    """`headscope.trace` is this package and, as a name of headscope, the one-liner for live models."""

    def __call__(self, *args: Any, **kwargs: Any) -> Trace:
        from headscope.capture import trace

        return trace(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule

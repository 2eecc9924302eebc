"""What one forward pass leaves behind, in memory and on disk."""

import sys
from types import ModuleType
from typing import Any

from headscope.trace.arrays import LazyMap, Named
from headscope.trace.file import load
from headscope.trace.head import HeadTrace
from headscope.trace.outputs import Source
from headscope.trace.record import LayerRecord, TokenAxis, Trace

__all__ = ["HeadTrace", "LayerRecord", "LazyMap", "Named", "Source", "TokenAxis", "Trace", "load"]


class _CallableModule(ModuleType):
    """`headscope.trace` is this package and, as a name of headscope, a function: `hs.trace(model, tokenizer, text)`."""

    def __call__(self, model: Any, tokenizer: Any, text: str, pair: str | None = None, **options: Any) -> Trace:
        from headscope.capture import trace  # the face: it stands below this file

        return trace(model, tokenizer, text, pair, **options)


sys.modules[__name__].__class__ = _CallableModule

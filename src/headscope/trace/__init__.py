"""What one forward pass leaves behind, in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable

from headscope.callable_packages import make_callable
from headscope.trace.arrays import LazyMap, Named
from headscope.trace.broken import BROKEN, broken_line, broken_rows, is_broken
from headscope.trace.cut import Cut
from headscope.trace.file import is_trace, load
from headscope.trace.head import HeadTrace
from headscope.trace.layer import LayerTrace
from headscope.trace.outputs import Source
from headscope.trace.record import LayerRecord, Trace
from headscope.trace.token_axis import TokenAxis

__all__ = [
    "BROKEN",
    "Cut",
    "HeadTrace",
    "LayerRecord",
    "LayerTrace",
    "LazyMap",
    "Named",
    "Source",
    "TokenAxis",
    "Trace",
    "broken_line",
    "broken_rows",
    "is_broken",
    "is_trace",
    "load",
]


def _function() -> Callable[..., Trace]:
    """What `hs.trace(model, tokenizer, text)` calls."""
    from headscope.capture import trace  # the face: it stands below this file

    return trace


make_callable(__name__, _function)

"""Traces: the record of one forward pass, in memory and on disk."""

from __future__ import annotations

from headscope._trace.arrays import LazyMap, Named
from headscope._trace.broken import BROKEN, broken_line, broken_rows, is_broken
from headscope._trace.cut import Cut
from headscope._trace.file import is_trace, load
from headscope._trace.head import HeadTrace
from headscope._trace.layer import LayerTrace
from headscope._trace.layer_record import LayerRecord
from headscope._trace.outputs import Outputs, Source
from headscope._trace.record import Trace
from headscope._trace.token_axis import TokenAxis

__all__ = [
    "BROKEN",
    "Cut",
    "HeadTrace",
    "LayerRecord",
    "LayerTrace",
    "LazyMap",
    "Named",
    "Outputs",
    "Source",
    "TokenAxis",
    "Trace",
    "broken_line",
    "broken_rows",
    "is_broken",
    "is_trace",
    "load",
]

"""Traces: the record of one forward pass, in memory and on disk.

Read `record.py`, the `Trace`, then `layer_records.py`, of which it consists, and `views.py`, what `trace[layer]` and
`trace[layer, head]` return. `file.py` writes and reads the format of docs/trace-format.md. The encoder and live
captures make traces; everything below measures, explains and draws them.

    trace = load("cat.safetensors")
    trace[3, 5].weights[2]        # the weights of query 2 in layer 3, head 5
"""

from __future__ import annotations

from headscope.traces.broken_numbers import BROKEN, broken_line
from headscope.traces.file import is_trace, load
from headscope.traces.layer_records import Cut, LayerRecord, ModelWeights, broken_rows, is_broken, kept_outputs
from headscope.traces.record import Trace
from headscope.traces.views import HeadTrace, LayerTrace, layer_W_O, refuse_swapped

__all__ = [
    "BROKEN",
    "Cut",
    "HeadTrace",
    "LayerRecord",
    "LayerTrace",
    "ModelWeights",
    "Trace",
    "broken_line",
    "broken_rows",
    "is_broken",
    "is_trace",
    "kept_outputs",
    "layer_W_O",
    "load",
    "refuse_swapped",
]

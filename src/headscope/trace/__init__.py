"""What one forward pass leaves behind, in memory and on disk."""

from headscope.trace.arrays import LazyMap, Named
from headscope.trace.file import load
from headscope.trace.record import HeadTrace, LayerRecord, Source, TokenAxis, Trace

__all__ = ["HeadTrace", "LayerRecord", "LazyMap", "Named", "Source", "TokenAxis", "Trace", "load"]

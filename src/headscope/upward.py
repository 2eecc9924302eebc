"""Convenience methods reach upward through this file: `trace.verify()` and its like call what stands above the record.

Nothing else in headscope imports what stands above it. Each function here imports late, when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headscope._trace import Named, Trace
    from headscope.filling import Filled
    from headscope.model import Model
    from headscope.statistics import Statistics
    from headscope.verify import Report


def save(trace: Trace, path: Path, *, dtype: str, values: bool) -> Path:
    """headscope._trace.file.save."""
    from headscope._trace.file import save

    return save(trace, path, dtype=dtype, values=values)


def verify(trace: Trace, *, reference: bool, against: Any) -> Report:
    """headscope.verify.verify."""
    from headscope.verify import verify

    return verify(trace, reference=reference, against=against)


def statistics(
    trace: Trace, names: str | Iterable[str] | None, *, per_query: bool, special: bool, engine: str
) -> Statistics:
    """headscope.statistics.statistics."""
    from headscope.statistics import statistics

    return statistics(trace, names, per_query=per_query, special=special, engine=engine)


def head_distances(trace: Trace, *, special: bool) -> Named:
    """headscope.statistics.head_distances."""
    from headscope.statistics import head_distances

    return head_distances(trace, special=special)


def to_html(
    trace: Trace,
    path: str | Path,
    *,
    dtype: str,
    values: bool | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    title: str | None,
) -> Path:
    """headscope.view.html.to_html."""
    from headscope.view.html import to_html

    return to_html(trace, path, dtype=dtype, values=values, layers=layers, heads=heads, title=title)


def show(trace: Trace, *, height: int | None, open_browser: bool) -> None:
    """headscope.view.notebook.show."""
    from headscope.view.notebook import show

    show(trace, height=height, open_browser=open_browser)


def mimebundle(trace: Trace) -> dict[str, str]:
    """headscope.view.notebook.mimebundle."""
    from headscope.view.notebook import mimebundle

    return mimebundle(trace)


def fill(
    model: Model, text: str, pair: str | None, *, top: int, max_length: int | None, ablate: Iterable[tuple[int, int]]
) -> tuple[Filled, ...]:
    """headscope.filling.fill."""
    from headscope.filling import fill

    return fill(model, text, pair, top=top, max_length=max_length, ablate=ablate)

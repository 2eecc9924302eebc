"""One statistic of every head: a heat map of layers by heads, and the heads at its ends in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.statistics import CATALOG
from headscope.view.head_grid import head_grid
from headscope.view.inked import unsigned_style
from headscope.view.tables import Column, Table
from headscope.view.terminal import Drawing, Paper, Sheet, blank, notes, prose, title
from headscope.view.trace_lines import tokens_line, trace_aside, trace_record

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import Trace

CELL = 6


def statistic_sheet(trace: Trace, name: str) -> Sheet:
    """A statistic of all heads.

    Raises:
        InputError: there is no such statistic.
        TraceError: it needs values or a model that the trace lacks.
    """
    table = trace.statistics(name)
    values, statistic = table[name].array, CATALOG[name]
    rows = Table(
        (Column("layer", align="right"), Column("head", align="right"), Column(name, align="right", form=".4g")),
        tuple((int(row["layer"]), int(row["head"]), row[name]) for row in table.rows()),
    )
    measured = [row for row in rows.rows if np.isfinite(row[2])]
    ends = []
    if measured:
        for says, row in ((statistic.most, max), (statistic.least, min)):
            if says:
                layer, head, value = row(measured, key=lambda row: row[2])
                ends.append(f"Layer {layer}, head {head} {says}: {value:.3g}.")
    highest = max(measured, key=lambda row: row[2])[:2] if measured else None
    record: dict[str, Any] = {"statistic": name, "meaning": statistic.meaning, "unit": statistic.unit.name}
    return Sheet(
        record=lambda: {**trace_record(trace), **record, "heads": rows.records()},
        table=lambda: rows,
        drawings=(
            title(f"{name}: {statistic.meaning}", trace_aside(trace)),
            *(prose(line) for line in ends or ["No query of this text has it."]),
            tokens_line(trace),
            blank,
            _grid(trace, values, statistic.unit.low, statistic.unit.high),
            notes([f"means over the queries that have one; {statistic.unit.name}"]),
        ),
        look_at=highest,
    )


def _grid(trace: Trace, values: Float[np.ndarray, "layers heads"], low: float | None, high: float | None) -> Drawing:
    """Layers down, heads across: the numbers, on ink as dark as they are large within the statistic's range."""
    finite = values[np.isfinite(values)]
    least = float(finite.min(initial=0.0)) if low is None else low
    most = float(finite.max(initial=least)) if high is None else high
    numbers = sorted({head for number in trace.numbers for head in trace.head_numbers(number)})
    placed = {
        (layer, head): float(value)
        for layer, row in zip(trace.numbers, values, strict=True)
        for head, value in zip(trace.head_numbers(layer), row, strict=False)
    }

    def cell(layer: int, head: int, paper: Paper) -> tuple[str, str]:
        value = placed.get((layer, head), float("nan"))
        share = (value - least) / (most - least) if most > least else 0.0
        return _short(value), unsigned_style(share) if paper.colour and np.isfinite(value) else ""

    return head_grid(trace.numbers, numbers, cell, room=CELL)


def _short(value: float) -> str:
    """A number of at most five characters, right in its cell; a dash for none."""
    if not np.isfinite(value):
        return f"{'-':>{CELL}}"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:>{CELL}.{digits}f}"

"""Heads at a glance: the pattern that each head of a trace resembles most, or one statistic of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.explain.residual import what_it_lacks
from headscope.heads import CATALOG
from headscope.heads.kinds import EVEN, MEANINGS, MEASURES, NAN, PLACES, STRONG, Pattern
from headscope.heads.measure import all_patterns
from headscope.screens.inked import head_grid, unsigned_style
from headscope.screens.pieces import tokens_line, trace_aside, trace_record
from headscope.screens.tables import PLACE, Column, Table
from headscope.screens.terminal import Drawing, Line, Paper, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.results.table import HeadTable
    from headscope.traces import Trace


SIGNS = {
    "previous": ("←", "p", "#4c9be8"),
    "same": ("↓", "i", "#9a9a2e"),
    "next": ("→", "n", "#e0803a"),
    "first": ("⇤", "f", "#b57edc"),
    "sep": ("◆", "s", "#3fa98a"),
    "even": ("≈", "e", "dim"),
    "mixed": ("·", ".", ""),
    NAN: (NAN, NAN, "bold red"),
}
"""Pattern -> its sign, that in ASCII, and its style."""
PATTERN_COLUMNS = (*PLACE, Column("pattern"), *(Column(name, align="right", form=".2f") for name in MEASURES))
CELL = 5


def overview_sheet(trace: Trace) -> Sheet:
    """A grid of every head's pattern, and the head in which each pattern is strongest."""
    patterns = all_patterns(trace)
    whole = [pattern for pattern in patterns if not pattern.broken]
    below: list[Drawing] = [blank, table(_extremes(whole))] if whole else []
    look_at = None
    if whole:
        clearest = max(whole, key=lambda pattern: max(pattern.means[name] for name in PLACES))
        look_at = (clearest.layer, clearest.head)
    rows = _pattern_table(patterns)
    which = "the heads that were kept" if what_it_lacks(trace) else "all heads"
    return Sheet(
        record=lambda: {**trace_record(trace), "heads": rows.records()},
        table=lambda: rows,
        drawings=(
            lambda to: title(
                f"{which}: {len(trace.layers)} layers {to.sign('×', 'x')} {trace.heads} heads, counted from 0",
                trace_aside(trace),
            )(to),
            tokens_line(trace),
            blank,
            _grid(patterns),
            *below,
        ),
        look_at=look_at,
    )


def _grid(patterns: Sequence[Pattern]) -> Drawing:
    """Layers down, heads across; each head's strongest pattern and its mass in per cent."""
    placed = {(pattern.layer, pattern.head): pattern for pattern in patterns}
    layers = list(dict.fromkeys(pattern.layer for pattern in patterns))
    heads = sorted({pattern.head for pattern in patterns})

    def cell(layer: int, head: int, paper: Paper) -> tuple[str, str]:
        return _cell(placed.get((layer, head)), paper)

    def draw(paper: Paper) -> Iterable[Line]:
        yield from head_grid(layers, heads, cell, room=CELL)(paper)
        used = [name for name in SIGNS if any(pattern.name == name for pattern in patterns)]
        legend = "   ".join(f"{paper.sign(*SIGNS[name][:2])} {MEANINGS[name]}" for name in used)
        yield from notes([legend])(paper)
        yield from notes(
            [
                f"numbers: mean weight over all queries, in per cent; a pattern is named from {STRONG:.0%} on, "
                f"{paper.sign(*SIGNS['even'][:2])} from {EVEN:.0%} of the greatest entropy on"
            ]
        )(paper)

    return draw


def _cell(pattern: Pattern | None, paper: Paper) -> tuple[str, str]:
    if pattern is None:
        return " " * CELL, ""
    fine, coarse, style = SIGNS[pattern.name]
    mass = f"{pattern.means[pattern.name] * 100:.0f}" if pattern.name in PLACES else ""
    return f"{paper.sign(fine, coarse) + mass:>{CELL}}", style if paper.colour else ""


def _extremes(patterns: Sequence[Pattern]) -> Table:
    """The head in which each pattern is strongest, and the sharpest and the most even head."""
    wanted: list[tuple[str, str, Callable[..., Pattern], str]] = [
        (f"most on {MEANINGS[name]}", name, max, "{:.0%} of each query's weight") for name in PLACES
    ]
    wanted += [(which, "entropy", end, "entropy {:.2f} nats") for which, end in (("sharpest", min), ("most even", max))]
    rows = []
    for which, name, end, much in wanted:
        head = end(patterns, key=lambda pattern, name=name: pattern.means[name])
        rows.append((which, head.layer, head.head, much.format(head.means[name])))
    return Table((Column("which", "where to look"), *PLACE, Column("value", "how much")), tuple(rows))


def layer_sheet(trace: Trace, layer: int) -> Sheet:
    """The heads of one layer with all their measures."""
    chosen = trace[layer, -1].layer
    rows = _pattern_table(all_patterns(trace, [chosen]))
    columns = Table(rows.columns[1:], tuple(row[1:] for row in rows.rows))
    return Sheet(
        record=lambda: {**trace_record(trace), "layer": chosen, "heads": rows.records()},
        table=lambda: rows,
        drawings=(
            title(f"layer {chosen}: {len(rows.rows)} heads, counted from 0", trace_aside(trace)),
            tokens_line(trace),
            blank,
            table(columns),
            notes(["means over all queries: " + "; ".join(f"{name}: {CATALOG[name].meaning}" for name in MEASURES)]),
        ),
    )


def _pattern_table(patterns: Sequence[Pattern]) -> Table:
    rows = (
        (pattern.layer, pattern.head, pattern.name, *(pattern.means[name] for name in MEASURES)) for pattern in patterns
    )
    return Table(PATTERN_COLUMNS, tuple(rows))


STATISTIC_CELL = 6


def statistic_sheet(trace: Trace, name: str) -> Sheet:
    """A statistic of all heads.

    Raises:
        InputError: there is no such statistic.
        TraceError: it needs values or a model that the trace lacks.
    """
    table = trace.statistics(name)
    statistic = CATALOG[name]
    rows = Table(
        (*PLACE, Column(name, align="right", form=".4g")),
        tuple((int(row["layer"]), int(row["head"]), row[name]) for row in table.rows()),
    )
    measured = [row for row in rows.rows if np.isfinite(row[2])]
    ends = []
    if measured:
        for says, row in ((statistic.most, max), (statistic.least, min)):
            if says:
                layer, head, value = row(measured, key=lambda row: row[2])
                ends.append(f"Layer {layer}, head {head} {says[0]}: {value:.3g}.")
    highest = max(measured, key=lambda row: row[2])[:2] if measured else None
    record: dict[str, Any] = {"statistic": name, "meaning": statistic.meaning, "unit": statistic.unit}
    return Sheet(
        record=lambda: {**trace_record(trace), **record, "heads": rows.records()},
        table=lambda: rows,
        drawings=(
            title(f"{name}: {statistic.meaning}", trace_aside(trace)),
            *(prose(line) for line in ends or ["No query of this text has it."]),
            tokens_line(trace),
            blank,
            _statistic_grid(table, name),
            notes([f"means over the queries that have one; {statistic.unit}"]),
        ),
        look_at=highest,
        schema="attend-statistic",
    )


def _statistic_grid(table: HeadTable, name: str) -> Drawing:
    """Layers down, heads across: the numbers, on ink as dark as they are large within the statistic's range."""
    values, shares = table[name].array, table[name].scaled()

    def cell(layer: int, head: int, paper: Paper) -> tuple[str, str]:
        place = table.layers.index(layer), table.across.index(head)
        value, share = float(values[place]), float(shares[place])
        return _short(value), unsigned_style(share) if paper.colour and np.isfinite(share) else ""

    return head_grid(table.layers, table.across, cell, room=STATISTIC_CELL)


def _short(value: float) -> str:
    """A number of at most five characters, right in its cell; a dash for none."""
    if not np.isfinite(value):
        return f"{'-':>{STATISTIC_CELL}}"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:>{STATISTIC_CELL}.{digits}f}"

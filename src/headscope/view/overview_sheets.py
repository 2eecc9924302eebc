"""Heads at a glance: which pattern each head of a trace looks most like, for all layers or for one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headscope.statistics import CATALOG
from headscope.view.patterns import EVEN, MEANINGS, MEASURES, NAN, PLACES, STRONG, Pattern, all_patterns
from headscope.view.tables import Column, Table
from headscope.view.terminal import Drawing, Line, Paper, Sheet, blank, notes, table, text_line, title
from headscope.view.trace_lines import tokens_line, trace_aside, trace_record

if TYPE_CHECKING:
    from headscope._trace import Trace

SIGNS = {
    "previous": ("←", "p"),
    "same": ("↓", "i"),
    "next": ("→", "n"),
    "first": ("⇤", "f"),
    "sep": ("◆", "s"),
    "even": ("≈", "e"),
    "mixed": ("·", "."),
    NAN: (NAN, NAN),
}
COLOURS = {
    "previous": "#4c9be8",
    "same": "#9a9a2e",
    "next": "#e0803a",
    "first": "#b57edc",
    "sep": "#3fa98a",
    "even": "dim",
    "mixed": "",
    NAN: "bold red",
}
PATTERN_COLUMNS = (
    Column("layer", align="right"),
    Column("head", align="right"),
    Column("pattern"),
    *(Column(name, align="right", form=".2f") for name in MEASURES),
)
CELL = 5


def overview_sheet(trace: Trace) -> Sheet:
    """Every head's pattern in a grid, and where each pattern is strongest."""
    found = all_patterns(trace)
    whole = [one for one in found if not one.broken]
    below: list[Drawing] = []
    look_at = None
    if whole:
        clearest = max(whole, key=lambda one: max(one.means[name] for name in PLACES))
        look_at = (clearest.layer, clearest.head)
        below = [blank, table(_extremes(whole))]
    rows = _pattern_table(found)
    return Sheet(
        record=lambda: {**trace_record(trace), "heads": rows.records()},
        table=lambda: rows,
        drawings=(
            title(
                f"{_which(trace)}: {len(trace.layers)} layers x {trace.heads} heads, counted from 0", trace_aside(trace)
            ),
            tokens_line(trace),
            blank,
            _grid(found),
            *below,
        ),
        look_at=look_at,
    )


def _which(trace: Trace) -> str:
    """Whether the trace has all of the model's layers and heads, as far as their numbers tell."""
    kept = any(record.number is not None or record.numbers is not None for record in trace.layers)
    return "the heads that were kept" if kept else "all heads"


def _grid(found: Sequence[Pattern]) -> Drawing:
    """Layers down, heads across; each head's strongest pattern and its mass in per cent."""
    placed = {(one.layer, one.head): one for one in found}
    layers = dict.fromkeys(one.layer for one in found)
    heads = sorted({one.head for one in found})

    def draw(paper: Paper) -> Iterable[Line]:
        margin = 9
        fit = max(1, (paper.width - margin) // CELL)
        for first in range(0, len(heads), fit):
            columns = heads[first : first + fit]
            yield text_line(f"{'head':>{margin}}" + "".join(f"{head:>{CELL}}" for head in columns), "bold")
            for layer in layers:
                cells = (_cell(placed.get((layer, head)), paper) for head in columns)
                yield ((f"layer {layer:>{margin - 6}}", "bold"), *cells)
        used = [name for name in SIGNS if any(one.name == name for one in found)]
        legend = "   ".join(f"{paper.sign(*SIGNS[name])} {MEANINGS[name]}" for name in used)
        yield from notes([legend])(paper)
        yield from notes(
            [
                f"numbers: mean weight in per cent over all queries, named from {STRONG:.0%}; "
                f"{paper.sign(*SIGNS['even'])} from {EVEN:.0%} of the greatest entropy"
            ]
        )(paper)

    return draw


def _cell(one: Pattern | None, paper: Paper) -> tuple[str, str]:
    if one is None:
        return " " * CELL, ""
    sign = paper.sign(*SIGNS[one.name])
    mass = f"{one.means[one.name] * 100:.0f}" if one.name in PLACES else ""
    return f"{sign + mass:>{CELL}}", COLOURS[one.name] if paper.colour else ""


def _extremes(found: Sequence[Pattern]) -> Table:
    """For each pattern the head in which it is strongest, and the sharpest and the most even head."""
    rows: list[tuple[Any, ...]] = []
    for name in PLACES:
        best = max(found, key=lambda one, name=name: one.means[name])  # type: ignore[misc]
        rows.append(
            (f"most on {MEANINGS[name]}", best.layer, best.head, f"{best.means[name]:.0%} of each query's weight")
        )
    sharpest = min(found, key=lambda one: one.means["entropy"])
    evenest = max(found, key=lambda one: one.means["entropy"])
    rows.append(("sharpest", sharpest.layer, sharpest.head, f"entropy {sharpest.means['entropy']:.2f} nats"))
    rows.append(("most even", evenest.layer, evenest.head, f"entropy {evenest.means['entropy']:.2f} nats"))
    return Table((Column("which", "where to look"), *PATTERN_COLUMNS[:2], Column("value", "how much")), tuple(rows))


def layer_sheet(trace: Trace, layer: int) -> Sheet:
    """The heads of one layer with all their measures."""
    chosen = trace[layer, -1].layer
    rows = _pattern_table(all_patterns(trace, [chosen]))
    shown = Table(rows.columns[1:], tuple(row[1:] for row in rows.rows))
    return Sheet(
        record=lambda: {**trace_record(trace), "layer": chosen, "heads": rows.records()},
        table=lambda: rows,
        drawings=(
            title(f"layer {chosen}: {len(rows.rows)} heads, counted from 0", trace_aside(trace)),
            tokens_line(trace),
            blank,
            table(shown),
            notes(
                [
                    "means over all queries: " + "; ".join(f"{name}: {CATALOG[name].meaning}" for name in MEASURES),
                ]
            ),
        ),
    )


def _pattern_table(found: Sequence[Pattern]) -> Table:
    return Table(
        PATTERN_COLUMNS,
        tuple((one.layer, one.head, one.name, *(one.means[name] for name in MEASURES)) for one in found),
    )

"""Attention weights in a terminal: one head as a matrix or lists, one query as bars; and the findings above.

All heads, and those of a layer, are in overview_sheets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.explain.findings import MOST, findings
from headscope.results.explained import Finding
from headscope.screens.matrix import Scale, each_query, key_bars, matrix, strongest
from headscope.screens.pieces import (
    find_token,
    highlighted,
    short,
    short_rows,
    shown_keys,
    shown_tokens,
    trace_aside,
    trace_record,
)
from headscope.screens.tables import PLACE, Column, Table
from headscope.screens.terminal import Drawing, Line, Paper, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.traces import Trace

OPENING = 3
"""Findings that a screen opens with."""

WEIGHT_COLUMNS = (
    *PLACE,
    Column("query", align="right"),
    Column("query_token", "query token", kind="code"),
    Column("key", align="right"),
    Column("key_token", "key token", kind="code"),
    Column("weight", align="right", form=".4f"),
)
HEAD_COLUMNS = (*PLACE, *WEIGHT_COLUMNS[4:])
TOP = 10
"""Keys of one query that are shown by default."""


def attend_sheet(
    trace: Trace,
    *,
    layer: int | None = None,
    head: int | None = None,
    query: str | None = None,
    top: int | None = None,
    threshold: float | None = None,
    start: int = 0,
    scale: Scale = "sqrt",
) -> Sheet:
    """The attention weights of all heads, of one layer's heads, of one head, or of one query of a head.

    Args:
        trace: to show.
        layer: None for all layers.
        head: None for all heads of the layer.
        query: a position or a token; only its keys are shown, strongest first.
        top: most keys per query.
        threshold: share (0 to 1) of each query's mass; only as many keys are shown as hold it.
        start: the first token of the window, if the matrix is too large to draw whole.
        scale: of the shades.

    Raises:
        InputError: no such layer, head or token, or options that exclude each other.
    """
    if threshold is not None and not 0 < threshold <= 1:
        advice = "use a number above 0, at most 1: 0.7 shows the fewest keys that hold 70 % of each query's mass"
        raise InputError(f"a threshold of {threshold:g} is not between 0 and 1", where="threshold", advice=advice)
    if head is None and query is not None and threshold is None:
        return _heads_of(trace, query, TOP if top is None else top, trace.numbers if layer is None else (layer,))
    if layer is None or head is None:
        needing_head = [name for name, value in (("--top", top), ("threshold", threshold)) if value is not None]
        if needing_head:
            found = f"{needing_head[0]} requires a head, and {'none' if layer is None else 'a layer'} is selected"
            advice = "select the head by layer.head, both counted from 0: --heads 3.1"
            raise InputError(found, where=needing_head[0], advice=advice)
        from headscope.screens.overview_sheets import layer_sheet, overview_sheet

        return with_findings(overview_sheet(trace) if layer is None else layer_sheet(trace, layer), trace, layer)
    view = trace[layer, head]
    if query is not None:
        sheet = _one_query(trace, (view.layer, view.head), query, top, threshold)
    else:
        sheet = _one_head(trace, (view.layer, view.head), top, threshold, start, scale)
    return with_findings(sheet, trace, view.layer, view.head)


def with_findings(sheet: Sheet, trace: Trace, layer: int | None = None, head: int | None = None) -> Sheet:
    """Add findings to the sheet of a trace, or of one layer or head of it, below the title.

    They are computed when the screen is drawn or the record is made, but not for a table.
    """

    @cache
    def chosen() -> tuple[Finding, ...]:
        if layer is None:
            return findings(trace)
        every = findings(trace, layers=[layer], most=None)
        about = tuple(f for f in every if head is None or any(cell.head == head for cell in f.cells))
        return about[:MOST]

    def draw(paper: Paper) -> Iterable[Line]:
        for finding in chosen()[:OPENING]:
            yield from prose(finding.sentence, mark=f"{paper.sign('•', '-')} ")(paper)

    first, *rest = sheet.drawings
    return replace(
        sheet,
        record=lambda: {**sheet.record(), "findings": [finding.as_dict() for finding in chosen()]},
        drawings=(first, draw, *rest),
    )


def attend_sheets(trace: Trace, chosen: Sequence[tuple[int, int | None]], **options: Any) -> Sheet:
    """The sheet of `attend_sheet` for each of several heads or layers, one below the other.

    Args:
        trace: to show.
        chosen: pairs of layer and head, None for all heads of the layer; empty for all heads.
        options: of attend_sheet.

    Raises:
        InputError: heads and layers together, which have different tables.
    """
    if len({head is None for _, head in chosen}) > 1:
        raise InputError(
            "heads and whole layers can't be shown together", where="--heads", advice="select either: --heads 3.1,4.0"
        )
    all_heads: list[tuple[None, None]] = [(None, None)]
    sheets = [attend_sheet(trace, layer=layer, head=head, **options) for layer, head in chosen or all_heads]
    if len(sheets) == 1:
        return sheets[0]

    def table() -> Table:
        tables = [sheet.table() for sheet in sheets if sheet.table is not None]
        return Table(tables[0].columns, tuple(row for one in tables for row in one.rows))

    return Sheet(
        record=lambda: {"heads": [sheet.record() for sheet in sheets]},
        table=table,
        drawings=tuple(part for sheet in sheets for part in (*sheet.drawings, blank))[:-1],
        look_at=sheets[0].look_at,
        schema="attend-several",
    )


def _head_title(trace: Trace, chosen: tuple[int, int]) -> Drawing:
    return title(f"layer {chosen[0]}, head {chosen[1]} (counted from 0)", trace_aside(trace))


def _one_head(
    trace: Trace, chosen: tuple[int, int], top: int | None, threshold: float | None, start: int, scale: Scale
) -> Sheet:
    tokens = shown_tokens(trace)
    weights = np.asarray(trace[chosen].weights)
    listed = top is not None or threshold is not None
    if not 0 <= start < len(trace.keys):
        found = f"there is no token {start}: the text has {len(trace.keys)} tokens"
        raise InputError(found, where="start", advice=f"tokens are numbered 0 to {len(trace.keys) - 1}")
    keys = [strongest(row, top, threshold) for row in weights] if listed else [range(len(trace.keys))] * len(weights)

    def record() -> dict[str, Any]:
        fields = {**trace_record(trace), "layer": chosen[0], "head": chosen[1], "weights": short_rows(weights)}
        return {**fields, "keys": [list(row) for row in keys]} if listed else fields

    def rows() -> Table:
        pairs = ((query, key) for query, row in enumerate(keys) for key in row)
        return Table(
            WEIGHT_COLUMNS, tuple(_weight_row(trace, chosen, query, key, weights[query, key]) for query, key in pairs)
        )

    heading = _head_title(trace, chosen)
    broken = int(np.isnan(weights).any(-1).sum())
    warning = notes([f"{broken} of {len(weights)} rows are not numbers: NaN (? in a narrow cell)"] if broken else [])
    if not listed:
        picture = matrix(weights, tokens, shown_keys(trace), start=start, scale=scale)
        return Sheet(record, rows, (heading, blank, picture, warning), schema="attend-head")
    picture = each_query(weights, tokens, shown_keys(trace), keys)
    rule = notes([_rule(top, threshold, each="each query")])
    return Sheet(record, rows, (heading, rule, blank, picture, warning), schema="attend-head")


def _weight_row(trace: Trace, chosen: tuple[int, int], query: int, key: int, weight: Any) -> tuple[Any, ...]:
    return *chosen, query, trace.tokens[query], key, trace.keys.tokens[key], short(weight)


def _rule(top: int | None, threshold: float | None, *, each: str) -> str:
    """The rule by which keys were left out."""
    fewest = f"the fewest keys that hold {threshold:.0%} of {each}'s mass" if threshold is not None else ""
    most = f"at most {top} keys of {each}" if top is not None else ""
    return ", ".join(filter(None, (fewest, most)))


def _heads_of(trace: Trace, query: str, top: int, layers: Sequence[int]) -> Sheet:
    """The heads that look from one token most: each with its strongest other key that is not special."""
    tokens, keys = shown_tokens(trace), shown_keys(trace)
    place = find_token(query, trace.tokens, tokens)
    own = place + len(trace.keys) - len(trace.tokens) if trace.keys is trace.queries else -1
    others = np.array([at != own and not special for at, special in enumerate(trace.keys.special)])
    found = []
    for layer in layers:
        for head in trace.head_numbers(layer):
            row = np.where(others, np.nan_to_num(trace[layer, head].weights[place], nan=-1.0), -1.0)
            if row.max() >= 0:  # not of a broken head
                found.append((layer, head, int(row.argmax()), float(row.max())))
    found.sort(key=lambda entry: -entry[3])
    shown = [(layer, head, place, trace.tokens[place], key, trace.keys.tokens[key], short(weight))
             for layer, head, key, weight in found[:top]]  # fmt: skip
    listed = Table(WEIGHT_COLUMNS, tuple(shown))
    return Sheet(
        lambda: {**trace_record(trace), "query": place, "heads": listed.records()},
        lambda: listed,
        (
            title(f"the heads that look from “{tokens[place]}” most", trace_aside(trace)),
            highlighted(tokens, place),
            blank,
            table(Table(HEAD_COLUMNS, tuple((*row[:2], row[4], keys[row[4]], row[6]) for row in shown))),
            notes([f"each with the word that gets most of query {place}: not itself, not a special token"]),
        ),
        look_at=found[0][:2] if found else None,
        schema="attend-token",
    )


def _one_query(trace: Trace, chosen: tuple[int, int], query: str, top: int | None, threshold: float | None) -> Sheet:
    tokens = shown_tokens(trace)
    place = find_token(query, trace.tokens, tokens)
    row = trace[chosen].weights[place]
    keys = strongest(row, TOP if top is None and threshold is None else top, threshold)

    def record() -> dict[str, Any]:
        return {
            **trace_record(trace),
            "layer": chosen[0],
            "head": chosen[1],
            "query": place,
            "weights": short_rows(row[None])[0],
            "keys": [{"key": key, "token": trace.keys.tokens[key], "weight": short(row[key])} for key in keys],
        }

    def rows() -> Table:
        return Table(WEIGHT_COLUMNS, tuple(_weight_row(trace, chosen, place, key, row[key]) for key in keys))

    rule = _rule(top, threshold, each="the query")
    return Sheet(
        record,
        rows,
        (
            _head_title(trace, chosen),
            highlighted(tokens, place),
            blank,
            prose(f"weights of query {place}, {tokens[place]}, on its keys, strongest first"),
            key_bars(row, shown_keys(trace), keys, rule=rule),
        ),
        schema="attend-head",
    )

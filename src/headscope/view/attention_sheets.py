"""Attention weights in a terminal: one head as a matrix or as lists, one query as bars; all heads: overview_sheets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.view.finding_lines import with_findings
from headscope.view.matrix import Scale, bars, each_query, matrix, strongest
from headscope.view.overview_sheets import layer_sheet, overview_sheet
from headscope.view.pieces import find_token
from headscope.view.tables import Column, Table
from headscope.view.terminal import Drawing, Sheet, blank, notes, prose, title
from headscope.view.trace_lines import (
    highlighted,
    short,
    short_rows,
    shown_keys,
    shown_tokens,
    trace_aside,
    trace_record,
)

if TYPE_CHECKING:
    from headscope._trace import Trace

WEIGHT_COLUMNS = (
    Column("layer", align="right"),
    Column("head", align="right"),
    Column("query", align="right"),
    Column("query_token", "query token", kind="code"),
    Column("key", align="right"),
    Column("key_token", "key token", kind="code"),
    Column("weight", align="right", form=".4f"),
)
TOP = 10
"""Keys of one query that are shown where nothing else is asked for."""


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
    """Attention weights: all heads without a layer, one layer's heads without a head, else one head or one query.

    Args:
        query: a position or a piece; only its keys are shown, strongest first.
        top: at most so many keys for each query.
        threshold: the fewest keys for each query that hold so much of its mass, 0 to 1.
        start: the first token of the window, where the matrix is too large to draw whole.

    Raises:
        InputError: no such layer, head or token; options that don't go together.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise InputError(
            f"a threshold of {threshold:g} is no share of a mass",
            where="--threshold",
            advice="give a number above 0 and up to 1: 0.7 shows the fewest keys that hold 70 % of each query's mass",
        )
    if top is not None and top < 1:
        raise InputError(f"--top {top} leaves no key to show", where="--top", advice="give a number from 1")
    if layer is None or head is None:
        given = [
            name
            for name, value in (("--query", query), ("--top", top), ("--threshold", threshold), ("--head", head))
            if value is not None
        ]
        if given:
            raise InputError(
                f"{given[0]} needs one head, and {'--layer' if layer is None else '--head'} is not given",
                where=given[0],
                advice="name the head with --layer and --head; both count from 0",
            )
        if layer is None:
            return with_findings(overview_sheet(trace), trace)
        return with_findings(layer_sheet(trace, layer), trace, layer)
    one = trace[layer, head]
    if query is not None:
        sheet = _one_query(trace, (one.layer, one.head), query, top, threshold)
    else:
        sheet = _one_head(trace, (one.layer, one.head), top, threshold, start, scale)
    return with_findings(sheet, trace, one.layer, one.head)


def _head_title(trace: Trace, chosen: tuple[int, int]) -> Drawing:
    return title(f"layer {chosen[0]}, head {chosen[1]} (counted from 0)", trace_aside(trace))


def _one_head(
    trace: Trace,
    chosen: tuple[int, int],
    top: int | None,
    threshold: float | None,
    start: int,
    scale: Scale,
) -> Sheet:
    shown = shown_tokens(trace)
    weights = np.asarray(trace[chosen].weights)
    listed = top is not None or threshold is not None
    if not 0 <= start < len(trace):
        raise InputError(
            f"there is no token {start} to begin with: the text has {len(trace)}",
            where="--from",
            advice=f"tokens count from 0, so the last one is {len(trace) - 1}",
        )
    keys = [strongest(row, top, threshold) for row in weights] if listed else [range(len(trace.keys))] * len(weights)

    def record() -> dict[str, Any]:
        said = {**trace_record(trace), "layer": chosen[0], "head": chosen[1], "weights": short_rows(weights)}
        return {**said, "keys": [list(row) for row in keys]} if listed else said

    def rows() -> Table:
        pairs = ((query, key) for query, row in enumerate(keys) for key in row)
        return Table(
            WEIGHT_COLUMNS,
            tuple(_weight_row(trace, chosen, query, key, weights[query, key]) for query, key in pairs),
        )

    heading = _head_title(trace, chosen)
    lost = int(np.isnan(weights).any(-1).sum())
    warning = notes([f"{lost} of {len(weights)} rows are not numbers: NaN (? in a narrow cell)"] if lost else [])
    if not listed:
        picture = matrix(weights, shown, shown_keys(trace), start=start, scale=scale)
        return Sheet(record, rows, (heading, blank, picture, warning))
    picture = each_query(weights, shown, shown_keys(trace), keys)
    rule = notes([_rule(top, threshold, each="each query")])
    return Sheet(record, rows, (heading, rule, blank, picture, warning))


def _weight_row(trace: Trace, chosen: tuple[int, int], query: int, key: int, weight: Any) -> tuple[Any, ...]:
    return *chosen, query, trace.tokens[query], key, trace.keys.tokens[key], short(weight)


def _rule(top: int | None, threshold: float | None, *, each: str) -> str:
    """What was left out, in words."""
    fewest = f"the fewest keys that hold {threshold:.0%} of {each}'s mass" if threshold is not None else ""
    most = f"at most {top} keys of {each}" if top is not None else ""
    return ", ".join(filter(None, (fewest, most)))


def _one_query(trace: Trace, chosen: tuple[int, int], query: str, top: int | None, threshold: float | None) -> Sheet:
    shown = shown_tokens(trace)
    place = find_token(query, trace.tokens, shown)
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
            highlighted(shown, place),
            blank,
            prose(f"what query {place}, {shown[place]}, takes from each key, strongest first"),
            bars(row, shown_keys(trace), keys, said=rule),
        ),
    )

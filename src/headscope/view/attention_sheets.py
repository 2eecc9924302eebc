"""Attention weights in a terminal: one head as a matrix or lists, one query as bars. For all heads: overview_sheets."""

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
        raise InputError(
            f"a threshold of {threshold:g} is not between 0 and 1",
            where="--threshold",
            advice="use a number above 0, at most 1: 0.7 shows the fewest keys that hold 70 % of each query's mass",
        )
    if top is not None and top < 1:
        raise InputError(f"--top {top} leaves no key to show", where="--top", advice="use a number of at least 1")
    if layer is None or head is None:
        needing_head = [
            name
            for name, value in (("--query", query), ("--top", top), ("--threshold", threshold), ("--head", head))
            if value is not None
        ]
        if needing_head:
            raise InputError(
                f"{needing_head[0]} requires one head, and {'--layer' if layer is None else '--head'} is missing",
                where=needing_head[0],
                advice="choose the head with --layer and --head; both count from 0",
            )
        if layer is None:
            return with_findings(overview_sheet(trace), trace)
        return with_findings(layer_sheet(trace, layer), trace, layer)
    view = trace[layer, head]
    if query is not None:
        sheet = _one_query(trace, (view.layer, view.head), query, top, threshold)
    else:
        sheet = _one_head(trace, (view.layer, view.head), top, threshold, start, scale)
    return with_findings(sheet, trace, view.layer, view.head)


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
    tokens = shown_tokens(trace)
    weights = np.asarray(trace[chosen].weights)
    listed = top is not None or threshold is not None
    if not 0 <= start < len(trace):
        raise InputError(
            f"there is no token {start}: the text has {len(trace)} tokens",
            where="--from",
            advice=f"tokens are numbered 0 to {len(trace) - 1}",
        )
    keys = [strongest(row, top, threshold) for row in weights] if listed else [range(len(trace.keys))] * len(weights)

    def record() -> dict[str, Any]:
        fields = {**trace_record(trace), "layer": chosen[0], "head": chosen[1], "weights": short_rows(weights)}
        return {**fields, "keys": [list(row) for row in keys]} if listed else fields

    def rows() -> Table:
        pairs = ((query, key) for query, row in enumerate(keys) for key in row)
        return Table(
            WEIGHT_COLUMNS,
            tuple(_weight_row(trace, chosen, query, key, weights[query, key]) for query, key in pairs),
        )

    heading = _head_title(trace, chosen)
    broken = int(np.isnan(weights).any(-1).sum())
    warning = notes([f"{broken} of {len(weights)} rows are not numbers: NaN (? in a narrow cell)"] if broken else [])
    if not listed:
        picture = matrix(weights, tokens, shown_keys(trace), start=start, scale=scale)
        return Sheet(record, rows, (heading, blank, picture, warning))
    picture = each_query(weights, tokens, shown_keys(trace), keys)
    rule = notes([_rule(top, threshold, each="each query")])
    return Sheet(record, rows, (heading, rule, blank, picture, warning))


def _weight_row(trace: Trace, chosen: tuple[int, int], query: int, key: int, weight: Any) -> tuple[Any, ...]:
    return *chosen, query, trace.tokens[query], key, trace.keys.tokens[key], short(weight)


def _rule(top: int | None, threshold: float | None, *, each: str) -> str:
    """The rule by which keys were left out."""
    fewest = f"the fewest keys that hold {threshold:.0%} of {each}'s mass" if threshold is not None else ""
    most = f"at most {top} keys of {each}" if top is not None else ""
    return ", ".join(filter(None, (fewest, most)))


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
            bars(row, shown_keys(trace), keys, rule=rule),
        ),
    )

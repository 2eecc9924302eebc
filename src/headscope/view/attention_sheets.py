"""What a trace looks like in a terminal: all heads at a glance, one layer's heads, one head, one query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.view.labels import called, width
from headscope.view.matrix import Scale, bars, each_query, matrix, strongest
from headscope.view.patterns import EVEN, MASSES, MEANINGS, MEASURES, STRONG, Patterns, all_patterns
from headscope.view.pieces import find_token, labels
from headscope.view.tables import Column, Table
from headscope.view.terminal import Drawing, Line, Paper, Sheet, blank, notes, prose, table, text_line, title

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.trace import Trace

SIGNS = {
    "previous": ("←", "p"),
    "same": ("↓", "i"),
    "next": ("→", "n"),
    "first": ("⇤", "f"),
    "separators": ("◆", "s"),
    "even": ("≈", "e"),
    "mixed": ("·", "."),
}
COLOURS = {
    "previous": "#4c9be8",
    "same": "#9a9a2e",
    "next": "#e0803a",
    "first": "#b57edc",
    "separators": "#3fa98a",
    "even": "dim",
    "mixed": "",
}
PATTERN_COLUMNS = (
    Column("layer", align="right"),
    Column("head", align="right"),
    Column("pattern"),
    *(Column(name, align="right", form=".2f") for name in MEASURES),
)
WEIGHT_COLUMNS = (
    Column("layer", align="right"),
    Column("head", align="right"),
    Column("query", align="right"),
    Column("query_token", "query token", kind="code"),
    Column("key", align="right"),
    Column("key_token", "key token", kind="code"),
    Column("weight", align="right", form=".4f"),
)
CELL = 5
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
        return _overview(trace) if layer is None else _one_layer(trace, layer)
    one = trace[layer, head]
    if query is not None:
        return _one_query(trace, (one.layer, one.head), query, top, threshold)
    return _one_head(trace, (one.layer, one.head), top, threshold, start, scale)


def _said(trace: Trace) -> dict[str, Any]:
    """What every record of a trace begins with."""
    return {
        "model": trace.model,
        "tokens": trace.tokens,
        "ids": trace.ids,
        "segments": trace.segments,
        "ablated": sorted(trace.ablated),
    }


def _aside(trace: Trace) -> str:
    silenced = ", ".join(f"{layer}.{head}" for layer, head in sorted(trace.ablated))
    return f"{called(trace.model)}, {len(trace)} tokens" + (f", silenced: {silenced}" if silenced else "")


def shown_tokens(trace: Trace) -> tuple[str, ...]:
    """The tokens as people's words."""
    return labels(trace.queries, trace.text, trace.pair)


def _tokens_line(trace: Trace) -> Drawing:
    """The tokens with their positions."""
    return prose(" ".join(f"{at}:{label}" for at, label in enumerate(shown_tokens(trace))), "dim")


def _pattern_table(found: Sequence[Patterns]) -> Table:
    return Table(
        PATTERN_COLUMNS,
        tuple((one.layer, one.head, one.name, *(getattr(one, name) for name in MEASURES)) for one in found),
    )


def _overview(trace: Trace) -> Sheet:
    found = all_patterns(trace)
    clearest = max(found, key=lambda one: max(getattr(one, name) for name in MASSES))
    rows = _pattern_table(found)
    return Sheet(
        record=lambda: {**_said(trace), "heads": rows.records()},
        table=lambda: rows,
        drawings=(
            title(f"all heads: {len(trace.layers)} layers x {trace.heads} heads, counted from 0", _aside(trace)),
            _tokens_line(trace),
            blank,
            _grid(found, trace.heads),
            blank,
            table(_extremes(found)),
            blank,
            notes([f"draw one: headscope attend MODEL TEXT --layer {clearest.layer} --head {clearest.head}"]),
        ),
    )


def _grid(found: Sequence[Patterns], heads: int) -> Drawing:
    """Layers down, heads across; each head's strongest pattern and its mass in per cent."""

    def draw(paper: Paper) -> Iterable[Line]:
        margin = 9
        fit = max(1, (paper.width - margin) // CELL)
        for first in range(0, heads, fit):
            columns = range(first, min(first + fit, heads))
            yield text_line(f"{'head':>{margin}}" + "".join(f"{head:>{CELL}}" for head in columns), "bold")
            for start in range(0, len(found), heads):
                cells = (_cell(found[start + head], paper) for head in columns)
                yield ((f"layer {found[start].layer:>{margin - 6}}", "bold"), *cells)
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


def _cell(one: Patterns, paper: Paper) -> tuple[str, str]:
    sign = paper.sign(*SIGNS[one.name])
    mass = f"{getattr(one, one.name) * 100:.0f}" if one.name in MASSES else ""
    return f"{sign + mass:>{CELL}}", COLOURS[one.name] if paper.colour else ""


def _extremes(found: Sequence[Patterns]) -> Table:
    """For each pattern the head in which it is strongest, and the sharpest and the most even head."""
    rows: list[tuple[Any, ...]] = []
    for name in MASSES:
        best = max(found, key=lambda one, name=name: getattr(one, name))  # type: ignore[misc]
        rows.append(
            (f"most on {MEANINGS[name]}", best.layer, best.head, f"{getattr(best, name):.0%} of each query's weight")
        )
    sharpest = min(found, key=lambda one: one.entropy)
    evenest = max(found, key=lambda one: one.entropy)
    rows.append(("sharpest", sharpest.layer, sharpest.head, f"entropy {sharpest.entropy:.2f} nats"))
    rows.append(("most even", evenest.layer, evenest.head, f"entropy {evenest.entropy:.2f} nats"))
    return Table((Column("which", "where to look"), *PATTERN_COLUMNS[:2], Column("value", "how much")), tuple(rows))


def _one_layer(trace: Trace, layer: int) -> Sheet:
    chosen = trace[layer, 0].layer
    rows = _pattern_table(all_patterns(trace, [chosen]))
    shown = Table(rows.columns[1:], tuple(row[1:] for row in rows.rows))
    return Sheet(
        record=lambda: {**_said(trace), "layer": chosen, "heads": rows.records()},
        table=lambda: rows,
        drawings=(
            title(f"layer {chosen}: {trace.heads} heads, counted from 0", _aside(trace)),
            _tokens_line(trace),
            blank,
            table(shown),
            notes(
                [
                    "mean weight over all queries on the token before (previous), the token itself (same), the one "
                    "after (next), the first, and [SEP] and the like (separators); entropy in nats, evenness is its "
                    "share of the greatest possible",
                ]
            ),
        ),
    )


def _head_title(trace: Trace, chosen: tuple[int, int]) -> Drawing:
    return title(f"layer {chosen[0]}, head {chosen[1]} (counted from 0)", _aside(trace))


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
        said = {**_said(trace), "layer": chosen[0], "head": chosen[1], "weights": short_rows(weights)}
        return {**said, "keys": [list(row) for row in keys]} if listed else said

    def rows() -> Table:
        pairs = ((query, key) for query, row in enumerate(keys) for key in row)
        return Table(
            WEIGHT_COLUMNS,
            tuple(_weight_row(trace, chosen, query, key, weights[query, key]) for query, key in pairs),
        )

    heading = _head_title(trace, chosen)
    if not listed:
        picture = matrix(weights, shown, shown, start=start, scale=scale)
        return Sheet(record, rows, (heading, blank, picture))
    picture = each_query(weights, shown, shown, keys)
    return Sheet(record, rows, (heading, notes([_rule(top, threshold, each="each query")]), blank, picture))


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
            **_said(trace),
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
            bars(row, shown, keys, said=rule),
        ),
    )


def highlighted(shown: Sequence[str], place: int) -> Drawing:
    """The tokens with the query set apart; where there are many, those around it."""

    def draw(paper: Paper) -> Iterable[Line]:
        room = paper.width - width(shown[place]) - 10
        start, stop = place, place + 1
        while room > 0 and (start > 0 or stop < len(shown)):
            forward = stop < len(shown) and (start == 0 or stop - place <= place - start)
            room -= width(shown[stop if forward else start - 1]) + 1
            if room > 0:
                start, stop = (start, stop + 1) if forward else (start - 1, stop)
        dots = paper.sign("…", "...")
        before_text = f"{dots} " * (start > 0) + "".join(f"{name} " for name in shown[start:place])
        after_text = "".join(f" {name}" for name in shown[place + 1 : stop]) + f" {dots}" * (stop < len(shown))
        yield (
            (before_text, "dim"),
            (f"{paper.sign('»', '>')}{shown[place]}{paper.sign('«', '<')}", "bold"),
            (after_text, "dim"),
        )

    return draw


def short(weight: Any) -> float:
    """A float32 as the shortest decimal that reads back as the same float32."""
    return float(str(np.float32(weight)))


def short_rows(weights: Float[np.ndarray, "queries keys"]) -> list[list[float]]:
    """All weights of a head, each as `short` has it."""
    return [[float(text) for text in row] for row in weights.astype(np.float32).astype("U")]

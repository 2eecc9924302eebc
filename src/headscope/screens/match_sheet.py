"""Documents that match a query: the ranking, the two texts with ink, the strongest words, and the figure of a match."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.results.answers import MatchAnswer, filled
from headscope.results.match_record import SIDES, Link
from headscope.results.score_parts import KAPPA, strongest
from headscope.screens.explain_sheets import masking_notes, part_bars, trust
from headscope.screens.figures import COLUMN, SIGNED, colours, drawing, plain
from headscope.screens.inked import LESS, MORE, inked_text
from headscope.screens.labels import printable
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Drawing, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.results.match_record import Above, Match, Matches
    from headscope.results.score_parts import Part


TOP = 5
COLUMNS = (
    Column("rank", align="right"),
    Column("document", align="right"),
    Column("score", align="right", form="+.4f"),
    Column("kappa", align="right", form=".2f"),
    Column("begins"),
)
FOUND = (
    Column("query", kind="code"),
    Column("found", kind="code"),
    Column("similarity", align="right", form=".4f"),
    Column("margin", align="right", form=".4f"),
)
LINKS = (
    Column("query", kind="code"),
    Column("document", kind="code"),
    Column("share", align="right", form="+.4f"),
    Column("interaction", align="right", form="+.4f"),
)
EDGES = (
    *LINKS[:2],
    Column("head", align="right"),
    Column("weight", align="right", form=".2f"),
    Column("logit without it", align="right", form="+.4f"),
)
WORDS = (Column("word", kind="code"), LINKS[2], *LINKS[:2])


def match_sheet(model: str, result: Matches, top: int | None = None, by: str = "word", links: bool = True) -> Sheet:
    """The ranking of the documents, the first one taken apart, and why it stands above the second.

    Args:
        model: its name.
        result: the matches.
        top: most rows of a table.
        by: what a row of the document is: a token, a word or a sentence; long documents read as sentences anyway.
        links: also find the strongest links between two words, which takes some passes.
    """
    order = result.ranking()
    best, rows = result[order[0]], top or TOP
    drawings: list[Drawing] = [title(_answer(result, order), called(model))]
    if len(result) > 1:
        drawings += [blank, table(_ranking(result, None))]
    found = best.links() if links else None
    drawings += [blank, *_one(best, order[0], rows, by, found)]
    if len(order) > 1:
        drawings += [blank, *_above(result.above(order[0], order[1]), rows)]
    return Sheet(
        record=lambda: _record(model, result, found or []),
        table=lambda: _ranking(result, top),
        drawings=tuple(drawings),
    )


def _answer(result: Matches, order: list[int]) -> str:
    """The result in a sentence: the first document, how far it is above the next, and the strongest words."""
    best = result[order[0]]
    scored = f"{best.scoring.measure} {best.score:.4f}"
    if len(order) == 1:
        return scored + _for_it([part for side in SIDES for part in strongest(_raising(best.parts(side)), 1)])
    above = result.above(order[0], order[1])
    head = f"document {order[0]} is first ({scored}), {above.difference:.4f} above document {order[1]}"
    return head + _for_it(strongest(_raising(above.query), 2))


def _raising(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.share > 0]


def _for_it(parts: Sequence[Part]) -> str:
    words = " and ".join(f"“{printable(part.label)}”" for part in parts)
    return f"; most for it: {words}" if parts else ""


def _ranking(result: Matches, top: int | None) -> Table:
    rows = [
        (
            rank,
            at,
            result[at].score,
            result[at].kappa,
            printable(result[at].document.pair or result[at].document.text)[:60],
        )
        for rank, at in enumerate(result.ranking(), 1)
    ]
    return Table(COLUMNS, tuple(rows[:top]))


def _one(match: Match, number: int, rows: int, by: str, links: list[Link] | None) -> list[Drawing]:
    """One document: both texts with ink, the strongest words of both, what is special to the kind of model."""
    ranks = match.kappa > KAPPA
    masked = {(part.side, part.tokens): part for part in match.checks}
    drawings: list[Drawing] = [prose(f"document {number}: {match.scoring.measure} {match.score:.4f}"), blank]
    for side in SIDES:
        words = [part for part in match.parts(side) if not part.special]
        shares = np.array([part.share for part in words])
        drawings += [inked_text([printable(part.label) for part in words], shares), blank]
    for side in SIDES:
        unit = match.unit(side) if by == "word" and side == "document" else by
        parts = [masked.get((part.side, part.tokens), part) for part in match.parts(side, unit)]
        drawings += [part_bars(parts, rows, noun=f"{side} {unit}", unit=match.scoring.measure, ranks=ranks), blank]
    if match.found:
        drawings += [table(_found(match, rows)), blank]
    if match.dimensions:
        drawings += [table(_dimensions(match, rows)), blank]
    return [*drawings, *(() if links is None else _links(match, links)), notes(_sums(match))]


def _found(match: Match, rows: int) -> Table:
    query, document = match.query.axis.tokens, match.document.axis.tokens
    found = [
        (query[one.query] + " (expansion)" * one.expansion, document[one.document], one.similarity, one.margin)
        for one in match.found
    ]
    return Table(FOUND, tuple(sorted(found, key=lambda row: -row[2])[:rows]))


def _dimensions(match: Match, rows: int) -> Table:
    query, document = match.query.axis.tokens, match.document.axis.tokens
    return Table(
        WORDS, tuple((one.word, one.share, query[one.query], document[one.document]) for one in match.dimensions[:rows])
    )


def _links(match: Match, links: list[Link]) -> list[Drawing]:
    """The strongest links as a table."""
    if not links:
        return [notes(["links: no strong pair of words is confirmed by leaving both out"]), blank]
    columns = LINKS if match.pairs is not None else EDGES
    rows: list[tuple[Any, ...]] = []
    for one in links:
        if one.head is None:
            rows.append((one.query.label, one.document.label, one.share, one.together))
        else:
            head = "{}.{}".format(*one.head)
            rows.append((one.query.label, one.document.label, head, one.share, -one.together))
    return [table(Table(columns, tuple(rows))), blank]


def _sums(match: Match) -> list[str]:
    """The sum of the words, how far to trust them, and what was done to the texts."""
    lines = []
    cross = match.scoring.kind == "cross"
    for side in SIDES:
        parts, of = match.parts(side), getattr(match, side)
        words = sum(part.share for part in parts if not part.special)
        special = sum(part.share for part in parts if part.special)
        rest = "" if cross else f", biases {of.rest:+.4f}, together {words + special + of.rest:+.4f}"
        lines.append(f"{side}: words {words:+.4f}, special tokens and prompt {special:+.4f}{rest}")
    if cross:
        lines.append(f"biases {match.query.rest:+.4f}; both texts and the biases together {match.score:+.4f}")
        lines.append(f"the model returns {match.returned:.4f}")
    lines += trust(match.kappa)
    if not match.scoring.stated:
        lines.append("the checkpoint doesn't say how it scores: sentence-transformers' default, the mean, is taken")
    return [*lines, *match.notes, *([match.unchecked] if match.unchecked else []), *masking_notes(match.checks)]


def _above(above: Above, rows: int) -> list[Drawing]:
    """The words that put the first document above the second."""
    heading = f"document {above.first} less document {above.second}: {above.difference:+.4f}, by the query's words"
    words = sum(part.share for part in above.query)
    return [
        prose(heading),
        part_bars(above.query, rows, noun="query word", unit="change", ranks=False),
        notes([f"words {words:+.4f}, all else {above.rest:+.4f}"]),
    ]


def _record(model: str, result: Matches, links: list[Link]) -> dict[str, Any]:
    first, *others = result.ranking()
    scoring = result[0].scoring
    return filled(
        MatchAnswer,
        result,
        model=model,
        kind=scoring.kind,
        measure=scoring.measure,
        level=result[0].level,
        documents=result.matches,
        links=[asdict(link) | {side: getattr(link, side).label for side in SIDES} for link in links],
        above=result.above(first, others[0]) if others else None,
    )


LONGEST = 40
"""Characters of a sentence that are drawn."""


def plot_match(
    match: Match,
    *,
    by: str | None = None,
    ax: Any = None,
    width: float = COLUMN,
    save: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw the words of the query and of the document, each on its share, and lines for the strongest links.

    Shares are purple below 0, white at 0 and green above, on one scale for both sides.

    Args:
        by: `word` or `sentence` of the document; by default sentences for a document that reads as these first.
        ax: axes of matplotlib to draw into.
        width: of the figure, in inches.
        save: also write the figure: a path that ends in .svg, .pdf or .png.

    Raises:
        MissingExtraError: matplotlib is not installed; it comes with headscope[plot].
        InputError: another unit, or `save` has another ending.
    """
    units = ("word", by or match.unit("document"))
    sides = [
        [part for part in match.parts(side, unit) if not part.special] for side, unit in zip(SIDES, units, strict=True)
    ]
    rows = max(map(len, sides))
    with drawing(ax, (width, 0.16 * rows + 0.5), save) as axes:
        tops = [(rows - len(parts)) / 2 for parts in sides]
        greatest = max((abs(part.share) for parts in sides for part in parts), default=0.0) or 1.0
        for at, parts in enumerate(sides):
            _words(axes, parts, at, tops[at], greatest)
        for link in match.links():
            _line(axes, link, sides, tops)
        axes.set(xlim=(-1, 2), ylim=(rows - 0.5, -0.5))
        axes.set_title(f"{match.scoring.measure} {match.score:.3f}")
        axes.set_axis_off()
    return axes


def _words(axes: Any, parts: Sequence[Part], column: int, top: float, greatest: float) -> None:
    """One side's words from top to bottom, each on the colour of its share."""
    map_of, align = colours(SIGNED), ("right", "left")[column]
    for row, part in enumerate(parts):
        colour = map_of(0.5 + part.share / greatest / 2)
        dark = np.dot(colour[:3], (0.3, 0.59, 0.11)) < 0.5
        label = part.label if len(part.label) <= LONGEST else part.label[: LONGEST - 1] + "…"
        axes.text(
            column,
            top + row,
            plain([label])[0],
            ha=align,
            va="center",
            color="white" if dark else "black",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
        )


def _line(axes: Any, link: Link, sides: Sequence[Sequence[Part]], tops: Sequence[float]) -> None:
    """A line from the query's word to the word or sentence of the document that has the other word."""
    ends = [
        next(row for row, part in enumerate(parts) if set(word.tokens) <= set(part.tokens)) + top
        for word, parts, top in zip((link.query, link.document), sides, tops, strict=True)
    ]
    axes.plot((0.03, 0.97), ends, color=MORE if link.share > 0 else LESS, lw=1, zorder=0)

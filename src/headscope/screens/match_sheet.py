"""Documents that match a query: the ranking, the two texts with ink, the strongest words and what masking them does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.results.match_record import SIDES, Link
from headscope.results.score_parts import KAPPA, strongest
from headscope.screens.explain_sheets import masking_notes, part_bars, part_record, trust
from headscope.screens.inked import inked_text
from headscope.screens.labels import printable
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Drawing, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.results.match_record import Match, MatchedText
    from headscope.results.ranking import Above, Matches
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
WORDS = (
    Column("word", kind="code"),
    Column("share", align="right", form="+.4f"),
    Column("query", kind="code"),
    Column("document", kind="code"),
)


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
    drawings: list[Drawing] = [prose(f"document {number}: {match.scoring.measure} {match.score:.4f}"), blank]
    for side in SIDES:
        drawings += [*inked_side(getattr(match, side)), blank]
    for side in SIDES:
        unit = match.unit(side) if by == "word" and side == "document" else by
        parts = with_changes(match.parts(side, unit), match.checks)
        drawings += [
            part_bars(parts, rows, noun=f"{side} {unit}", unit=match.scoring.measure, ranks=ranks),
            blank,
        ]
    if match.found:
        drawings += [table(_found(match, rows)), blank]
    if match.dimensions:
        drawings += [table(_dimensions(match, rows)), blank]
    return [*drawings, *(() if links is None else _links(match, links)), notes(_sums(match))]


def with_changes(parts: Sequence[Part], checks: Sequence[Part]) -> list[Part]:
    """The parts, those that were masked as they were checked."""
    known = {(part.side, part.tokens): part for part in checks}
    return [known.get((part.side, part.tokens), part) for part in parts]


def inked_side(side: MatchedText) -> list[Drawing]:
    """The words of one side, each shaded by its share."""
    words = [part for part in side.parts() if not part.special]
    return [inked_text([printable(part.label) for part in words], np.array([part.share for part in words]))]


def _found(match: Match, rows: int) -> Table:
    query, document = match.query.axis.tokens, match.document.axis.tokens
    found = [
        (
            query[one.query] + (" (expansion)" if one.expansion else ""),
            document[one.document],
            one.similarity,
            one.margin,
        )
        for one in match.found
    ]
    return Table(FOUND, tuple(sorted(found, key=lambda row: -row[2])[:rows]))


def _dimensions(match: Match, rows: int) -> Table:
    query, document = match.query.axis.tokens, match.document.axis.tokens
    return Table(
        WORDS,
        tuple((one.word, one.share, query[one.query], document[one.document]) for one in match.dimensions[:rows]),
    )


def _links(match: Match, links: list[Link]) -> list[Drawing]:
    """The strongest links as a table."""
    if not links:
        return [notes(["links: no strong pair of words is confirmed by leaving both out"]), blank]
    columns = LINKS if match.pairs is not None else EDGES
    rows = [
        (
            one.query.label,
            one.document.label,
            *((f"{one.head[0]}.{one.head[1]}",) if one.head else ()),
            one.share,
            change,
        )
        for one in links
        for change in (one.together if one.head is None else -one.together,)
    ]
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
    order = result.ranking()
    above = result.above(order[0], order[1]) if len(order) > 1 else None
    return {
        "model": model,
        "kind": result[0].scoring.kind,
        "measure": result[0].scoring.measure,
        "level": result[0].level,
        "ranking": order,
        "documents": [_match_record(match) for match in result],
        "links": [asdict(link) | {side: getattr(link, side).label for side in SIDES} for link in links],
        "above": None
        if above is None
        else {
            "first": above.first,
            "second": above.second,
            "difference": above.difference,
            "query": [part_record(part) for part in above.query],
            "rest": above.rest,
        },
    }


def _match_record(match: Match) -> dict[str, Any]:
    return {
        "score": match.score,
        "returned": match.returned,
        "kappa": match.kappa,
        **{
            side: {
                "text": getattr(match, side).text,
                "parts": [part_record(part) for part in match.parts(side)],
                "rest": getattr(match, side).rest,
            }
            for side in SIDES
        },
        "found": [asdict(one) for one in match.found],
        "dimensions": [asdict(one) for one in match.dimensions],
        "checks": [part_record(part) for part in match.checks],
        "notes": list(match.notes),
    }

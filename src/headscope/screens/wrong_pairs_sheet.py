"""Matches of many pairs: how many are wrong, which words draw them together, which are confused with which."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headscope.checkpoint import called
from headscope.results.matching import SIDES
from headscope.screens.explain_sheets import part_record
from headscope.screens.labels import printable
from headscope.screens.match_sheet import inked_side, with_changes
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Drawing, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.results.wrong_pairs import MatchedPairs, WrongPair

TOP = 5
CONFUSED = (
    Column("query", kind="code"),
    Column("document", kind="code"),
    Column("pairs", align="right"),
    Column("share", align="right", form="+.4f"),
    Column("interaction", align="right", form="+.4f"),
)
WRONG = (
    Column("pair"),
    Column("label", align="right"),
    Column("score", align="right", form="+.4f"),
    Column("wrong by", align="right", form=".4f"),
    Column("words", kind="prose"),
)


def wrong_pairs_sheet(result: MatchedPairs, top: int | None = None) -> Sheet:
    """The pairs among many that a model gets wrong, by words.

    Args:
        result: the matches.
        top: most rows of a table, and wrong pairs that are shown with ink.
    """
    rows = top or TOP
    drawings: list[Drawing] = [
        title(f"{result.mistakes} of {result.pairs} pairs are wrong", called(result.model)),
        blank,
    ]
    if result.wrong:
        confused = [(one.query, one.document, one.pairs, one.share, one.together) for one in result.confused()]
        heading = "words that draw together what doesn't belong together"
        drawings += [table(Table(CONFUSED, tuple(confused[:rows]), title=heading)), blank, table(_wrong(result, rows))]
        for one in result.wrong[:rows]:
            drawings += [blank, prose(f"{one.pair}: {one.match.scoring.measure} {one.match.score:.4f}"), *_inked(one)]
    drawings += [blank, notes([f"the table of all pairs: {result.path}"])]
    return Sheet(lambda: _record(result), lambda: _wrong(result, top), tuple(drawings), schema="match-pairs")


def _wrong(result: MatchedPairs, rows: int | None) -> Table:
    return Table(
        WRONG,
        tuple(
            (
                one.pair,
                one.label,
                one.match.score,
                one.by,
                "; ".join(map(str, one.match.checks or one.match.strongest())),
            )
            for one in result.wrong[:rows]
        ),
    )


def _inked(one: WrongPair) -> list[Drawing]:
    return [drawing for side in SIDES for drawing in inked_side(getattr(one.match, side))]


def _record(result: MatchedPairs) -> dict[str, Any]:
    return {
        "model": result.model,
        "table": printable(str(result.path)),
        "pairs": result.pairs,
        "mistakes": result.mistakes,
        "confused": [asdict(one) for one in result.confused()],
        "wrong": [
            {
                "pair": one.pair,
                "label": one.label,
                "by": one.by,
                "score": one.match.score,
                "query": one.match.query.text,
                "document": one.match.document.text,
                "words": [
                    part_record(part)
                    for side in SIDES
                    for part in with_changes(one.match.parts(side), one.match.checks)
                    if not part.special
                ],
            }
            for one in result.wrong
        ],
    }

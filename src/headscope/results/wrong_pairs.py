"""Matches of many pairs: where the table is, the wrong pairs taken apart, and which words they have in common."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.results.matching import Link, Match

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, eq=False)
class WrongPair:
    """A pair that the model gets wrong.

    Attributes:
        pair: its name.
        label: 0 for texts that don't belong together, and yet score high; 1 for the opposite.
        by: how far its score is on the wrong side.
        match: the score taken apart, with its strongest words masked for real.
        links: the strongest pairs of words that leaving both out confirms.
    """

    pair: str
    label: int
    by: float
    match: Match
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Confused:
    """A word of queries and a word of documents that draw wrong pairs together.

    Attributes:
        query: the query's word, in lower case.
        document: the document's word, likewise.
        pairs: wrong pairs with this link.
        share: the mean over them of Link.share.
        together: the mean over them of Link.together.
    """

    query: str
    document: str
    pairs: int
    share: float
    together: float


@dataclass(frozen=True, eq=False)
class MatchedPairs:
    """The matches of many pairs.

    Attributes:
        model: the model's name.
        path: of the table: matches.parquet.
        pairs: rows of it.
        mistakes: wrong pairs among them.
        wrong: those that were taken apart, the most wrong first.
    """

    model: str
    path: Path
    pairs: int
    mistakes: int
    wrong: tuple[WrongPair, ...] = field(repr=False)

    def table(self) -> pyarrow.Table:
        """The table, read."""
        from pyarrow import parquet

        return parquet.read_table(self.path)

    def confused(self) -> list[Confused]:
        """Pairs of words that draw together what doesn't belong together, those of most wrong pairs first."""
        seen: dict[tuple[str, str], list[Link]] = defaultdict(list)
        for one in self.wrong:
            for link in one.links if one.label == 0 else ():
                if link.share > 0:
                    seen[link.query.label.lower(), link.document.label.lower()].append(link)
        rows = [
            Confused(*words, len(links), *(float(np.mean([getattr(link, of) for link in links])) for of in MEANS))
            for words, links in seen.items()
        ]
        return sorted(rows, key=lambda row: (-row.pairs, -row.share))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each wrong pair that was taken apart."""
        return [
            {
                "pair": one.pair,
                "label": one.label,
                "by": one.by,
                "score": one.match.score,
                "words": [f"{part.side} {part}" for part in one.match.checks or one.match.strongest()],
                "links": [f"{link.query.label} - {link.document.label}" for link in one.links],
            }
            for one in self.wrong
        ]

    def __repr__(self) -> str:
        return f"{self.pairs} pairs by {self.model}, {self.mistakes} of them wrong: {self.path}"


MEANS = ("share", "together")

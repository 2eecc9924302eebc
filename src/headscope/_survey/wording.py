"""A survey's numbers in words: units, rounding, and which heads stand out in what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope._survey.findings import Findings
from headscope.statistics import CATALOG

if TYPE_CHECKING:
    import pyarrow

NAMED = 3
"""How many heads a sentence names."""


@dataclass(frozen=True)
class Telling:
    """The heads at one end of a statistic.

    Attributes:
        says: the predicate of the first of them.
        heads: (layer, head, mean), the most telling first.
        low, high: the quantiles 25% and 75% of the first head's windows.
        middle: the median head's mean.
    """

    statistic: str
    says: str
    heads: tuple[tuple[int, int, float], ...]
    low: float
    high: float
    middle: float


def shown(value: float) -> str:
    """A number as the report rounds it: three decimals below 10, fewer above; a dash for NaN."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0}f}"


def counted(number: int, thing: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def telling(found: Findings, statistic: str) -> list[Telling]:
    """The heads that stand out in a statistic, at both ends where both mean something; none of one head."""
    means = found.values(statistic)
    places = np.argwhere(np.isfinite(means))
    if len(places) < 2:
        return []
    values = means[tuple(places.T)]
    sentences = []
    for says, sign in ((CATALOG[statistic].most, -1.0), (CATALOG[statistic].least, 1.0)):
        if not says:
            continue
        order = np.argsort(sign * values, kind="stable")[:NAMED]
        first = tuple(places[order[0]])
        heads = tuple(
            (found.layers[int(places[at][0])], found.heads[int(places[at][1])], float(values[at])) for at in order
        )
        low, high = (float(found.values(statistic, field)[first]) for field in ("q25", "q75"))
        sentences.append(Telling(statistic, says, heads, low, high, float(np.median(values))))
    return sentences


def syntax_sentences(table: pyarrow.Table, most: int = NAMED) -> list[str]:
    """The relations with the largest margin above the best fixed offset, held out, a sentence each."""
    rows = [row for row in table.to_pylist() if row["accuracy_held_out"] is not None]
    if not rows:
        return ["syntax: no accuracy can be held out; that takes relations in two documents or more"]
    rows.sort(key=lambda row: (row["offset_accuracy"] - row["accuracy_held_out"], row["relation"], row["direction"]))
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        best.setdefault(row["relation"], row)
    return [_syntax_sentence(row) for row in list(best.values())[:most]]


def _syntax_sentence(row: dict[str, Any]) -> str:
    interval = "" if row["low"] is None else f" (95% interval {row['low']:.0%} to {row['high']:.0%})"
    share = f"{row['accuracy_held_out']:.0%}"
    act = (
        f"a dependent's strongest word is its head in {share} of cases"
        if row["direction"] == "dependent->head"
        else f"the word that looks at a dependent most is its head in {share} of cases"
    )
    return (
        f"{row['relation']}: in head {row['layer']}.{row['head']}, {act}{interval}, held out; "
        f"the best fixed offset, {row['offset']:+d}, gives {row['offset_accuracy']:.0%}"
    )

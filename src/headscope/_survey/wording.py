"""A survey's numbers as text: rounding, counts, and the heads that stand out in each statistic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headscope._survey.findings import Findings
from headscope.statistics import CATALOG

NAMED = 3
"""Heads that a sentence names."""


@dataclass(frozen=True)
class Extreme:
    """The heads at one end of a statistic's range.

    Attributes:
        says: a predicate for the first of them.
        heads: (layer, head, mean), the most extreme first.
        low, high: the 25% and 75% quantiles of the first head over windows.
        middle: the median of the heads' means.
    """

    statistic: str
    says: str
    heads: tuple[tuple[int, int, float], ...]
    low: float
    high: float
    middle: float


def rounded(value: float) -> str:
    """A number as the report rounds it: three decimals below 10, fewer above; a dash for NaN."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0}f}"


def counted(number: int, thing: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def extremes(findings: Findings, statistic: str) -> list[Extreme]:
    """The heads that stand out in a statistic, at each end that means something. Empty for a single head."""
    means = findings.values(statistic)
    places = np.argwhere(np.isfinite(means))
    if len(places) < 2:
        return []
    values = means[tuple(places.T)]
    sentences = []
    for says, sign in ((CATALOG[statistic].most, -1.0), (CATALOG[statistic].least, 1.0)):
        if not says:
            continue
        order = np.argsort(sign * values, kind="stable")[:NAMED]
        if CATALOG[statistic].signed:  # "ahead" is said of heads that look ahead
            order = order[sign * values[order] < 0]
            if not len(order):
                continue
        first = tuple(places[order[0]])
        heads = tuple(
            (findings.layers[int(places[at][0])], findings.heads[int(places[at][1])], float(values[at])) for at in order
        )
        low, high = (float(findings.values(statistic, field)[first]) for field in ("q25", "q75"))
        sentences.append(Extreme(statistic, says, heads, low, high, float(np.median(values))))
    return sentences

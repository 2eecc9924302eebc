"""A survey's numbers in words: units, rounding, and which heads stand out in what."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headscope.statistics import MEANINGS
from headscope.survey.findings import Findings

UNITS = {
    "entropy": "nats",
    "normalised_entropy": "0 to 1",
    "effective_tokens": "tokens",
    "strongest": "weight, 0 to 1",
    "previous": "weight, 0 to 1",
    "next": "weight, 0 to 1",
    "same": "weight, 0 to 1",
    "first": "weight, 0 to 1",
    "cls": "weight, 0 to 1",
    "sep": "weight, 0 to 1",
    "punctuation": "weight, 0 to 1",
    "other_sentence": "weight, 0 to 1",
    "offset": "tokens; negative looks back",
    "distance": "tokens",
    "norm": "length, as hidden states",
    "norm_special": "share, 0 to 1",
}
"""Unit and range of every statistic."""
SIGNED = frozenset({"offset"})

MOST = {
    "entropy": "spreads its weight widest",
    "normalised_entropy": "comes nearest to the same weight for every key",
    "effective_tokens": "attends to the most tokens at once",
    "strongest": "holds most to one token at a time",
    "previous": "looks most at the token before",
    "next": "looks most at the token after",
    "same": "looks most at the token itself",
    "first": "looks most at the first token",
    "cls": "looks most at [CLS]",
    "sep": "looks most at [SEP]",
    "punctuation": "looks most at punctuation",
    "other_sentence": "looks most at the other text of a pair",
    "offset": "looks furthest ahead on average",
    "distance": "looks furthest away",
    "norm": "gathers the longest vectors",
    "norm_special": "takes the largest share of what it gathers from special tokens",
}
LEAST = {
    "entropy": "is the most focused",
    "normalised_entropy": "is the most focused for the keys that it may look at",
    "effective_tokens": "attends to the fewest tokens at once",
    "offset": "looks furthest back on average",
    "distance": "stays nearest",
    "norm": "gathers the shortest vectors",
}
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


def meaning(statistic: str) -> str:
    """What a statistic measures, with its unit where the words don't have it."""
    text, unit = MEANINGS[statistic], UNITS[statistic]
    return text if unit.split(";")[0] in text else f"{text} ({unit})"


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
    for says, sign in ((MOST.get(statistic), -1.0), (LEAST.get(statistic), 1.0)):
        if says is None:
            continue
        order = np.argsort(sign * values, kind="stable")[:NAMED]
        first = tuple(places[order[0]])
        heads = tuple(
            (found.layers[int(places[at][0])], found.heads[int(places[at][1])], float(values[at])) for at in order
        )
        low, high = (float(found.values(statistic, field)[first]) for field in ("q25", "q75"))
        sentences.append(Telling(statistic, says, heads, low, high, float(np.median(values))))
    return sentences

"""A head's pattern in a word: the place with most of its weight, if it has enough; otherwise even or mixed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope._trace import is_broken
from headscope.statistics import CATALOG, roles_of
from headscope.statistics.reference import head_means

if TYPE_CHECKING:
    from headscope._trace import Trace

STRONG = 0.4
"""Least mean weight for a head to be named after a pattern."""
EVEN = 0.9
"""Least normalised entropy for a head to be called even."""

PLACES = ("previous", "same", "next", "first", "sep")
"""The statistics that a pattern is named after."""
MEASURES = (*PLACES, "entropy", "normalised_entropy")

NAN = "NaN"
MEANINGS = {
    **{name: CATALOG[name].meaning.removeprefix("weight on ") for name in PLACES},
    "even": "nearly the same for all",
    "mixed": "none of these",
    NAN: "not a number",
}
"""Pattern -> its meaning."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One head on one text.

    Attributes:
        layer, head: their numbers in the model.
        means: MEASURES by name, as means over the queries that have them; 0 if none has, NaN if the head's weights are
            not numbers.
    """

    layer: int
    head: int
    means: Mapping[str, float]

    @property
    def broken(self) -> bool:
        """True if the weights are not numbers."""
        return math.isnan(self.means["entropy"])

    @property
    def name(self) -> str:
        """The strongest place if it is strong enough, otherwise `even` or `mixed`; `NaN` for a broken head."""
        if self.broken:
            return NAN
        strongest = max(PLACES, key=self.means.__getitem__)
        if self.means[strongest] >= STRONG:
            return strongest
        return "even" if self.means["normalised_entropy"] >= EVEN else "mixed"


def all_patterns(trace: Trace, layers: Sequence[int] | None = None) -> list[Pattern]:
    """The patterns of the trace's heads, of all layers or those with these numbers, layer by layer."""
    roles = roles_of(trace)
    patterns: list[Pattern] = []
    for layer in trace.numbers if layers is None else layers:
        record = trace.layers[trace.numbers.index(layer)]
        means = head_means(
            record.q, record.k, scale=record.scale, roles=roles, mask=record.mask, terms=record.terms, names=MEASURES
        )
        broken = is_broken(record)
        columns = {name: np.where(broken, np.nan, np.nan_to_num(values)) for name, values in means.items()}
        for at, head in enumerate(trace.head_numbers(layer)):
            patterns.append(Pattern(layer, head, {name: float(values[at]) for name, values in columns.items()}))
    return patterns

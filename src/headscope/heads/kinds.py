"""Kinds of heads: one table of thresholds for what is said of them; and patterns, a head of a text in a word.

A pattern is the place with most of a head's weight, if it has enough; otherwise `even` or `mixed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headscope.heads import CATALOG

STRONG, EVEN = 0.4, 0.9
"""Least mean weight for a pattern at a place, and least normalised entropy for `even`."""


@dataclass(frozen=True)
class Kind:
    """A kind of head, with the least number of each claim that is made about it; None where none is made.

    A pattern and a finding are different claims: neither follows from the other, and each has its own threshold.

    Attributes:
        pattern: the mean weight, for `even` the normalised entropy, from which the overview of a text names heads so.
        finding: the number from which a finding says so; for `negligible`, up to which.
        source: of the finding's threshold.
    """

    pattern: float | None = None
    finding: float | None = None
    source: str = ""


KINDS = {
    "previous": Kind(STRONG, 0.5, "a mean weight above one half, Clark et al. 2019, 3.1"),
    "same": Kind(STRONG, 0.5, "likewise"),
    "next": Kind(STRONG, 0.5, "likewise"),
    "first": Kind(STRONG),
    "cls": Kind(None, 0.5, source="a mean weight above one half on all tokens of the role, Clark et al. 2019, 3.2"),
    "sep": Kind(STRONG, 0.5, "likewise"),
    "punctuation": Kind(None, 0.5, "likewise"),
    "same_word": Kind(None, 0.3, "ours; Wang et al. 2023 name duplicate-token heads without a threshold"),
    "even": Kind(EVEN),
    "link": Kind(finding=0.3, source="ours: one weight; a query can give as much to three keys at most"),
    "alike": Kind(finding=0.8, source="ours: the mean share of weight that two heads put on the same keys"),
    "negligible": Kind(finding=0.1, source="ours: mean length of what a head writes, over that of its layer's heads"),
}
"""Name -> kind, in the order in which places are compared."""

PLACES = tuple(name for name, kind in KINDS.items() if kind.pattern == STRONG)
"""The statistics that a pattern is named after."""
MEASURES = (*PLACES, "entropy", "normalised_entropy")
FINDINGS = {name: kind.finding for name, kind in KINDS.items() if kind.finding is not None}
"""Kind -> the number from which there is something to say about a text."""

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

    @staticmethod
    def of(layer: int, head: int, means: Mapping[str, float]) -> Pattern:
        """A head from its means, NaN where no query has one; all are NaN if the entropy is."""
        broken = math.isnan(means["entropy"])
        missing = math.nan if broken else 0.0
        return Pattern(layer, head, {name: missing if broken or math.isnan(at) else at for name, at in means.items()})

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

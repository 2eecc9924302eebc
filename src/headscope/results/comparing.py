"""Answers about two sides, matches and surveys, as JSON. See headscope.results.answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.results.answers import PartRow
from headscope.results.matching import Dimension, Found


@dataclass(frozen=True)
class OutputUnit:
    """The output of effects that are compared.

    Attributes:
        output: its meaning.
        unit: of its number.
    """

    output: str
    unit: str


@dataclass(frozen=True)
class CompareAnswer:
    """The heads of two checkpoints, or of one over two corpora, side by side.

    Attributes:
        a: the first side.
        b: the other; a change is b less a.
        differs: false if nothing does.
        findings: the answer, in sentences.
        outside: change of each part outside the layers.
        left_out: measures that could not be compared, each with the reason.
        layers: for each layer the change of its parts.
        documents: documents that statistics and effects were measured over.
        effects: the output whose effects are compared; null without them.
        heads: for each head layer, head and everything that was compared: `_a`, `_b`, `_change`, `_low`, `_high`.
        notes: what has to be known about the sides.
    """

    a: str
    b: str
    differs: bool
    findings: list[str]
    outside: dict[str, float | None]
    left_out: dict[str, str]
    layers: list[dict[str, float | None]]
    documents: int
    effects: OutputUnit | None
    heads: list[dict[str, Any]]
    notes: list[str]


@dataclass(frozen=True)
class MeasuredStatistic:
    """A statistic of every head over a corpus; every number is a list of layers, of heads.

    Attributes:
        meaning: of the statistic.
        count: windows that have a number.
        mean: over them.
        deviation: standard deviation.
        min: the smallest.
        q05, q25, q50, q75, q95: quantiles.
        max: the greatest.
    """

    meaning: str
    count: list[list[int]]
    mean: list[list[float | None]]
    deviation: list[list[float | None]]
    min: list[list[float | None]]
    q05: list[list[float | None]]
    q25: list[list[float | None]]
    q50: list[list[float | None]]
    q75: list[list[float | None]]
    q95: list[list[float | None]]
    max: list[list[float | None]]


@dataclass(frozen=True)
class SurveyAnswer:
    """The statistics of a corpus.

    Attributes:
        windows: the number of them.
        layers: the layers' numbers.
        heads: of each layer, the heads' numbers.
        statistics: of each, its numbers.
        seal: a hash of the numbers, by which a damaged file is found.
    """

    windows: int
    layers: list[int]
    heads: list[list[int]]
    statistics: dict[str, MeasuredStatistic]
    seal: str


@dataclass(frozen=True)
class MatchedSideRow:
    """A text of a match.

    Attributes:
        text: with the prompt before it.
        parts: what each word adds to the score.
        rest: what no word adds. Shares and rest are the score; of a cross-encoder, both texts' shares and one rest.
    """

    text: str
    parts: list[PartRow]
    rest: float


@dataclass(frozen=True)
class LinkRow:
    """A word of the query and one of the document that need each other.

    Attributes:
        query: the query's word.
        document: the document's word.
        share: the sum of their cells; of a cross-encoder, the head's weight.
        together: what the score has from the two only together; of a cross-encoder, what cutting the edge takes.
        head: of a cross-encoder, [layer, head].
    """

    query: str
    document: str
    share: float
    together: float
    head: list[int] | None


@dataclass(frozen=True)
class MatchRow:
    """A document's score, taken apart.

    Attributes:
        score: what the parts add up to.
        returned: what the model's own `predict` or `similarity` gives.
        kappa: the sizes of the parts over that of the score.
        query: the query's side.
        document: the document's side.
        found: in late interaction, what each of the query's tokens found.
        dimensions: of a sparse model, words of the vocabulary.
        checks: the strongest words, each masked for real.
        notes: a prompt that was added, a text that was cut.
    """

    score: float
    returned: float
    kappa: float | None
    query: MatchedSideRow
    document: MatchedSideRow
    found: list[Found]
    dimensions: list[Dimension]
    checks: list[PartRow]
    notes: list[str]


@dataclass(frozen=True)
class AboveRow:
    """The reasons that one document stands above another.

    Attributes:
        first: number of the document that stands above.
        second: number of the other.
        difference: of their scores.
        query: what each of the query's words adds to it; of a cross-encoder, likewise.
        rest: what no word of the query adds.
    """

    first: int
    second: int
    difference: float
    query: list[PartRow]
    rest: float


@dataclass(frozen=True)
class MatchAnswer:
    """A query and its documents: which words make them match.

    Attributes:
        model: the model's name.
        kind: bi, late, sparse or cross.
        measure: cosine, dot, maxsim or logit.
        level: input or output.
        ranking: the documents' numbers, the best first.
        documents: one for each, in the order given.
        links: pairs of words of the best document that leaving both out confirms; empty if they were not asked for.
        above: why the first stands above the second; null for one document.
    """

    model: str
    kind: str
    measure: str
    level: str
    ranking: list[int]
    documents: list[MatchRow]
    links: list[LinkRow]
    above: AboveRow | None

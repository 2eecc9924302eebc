"""Answers about two sides, matches and surveys, as JSON. See headscope.results.answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Of
from typing import Any

from headscope.results.answers import PartRow
from headscope.results.match_record import Dimension, Found


@dataclass(frozen=True)
class OutputUnit:
    """The output of effects that are compared."""

    output: Of[str, "its meaning."]
    unit: Of[str, "of its number."]


@dataclass(frozen=True)
class CompareAnswer:
    """The heads of two checkpoints, or of one over two corpora, side by side."""

    a: Of[str, "the first side."]
    b: Of[str, "the other; a change is b less a."]
    differs: Of[bool, "false if nothing does."]
    findings: Of[list[str], "the answer, in sentences."]
    outside: Of[dict[str, float | None], "change of each part outside the layers."]
    left_out: Of[dict[str, str], "measures that could not be compared, each with the reason."]
    layers: Of[list[dict[str, float | None]], "for each layer the change of its parts."]
    documents: Of[int, "documents that statistics and effects were measured over."]
    effects: Of[OutputUnit | None, "the output whose effects are compared; null without them."]
    heads: Of[
        list[dict[str, Any]],
        "for each head layer, head and everything that was compared: `_a`, `_b`, `_change`, `_low`, `_high`.",
    ]
    notes: Of[list[str], "what has to be known about the sides."]


@dataclass(frozen=True)
class MeasuredStatistic:
    """A statistic of every head over a corpus; every number is a list of layers, of heads."""

    meaning: Of[str, "of the statistic."]
    count: Of[list[list[int]], "windows that have a number."]
    mean: Of[list[list[float | None]], "over them."]
    deviation: Of[list[list[float | None]], "standard deviation."]
    min: Of[list[list[float | None]], "the smallest."]
    q05: Of[list[list[float | None]], "quantiles."]
    q25: Of[list[list[float | None]], "quantiles."]
    q50: Of[list[list[float | None]], "quantiles."]
    q75: Of[list[list[float | None]], "quantiles."]
    q95: Of[list[list[float | None]], "quantiles."]
    max: Of[list[list[float | None]], "the greatest."]


@dataclass(frozen=True)
class SurveyAnswer:
    """The statistics of a corpus."""

    windows: Of[int, "the number of them."]
    layers: Of[list[int], "the layers' numbers."]
    heads: Of[list[list[int]], "of each layer, the heads' numbers."]
    statistics: Of[dict[str, MeasuredStatistic], "of each, its numbers."]
    seal: Of[str, "a hash of the numbers, by which a damaged file is found."]


@dataclass(frozen=True)
class MatchedSideRow:
    """A text of a match."""

    text: Of[str, "with the prompt before it."]
    parts: Of[list[PartRow], "what each word adds to the score."]
    rest: Of[
        float, "what no word adds. Shares and rest are the score; of a cross-encoder, both texts' shares and one rest."
    ]


@dataclass(frozen=True)
class LinkRow:
    """A word of the query and one of the document that need each other."""

    query: Of[str, "the query's word."]
    document: Of[str, "the document's word."]
    share: Of[float, "the sum of their cells; of a cross-encoder, the head's weight."]
    together: Of[
        float, "what the score has from the two only together; of a cross-encoder, what cutting the edge takes."
    ]
    head: Of[list[int] | None, "of a cross-encoder, [layer, head]."]


@dataclass(frozen=True)
class MatchRow:
    """A document's score, taken apart."""

    score: Of[float, "what the parts add up to."]
    returned: Of[float, "what the model's own `predict` or `similarity` gives."]
    kappa: Of[float | None, "the sizes of the parts over that of the score."]
    query: Of[MatchedSideRow, "the query's side."]
    document: Of[MatchedSideRow, "the document's side."]
    found: Of[list[Found], "in late interaction, what each of the query's tokens found."]
    dimensions: Of[list[Dimension], "of a sparse model, words of the vocabulary."]
    checks: Of[list[PartRow], "the strongest words, each masked for real."]
    notes: Of[list[str], "a prompt that was added, a text that was cut."]


@dataclass(frozen=True)
class AboveRow:
    """The reasons that one document stands above another."""

    first: Of[int, "number of the document that stands above."]
    second: Of[int, "number of the other."]
    difference: Of[float, "of their scores."]
    query: Of[list[PartRow], "what each of the query's words adds to it; of a cross-encoder, likewise."]
    rest: Of[float, "what no word of the query adds."]


@dataclass(frozen=True)
class MatchAnswer:
    """A query and its documents: which words make them match."""

    model: Of[str, "the model's name."]
    kind: Of[str, "bi, late, sparse or cross."]
    measure: Of[str, "cosine, dot, maxsim or logit."]
    level: Of[str, "input or output."]
    ranking: Of[list[int], "the documents' numbers, the best first."]
    documents: Of[list[MatchRow], "one for each, in the order given."]
    links: Of[
        list[LinkRow],
        "pairs of words of the best document that leaving both out confirms; empty if they were not asked for.",
    ]
    above: Of[AboveRow | None, "why the first stands above the second; null for one document."]

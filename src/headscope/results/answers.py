"""Answers of commands as JSON: a dataclass for each, from which its JSON Schema follows (docs/schemas).

Every record of `--json` begins with `schema` (`headscope/COMMAND`) and `version`, which rises when a field changes its
meaning or goes. A field with a default may be missing. The server of `headscope mcp` gives the same records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated as Of
from typing import Any, Union, get_args, get_origin, get_type_hints

from headscope.results.explained import Finding, LabelShare
from headscope.results.match_record import Dimension, Found
from headscope.results.verify_report import Check


class Row:
    """An answer, or a record in one: every class of them is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class OfModel(Row):
    """An answer about one model."""

    model: Of[str, "the model's name."]


class Slice(Row):
    """The part of a tensor that belongs to one head."""

    name: Of[str, "W_Q, W_K, W_V, W_O or a bias."]
    shape: Of[list[int], "its shape."]
    tensor: Of[str | None, "the tensor that it lies in; null if it is computed."]
    axis: Of[str | None, "rows or columns."]
    start: Of[int | None, "the first of them."]
    stop: Of[int | None, "the one after the last."]
    norm: Of[float | None, "Frobenius norm."]
    first: Of[list[float | None], "the first numbers."]


class _OneHead(Row):
    """An answer about one head, or a record of one."""

    layer: Of[int, "from 0."]
    head: Of[int, "from 0."]


class HeadAnswer(_OneHead, OfModel):
    """One head's weights."""

    expansion_rate: Of[float | None, "the factor by which W_V W_O lengthens a vector."]
    slices: Of[list[Slice], "its parts of the tensors."]


class Choice(Row):
    """A token for a mask."""

    token: Of[str, "as the vocabulary spells it."]
    id: Of[int, "its id."]
    probability: Of[float, "0 to 1, over the whole vocabulary."]


class Mask(Row):
    """The likeliest tokens for one mask."""

    position: Of[int, "of the mask among the tokens, from 0."]
    pieces: Of[list[Choice], "the tokens, the likeliest first."]


class FillAnswer(OfModel):
    """The likeliest tokens for each mask of a text."""

    tokens: Of[list[str], "the text's tokens."]
    masks: Of[list[Mask], "one for each mask."]
    notes: Of[list[str] | None, "what was done to the text; missing where nothing was."] = None


class ClassRow(Row):
    """A class with its score."""

    label: Of[str, "its name, or its number."]
    logit: Of[float, "its score."]
    probability: Of[float | None, "0 to 1; missing for a regression."] = None
    position: Of[int | None, "of the token that is labelled; missing for a class of the whole text."] = None
    token: Of[str | None, "that token."] = None


class PredictAnswer(OfModel):
    """The classes that a classifier predicts."""

    tokens: Of[list[str], "the text's tokens."]
    task: Of[str, "`sequence` or `token`."]
    labels: Of[list[str], "the names of all classes."]
    predictions: Of[list[ClassRow], "the classes, the likeliest first, or the likeliest class of each token."]
    notes: Of[list[str] | None, "what was done to the text; missing where nothing was."] = None


class OutputRow(Row):
    """An output of a model."""

    kind: Of[str, "word, class, score, token, embedding, embedding_distance or similarity."]
    label: Of[str, "the word, the class, or the other text."]
    index: Of[int | None, "its logit; null for vectors."]
    position: Of[int | None, "the token where it is read; null for all of them."]
    unit: Of[str, "of its number."]
    default: Of[bool, "true if it was chosen by default."]


class TargetRow(OutputRow):
    """The output that is explained."""

    against: Of[OutputRow | None, "the output whose number is taken from it."]


class EffectRow(_OneHead):
    """The effect of one head."""

    change: Of[float | None, "the number with the head changed less the number as it is."]
    probability: Of[float | None, "of the word or class with the head changed."] = None
    cosine: Of[float | None, "of the vector with the unchanged one."] = None


class EffectsAnswer(OfModel):
    """The effect of changing each head on one output."""

    text: Of[str, "the text."]
    pair: Of[str | None, "the second text."]
    patch_from: Of[str | None, "the text that contexts come from."]
    tokens: Of[list[str], "the text's tokens."]
    target: Of[TargetRow, "the output."]
    method: Of[str, "how heads are changed."]
    base: Of[float, "the output's number as it is."]
    probability: Of[float | None, "of the word or class as it is."] = None
    cosine: Of[float | None, "of the vector as it is."] = None
    predictions: Of[list[ClassRow] | None, "of a classifier, its classes, the likeliest first."] = None
    notes: Of[list[str], "what was added to the text, lower-cased or cut."]
    heads: Of[list[EffectRow], "one for each head."]


class PartRow(Row):
    """A stretch of a text with its share of a number."""

    label: Of[str, "the stretch as it stands in the text."]
    tokens: Of[list[int], "positions of its tokens."]
    share: Of[float, "its part of the number."]
    special: Of[bool, "true for a token that the tokenizer added."]
    change: Of[float | None, "the number less the number with these tokens masked; null if they weren't masked."]
    side: Of[str, "query or document, of a score of two texts; otherwise empty."]
    contradicted: Of[bool, "true if masking it moves the number the other way."]


class TokenScore(Row):
    """Contribution of one token."""

    position: Of[int, "from 0."]
    token: Of[str, "the token."]
    score: Of[float | None, "its part of the output."]


class AttributeAnswer(OfModel):
    """Contribution of each token to one output."""

    text: Of[str, "the text."]
    pair: Of[str | None, "the second text."]
    target: Of[TargetRow, "the output."]
    predictions: Of[list[LabelShare], "the model's choice where the target is read, and the runner-up."]
    method: Of[str, "how parts are found."]
    total: Of[float, "the output's number."]
    rest: Of[float | None, "the part of no token; null where parts don't add up."]
    gap: Of[float | None, "what is missing from the sum."]
    kappa: Of[float | None, "the sizes of the parts over that of the number; null where parts don't add up."]
    notes: Of[list[str], "what was added to the text, lower-cased or cut."]
    tokens: Of[list[TokenScore], "one for each token."]
    parts: Of[list[PartRow], "the tokens' scores by words, sentences or tokens."]
    checks: Of[list[PartRow], "the strongest of them, each masked for real."]


class LookingHead(_OneHead):
    """A head and the word that it looks at from one token."""

    query: Of[int, "position of the token that looks."]
    query_token: Of[str, "that token."]
    key: Of[int, "position of the token that it looks at most."]
    key_token: Of[str, "that token."]
    weight: Of[float | None, "0 to 1."]


class OfTrace(OfModel):
    """An answer about the attention of one text."""

    tokens: Of[list[str], "the text's tokens."]
    ids: Of[list[int], "their ids."]
    segments: Of[list[int], "0 for the first text, 1 for the second."]
    ablated: Of[list[list[int]], "silenced heads, [layer, head]."]
    broken: Of[list[list[int]], "heads whose weights are not numbers."]


class Asides(Row):
    """Fields of a trace that are mostly missing."""

    swapped: Of[list[list[int | str]] | None, "heads under another map, [layer, head, way]."] = None
    unrecorded: Of[list[str] | None, "attention that ran and was not recorded."] = None
    notes: Of[list[str] | None, "what was done to the text; missing where nothing was."] = None


class LookingAnswer(OfTrace):
    """The heads that look from one token most: `attend TEXT -q TOKEN` without a head."""

    query: Of[int, "position of the token that looks."]
    heads: Of[list[LookingHead], "the heads, the greatest weight first."]
    swapped: Of[list[list[int | str]] | None, "heads under another map, [layer, head, way]."] = None
    unrecorded: Of[list[str] | None, "attention that ran and was not recorded."] = None
    notes: Of[list[str] | None, "what was done to the text; missing where nothing was."] = None


class PatternRow(_OneHead):
    """Mean weights of a head, over all queries of a text."""

    pattern: Of[str, "previous, same, next, first, sep, even or mixed; NaN for a broken head."]
    previous: Of[float | None, "mean weight on the token before the query."]
    same: Of[float | None, "mean weight on the query itself."]
    next: Of[float | None, "mean weight on the token after it."]
    first: Of[float | None, "mean weight on the first token."]
    sep: Of[float | None, "mean weight on separators."]
    entropy: Of[float | None, "of a query's weights, in nats."]
    normalised_entropy: Of[float | None, "that, as a share of the greatest there can be."]


class AttendAnswer(Asides, OfTrace):
    """All heads, or those of one layer, at a glance."""

    layer: Of[int | None, "the layer; missing for all of them."] = None
    heads: Of[list[PatternRow], "one for each head."]
    findings: Of[list[Finding], "what stands out, the most surprising first."]


class KeyRow(Row):
    """A key of one query."""

    key: Of[int, "its position."]
    token: Of[str, "its token."]
    weight: Of[float | None, "0 to 1."]


class AttendHeadAnswer(_OneHead, Asides, OfTrace):
    """The weights of one head, or those of one of its queries."""

    query: Of[int | None, "position of the token that looks; missing for all of them."] = None
    weights: Of[list[list[float | None]] | list[float | None], "(queries, keys), 0 to 1; (keys,) of one query."]
    keys: Of[list[list[int]] | list[KeyRow] | None, "the strongest keys of each query, or of the one."] = None
    findings: Of[list[Finding], "what stands out of the head."]


class AttendSeveralAnswer(Row):
    """Several heads, or several layers."""

    heads: Of[list[AttendHeadAnswer | AttendAnswer | LookingAnswer], "the record of each."]


class AttendStatisticAnswer(Asides, OfTrace):
    """A statistic of every head."""

    statistic: Of[str, "its name."]
    meaning: Of[str, "its meaning."]
    unit: Of[str, "of its numbers."]
    heads: Of[list[dict[str, float | None]], "layer, head and the number, under the statistic's name."]


class ErrorAnswer(Row):
    """An error, on standard output under `--json`; the message for people is on standard error."""

    kind: Of[str, "class of the error, such as InputError; UsageError for a wrong command line."]
    message: Of[str, "what was found."]
    where: Of[str | None, "the file, tensor, layer, head or argument at fault."]
    advice: Of[str | None, "what to do."]
    exit_code: Of[int, "of the command."]


class ParameterRow(Row):
    """A tensor of a checkpoint."""

    name: Of[str, "its name in the file."]
    shape: Of[list[int], "its shape."]
    dtype: Of[str, "its type in the file."]
    count: Of[int, "number of parameters."]
    component: Of[str, "the part of the model that it belongs to."]


class ShapesAnswer(OfModel):
    """Every tensor of a checkpoint."""

    total: Of[int, "parameters of the base model."]
    parameters: Of[list[ParameterRow], "tensors of the base model."]
    extra: Of[list[ParameterRow], "tensors on top of it."]
    total_with_extra: Of[int, "parameters of all of them."]


class Dimensions(Row):
    """The sizes of a model."""

    layers: Of[int | None, "number of layers."]
    heads: Of[int | None, "heads in a layer."]
    d_model: Of[int | None, "width of the hidden states."]
    d_head: Of[int | None, "width of a head."]
    d_ffn: Of[int | None, "width of the feed-forward."]
    vocab: Of[int | None, "number of tokens in the vocabulary."]
    positions: Of[int | None, "number of position embeddings; null where there are none."]
    types: Of[int | None, "number of token types; null where there are none."]


class ComponentRow(Row):
    """A part of a model."""

    component: Of[str, "its name."]
    count: Of[int, "number of parameters."]
    share: Of[float | None, "of all parameters, 0 to 1."]
    parameters: Of[int, "number of tensors."]
    meaning: Of[str | None, "what it does."]


class MemoryRow(Row):
    """The memory that the weights take in a precision."""

    precision: Of[str, "fp32, fp16 and the like."]
    base_bytes: Of[int, "of the base model."]
    whole_bytes: Of[int, "with what is on top of it."]


class SummaryAnswer(OfModel):
    """The contents of a checkpoint."""

    where: Of[str, "where its files are."]
    format: Of[str, "safetensors or torch."]
    files: Of[list[str], "the files with its weights."]
    class_: Of[str | None, "class of the base model; null if it isn't known."]
    family: Of[str | None, "family of models; null if it isn't known."]
    total: Of[int, "parameters of the base model."]
    total_with_extra: Of[int, "with what is on top of it."]
    dtypes: Of[dict[str, int], "type in the file -> number of tensors."]
    dimensions: Of[Dimensions | None, "its sizes; null if the config doesn't give them."]
    expansion_rates: Of[
        list[float] | None,
        "of each layer, the factor by which its W_V W_O lengthens vectors; null where they aren't read.",
    ]
    components: Of[list[ComponentRow], "parts of the base model."]
    extra: Of[list[ComponentRow], "parts on top of it."]
    memory: Of[list[MemoryRow], "bytes in several precisions."]
    tied: Of[dict[str, str], "tensor -> the tensor whose weights it shares."]
    buffers: Of[list[str], "tensors that are no parameters."]
    missing: Of[list[str], "tensors that the family has and the file lacks."]
    problems: Of[list[str], "what keeps headscope from running it."]


class ConfigField(Row):
    """A field of a config."""

    name: Of[str, "its name."]
    value: Of[Any, "its value."]
    meaning: Of[str | None, "what it means; empty if headscope doesn't know the field."]
    implies: Of[str | None, "what follows from it for this model, in numbers."]
    source: Of[str, "the config, or a default of the class."]


class ConfigAnswer(OfModel):
    """A config, explained."""

    fields: Of[list[ConfigField], "its fields."]
    problems: Of[list[str], "what keeps headscope from running it."]


class TreeNode(Row):
    """A module, or several equal ones."""

    name: Of[str, "its name."]
    label: Of[str, "its class or meaning."]
    shape: Of[list[int] | None, "of a parameter; null for a module."]
    count: Of[int, "parameters of one of them."]
    repeat: Of[int, "how many there are."]
    children: Of[list[TreeNode], "the modules in it."]


class TreeAnswer(OfModel):
    """The tree of modules."""

    tree: Of[TreeNode, "its root."]


class Parameter(Row):
    """A parameter of a class."""

    name: Of[str, "its name."]
    shape: Of[list[int], "its shape."]
    dtype: Of[str | None, "its type in the file; missing for one that the file lacks."] = None


class Mismatch(Row):
    """A tensor that the class expects in another shape."""

    name: Of[str, "its name."]
    stored: Of[list[int], "its shape in the file."]
    wanted: Of[list[int], "the shape that the class expects."]


class FitAnswer(OfModel):
    """The use that a class would make of a checkpoint."""

    class_: Of[str, "the class."]
    loaded: Of[int, "number of parameters that it would load."]
    initialised: Of[list[Parameter], "parameters that it would initialise at random."]
    ignored: Of[list[Parameter], "tensors of the checkpoint that it would ignore."]
    mismatched: Of[list[Mismatch], "tensors that it can't load."]
    tied: Of[dict[str, str], "parameter -> the one whose weights it shares."]
    notes: Of[list[str], "what has to be known besides."]


@dataclass(frozen=True, kw_only=True)
class CheckRow(Check):
    """One comparison; a number that isn't finite is null."""

    worst: Of[float | None, "the largest absolute difference."]  # type: ignore[assignment]
    tolerance: Of[float | None, "the largest difference that is accepted."]  # type: ignore[assignment]
    agrees: Of[bool, "true if the difference is within the tolerance."]


class SkippedRow(Row):
    """A comparison that was not possible."""

    name: Of[str, "the quantity."]
    reason: Of[str, "why."]


class ReportAnswer(OfModel):
    """The result of several comparisons."""

    agrees: Of[bool, "true if all of them agree."]
    checks: Of[list[CheckRow], "the comparisons."]
    notes: Of[list[str], "what has to be known about them."]
    skipped: Of[list[SkippedRow], "comparisons that were not possible."]


class PairShare(Row):
    """A pair of input tokens, with what it adds to a score."""

    query_part: Of[str, "on the query's side; a token or the biases."]
    key_part: Of[str, "on the key's side, likewise."]
    share: Of[float, "what the pair adds to the difference of the scores."]


class WhyAnswer(OfModel):
    """The reasons why a head looks from one token to another."""

    text: Of[str, "the text."]
    layer: Of[int, "from 0."]
    head: Of[int, "from 0."]
    query: Of[int, "position of the token that looks."]
    key: Of[int, "position of the token that it looks at."]
    weight: Of[float, "the weight."]
    score: Of[float, "the score."]
    others: Of[float, "the mean of the query's scores of other keys."]
    kappa: Of[float | None, "what cancels: the sum of the pairs' absolute shares over that of their sum."]
    rest: Of[float, "what biases and distances add to the difference."]
    pairs: Of[list[PairShare], "the strongest pairs."]
    checks: Of[list[PartRow], "tokens that were masked for real."]


class OutputUnit(Row):
    """The output of effects that are compared."""

    output: Of[str, "its meaning."]
    unit: Of[str, "of its number."]


class CompareAnswer(Row):
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


class MeasuredStatistic(Row):
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


class SurveyAnswer(Row):
    """The statistics of a corpus."""

    windows: Of[int, "the number of them."]
    layers: Of[list[int], "the layers' numbers."]
    heads: Of[list[list[int]], "of each layer, the heads' numbers."]
    statistics: Of[dict[str, MeasuredStatistic], "of each, its numbers."]
    seal: Of[str, "a hash of the numbers, by which a damaged file is found."]


class Interval(Row):
    """A share and its 95 % interval over documents."""

    mean: Of[float, "0 to 1."]
    low: Of[float | None, "where the interval begins; null for one document."]
    high: Of[float | None, "where it ends, likewise."]


class PairsAnswer(Row):
    """The heads whose scores predict marked pairs of words."""

    heads: Of[list[list[int]], "the heads whose scores are added, [layer, head]."]
    precision: Of[Interval, "of their strongest pairs, on documents that had no say in the choice."]
    single: Of[Interval, "of the best single head, likewise."]
    offset: Of[Interval, "of the best distance between words, likewise."]
    distance: Of[int, "that distance."]
    chance: Of[float, "the share of marked pairs among all."]
    documents: Of[int, "how many were used."]
    pairs: Of[int, "how many are marked."]
    left_out: Of[int, "pairs of words without a token."]
    directed: Of[bool, "true if a pair's order counts."]
    apart: Of[int, "the fewest words between the two."]
    table: Of[list[dict[str, float | None]], "each head alone: layer, head, precision and its interval."]


@dataclass(frozen=True)
class RowProbe:
    """One direction of marked pairs; shares are of documents that had no say in the choice."""

    head: Of[tuple[int, int], "[layer, head], the best one."]
    accuracy: Of[float, "of that head: how often it looks most at a partner."]
    offset: Of[float, "of the best fixed offset, likewise."]
    nearest: Of[float, "of the nearest word that the query may look at; equals count in part."]
    intervals: Of[Mapping[str, tuple[float | None, float | None]], "the 95 % interval of each of the three, by name."]
    distance: Of[int, "that offset, from the query to its partner."]
    chance: Of[float, "the mean share of partners among the words that a query may look at."]
    queries: Of[int, "how many there are."]


class PairRowsAnswer(Row):
    """The heads that look from marked words at their partners: `pairs` with `by=row`."""

    by: Of[str, "row."]
    directions: Of[dict[str, RowProbe], "forward, from the first word of a pair to the second, and back."]
    documents: Of[int, "how many were used."]
    left_out: Of[int, "pairs of words without a token."]
    apart: Of[int, "the fewest words from a query to what it may look at."]
    table: Of[list[dict[str, float | None]], "each head: layer, head, its accuracy in both directions, and intervals."]


class MatchedSideRow(Row):
    """A text of a match."""

    text: Of[str, "with the prompt before it."]
    parts: Of[list[PartRow], "what each word adds to the score."]
    rest: Of[
        float, "what no word adds. Shares and rest are the score; of a cross-encoder, both texts' shares and one rest."
    ]


class LinkRow(Row):
    """A word of the query and one of the document that need each other."""

    query: Of[str, "the query's word."]
    document: Of[str, "the document's word."]
    share: Of[float, "the sum of their cells; of a cross-encoder, the head's weight."]
    together: Of[
        float, "what the score has from the two only together; of a cross-encoder, what cutting the edge takes."
    ]
    head: Of[list[int] | None, "of a cross-encoder, [layer, head]."]


class MatchRow(Row):
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


class AboveRow(Row):
    """The reasons that one document stands above another."""

    first: Of[int, "number of the document that stands above."]
    second: Of[int, "number of the other."]
    difference: Of[float, "of their scores."]
    query: Of[list[PartRow], "what each of the query's words adds to it; of a cross-encoder, likewise."]
    rest: Of[float, "what no word of the query adds."]


class MatchAnswer(OfModel):
    """A query and its documents: which words make them match."""

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


VERSION = 1
"""Version of all records."""
ANSWERS: dict[str, type] = {
    "shapes": ShapesAnswer,
    "summary": SummaryAnswer,
    "config": ConfigAnswer,
    "tree": TreeAnswer,
    "fit": FitAnswer,
    "head": HeadAnswer,
    "attend": AttendAnswer,
    "attend-head": AttendHeadAnswer,
    "attend-several": AttendSeveralAnswer,
    "attend-statistic": AttendStatisticAnswer,
    "attend-token": LookingAnswer,
    "fill": FillAnswer,
    "predict": PredictAnswer,
    "effects": EffectsAnswer,
    "attribute": AttributeAnswer,
    "why": WhyAnswer,
    "verify": ReportAnswer,
    "compare": CompareAnswer,
    "survey": SurveyAnswer,
    "pairs": PairsAnswer,
    "pairs-row": PairRowsAnswer,
    "match": MatchAnswer,
    "error": ErrorAnswer,
}
"""Name of a schema -> the dataclass that describes its record."""


def enveloped(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its schema's name and version in front."""
    return {"schema": f"headscope/{name}", "version": VERSION, **record}


def filled(row: type, source: object = None, **given: Any) -> dict[str, Any]:
    """The record of an answer: each field as it is given, or as the source's attribute or method of that name has it.

    Records within it are filled likewise. A field with a default is left out where there is nothing to say.
    """
    record = {}
    for of, hint in _hinted(row):
        name = of.name.rstrip("_")
        value = given[name] if name in given else getattr(source, name)
        value = value() if callable(value) else value
        if of.default is MISSING or value not in (None, ()):
            record[name] = _filled(hint, value)
    return record


@cache
def _hinted(row: type) -> tuple[tuple[Field[Any], Any], ...]:
    """The fields of an answer with their types, which take longer to resolve than a record to fill."""
    return tuple(zip(fields(row), get_type_hints(row).values(), strict=True))


def _filled(hint: Any, value: Any) -> Any:
    """A value, as a record where the hint is of one."""
    if value is None or isinstance(value, Mapping):
        return value
    if get_origin(hint) in (Union, UnionType):
        hint = get_args(hint)[0]
    if get_origin(hint) is list and is_dataclass(get_args(hint)[0]):
        return [_filled(get_args(hint)[0], item) for item in value]
    return filled(hint, value) if isinstance(hint, type) and is_dataclass(hint) else value

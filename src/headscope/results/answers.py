"""Answers of commands as JSON: a dataclass for each, and the JSON Schema that follows from it.

Every record of `--json` begins with `schema` (`headscope/COMMAND`) and `version`, which rises when a field changes its
meaning or goes. A field with a default may be missing. The server of `headscope mcp` gives the same records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Of

from headscope.results.explained import LabelShare


@dataclass(frozen=True)
class Slice:
    """The part of a tensor that belongs to one head."""

    name: Of[str, "W_Q, W_K, W_V, W_O or a bias."]
    shape: Of[list[int], "its shape."]
    tensor: Of[str | None, "the tensor that it lies in; null if it is computed."]
    axis: Of[str | None, "rows or columns."]
    start: Of[int | None, "the first of them."]
    stop: Of[int | None, "the one after the last."]
    norm: Of[float | None, "Frobenius norm."]
    first: Of[list[float | None], "the first numbers."]


@dataclass(frozen=True)
class HeadAnswer:
    """One head's weights."""

    model: Of[str, "the model's name."]
    layer: Of[int, "from 0."]
    head: Of[int, "from 0."]
    expansion_rate: Of[float | None, "the factor by which W_V W_O lengthens a vector."]
    slices: Of[list[Slice], "its parts of the tensors."]


@dataclass(frozen=True)
class Choice:
    """A token for a mask."""

    token: Of[str, "as the vocabulary spells it."]
    id: Of[int, "its id."]
    probability: Of[float, "0 to 1, over the whole vocabulary."]


@dataclass(frozen=True)
class Mask:
    """The likeliest tokens for one mask."""

    position: Of[int, "of the mask among the tokens, from 0."]
    pieces: Of[list[Choice], "the tokens, the likeliest first."]


@dataclass(frozen=True)
class FillAnswer:
    """The likeliest tokens for each mask of a text."""

    model: Of[str, "the model's name."]
    tokens: Of[list[str], "the text's tokens."]
    masks: Of[list[Mask], "one for each mask."]
    notes: Of[list[str] | None, "what was done to the text; missing where nothing was."] = None


@dataclass(frozen=True)
class ClassRow:
    """A class with its score."""

    label: Of[str, "its name, or its number."]
    logit: Of[float, "its score."]
    probability: Of[float | None, "0 to 1; missing for a regression."] = None
    position: Of[int | None, "of the token that is labelled; missing for a class of the whole text."] = None
    token: Of[str | None, "that token."] = None


@dataclass(frozen=True)
class PredictAnswer:
    """The classes that a classifier predicts."""

    model: Of[str, "the model's name."]
    tokens: Of[list[str], "the text's tokens."]
    task: Of[str, "`sequence` or `token`."]
    labels: Of[list[str], "the names of all classes."]
    predictions: Of[list[ClassRow], "the classes, the likeliest first, or the likeliest class of each token."]
    notes: Of[list[str] | None, "what was done to the text; missing where nothing was."] = None


@dataclass(frozen=True)
class OutputRow:
    """An output of a model."""

    kind: Of[str, "word, class, score, token, embedding, embedding_distance or similarity."]
    label: Of[str, "the word, the class, or the other text."]
    index: Of[int | None, "its logit; null for vectors."]
    position: Of[int | None, "the token where it is read; null for all of them."]
    unit: Of[str, "of its number."]
    default: Of[bool, "true if it was chosen by default."]


@dataclass(frozen=True)
class TargetRow(OutputRow):
    """The output that is explained."""

    against: Of[OutputRow | None, "the output whose number is taken from it."]


@dataclass(frozen=True)
class EffectRow:
    """The effect of one head."""

    layer: Of[int, "from 0."]
    head: Of[int, "from 0."]
    change: Of[float | None, "the number with the head changed less the number as it is."]
    probability: Of[float | None, "of the word or class with the head changed."] = None
    cosine: Of[float | None, "of the vector with the unchanged one."] = None


@dataclass(frozen=True)
class EffectsAnswer:
    """The effect of changing each head on one output."""

    model: Of[str, "the model's name."]
    text: Of[str, "the text."]
    pair: Of[str | None, "the second text."]
    patch_from: Of[str | None, "the text that contexts come from."]
    tokens: Of[list[str], "the text's tokens."]
    target: Of[TargetRow, "the output."]
    method: Of[str, "how heads are changed."]
    base: Of[float, "the output's number as it is."]
    notes: Of[list[str], "what was added to the text, lower-cased or cut."]
    heads: Of[list[EffectRow], "one for each head."]
    probability: Of[float | None, "of the word or class as it is."] = None
    cosine: Of[float | None, "of the vector as it is."] = None
    predictions: Of[list[ClassRow] | None, "of a classifier, its classes, the likeliest first."] = None


@dataclass(frozen=True)
class PartRow:
    """A stretch of a text with its share of a number."""

    label: Of[str, "the stretch as it stands in the text."]
    tokens: Of[list[int], "positions of its tokens."]
    share: Of[float, "its part of the number."]
    special: Of[bool, "true for a token that the tokenizer added."]
    change: Of[float | None, "the number less the number with these tokens masked; null if they weren't masked."]
    side: Of[str, "query or document, of a score of two texts; otherwise empty."]
    contradicted: Of[bool, "true if masking it moves the number the other way."]


@dataclass(frozen=True)
class TokenScore:
    """Contribution of one token."""

    position: Of[int, "from 0."]
    token: Of[str, "the token."]
    score: Of[float | None, "its part of the output."]


@dataclass(frozen=True)
class AttributeAnswer:
    """Contribution of each token to one output."""

    model: Of[str, "the model's name."]
    text: Of[str, "the text."]
    pair: Of[str | None, "the second text."]
    target: Of[TargetRow, "the output."]
    method: Of[str, "how parts are found."]
    total: Of[float, "the output's number."]
    rest: Of[float | None, "the part of no token; null where parts don't add up."]
    gap: Of[float | None, "what is missing from the sum."]
    tokens: Of[list[TokenScore], "one for each token."]
    predictions: Of[list[LabelShare], "the model's choice where the target is read, and the runner-up."]
    kappa: Of[float | None, "the sizes of the parts over that of the number; null where parts don't add up."]
    notes: Of[list[str], "what was added to the text, lower-cased or cut."]
    parts: Of[list[PartRow], "the tokens' scores by words, sentences or tokens."]
    checks: Of[list[PartRow], "the strongest of them, each masked for real."]


@dataclass(frozen=True)
class LookingHead:
    """A head and the word that it looks at from one token."""

    layer: Of[int, "from 0."]
    head: Of[int, "from 0."]
    query: Of[int, "position of the token that looks."]
    query_token: Of[str, "that token."]
    key: Of[int, "position of the token that it looks at most."]
    key_token: Of[str, "that token."]
    weight: Of[float | None, "0 to 1."]


@dataclass(frozen=True)
class AttendAnswer:
    """The heads that look from one token most: `attend TEXT -q TOKEN` without a head."""

    model: Of[str, "the model's name."]
    tokens: Of[list[str], "the text's tokens."]
    ids: Of[list[int], "their ids."]
    segments: Of[list[int], "0 for the first text, 1 for the second."]
    ablated: Of[list[list[int]], "silenced heads, [layer, head]."]
    broken: Of[list[list[int]], "heads whose weights are not numbers."]
    query: Of[int, "position of the token that looks."]
    heads: Of[list[LookingHead], "the heads, the greatest weight first."]
    unrecorded: Of[list[str] | None, "attention that ran and was not recorded."] = None
    notes: Of[list[str] | None, "what was done to the text; missing where nothing was."] = None


@dataclass(frozen=True)
class ErrorAnswer:
    """An error, on standard output under `--json`; the message for people is on standard error."""

    kind: Of[str, "class of the error, such as InputError; UsageError for a wrong command line."]
    message: Of[str, "what was found."]
    where: Of[str | None, "the file, tensor, layer, head or argument at fault."]
    advice: Of[str | None, "what to do."]
    exit_code: Of[int, "of the command."]

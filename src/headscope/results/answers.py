"""Answers of commands as JSON: a dataclass for each, and the JSON Schema that follows from it.

Every record of `--json` begins with `schema` (`headscope/COMMAND`) and `version`, which rises when a field changes its
meaning or goes. A field with a default may be missing. The server of `headscope mcp` gives the same records.
"""

from __future__ import annotations

from dataclasses import dataclass

from headscope.results.explained import LabelShare


@dataclass(frozen=True)
class Slice:
    """The part of a tensor that belongs to one head.

    Attributes:
        name: W_Q, W_K, W_V, W_O or a bias.
        shape: its shape.
        tensor: the tensor that it lies in; null if it is computed.
        axis: rows or columns.
        start: the first of them.
        stop: the one after the last.
        norm: Frobenius norm.
        first: the first numbers.
    """

    name: str
    shape: list[int]
    tensor: str | None
    axis: str | None
    start: int | None
    stop: int | None
    norm: float | None
    first: list[float | None]


@dataclass(frozen=True)
class HeadAnswer:
    """One head's weights.

    Attributes:
        model: the model's name.
        layer: from 0.
        head: from 0.
        expansion_rate: the factor by which W_V W_O lengthens a vector.
        slices: its parts of the tensors.
    """

    model: str
    layer: int
    head: int
    expansion_rate: float | None
    slices: list[Slice]


@dataclass(frozen=True)
class Choice:
    """A token for a mask.

    Attributes:
        token: as the vocabulary spells it.
        id: its id.
        probability: 0 to 1, over the whole vocabulary.
    """

    token: str
    id: int
    probability: float


@dataclass(frozen=True)
class Mask:
    """The likeliest tokens for one mask.

    Attributes:
        position: of the mask among the tokens, from 0.
        pieces: the tokens, the likeliest first.
    """

    position: int
    pieces: list[Choice]


@dataclass(frozen=True)
class FillAnswer:
    """The likeliest tokens for each mask of a text.

    Attributes:
        model: the model's name.
        tokens: the text's tokens.
        masks: one for each mask.
        notes: what was done to the text; missing where nothing was.
    """

    model: str
    tokens: list[str]
    masks: list[Mask]
    notes: list[str] | None = None


@dataclass(frozen=True)
class ClassRow:
    """A class with its score.

    Attributes:
        label: its name, or its number.
        logit: its score.
        probability: 0 to 1; missing for a regression.
        position: of the token that is labelled; missing for a class of the whole text.
        token: that token.
    """

    label: str
    logit: float
    probability: float | None = None
    position: int | None = None
    token: str | None = None


@dataclass(frozen=True)
class PredictAnswer:
    """The classes that a classifier predicts.

    Attributes:
        model: the model's name.
        tokens: the text's tokens.
        task: `sequence` or `token`.
        labels: the names of all classes.
        predictions: the classes, the likeliest first, or the likeliest class of each token.
        notes: what was done to the text; missing where nothing was.
    """

    model: str
    tokens: list[str]
    task: str
    labels: list[str]
    predictions: list[ClassRow]
    notes: list[str] | None = None


@dataclass(frozen=True)
class OutputRow:
    """An output of a model.

    Attributes:
        kind: word, class, score, token, embedding, embedding_distance or similarity.
        label: the word, the class, or the other text.
        index: its logit; null for vectors.
        position: the token where it is read; null for all of them.
        unit: of its number.
        default: true if it was chosen by default.
    """

    kind: str
    label: str
    index: int | None
    position: int | None
    unit: str
    default: bool


@dataclass(frozen=True)
class TargetRow(OutputRow):
    """The output that is explained.

    Attributes:
        against: the output whose number is taken from it.
    """

    against: OutputRow | None


@dataclass(frozen=True)
class EffectRow:
    """The effect of one head.

    Attributes:
        layer: from 0.
        head: from 0.
        change: the number with the head changed less the number as it is.
        probability: of the word or class with the head changed.
        cosine: of the vector with the unchanged one.
    """

    layer: int
    head: int
    change: float | None
    probability: float | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class EffectsAnswer:
    """The effect of changing each head on one output.

    Attributes:
        model: the model's name.
        text: the text.
        pair: the second text.
        patch_from: the text that contexts come from.
        tokens: the text's tokens.
        target: the output.
        method: how heads are changed.
        base: the output's number as it is.
        notes: what was added to the text, lower-cased or cut.
        heads: one for each head.
        probability: of the word or class as it is.
        cosine: of the vector as it is.
        predictions: of a classifier, its classes, the likeliest first.
    """

    model: str
    text: str
    pair: str | None
    patch_from: str | None
    tokens: list[str]
    target: TargetRow
    method: str
    base: float
    notes: list[str]
    heads: list[EffectRow]
    probability: float | None = None
    cosine: float | None = None
    predictions: list[ClassRow] | None = None


@dataclass(frozen=True)
class PartRow:
    """A stretch of a text with its share of a number.

    Attributes:
        label: the stretch as it stands in the text.
        tokens: positions of its tokens.
        share: its part of the number.
        special: true for a token that the tokenizer added.
        change: the number less the number with these tokens masked; null if they weren't masked.
        side: query or document, of a score of two texts; otherwise empty.
        contradicted: true if masking it moves the number the other way.
    """

    label: str
    tokens: list[int]
    share: float
    special: bool
    change: float | None
    side: str
    contradicted: bool


@dataclass(frozen=True)
class TokenScore:
    """Contribution of one token.

    Attributes:
        position: from 0.
        token: the token.
        score: its part of the output.
    """

    position: int
    token: str
    score: float | None


@dataclass(frozen=True)
class AttributeAnswer:
    """Contribution of each token to one output.

    Attributes:
        model: the model's name.
        text: the text.
        pair: the second text.
        target: the output.
        method: how parts are found.
        total: the output's number.
        rest: the part of no token; null where parts don't add up.
        gap: what is missing from the sum.
        tokens: one for each token.
        predictions: the model's choice where the target is read, and the runner-up.
        kappa: the sizes of the parts over that of the number; null where parts don't add up.
        notes: what was added to the text, lower-cased or cut.
        parts: the tokens' scores by words, sentences or tokens.
        checks: the strongest of them, each masked for real.
    """

    model: str
    text: str
    pair: str | None
    target: TargetRow
    method: str
    total: float
    rest: float | None
    gap: float | None
    tokens: list[TokenScore]
    predictions: list[LabelShare]
    kappa: float | None
    notes: list[str]
    parts: list[PartRow]
    checks: list[PartRow]


@dataclass(frozen=True)
class LookingHead:
    """A head and the word that it looks at from one token.

    Attributes:
        layer: from 0.
        head: from 0.
        query: position of the token that looks.
        query_token: that token.
        key: position of the token that it looks at most.
        key_token: that token.
        weight: 0 to 1.
    """

    layer: int
    head: int
    query: int
    query_token: str
    key: int
    key_token: str
    weight: float | None


@dataclass(frozen=True)
class AttendAnswer:
    """The heads that look from one token most: `attend TEXT -q TOKEN` without a head.

    Attributes:
        model: the model's name.
        tokens: the text's tokens.
        ids: their ids.
        segments: 0 for the first text, 1 for the second.
        ablated: silenced heads, [layer, head].
        broken: heads whose weights are not numbers.
        query: position of the token that looks.
        heads: the heads, the greatest weight first.
        unrecorded: attention that ran and was not recorded.
        notes: what was done to the text; missing where nothing was.
    """

    model: str
    tokens: list[str]
    ids: list[int]
    segments: list[int]
    ablated: list[list[int]]
    broken: list[list[int]]
    query: int
    heads: list[LookingHead]
    unrecorded: list[str] | None = None
    notes: list[str] | None = None


@dataclass(frozen=True)
class ErrorAnswer:
    """An error, on standard output under `--json`; the message for people is on standard error.

    Attributes:
        kind: class of the error, such as InputError; UsageError for a wrong command line.
        message: what was found.
        where: the file, tensor, layer, head or argument at fault.
        advice: what to do.
        exit_code: of the command.
    """

    kind: str
    message: str
    where: str | None
    advice: str | None
    exit_code: int

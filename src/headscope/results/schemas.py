"""The rows of a survey's tables, each declared once: columns of Parquet, tables of the guide, types of the site follow.

A field's annotation is its type: `Int16`, `Int32`, `Float32`; otherwise Python's, in 64 bits. Its meaning stands in the
docstring.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    import pyarrow

Int16: TypeAlias = Annotated[int, "int16"]
Int32: TypeAlias = Annotated[int, "int32"]
Float32: TypeAlias = Annotated[float, "float32"]

PLAIN = {bool: "bool", int: "int64", float: "float64", str: "string"}
"""Python's types -> pyarrow's names."""

Way: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True)
class SyntaxRow:
    """The head that finds a relation of a treebank best: `syntax.parquet`.

    Attributes:
        relation: as in the treebank, with its subtype: `nsubj:pass`. The root and those below 20 are left out.
        direction: `dependent->head` or `head->dependent`.
        layer: from 0.
        head: the best head of the choosing half.
        accuracy: over all documents, 0 to 1.
        accuracy_held_out: over the half that didn't choose; null where only one half has any.
        low, high: the bounds of its 95% interval.
        count: dependents, over all documents.
        offset: the best fixed offset, head minus dependent, in words.
        offset_accuracy: how often that offset is right.
    """

    relation: str
    direction: str
    layer: Int16
    head: Int16
    accuracy: float
    accuracy_held_out: float | None
    low: float | None
    high: float | None
    count: int
    offset: Int32
    offset_accuracy: float


@dataclass(frozen=True)
class RelationRow:
    """Accuracy of one head for one relation of a treebank: `relations.parquet`.

    Attributes:
        relation: as in the treebank.
        way: of the word that looks: `up`, to its head; `down`, to such a dependent of it.
        layer, head: both from 0.
        score: share of such words whose strongest word is right, over all documents.
        low, high: the bounds of the 95% interval.
        count: such words.
        offset: the best fixed offset from the word that looks.
        baseline: how often that offset is right.
        rule: the best simple rule, such as “nearest VERB before”.
        rule_score: how often that rule is right.
    """

    relation: str
    way: Way
    layer: Int16
    head: Int16
    score: float
    low: float | None
    high: float | None
    count: int
    offset: Int32
    baseline: float
    rule: str | None
    rule_score: float | None


@dataclass(frozen=True)
class LabelRow:
    """The label of a head: `labels.parquet`. Numbers are over the half of the documents that didn't choose it.

    Attributes:
        layer, head: both from 0.
        kind: of the first clause: `position`, `nearest`, `same`, `meaning`, `pair`, `syntax`, `class`, `punctuation`,
            `learned` (words such as …), or `none`.
        label: what the head does among words, in English.
        score: share of the head's 100 strongest pairs that the label explains.
        low, high: the bounds of its 95% interval, over documents.
        count: pairs that it was counted over, 100 or fewer.
        baseline: the share that it would explain if every word looked evenly.
        coverage: the score as a percentage.
        bits: what the label gains beside an even share, in bits per pair.
        offset_bits: what the best fixed offset gains.
        key_bits: what the frequency of each key gains.
        accuracy: of words that have a possible case, the share whose choice is one.
        accuracy_chance: the same if every word looked evenly.
        stable: how many of its clauses the other half of the documents would choose, too.
        part: whether the label holds in part only.
        line: of each clause, `pairs` if it is of the label, `words` if it is of the line over all words.
        query: of each clause, the class of the words that look; or empty.
        key: of each clause, the class of the words that they look at; or empty.
        relation: of each clause, the relation between the two; or empty.
        side: of each clause, the side on which the other word stands; or empty.
        such: of words such as …, their kind and examples.
        looks: where no clause names a class of words that look, the one of most pairs that it explains; or empty.
        looks_share: the share of these pairs that have it.
        looks_chance: the share that has it of all pairs that the label could explain.
        share: share of the strength of all words that the line over all words explains.
        share_chance: the same if every word looked evenly.
        note: reservations, in English.
        reason: of each: too few `documents`, `words` or `pairs`, no `prediction`, or `felt`, hardly, when silenced.
        reason_count: of each, how many are needed, or the windows over which it is hardly felt; or 0.
        special: mean weight of words on special tokens.
        first: mean weight of words on the first token.
        sep: mean weight of words on [SEP].
        stop: mean weight of words on the last closing mark.
        inner: mean weight of tokens on the other tokens of their word.
        entropy: mean entropy of the weights among words over log n.
    """

    layer: Int16
    head: Int16
    kind: str
    label: str
    score: float | None
    low: float | None
    high: float | None
    count: int | None
    baseline: float | None
    coverage: Int32 | None
    bits: float | None
    offset_bits: float | None
    key_bits: float | None
    accuracy: float | None
    accuracy_chance: float | None
    stable: Int32 | None
    part: bool
    line: list[str]
    query: list[str]
    key: list[str]
    relation: list[str]
    side: list[str]
    such: list[str]
    looks: str
    looks_share: float | None
    looks_chance: float | None
    share: float | None
    share_chance: float | None
    note: str
    reason: list[str]
    reason_count: list[Int32]
    special: float | None
    first: float | None
    sep: float | None
    stop: float | None
    inner: float | None
    entropy: float | None


@dataclass(frozen=True)
class Example:
    """A word, and the other word that it looks at most: a row of `examples.parquet`.

    Attributes:
        layer, head: both from 0.
        kind: `best`; `other` for the strongest that the label doesn't explain; `random` for one drawn by lot.
        rank: among its kind, from 0.
        weight: from the word to the other, 0 to 1.
        document: its name.
        window: which of the document's windows, from 0.
        query: the word that looks, as the window's words count from 0.
        key: the word that it looks at, likewise.
        query_word: the word that looks, as it stands in the text.
        key_word: the other, likewise.
        before: the text before them, words apart by spaces.
        between: the text between them; ` … ` where some is left out.
        after: the text after them.
        up: the relation of the word that looks, where the other is its head; of a treebank.
        down: the relation of the other, where the word that looks is its head.
    """

    layer: Int16
    head: Int16
    kind: str
    rank: Int32
    weight: Float32
    document: str
    window: Int32
    query: Int32
    key: Int32
    query_word: str
    key_word: str
    before: str
    between: str
    after: str
    up: str | None = None
    down: str | None = None

    def __str__(self) -> str:
        query, key = f"[{self.query_word}]", f"<{self.key_word}>"
        pair = (query, key) if self.query < self.key else (key, query)
        words = (self.before, pair[0], self.between, pair[1], self.after)
        return f"{self.weight:.2f}  " + " ".join(word for word in words if word)


@dataclass(frozen=True)
class LineRow:
    """An example's window around its pair: `lines.parquet`, rows as in `examples.parquet`.

    Attributes:
        layer, head: both from 0.
        kind, rank: as in examples.
        first: weight of the word that looks on the first token if it is special.
        sep: its weight on [SEP].
        special: its weight on all special tokens.
        first_token: the first token's name.
        sep_token: [SEP]'s name.
        numbers: the 30 words on each side of both words of the pair, as the window's count.
        words: the same, as they stand in the text.
        weights: what the word that looks gives to each.
        query_token: where the word that looks begins.
        key_token: where the other begins.
        ids: the window's tokens.
        text: a text that the tokenizer turns into exactly these, or null.
        raised: of the two best examples of each head, for a checkpoint with a masked-LM head, the tokens whose logits
            the head's output raises most at the word that looks.
        raised_by: by how much.
        lowered: those that it lowers most.
        lowered_by: by how much.
    """

    layer: Int16
    head: Int16
    kind: str
    rank: Int32
    first: Float32
    sep: Float32
    special: Float32
    first_token: str | None
    sep_token: str | None
    numbers: list[Int32]
    words: list[str]
    weights: list[Float32]
    query_token: Int32
    key_token: Int32
    ids: list[Int32]
    text: str | None
    raised: list[str] | None
    raised_by: list[Float32] | None
    lowered: list[str] | None
    lowered_by: list[Float32] | None


@dataclass(frozen=True)
class DistributionRow:
    """A bin of a head's distributions: `distributions.parquet`.

    Attributes:
        layer, head: both from 0.
        of: `entropy` of a word's weights among words, over log n; `strongest`, its weight on its strongest other
            word; `distance`.
        low: lower end of the bin; of `distance`, the distance in words to the right.
        high: upper end of the bin; of `distance`, the same again.
        value: share of words in the bin; of `distance`, the mean weight on that word.
        count: words; of `distance`, pairs of words.
    """

    layer: Int16
    head: Int16
    of: str
    low: float
    high: float
    value: float | None
    count: int


@dataclass(frozen=True)
class EffectRow:
    """Effect of silencing a head: `effects.parquet`.

    Attributes:
        layer, head: both from 0.
        output: the number that changes.
        unit: its unit.
        method: how the head is silenced.
        base: mean over windows of the number as it is.
        change: mean over windows of the number without the head less the number as it is.
        low, high: the bounds of the 95% interval.
        windows: windows measured.
        documents: documents that they are from.
    """

    layer: Int16
    head: Int16
    output: str
    unit: str
    method: str
    base: float
    change: float
    low: float | None
    high: float | None
    windows: Int32
    documents: Int32


@dataclass(frozen=True)
class RemovalRow:
    """A head in the order in which heads can be removed: `removal.parquet`.

    Attributes:
        step: from 1.
        layer, head: both from 0.
        cost: with this head and all before it silenced, the mean rise of loss or of 1 − cosine, or the mean absolute
            change of a logit or a projection. It is over the windows that choose, of documents with even numbers.
        cost_held_out: the same over the other windows.
        low, high: the bounds of the 95% interval.
        windows: windows that choose.
        windows_held_out: the others.
    """

    step: Int32
    layer: Int16
    head: Int16
    cost: float
    cost_held_out: float | None
    low: float | None
    high: float | None
    windows: Int32
    windows_held_out: Int32


@dataclass(frozen=True)
class WriteRow:
    """The tokens that a head writes: `writes.parquet`.

    Attributes:
        layer, head: both from 0.
        tokens: up to ten whose masked-LM logits the head's output raises where they are right, chosen on one half of
            the windows, the one that gains most first.
        gains: bits per masked token that each gains alone, on the half that chose.
        bits: per masked token, what they gain together over their frequency, on the other half; null without one.
        low, high: the bounds of the 95% interval.
        sure: whether `low` is at least 0.001; only then does the head count as writing them.
        masked: masked tokens of the other half.
        windows: its windows.
        documents: documents that they are from.
        over: what was halved, and what the interval is over: `documents`, or `windows` if there are fewer than 20.
    """

    layer: Int16
    head: Int16
    tokens: list[str]
    gains: list[float]
    bits: float | None
    low: float | None
    high: float | None
    sure: bool
    masked: Int32
    windows: Int32
    documents: Int32
    over: Literal["documents", "windows"]


def _type_of(hint: Any) -> tuple[str, bool, tuple[str, ...]]:
    """An annotation's type by pyarrow's name, with `[]` if it is a list; if it may be null; its choices, if named."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (inner for inner in get_args(hint) if inner is not type(None))
        return _type_of(hint)[0], True, ()
    if get_origin(hint) is list:
        return f"{_type_of(get_args(hint)[0])[0]}[]", False, ()
    if get_origin(hint) is Literal:
        return "string", False, get_args(hint)
    return get_args(hint)[1] if get_origin(hint) is Annotated else PLAIN[hint], False, ()


def column_types(row: type) -> dict[str, tuple[str, bool, tuple[str, ...]]]:
    """Field -> its type by pyarrow's name, with `[]` for a list; if it may be null; its choices, if named."""
    return {name: _type_of(hint) for name, hint in get_type_hints(row, include_extras=True).items()}


def columns(row: type) -> tuple[tuple[str, pyarrow.DataType], ...]:
    """Name and type of each column of a row's table."""
    import pyarrow

    def kind(name: str) -> pyarrow.DataType:
        return pyarrow.list_(kind(name[:-2])) if name.endswith("[]") else pyarrow.type_for_alias(name)

    return tuple((name, kind(of)) for name, (of, _, _) in column_types(row).items())

"""The rows of a survey's tables, each declared once: columns of Parquet, tables of the guide, types of the site follow.

A field's annotation is its type, `Int16`, `Int32`, `Float32`, or Python's in 64 bits, and its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints
from typing import Annotated as Of

if TYPE_CHECKING:
    import pyarrow

Int16: TypeAlias = Annotated[int, "int16"]
Int32: TypeAlias = Annotated[int, "int32"]
Float32: TypeAlias = Annotated[float, "float32"]

PLAIN = {bool: "bool", int: "int64", float: "float64", str: "string"}
"""Python's types -> pyarrow's names."""

ALIASES = ("int16", "int32", "float32")

Way: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True)
class OfHead:
    """A row of one head."""

    layer: Of[Int16, "both from 0."]
    head: Of[Int16, "both from 0."]


@dataclass(frozen=True)
class SampleRow:
    """A window of the sample: `sample.parquet`, by lot."""

    rank: Of[Int32, "from 0. Effects, writes and distances over N windows have the first N."]
    document: Of[str, "its name."]
    window: Of[Int32, "which of the document's windows, from 0."]
    number: Of[Int32, "the document's, in the order of hashes. Even ones choose, odd ones report."]
    worded: Of[bool, "whether labels, examples, syntax and relations are measured over it."]
    ids: Of[list[Int32], "its tokens."]
    segments: Of[list[Int32], "of each token."]
    special: Of[list[bool], "of each token, whether the tokenizer added it."]
    of_token: Of[list[Int32], "of each token its word, from 0; -1 for none."]
    words: Of[list[str], "as they stand in the text."]
    tags: Of[list[str], "of each word, in a treebank."]
    heads: Of[list[Int32], "of each word, in a treebank; -1 for a root."]
    relations: Of[list[str], "of each word, in a treebank."]


@dataclass(frozen=True)
class SyntaxRow:
    """The head that finds a relation of a treebank best: `syntax.parquet`."""

    relation: Of[str, "as in the treebank, with its subtype: `nsubj:pass`. The root and those below 20 are left out."]
    direction: Of[str, "`dependent->head` or `head->dependent`."]
    layer: Of[Int16, "from 0."]
    head: Of[Int16, "the best head of the choosing half."]
    accuracy: Of[float, "over all documents, 0 to 1."]
    accuracy_held_out: Of[float | None, "over the half that didn't choose; null where only one half has any."]
    low: Of[float | None, "the bounds of its 95% interval."]
    high: Of[float | None, "the bounds of its 95% interval."]
    count: Of[int, "dependents, over all documents."]
    offset: Of[Int32, "the best fixed offset, head minus dependent, in words."]
    offset_accuracy: Of[float, "how often that offset is right."]


@dataclass(frozen=True)
class RelationRow:
    """Accuracy of one head for one relation of a treebank: `relations.parquet`."""

    relation: Of[str, "as in the treebank."]
    way: Of[Way, "of the word that looks: `up`, to its head; `down`, to such a dependent of it."]
    layer: Of[Int16, "both from 0."]
    head: Of[Int16, "both from 0."]
    score: Of[float, "share of such words whose strongest word is right, over all documents."]
    low: Of[float | None, "the bounds of the 95% interval."]
    high: Of[float | None, "the bounds of the 95% interval."]
    count: Of[int, "such words."]
    offset: Of[Int32, "the best fixed offset from the word that looks."]
    baseline: Of[float, "how often that offset is right."]


@dataclass(frozen=True)
class LabelRow(OfHead):
    """The label of a head: `labels.parquet`. Numbers are over the half of the documents that didn't choose it."""

    kind: Of[
        str,
        "of the first clause: `position`, `nearest`, `same`, `meaning`, `pair`, `syntax`, `class`, `punctuation`, "
        "`learned` (words such as …), or `none`.",
    ]
    label: Of[str, "what the head does among words, in English."]
    score: Of[float | None, "share of the head's 100 strongest pairs that the label explains."]
    low: Of[float | None, "the bounds of its 95% interval, over documents."]
    high: Of[float | None, "the bounds of its 95% interval, over documents."]
    count: Of[int | None, "pairs that it was counted over, 100 or fewer."]
    baseline: Of[float | None, "the share that it would explain if every word looked evenly."]
    coverage: Of[Int32 | None, "the score as a percentage."]
    bits: Of[float | None, "what the label gains beside an even share, in bits per pair."]
    offset_bits: Of[float | None, "what the best fixed offset gains."]
    accuracy: Of[float | None, "of words that have a possible case, the share whose choice is one."]
    accuracy_chance: Of[float | None, "the same if every word looked evenly."]
    stable: Of[Int32 | None, "how many of its clauses the other half of the documents would choose, too."]
    part: Of[bool, "whether the label holds in part only."]
    query: Of[list[str], "of each clause, the class of the words that look; or empty."]
    key: Of[list[str], "of each clause, the class of the words that they look at; or empty."]
    relation: Of[list[str], "of each clause, the relation between the two; or empty."]
    side: Of[list[str], "of each clause, the side on which the other word stands; or empty."]
    alone: Of[list[float], "of each clause of the label, the share of these pairs that it explains by itself."]
    alone_chance: Of[list[float], "of each, the share that it would explain if every word looked evenly."]
    such: Of[list[str], "of words such as …, their kind and examples."]
    looks: Of[
        str, "where no clause names a class of words that look, the one of most pairs that it explains; or empty."
    ]
    looks_share: Of[float | None, "the share of these pairs that have it."]
    looks_chance: Of[float | None, "the share that has it of all pairs that the label could explain."]
    note: Of[str, "reservations, in English."]
    reason: Of[list[str], "of each: too few `documents`, `words` or `pairs`, or no `prediction`."]
    reason_count: Of[list[Int32], "of each, how many are needed; or 0."]
    special: Of[float | None, "mean weight of words on special tokens."]
    first: Of[float | None, "mean weight of words on the first token."]
    sep: Of[float | None, "mean weight of words on [SEP]."]
    stop: Of[float | None, "mean weight of words on the last closing mark."]
    inner: Of[float | None, "mean weight of tokens on the other tokens of their word."]
    entropy: Of[float | None, "mean entropy of the weights among words over log n."]


@dataclass(frozen=True)
class Example(OfHead):
    """A word, and the other word that it looks at most: a row of `examples.parquet`."""

    kind: Of[str, "`best`; `other` for the strongest that the label doesn't explain; `random` for one drawn by lot."]
    rank: Of[Int32, "among its kind, from 0."]
    weight: Of[Float32, "from the word to the other, 0 to 1."]
    document: Of[str, "its name."]
    window: Of[Int32, "which of the document's windows, from 0."]
    query: Of[Int32, "the word that looks, as the window's words count from 0."]
    key: Of[Int32, "the word that it looks at, likewise."]
    query_word: Of[str, "the word that looks, as it stands in the text."]
    key_word: Of[str, "the other, likewise."]
    before: Of[str, "the text before them, words apart by spaces."]
    between: Of[str, "the text between them; ` … ` where some is left out."]
    after: Of[str, "the text after them."]
    up: Of[str | None, "the relation of the word that looks, where the other is its head; of a treebank."] = None
    down: Of[str | None, "the relation of the other, where the word that looks is its head."] = None

    def __str__(self) -> str:
        query, key = f"[{self.query_word}]", f"<{self.key_word}>"
        pair = (query, key) if self.query < self.key else (key, query)
        words = (self.before, pair[0], self.between, pair[1], self.after)
        return f"{self.weight:.2f}  " + " ".join(word for word in words if word)


@dataclass(frozen=True)
class LineRow(OfHead):
    """An example's window around its pair: `lines.parquet`, rows as in `examples.parquet`."""

    kind: Of[str, "as in examples."]
    rank: Of[Int32, "as in examples."]
    first: Of[Float32, "weight of the word that looks on the first token if it is special."]
    sep: Of[Float32, "its weight on [SEP]."]
    special: Of[Float32, "its weight on all special tokens."]
    first_token: Of[str | None, "the first token's name."]
    sep_token: Of[str | None, "[SEP]'s name."]
    numbers: Of[list[Int32], "the 30 words on each side of both words of the pair, as the window's count."]
    words: Of[list[str], "the same, as they stand in the text."]
    weights: Of[list[Float32], "what the word that looks gives to each."]
    query_token: Of[Int32, "where the word that looks begins."]
    key_token: Of[Int32, "where the other begins."]
    ids: Of[list[Int32], "the window's tokens."]
    text: Of[str | None, "a text that the tokenizer turns into exactly these, or null."]


@dataclass(frozen=True)
class DistributionRow(OfHead):
    """A head's weight on the words at a distance: `distributions.parquet`."""

    distance: Of[Int32, "in words to the right, -10 to 10."]
    value: Of[float | None, "the mean weight on the word there."]
    count: Of[int, "pairs of words."]


@dataclass(frozen=True)
class EffectRow(OfHead):
    """Effect of silencing a head: `effects.parquet`."""

    output: Of[str, "the number that changes."]
    unit: Of[str, "its unit."]
    method: Of[str, "how the head is silenced."]
    base: Of[float, "mean over windows of the number as it is."]
    change: Of[float, "mean over windows of the number without the head less the number as it is."]
    low: Of[float | None, "the bounds of the 95% interval."]
    high: Of[float | None, "the bounds of the 95% interval."]
    windows: Of[Int32, "windows measured."]
    documents: Of[Int32, "documents that they are from."]


@dataclass(frozen=True)
class RemovalRow:
    """A head in the order in which heads can be removed: `removal.parquet`."""

    step: Of[Int32, "from 1."]
    layer: Of[Int16, "both from 0."]
    head: Of[Int16, "both from 0."]
    cost: Of[
        float,
        "with this head and all before it silenced, the mean rise of loss or of 1 − cosine, or the mean absolute "
        "change of a logit or a projection. It is over the windows that choose, of documents with even numbers.",
    ]
    cost_held_out: Of[float | None, "the same over the other windows."]
    low: Of[float | None, "the bounds of the 95% interval."]
    high: Of[float | None, "the bounds of the 95% interval."]
    windows: Of[Int32, "windows that choose."]
    windows_held_out: Of[Int32, "the others."]


@dataclass(frozen=True)
class WriteRow(OfHead):
    """The tokens that a head writes: `writes.parquet`."""

    tokens: Of[
        list[str],
        "up to ten whose masked-LM logits the head's output raises where they are right, chosen on one half of the "
        "windows, the one that gains most first.",
    ]
    gains: Of[list[float], "bits per masked token that each gains alone, on the half that chose."]
    bits: Of[
        float | None,
        "per masked token, what they gain together over their frequency, on the other half; null without one.",
    ]
    low: Of[float | None, "the bounds of the 95% interval."]
    high: Of[float | None, "the bounds of the 95% interval."]
    sure: Of[bool, "whether `low` is at least 0.001; only then does the head count as writing them."]
    masked: Of[Int32, "masked tokens of the other half."]
    windows: Of[Int32, "its windows."]
    documents: Of[Int32, "documents that they are from."]
    over: Of[
        Literal["documents", "windows"],
        "what was halved, and what the interval is over: `documents`, or `windows` if there are fewer than 20.",
    ]


def _type_of(hint: Any) -> tuple[str, bool, tuple[str, ...]]:
    """An annotation's type by pyarrow's name, with `[]` if it is a list; if it may be null; its choices, if named."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (inner for inner in get_args(hint) if inner is not type(None))
        return _type_of(hint)[0], True, ()
    if get_origin(hint) is list:
        return f"{_type_of(get_args(hint)[0])[0]}[]", False, ()
    if get_origin(hint) is Literal:
        return "string", False, get_args(hint)
    if get_origin(hint) is Annotated:
        of, *more = get_args(hint)
        return (more[0], False, ()) if more[0] in ALIASES else _type_of(of)
    return PLAIN[hint], False, ()


def column_types(row: type) -> dict[str, tuple[str, bool, tuple[str, ...]]]:
    """Field -> its type by pyarrow's name, with `[]` for a list; if it may be null; its choices, if named."""
    return {name: _type_of(hint) for name, hint in get_type_hints(row, include_extras=True).items()}


def columns(row: type) -> tuple[tuple[str, pyarrow.DataType], ...]:
    """Name and type of each column of a row's table."""
    import pyarrow

    def kind(name: str) -> pyarrow.DataType:
        return pyarrow.list_(kind(name[:-2])) if name.endswith("[]") else pyarrow.type_for_alias(name)

    return tuple((name, kind(of)) for name, (of, _, _) in column_types(row).items())


def table_of(row: type, rows: Iterable[Any]) -> pyarrow.Table:
    """The table of some rows of one class; NaN is null."""
    import pyarrow

    rows = list(rows)
    return pyarrow.table(
        {
            name: pyarrow.array([getattr(one, name) for one in rows], kind, from_pandas=True)
            for name, kind in columns(row)
        }
    )

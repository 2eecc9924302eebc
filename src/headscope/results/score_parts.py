"""Parts of one number by token, word or sentence, with what masking them does; a score in pairs of tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import InputError
from headscope.results.arrays import ArrayLike
from headscope.results.head_values import signed
from headscope.results.tokens import sources, text_of, whole_words
from headscope.settings import whole

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.tokens import TokenAxis


KAPPA = 5.0
"""Above this, amounts are small differences of large ones: only their ranks are shown."""
CHECKED = 3
"""Number of the strongest words that are masked for real."""
UNITS_OF_TEXT = ("token", "word", "sentence")
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]+[」』”’）]*|\n{2,}")


@dataclass(frozen=True)
class Part:
    """A stretch of a text with its share of a number.

    Attributes:
        label: the stretch as it stands in the text.
        tokens: positions of its tokens.
        share: what it adds to the number.
        special: True for a token that the tokenizer added.
        change: the number less the number with these tokens masked; None if they weren't masked.
        side: `query` or `document`, of a score of two texts; otherwise empty.
    """

    label: str
    tokens: tuple[int, ...]
    share: float
    special: bool = False
    change: float | None = None
    side: str = ""

    @property
    def contradicted(self) -> bool:
        """True if masking the part moves the number the other way than its share says, by at least 1 % of the share."""
        opposite = self.change is not None and self.share * self.change < 0
        return opposite and abs(self.change or 0) >= abs(self.share) / 100

    def __str__(self) -> str:
        masked = "" if self.change is None else f", masked {signed(self.change)}"
        return f"{self.label} {signed(self.share)}{masked}{' (contradicted)' if self.contradicted else ''}"


def parts_of(
    shares: Float[np.ndarray, " tokens"],
    axis: TokenAxis,
    by: str = "word",
    text: str | None = None,
    pair: str | None = None,
) -> list[Part]:
    """The parts of a text with the sums of their tokens' shares; special tokens stand alone.

    Args:
        shares: one for each token.
        axis: the tokens.
        by: `token`, `word` or `sentence`.
        text: the text, for the labels and for the ends of sentences.
        pair: the second text.

    Raises:
        InputError: another name, or sentences of a text that isn't known.
    """
    if by not in UNITS_OF_TEXT:
        raise InputError(f"a text has no {by!r:.40}", where="by", advice=f"use one of {', '.join(UNITS_OF_TEXT)}")
    places = sources(axis, text, pair)
    if by == "sentence" and any(source is None for source in places):
        advice = "pass a text instead of ids, or use by='word'"
        raise InputError("the sentences of a text that isn't known can't be told apart", where="by", advice=advice)
    keys: Sequence[object] = range(len(axis))
    if by != "token":
        keys = whole_words(axis, text, pair)[0] if by == "word" else _sentences(axis, places)
    groups = [[at for at, _ in some] for _, some in groupby(enumerate(keys), key=lambda one: one[1])]
    parts = []
    for at in groups:
        stretch = " ".join(text_of(axis, at, places[at[0]]).split())
        label = stretch or axis.tokens[at[0]]
        parts.append(Part(label, tuple(at), float(shares[at].sum()), axis.special[at[0]]))
    return parts


def strongest(parts: Sequence[Part], count: int = CHECKED) -> list[Part]:
    """The parts with the greatest shares in either direction, the greatest first; none of special tokens."""
    ranked = sorted((part for part in parts if not part.special), key=lambda part: -abs(part.share))
    return ranked[: whole(count, "count", 0)]


def kappa_of(shares: Float[np.ndarray, "..."], rest: float, total: float) -> float:
    """(sum of |shares| + |rest|) / |total|: 1 where nothing cancels; infinite for a total of 0."""
    size = float(np.abs(shares).sum()) + abs(rest)
    return size / abs(total) if total else float("inf")


def _sentences(axis: TokenAxis, places: Sequence[tuple[int, str] | None]) -> list[object]:
    """The number of each token's text and sentence; special tokens, and those without a span, stand alone."""
    found: list[object] = []
    for at, (source, span) in enumerate(zip(places, axis.spans, strict=True)):
        if axis.special[at] or source is None or span is None:
            found.append(at)
        else:
            found.append((source[0], sum(end.end() <= span[0] for end in SENTENCE_END.finditer(source[1]))))
    return found


REST = ("biases", "distance")
"""The entries beside the tokens on both sides: the biases' shares, and terms for the distance of query and key."""


@dataclass(frozen=True, eq=False)
class Why(ArrayLike):
    """The score of a query and a key, less the plain mean of the query's scores of all other keys, taken apart.

    Attributes:
        layer: the head's layer.
        head: the head in it.
        query: position of the token that looks.
        key: position of the token that it looks at.
        weight: the weight of the query on the key.
        score: their score.
        others: the mean of the query's scores of the other keys that it sees.
        table: (tokens, biases and distance; the same), what each pair adds to the difference: the row's part of the
            query, times the column's part of the key less the mean of the other keys. Its sum is `score - others`.
        axis: the text's tokens.
        labels: of rows and columns.
        checks: the tokens of the strongest pair: `share` is what all pairs with the token add, and `change` what the
            weight's log odds lose when it is masked for real.
        unchecked: why nothing was masked.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    score: float
    others: float
    table: Float[np.ndarray, "rows columns"]
    axis: TokenAxis
    labels: tuple[str, ...]
    checks: tuple[Part, ...] = ()
    unchecked: str = ""

    @property
    def difference(self) -> float:
        """The score less the mean of the other keys: what the pairs add up to."""
        return self.score - self.others

    @property
    def cells(self) -> Float[np.ndarray, "tokens tokens"]:
        """(tokens, tokens): the pairs of tokens alone."""
        return self.table[: len(self.axis), : len(self.axis)]

    @property
    def rest(self) -> float:
        """The part of pairs with the biases or the distance: cells and rest are the difference."""
        return float(self.table.sum() - self.cells.sum())

    @property
    def kappa(self) -> float:
        """(sum of the pairs' sizes) / |difference|: 1 where nothing cancels."""
        return kappa_of(self.table, 0.0, self.difference)

    def strongest(self, count: int = 10) -> list[tuple[int, int]]:
        """Rows and columns of the table that add most in either direction, the biases' and the distance's too."""
        order = np.argsort(-np.abs(self.table), axis=None, kind="stable")[: whole(count, "count", 0)]
        rows, columns = np.unravel_index(order, self.table.shape)
        return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]

    def of_token(self, token: int) -> float:
        """The sum of all pairs with a token, on either side."""
        return float(self.table[token].sum() + self.table[:, token].sum() - self.table[token, token])

    @property
    def array(self) -> Float[np.ndarray, "..."]:  # type: ignore[override]
        """The array that this record stands for: `table`."""
        return self.table

    def __repr__(self) -> str:
        row, column = self.strongest(1)[0]
        return (
            f"layer {self.layer}, head {self.head}: {self.axis.tokens[self.query]} scores {self.axis.tokens[self.key]} "
            f"{self.score:.4f}, {signed(self.difference)} over the mean of other keys; most: "
            f"{self.labels[row]} x {self.labels[column]} {signed(self.table[row, column])}"
        )

"""Parts of one number: token by token, by whole words or sentences, with what masking them for real does to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import InputError
from headscope.results.measure import signed

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.arrays import TokenAxis

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


@dataclass(frozen=True, eq=False)
class Group:
    """Tokens that belong together: a word, a sentence, a special token.

    Attributes:
        label: as in the text; the tokens' spelling if the text isn't known.
        tokens: their positions.
        special: True for a token that the tokenizer added.
    """

    label: str
    tokens: tuple[int, ...]
    special: bool


def groups_of(axis: TokenAxis, by: str = "word", text: str | None = None, pair: str | None = None) -> list[Group]:
    """The tokens of a text in groups; special tokens stand alone.

    Args:
        axis: the tokens.
        by: `token`, `word` or `sentence`.
        text: the text, for the labels and for the ends of sentences.
        pair: the second text.

    Raises:
        InputError: another name, or sentences of a text that isn't known.
    """
    if by not in UNITS_OF_TEXT:
        raise InputError(f"a text has no {by!r:.40}", where="by", advice=f"use one of {', '.join(UNITS_OF_TEXT)}")
    sources = _sources(axis, text, pair)
    if by == "sentence" and any(source is None for source in sources):
        raise InputError(
            "the sentences of a text that isn't known can't be told apart",
            where="by",
            advice="pass a text instead of ids, or use by='word'",
        )
    groups: list[list[int]] = []
    keys: list[object] = []
    for at in range(len(axis)):
        key = _key(axis, at, by, sources[at])
        if groups and key is not None and keys[-1] == key:
            groups[-1].append(at)
        else:
            groups.append([at])
            keys.append(key)
    return [Group(_label(axis, some, sources[some[0]]), tuple(some), axis.special[some[0]]) for some in groups]


def parts_of(
    shares: Float[np.ndarray, " tokens"], groups: Sequence[Group], changes: Sequence[float | None] = (), side: str = ""
) -> list[Part]:
    """The groups with the sums of their tokens' shares, and with what masking them changed, where that is known."""
    known = changes or [None] * len(groups)
    return [
        Part(group.label, group.tokens, float(shares[list(group.tokens)].sum()), group.special, change, side)
        for group, change in zip(groups, known, strict=True)
    ]


def strongest(parts: Sequence[Part], count: int = CHECKED) -> list[Part]:
    """The parts with the greatest shares in either direction, the greatest first; none of special tokens."""
    return sorted((part for part in parts if not part.special), key=lambda part: -abs(part.share))[:count]


def with_change(part: Part, change: float) -> Part:
    """The part with what masking it changed."""
    return replace(part, change=change)


def kappa_of(shares: Float[np.ndarray, "..."], rest: float, total: float) -> float:
    """(sum of |shares| + |rest|) / |total|: 1 where nothing cancels; infinite for a total of 0."""
    size = float(np.abs(shares).sum()) + abs(rest)
    return size / abs(total) if total else float("inf")


def _sources(axis: TokenAxis, text: str | None, pair: str | None) -> list[tuple[int, str] | None]:
    """The number and the words of the text that each token stands in; the second one follows a special token."""
    found: list[tuple[int, str] | None] = []
    number, content_seen = 0, False
    for at in range(len(axis)):
        if axis.special[at]:
            number = 1 if content_seen and pair is not None else number
        else:
            content_seen = True
        source = (text, pair)[number]
        found.append(None if source is None else (number, source))
    return found


def _key(axis: TokenAxis, at: int, by: str, source: tuple[int, str] | None) -> object:
    """The mark that a token shares with others of its group; None if it stands alone."""
    if by == "token" or axis.special[at]:
        return None
    if by == "word":
        word = axis.words[at]
        return None if word is None else (axis.segments[at], source and source[0], word)
    assert source is not None
    span = axis.spans[at]
    if span is None:
        return None
    return source[0], sum(end <= span[0] for end in _sentence_ends(source[1]))


def _sentence_ends(text: str) -> Iterator[int]:
    return (match.end() for match in SENTENCE_END.finditer(text))


def _label(axis: TokenAxis, tokens: Sequence[int], source: tuple[int, str] | None) -> str:
    """The stretch of text from the first token's beginning to the last one's end."""
    first, last = axis.spans[tokens[0]], axis.spans[tokens[-1]]
    if source is not None and first is not None and last is not None and source[1][first[0] : last[1]].strip():
        return " ".join(source[1][first[0] : last[1]].split())
    if source is None or axis.special[tokens[0]]:
        return "".join(axis.tokens[at].removeprefix("##") for at in tokens).strip("Ġ▁ ") or axis.tokens[tokens[0]]
    return " ".join(axis.tokens[at] for at in tokens)

"""The tokens of an input, which are those along an axis of its trace: the text that each stands for, and words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from headscope.errors import TraceError

SPACES = "Ġ▁"
"""Marks of byte-level and SentencePiece vocabularies for the space before a word."""
ENDS = ("</w>", "@@")
"""Marks after a token: of the end of a word, and of a word that continues."""
UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana and Han."""


Span = tuple[int, int]


@dataclass(frozen=True)
class TokenAxis:
    """The tokens of an input, or along one axis of a trace's maps: its queries or its keys.

    All fields but `prompt` have one entry per token.

    Attributes:
        tokens: the tokens, as the vocabulary spells them: "##ing", "Ġthe", "▁the", "[CLS]".
        ids: their ids, rows of the embedding table; -1 for tokens without an id, such as patches of an image.
        segments: 0 for tokens of the first text, 1 for tokens of the second.
        special: True for tokens that the tokenizer added ([CLS], [SEP], <s>, </s>); a [MASK] in the text is part of
            the text. If the input was ids: True for separator, class, begin, end and padding tokens.
        words: number of the word that the token belongs to, counted from 0 over the whole input: the second text's
            words continue after the first's. None for special tokens, or if unknown.
        spans: range of characters (start, stop) in the token's text; None for special tokens, or if unknown.
        prompt: number of tokens at the beginning that are left out of the text's vector.

    Raises:
        TraceError: the fields differ in length.
    """

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    spans: tuple[Span | None, ...]
    prompt: int = 0

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in self.columns().items()}
        if len(set(sizes.values())) > 1:
            advice = "pass an id, a segment, a special flag, a word and a span for every token"
            raise TraceError(f"the fields of a token axis differ in length: {sizes}", where="token axis", advice=advice)

    def __len__(self) -> int:
        return len(self.ids)

    def columns(self) -> dict[str, Any]:
        """The fields that have one entry per token, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "prompt"}

    def without(self, gone: Collection[int]) -> TokenAxis:
        """The input without the tokens at these positions; later ones move up."""
        kept = [at for at in range(len(self)) if at not in gone]
        columns = {name: tuple(column[at] for at in kept) for name, column in self.columns().items()}
        return TokenAxis(**columns, prompt=sum(at < self.prompt for at in kept))


@lru_cache(maxsize=1 << 16)
def is_punctuation(text: str) -> bool:
    """Return True if all characters are punctuation by BERT's tokenizer: Unicode's P, and ASCII signs like $."""
    return bool(text.strip()) and all(
        unicodedata.category(sign).startswith("P") or (sign.isascii() and sign.isprintable() and not sign.isalnum())
        for sign in text.replace(" ", "")
    )


def bare(token: str) -> str:
    """The token without the vocabulary's marks: `ing` of `##ing`, `the` of `▁the`; nothing of `▁` alone."""
    if token.startswith("##") and len(token) > 2:
        return token[2:]
    end = next((mark for mark in ENDS if token.endswith(mark) and token != mark), "")
    token = token.removesuffix(end)
    return token[1:].lstrip("▁") if token[:1] and token[0] in SPACES else token


def is_space(token: str) -> bool:
    """Return True for a token that is only SentencePiece's mark of a space."""
    return bool(token) and not token.strip("▁")


def own_span(axis: TokenAxis, at: int) -> tuple[int, int] | None:
    """The range of characters that is a token's own; empty for a mark of a space.

    Where texts are split at white space first, tokenizers give the mark the span of the character after the space.
    """
    span = axis.spans[at]
    return (span[0], span[0]) if span is not None and is_space(axis.tokens[at]) else span


def sources(axis: TokenAxis, text: str | None, pair: str | None = None) -> list[tuple[int, str] | None]:
    """The number and the words of the text that each token stands in; the second one follows a special token."""
    found: list[tuple[int, str] | None] = []
    number, content_seen = 0, False
    for special in axis.special:
        if special:
            number = 1 if content_seen and pair is not None else number
        else:
            content_seen = True
        source = (text, pair)[number]
        found.append(None if source is None else (number, source))
    return found


def punctuation(axis: TokenAxis, text: str | None, pair: str | None = None) -> list[bool]:
    """True for each token that is punctuation by docs/statistics.md: by its own characters, or the text it spells."""
    found = []
    for at, source in enumerate(sources(axis, text, pair)):
        own, span = bare(axis.tokens[at]), own_span(axis, at)
        written = "" if source is None or span is None else source[1][slice(*span)]
        if written and not (own.isascii() and is_punctuation(own)):
            own = written
        found.append(not axis.special[at] and is_punctuation(own))
    return found


def whole_words(axis: TokenAxis, text: str | None, pair: str | None = None) -> tuple[list[int], list[str]]:
    """The number of each token's word, and each word as it stands in the text, or as its tokens spell it.

    Words are the tokenizer's, but punctuation stands apart, as BERT's tokenizer has it everywhere, and `▁` begins a
    word. A special token is a word of its own. A mark of a space that no letters follow has the text "".
    """
    signs, places = punctuation(axis, text, pair), sources(axis, text, pair)
    numbers: list[int] = []
    words: list[list[int]] = []
    for at in range(len(axis)):
        if at and _continues(axis, signs, at):
            words[-1].append(at)
        else:
            words.append([at])
        numbers.append(len(words) - 1)
    return numbers, [text_of(axis, tokens, places[tokens[0]]) for tokens in words]


def names(axis: TokenAxis, text: str | None, pair: str | None = None) -> list[str]:
    """The name of each token in a sentence about the text: its word, as it stands there.

    Where a script has no spaces and the vocabulary calls all between two spaces a word (any but WordPiece's, whose
    texts are split into words first), that would be a clause: a token is called by its own letters.
    """
    numbers, forms = whole_words(axis, text, pair)
    split_first = any(token.startswith("##") for token in axis.tokens)
    places = sources(axis, text, pair)
    return [
        text_of(axis, [at], places[at]) if UNSPACED.search(form) and not split_first else form
        for at, form in enumerate(forms[number] for number in numbers)
    ]


def _continues(axis: TokenAxis, signs: list[bool], at: int) -> bool:
    """True if a token belongs to the word of the token before it."""
    word, before = axis.words[at], at - 1
    if word is None or word != axis.words[before] or axis.segments[at] != axis.segments[before]:
        return False
    if is_space(axis.tokens[before]):
        return not signs[at] and not axis.tokens[at].startswith("▁")
    if axis.tokens[at].startswith("▁"):
        return False
    span, last = axis.spans[at], axis.spans[before]
    if span is not None and last is not None and span[0] < last[1]:  # bytes of one character
        return True
    return not signs[at] and not signs[before]


def text_of(axis: TokenAxis, tokens: Sequence[int], source: tuple[int, str] | None) -> str:
    """The text of neighbouring tokens: the text from the first to the last, or their spelling."""
    if axis.special[tokens[0]]:
        return axis.tokens[tokens[0]]
    first, last = axis.spans[tokens[0]], own_span(axis, tokens[-1])
    stretch = ""
    if source is not None and first is not None and last is not None:
        stretch = source[1][first[0] : last[1]].strip()
    return stretch or "".join(bare(axis.tokens[at]) for at in tokens)

"""The records a tokenizer leaves, and how pieces and special tokens are put together and cut to a length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headscope.errors import InputError

Span = tuple[int, int]


@dataclass(frozen=True)
class Encoded:
    """One input as the model reads it, position by position; all fields have the same length.

    Attributes:
        ids: what the embedding table is indexed with.
        tokens: the pieces as the vocabulary spells them ("##ing", "Ġthe", "▁the", "[CLS]").
        segments: the token type of each position.
        special: whether the tokenizer added the position ([CLS], [SEP], <s>, </s>); a [MASK] that stands in the
            text is part of the text. Where ids were given as they are: whether the id is a separator, a class,
            begin, end or padding token.
        words: the word each piece belongs to, counted over the whole input, the pair's words continuing after
            the first text's; None for special positions and where ids were given.
        spans: (start, stop) in characters (Python string indices) of the text, or of the pair for its pieces;
            None for special positions and where there is no text.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    segments: tuple[int, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    spans: tuple[Span | None, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Pieces:
    """One text (or one list of words) cut into pieces, before special tokens.

    Attributes:
        ids, tokens, words, spans: as in Encoded, counted from this text's own first word and character.
        word_count: how many words the whole text has, also those that left no piece.
    """

    ids: Sequence[int]
    tokens: Sequence[str]
    words: Sequence[int | None]
    spans: Sequence[Span | None]
    word_count: int

    def cut(self, count: int, *, keep_end: bool) -> Pieces:
        """The first (or, with keep_end, the last) count pieces."""
        part = slice(len(self.ids) - count, None) if keep_end else slice(0, count)
        return Pieces(self.ids[part], self.tokens[part], self.words[part], self.spans[part], self.word_count)


@dataclass(frozen=True)
class Special:
    """A special token that the model's template puts at one position."""

    id: int
    token: str
    segment: int


@dataclass(frozen=True)
class Slot:
    """The place of a text in the template: 0 for the text, 1 for its pair."""

    text: int
    segment: int


Layout = Sequence[Special | Slot]


def kept_lengths(lengths: Sequence[int], budget: int, *, odd_to_first: bool) -> list[int]:
    """How many pieces of each text stay when together they may take budget positions.

    The longer text of a pair is cut first ("longest_first"); once both are equally long they are cut in turn. An odd
    position goes to the longer of the two, or to the pair where they are equally long (the rule of the `tokenizers`
    library); with odd_to_first it goes to the first text unless the pair is shorter (the rule of transformers'
    tokenizers written in Python).
    """
    if sum(lengths) <= budget:
        return list(lengths)
    if len(lengths) == 1:
        return [budget]
    first, second = lengths
    shorter = min(first, second)
    if 2 * shorter <= budget:
        return [shorter, budget - shorter] if first == shorter else [budget - shorter, shorter]
    half = budget // 2
    if first > second or odd_to_first:
        return [budget - half, half]
    return [half, budget - half]


def assemble(
    layout: Layout, texts: Sequence[Pieces], *, max_length: int | None, odd_to_first: bool, keep_end: bool
) -> Encoded:
    """Put the special tokens of the layout around the texts, each cut so that all fits in max_length positions.

    Errors: InputError when max_length leaves no room for a piece of each text.
    """
    specials = sum(isinstance(slot, Special) for slot in layout)
    if max_length is not None:
        needed = specials + len(texts)
        if max_length < needed:
            content = "the text" if len(texts) == 1 else "each of the two texts"
            raise InputError(
                f"max_length is {max_length}, but the special tokens take {specials} positions and {content} needs "
                f"at least one",
                where="max_length",
                advice=f"pass max_length={needed} or more",
            )
        kept = kept_lengths([len(text.ids) for text in texts], max_length - specials, odd_to_first=odd_to_first)
        cut = [text.cut(count, keep_end=keep_end) for text, count in zip(texts, kept, strict=True)]
    else:
        cut = list(texts)
    ids: list[int] = []
    tokens: list[str] = []
    segments: list[int] = []
    special: list[bool] = []
    words: list[int | None] = []
    spans: list[Span | None] = []
    for slot in layout:
        if isinstance(slot, Special):
            ids.append(slot.id)
            tokens.append(slot.token)
            segments.append(slot.segment)
            special.append(True)
            words.append(None)
            spans.append(None)
            continue
        text = cut[slot.text]
        before = texts[0].word_count if slot.text == 1 else 0
        ids.extend(text.ids)
        tokens.extend(text.tokens)
        segments.extend([slot.segment] * len(text.ids))
        special.extend([False] * len(text.ids))
        words.extend(None if word is None else word + before for word in text.words)
        spans.extend(text.spans)
    return Encoded(tuple(ids), tuple(tokens), tuple(segments), tuple(special), tuple(words), tuple(spans))

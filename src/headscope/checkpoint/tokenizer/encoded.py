"""The results of a tokenizer, and their assembly: tokens and special tokens, cut to a maximum length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headscope.errors import InputError
from headscope.results.tokens import Span, TokenAxis


@dataclass(frozen=True)
class Prepared:
    """A text as a model reads it.

    Attributes:
        text: with the prompt, lower-cased where the model's files say so.
        encoded: its tokens, cut; spans are places in `text`.
        prompt: characters of the prompt.
        notes: what was added, lower-cased or cut, and what the tokenizer's files leave in doubt, in sentences.
        pair: the second text.
        whole: number of tokens before it was cut.
    """

    text: str
    encoded: TokenAxis
    prompt: int = 0
    notes: tuple[str, ...] = ()
    pair: str | None = None
    whole: int = 0


@dataclass(frozen=True)
class Pieces:
    """The tokens of one text (or of one list of words), without special tokens.

    Attributes:
        ids: as in TokenAxis.
        tokens: as in TokenAxis.
        words: as in TokenAxis, counted from the first word of this text.
        spans: as in TokenAxis.
        word_count: number of words of the whole text, including words without tokens.
    """

    ids: Sequence[int]
    tokens: Sequence[str]
    words: Sequence[int | None]
    spans: Sequence[Span | None]
    word_count: int

    def cut(self, count: int, *, keep_end: bool) -> Pieces:
        """Return the first (or, with keep_end, the last) count tokens."""
        part = slice(len(self.ids) - count, None) if keep_end else slice(0, count)
        return Pieces(self.ids[part], self.tokens[part], self.words[part], self.spans[part], self.word_count)


@dataclass(frozen=True)
class Special:
    """A special token at one position of the model's template."""

    id: int
    token: str
    segment: int


@dataclass(frozen=True)
class Slot:
    """The position of a text in the template: 0 for the text, 1 for its pair."""

    text: int
    segment: int


Layout = Sequence[Special | Slot]


def kept_lengths(lengths: Sequence[int], budget: int, *, odd_to_first: bool) -> list[int]:
    """Return the number of tokens of each text that fit into budget positions together.

    The longer text of a pair is cut first ("longest_first"); once both are equally long, they are cut in turn. An odd
    position goes to the longer text, or to the pair if both are equally long (the rule of the `tokenizers` library);
    with odd_to_first, it goes to the first text unless the pair is shorter (the rule of transformers' tokenizers in
    Python).
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
) -> TokenAxis:
    """Join texts and special tokens according to the layout, and cut the texts to max_length positions in all.

    Raises:
        InputError: max_length leaves no room for a token of each text.
    """
    specials = sum(isinstance(slot, Special) for slot in layout)
    if max_length is not None:
        needed = specials + len(texts)
        if max_length < needed:
            content = "the text" if len(texts) == 1 else "each of the two texts"
            raise InputError(
                f"max_length is {max_length}, but the special tokens take {specials} positions and {content} needs at "
                "least one",
                where="max_length",
                advice=f"pass max_length={needed} or more",
            )
        counts = kept_lengths([len(text.ids) for text in texts], max_length - specials, odd_to_first=odd_to_first)
        cut = [text.cut(count, keep_end=keep_end) for text, count in zip(texts, counts, strict=True)]
    else:
        cut = list(texts)
    rows: list[tuple[str, int, int, bool, int | None, Span | None]] = []
    for slot in layout:
        if isinstance(slot, Special):
            rows.append((slot.token, slot.id, slot.segment, True, None, None))
            continue
        text = cut[slot.text]
        before = texts[0].word_count if slot.text == 1 else 0
        for index, token, word, span in zip(text.ids, text.tokens, text.words, text.spans, strict=True):
            rows.append((token, index, slot.segment, False, None if word is None else word + before, span))
    return TokenAxis(*zip(*rows, strict=True))  # type: ignore[arg-type]  # its columns

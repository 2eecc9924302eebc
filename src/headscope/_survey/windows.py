"""Cuts texts into windows of tokens, special tokens included, and groups windows into batches of one length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope._survey.conllu import Sentence
from headscope._survey.words import Words, words_of_sentence, words_of_text
from headscope._trace import TokenAxis
from headscope.errors import InputError, UnsupportedError
from headscope.statistics.roles import Roles, roles_of_tokens

if TYPE_CHECKING:
    from jaxtyping import Int


@dataclass(frozen=True, eq=False)
class Window:
    """A run of a document's tokens with special tokens around it.

    Attributes:
        document: index of its text.
        number: index among the document's windows.
        ids, segments: (tokens,).
        roles: of its tokens.
        words: those that its tokens make up; None if they are not needed.
    """

    document: int
    number: int
    ids: Int[np.ndarray, " tokens"]
    segments: Int[np.ndarray, " tokens"]
    roles: Roles
    words: Words | None = None

    def __len__(self) -> int:
        return len(self.ids)


class Cutter:
    """Cuts texts into windows of at most `length` tokens, one after the other, without overlap.

    Raises:
        UnsupportedError: the tokenizer is not a fast one, so the positions of its tokens in the text are unknown.
        InputError: special tokens alone fill a window.
    """

    def __init__(self, tokenizer: Any, length: int) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UnsupportedError(
                f"{type(tokenizer).__name__} is not a fast tokenizer, which cutting texts into windows requires",
                where="tokenizer",
                advice="pass a fast tokenizer: transformers.AutoTokenizer.from_pretrained(…, use_fast=True)",
            )
        added = tokenizer.num_special_tokens_to_add()
        if length <= added:
            raise InputError(
                f"windows of {length} tokens leave no room for text beside {added} special tokens",
                where="length",
                advice=f"give at least {added + 1}",
            )
        self.tokenizer = tokenizer
        self.length = length

    def cut(self, texts: Sequence[str], *, words: bool = False) -> list[Window]:
        """Return all windows, text by text; with `words`, each has its words. A text without tokens has none."""
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=self.length, return_overflowing_tokens=True, verbose=False
        )
        windows = []
        last, number = -1, 0
        for encoding, document in zip(encoded.encodings, encoded["overflow_to_sample_mapping"], strict=True):
            number = number + 1 if document == last else 0
            last = document
            if all(encoding.special_tokens_mask):
                continue
            axis = _axis(encoding)
            roles = roles_of_tokens(axis, axis, texts[document])
            ids, segments = (np.array(column, dtype=np.int64) for column in (axis.ids, axis.segments))
            text_words = words_of_text(encoding, texts[document]) if words else None
            windows.append(Window(document, number, ids, segments, roles, text_words))
        return windows

    def cut_trees(self, trees: Sequence[tuple[int, int, Sentence]]) -> tuple[list[Window], list[tuple[int, int, str]]]:
        """Return a window for each sentence of a treebank, and the reason for each sentence that has none.

        A word without tokens stays a word.

        Words are cut into tokens one by one, as transformers' is_split_into_words=True does (byte-level BPE:
        add_prefix_space=True).

        Args:
            trees: (document, number in it, sentence).
        """
        if not trees:
            return [], []
        try:
            space = " " if self._wants_spaces() else ""
            texts = [[space + word for word in sentence.words] for _, _, sentence in trees]
            encoded = self.tokenizer(texts, is_split_into_words=True, verbose=False)
        except (AssertionError, ValueError) as error:
            raise UnsupportedError(
                f"{type(self.tokenizer).__name__} doesn't accept text that is split into words: {error}",
                where="tokenizer",
                advice="pass a live model and its tokenizer, loaded with add_prefix_space=True",
            ) from error
        windows, refused = [], []
        for (document, number, sentence), words, encoding in zip(trees, texts, encoded.encodings, strict=True):
            place = f"the sentence at line {sentence.line}"
            if all(encoding.special_tokens_mask):
                refused.append((document, number, f"{place} has no word that the tokenizer finds a token in"))
                continue
            if len(encoding.ids) > self.length:
                problem = f"{place} has {len(encoding.ids)} tokens; a window holds {self.length}"
                refused.append((document, number, problem))
                continue
            axis = _axis(encoding)
            starts = np.cumsum([0, *(len(word) + 1 for word in words)])
            spans = tuple(
                span if span is None or word is None else (int(starts[word]) + span[0], int(starts[word]) + span[1])
                for span, word in zip(axis.spans, axis.words, strict=True)
            )
            axis = replace(axis, spans=spans)
            roles = roles_of_tokens(axis, axis, " ".join(words))
            ids, segments = (np.array(column, dtype=np.int64) for column in (axis.ids, axis.segments))
            sentence_words = words_of_sentence(encoding, sentence)
            windows.append(Window(document, number, ids, segments, roles, sentence_words))
        return windows, refused

    def _wants_spaces(self) -> bool:
        """Return True if a word that stands alone loses the space before it, as byte-level BPE has it by default."""
        running, alone, spaced = (
            self.tokenizer(words, is_split_into_words=not isinstance(words, str), add_special_tokens=False)["input_ids"]
            for words in ("a a", ["a", "a"], ["a", " a"])
        )
        return bool(running != alone and running == spaced)


def _axis(encoding: Any) -> TokenAxis:
    special = tuple(bool(flag) for flag in encoding.special_tokens_mask)
    return TokenAxis(
        tokens=tuple(encoding.tokens),
        ids=tuple(encoding.ids),
        segments=tuple(encoding.type_ids),
        special=special,
        words=tuple(encoding.word_ids),
        spans=tuple(None if added else span for span, added in zip(encoding.offsets, special, strict=True)),
    )


def batches(windows: Sequence[Window], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of the windows of each batch: windows of one length, so that nothing is padded.

    The longest come first. The grouping depends only on the windows.
    """
    order = sorted(range(len(windows)), key=lambda at: (-len(windows[at]), at))
    batch: list[int] = []
    for at in order:
        length = len(windows[at])
        if batch and (len(windows[batch[0]]) != length or (len(batch) + 1) * length > batch_tokens):
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch

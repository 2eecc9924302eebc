"""Texts into windows of tokens, framed as the tokenizer frames a text, and windows into batches of one length."""

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
        document: which of the texts it is from.
        number: which of the document's windows it is, from 0.
        ids, segments: (tokens,), of its tokens.
        roles: what its tokens are.
        words: what words they make up, where that was asked for.
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
        UnsupportedError: the tokenizer has no fast form, and tells nothing of where pieces stand in the text.
        InputError: special tokens alone fill a window.
    """

    def __init__(self, tokenizer: Any, length: int) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UnsupportedError(
                f"{type(tokenizer).__name__} has no fast form, and only that cuts texts into windows",
                where="tokenizer",
                advice="pass a fast tokenizer: transformers.AutoTokenizer.from_pretrained(…, use_fast=True)",
            )
        added = tokenizer.num_special_tokens_to_add()
        if length <= added:
            raise InputError(
                f"windows of {length} tokens have no room beside {added} special ones",
                where="length",
                advice=f"give at least {added + 1}",
            )
        self.tokenizer = tokenizer
        self.length = length

    def cut(self, texts: Sequence[str], *, words: bool = False) -> list[Window]:
        """All windows, text by text, with their words or without.

        A text in which the tokenizer finds no token has none.
        """
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=self.length, return_overflowing_tokens=True, verbose=False
        )
        windows = []
        last, number = -1, 0
        for found, document in zip(encoded.encodings, encoded["overflow_to_sample_mapping"], strict=True):
            number = number + 1 if document == last else 0
            last = document
            if all(found.special_tokens_mask):
                continue
            axis = _axis(found)
            roles = roles_of_tokens(axis, axis, texts[document])
            ids, segments = (np.array(one, dtype=np.int64) for one in (axis.ids, axis.segments))
            known = words_of_text(found, texts[document]) if words else None
            windows.append(Window(document, number, ids, segments, roles, known))
        return windows

    def cut_trees(self, trees: Sequence[tuple[int, int, Sentence]]) -> tuple[list[Window], list[tuple[int, int, str]]]:
        """A window of each sentence of a treebank, and why some have none. A word that is no token stays a word.

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
                f"{type(self.tokenizer).__name__} takes no words that are split already: {error}",
                where="tokenizer",
                advice="pass a live model and its tokenizer, loaded with add_prefix_space=True",
            ) from error
        windows, refused = [], []
        for (document, number, sentence), words, found in zip(trees, texts, encoded.encodings, strict=True):
            place = f"the sentence at line {sentence.line}"
            if all(found.special_tokens_mask):
                refused.append((document, number, f"{place} has no word that the tokenizer finds a token in"))
                continue
            if len(found.ids) > self.length:
                problem = f"{place} has {len(found.ids)} tokens; a window holds {self.length}"
                refused.append((document, number, problem))
                continue
            axis = _axis(found)
            starts = np.cumsum([0, *(len(word) + 1 for word in words)])
            spans = tuple(
                span if span is None or word is None else (int(starts[word]) + span[0], int(starts[word]) + span[1])
                for span, word in zip(axis.spans, axis.words, strict=True)
            )
            axis = replace(axis, spans=spans)
            roles = roles_of_tokens(axis, axis, " ".join(words))
            ids, segments = (np.array(one, dtype=np.int64) for one in (axis.ids, axis.segments))
            known = words_of_sentence(found, sentence)
            windows.append(Window(document, number, ids, segments, roles, known))
        return windows, refused

    def _wants_spaces(self) -> bool:
        """Return True if a word that stands alone loses the space before it, as byte-level BPE has it by default."""
        running, alone, spaced = (
            self.tokenizer(words, is_split_into_words=not isinstance(words, str), add_special_tokens=False)["input_ids"]
            for words in ("a a", ["a", "a"], ["a", " a"])
        )
        return bool(running != alone and running == spaced)


def _axis(found: Any) -> TokenAxis:
    special = tuple(bool(one) for one in found.special_tokens_mask)
    return TokenAxis(
        tokens=tuple(found.tokens),
        ids=tuple(found.ids),
        segments=tuple(found.type_ids),
        special=special,
        words=tuple(found.word_ids),
        spans=tuple(None if added else span for span, added in zip(found.offsets, special, strict=True)),
    )


def batches(windows: Sequence[Window], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of windows that go through the model together: of one length, so that nothing is padded.

    The longest come first. Which windows are together depends on nothing but the windows.
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

"""The engine of a tokenizer that headscope can't read correctly: text raises an error, ids work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headscope.checkpoint.tokenizer.encoded import Layout, Pieces
from headscope.errors import HeadscopeError


class Refused:
    """An engine that can't tokenize, but may have a vocabulary for decoding ids."""

    odd_to_first = False

    def __init__(self, error: HeadscopeError, vocabulary: Mapping[str, int]) -> None:
        self._error = error
        self._vocabulary = vocabulary
        self._spellings = {index: piece for piece, index in vocabulary.items()}
        self.notes: list[str] = []

    @property
    def size(self) -> int:
        return max(self._spellings, default=-1) + 1

    def token(self, index: int) -> str | None:
        return self._spellings.get(index)

    def id(self, token: str) -> int | None:
        return self._vocabulary.get(token)

    def text_pieces(self, text: str) -> Pieces:
        raise self._fresh_error()

    def word_pieces(self, words: Sequence[str]) -> Pieces:
        raise self._fresh_error()

    def layout(self, texts: int) -> Layout:
        return ()

    def _fresh_error(self) -> HeadscopeError:
        """Copy the error: a raised error keeps its traceback, and with it the caller's text."""
        return type(self._error)(self._error.found, where=self._error.where, advice=self._error.advice)

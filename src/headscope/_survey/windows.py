"""Cuts texts into windows of tokens, special tokens included, and groups windows into batches of one length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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
    """

    document: int
    number: int
    ids: Int[np.ndarray, " tokens"]
    segments: Int[np.ndarray, " tokens"]
    roles: Roles

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

    def cut(self, texts: Sequence[str]) -> list[Window]:
        """Return all windows, text by text. A text without tokens has none."""
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
            windows.append(Window(document, number, ids, segments, roles))
        return windows


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

"""Windows of tokens for live models: cut from texts, special tokens included, and batched with others as long."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.anatomy import family_of
from headscope.checkpoint.tokenizer.backend import library_errors
from headscope.checkpoint.tokenizer.tokenizer_config import AGAIN
from headscope.errors import InputError, UnsupportedError
from headscope.heads.reference import Roles, roles_of_tokens
from headscope.results.tokens import TokenAxis

if TYPE_CHECKING:
    import torch
    from jaxtyping import Int
    from torch import nn

LENGTH = 512
"""Tokens per window, if the model accepts that many."""


@dataclass(frozen=True, eq=False)
class Window:
    """A run of a document's tokens with special tokens around it.

    Attributes:
        document: index of its text.
        number: index among the document's windows.
        ids, segments: (tokens,).
        roles: of its tokens.
        words: what `Cutter.cut` was given to read of its encoding; None if nothing was.
    """

    document: int
    number: int
    ids: Int[np.ndarray, " tokens"]
    segments: Int[np.ndarray, " tokens"]
    roles: Roles
    words: Any = None

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
            raise not_fast(type(tokenizer).__name__)
        added = tokenizer.num_special_tokens_to_add()
        if length <= added:
            raise InputError(
                f"windows of {length} tokens leave no room for text beside {added} special tokens",
                where="length",
                advice=f"give at least {added + 1}",
            )
        self.tokenizer = tokenizer
        self.length = length

    def cut(self, texts: Sequence[str], *, words: Callable[[Any, str], Any] | None = None) -> list[Window]:
        """Return all windows, text by text; a text without tokens has none.

        Args:
            texts: the texts.
            words: reads a window's words from its encoding and its text.
        """
        if not texts:
            return []
        options = {"truncation": True, "max_length": self.length, "return_overflowing_tokens": True}
        with library_errors("tokenizer", AGAIN):
            encoded = self.tokenizer(list(texts), verbose=False, **options)
        windows = []
        last, number = -1, 0
        for encoding, document in zip(encoded.encodings, encoded["overflow_to_sample_mapping"], strict=True):
            number = number + 1 if document == last else 0
            last = document
            if all(encoding.special_tokens_mask):
                continue
            text = texts[document]
            found = None if words is None else words(encoding, text)
            windows.append(window_of(document, number, axis_of(encoding), text, found))
        return windows


def not_fast(name: str) -> UnsupportedError:
    """The error for a tokenizer that doesn't say where its tokens are in the text."""
    return UnsupportedError(
        f"{name} is not a fast tokenizer, which cutting texts into windows requires",
        where="tokenizer",
        advice="pass a live model and a fast tokenizer: hs.survey(model, documents, tokenizer=tokenizer)",
    )


def window_of(document: int, number: int, axis: TokenAxis, text: str, words: Any) -> Window:
    """The window of these tokens of a text."""
    ids, segments = (np.array(column, dtype=np.int64) for column in (axis.ids, axis.segments))
    return Window(document, number, ids, segments, roles_of_tokens(axis, axis, text), words)


def axis_of(encoding: Any) -> TokenAxis:
    """The tokens of an encoding."""
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
    for length, group in groupby(order, lambda at: len(windows[at])):
        alike, step = list(group), max(1, batch_tokens // length)
        yield from (alike[start : start + step] for start in range(0, len(alike), step))


def longest(model: nn.Module, tokenizer: Any) -> int | None:
    """The most tokens that the model accepts; None if it has no limit."""
    config = getattr(model, "config", None)
    limits = []
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        match = family_of({"model_type": getattr(config, "model_type", "")})
        family = match[0] if match else None
        counted = family is None or family.rotary is None
        offset = family.position_offset if family is not None and counted else None
        first = 0 if offset is None else int(getattr(config, "pad_token_id", 0) or 0) + offset
        limits.append(positions - first)
    tokenizer_limit = getattr(tokenizer, "model_max_length", None)
    if isinstance(tokenizer_limit, int) and 0 < tokenizer_limit < 2**31:
        limits.append(tokenizer_limit)
    return min(limits, default=None)


def window_length(model: nn.Module, tokenizer: Any, requested: int | None) -> int:
    """Tokens per window; by default LENGTH, or what the model takes.

    Raises:
        InputError: the model doesn't accept that many.
    """
    limit = longest(model, tokenizer)
    if requested is None:
        return LENGTH if limit is None else min(LENGTH, limit)
    if limit is not None and requested > limit:
        raise InputError(
            f"windows of {requested} tokens are longer than the model's limit of {limit}",
            where="length",
            advice=f"use at most {limit}",
        )
    return requested


def takes_segments(model: nn.Module, tokenizer: Any) -> bool:
    """Return True if a tokenizer gives token_type_ids and a model's forward has that argument, or takes any."""
    known = inspect.signature(model.forward).parameters.values()
    takes = any(one.name == "token_type_ids" or one.kind is one.VAR_KEYWORD for one in known)
    return takes and "token_type_ids" in tokenizer.model_input_names


def inputs_of(windows: Sequence[Window], device: torch.device, *, segments: bool) -> dict[str, torch.Tensor]:
    """The arguments of a model's forward for windows of one length; with `segments`, token_type_ids too."""
    import torch

    inputs = {"input_ids": np.stack([window.ids for window in windows])}
    if segments:
        inputs["token_type_ids"] = np.stack([window.segments for window in windows])
    return {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}

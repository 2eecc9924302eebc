"""Forward passes of which only the last hidden state is wanted: batched, without a record of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from headscope.checkpoint.tokenizer import Encoded
from headscope.encoder import Input
from headscope.errors import InputError
from headscope.results.arrays import TokenAxis

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.traces import Trace

BATCH_TOKENS = 4096
"""Most tokens that go through the encoder side by side."""

T = TypeVar("T")

Ids = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids and segments of one text."""


def encoded_text(model: Model, text: str, pair: str | None = None, *, max_length: int | None) -> Encoded:
    """A text as the model reads it.

    Raises:
        InputError: an empty text.
        UnsupportedError: the model is one that headscope doesn't run.
    """
    model.anatomy.computable()
    return model.tokenizer.encode(text, pair, max_length=max_length)


def encoded_trace(trace: Trace) -> Encoded:
    """The tokens of a trace, as its model read them.

    Raises:
        InputError: cross-attention, whose keys are other tokens than its queries.
    """
    if trace.keys is not trace.queries:
        raise InputError(
            "the keys are another text than the queries",
            where=f"trace of {trace.stack} attention",
            advice="use a trace of self-attention",
        )
    axis = trace.queries
    return Encoded(axis.ids, axis.tokens, axis.segments, axis.special, axis.words, axis.spans)


def axis_of(encoded: Encoded) -> TokenAxis:
    """The tokens of an encoded text, as a trace has them."""
    return TokenAxis(encoded.tokens, encoded.ids, encoded.segments, encoded.special, encoded.words, encoded.spans)


def as_input(text: Encoded | Ids) -> Input:
    """A text as the encoder takes it."""
    ids, segments = (text.ids, text.segments) if isinstance(text, Encoded) else text
    return Input(np.array(ids, dtype=np.int64), np.array(segments, dtype=np.int64))


def last_states(model: Model, texts: Iterable[Encoded | Ids]) -> list[Float[np.ndarray, "tokens d_model"]]:
    """The last hidden state of each text, in the order of the texts.

    Raises:
        InputError: a text is longer than the position table.
    """
    states: list[Float[np.ndarray, "tokens d_model"]] = []
    for batch in batches(map(as_input, texts), lambda text: len(text.ids)):
        for text in model.encoder.forward(batch):
            assert text.last is not None
            states.append(text.last)
    return states


def batches(texts: Iterable[T], tokens: Callable[[T], int], most: int = BATCH_TOKENS) -> Iterator[list[T]]:
    """Neighbouring texts with at most so many tokens together, or one text."""
    batch: list[T] = []
    together = 0
    for text in texts:
        if batch and together + tokens(text) > most:
            yield batch
            batch, together = [], 0
        batch.append(text)
        together += tokens(text)
    if batch:
        yield batch

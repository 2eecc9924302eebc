"""Forward passes of which only the last hidden state is wanted: batched, without a record of attention."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from headscope.checkpoint.tokenizer import Encoded, Prepared
from headscope.encoder import Input
from headscope.errors import InputError
from headscope.results.arrays import TokenAxis
from headscope.results.tokens import sources

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.results.explained import Pooling
    from headscope.traces import Trace

BATCH_TOKENS = 4096
"""Most tokens that go through the encoder side by side."""

T = TypeVar("T")

Ids = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids and segments of one text."""


def prepared(model: Model, text: str, pair: str | None = None, *, rule: Pooling, name: str = "the text") -> Prepared:
    """Prepare a text for a model, as sentence-transformers does: the prompt, lower case, the limit.

    Every text whose vector or score is read passes through here. Special tokens in the text keep their case.

    Args:
        model: the model.
        text: the text.
        pair: a second text for the same input.
        rule: the prompt, the case and the limit; the model's positions limit a text too.
        name: of the text, for notes.

    Raises:
        InputError: an empty text.
        UnsupportedError: the model is one that headscope doesn't run.
    """
    model.anatomy.computable()
    tokenizer, prompt = model.tokenizer, rule.prompt
    notes = tokenizer.doubts(pair=pair is not None)
    notes += [f"the model's prompt {prompt!r} was put before {name}"] if prompt and text else []
    if rule.lowercase:
        lower = _lowered(model, text)
        notes += [f"{name} was lower-cased, as the model's files say"] if lower != text else []
        text, prompt = lower, _lowered(model, prompt)
        pair = None if pair is None else _lowered(model, pair)
    if text:  # an empty one is refused by the tokenizer, even with a prompt
        text = prompt + text
    longest = min(model.anatomy.longest_text, rule.max_length or model.anatomy.longest_text)
    whole = tokenizer.encode(text, pair)
    encoded = whole if len(whole) <= longest else tokenizer.encode(text, pair, max_length=longest)
    if len(encoded) < len(whole):
        notes.append(f"{name} was cut from {len(whole)} to {len(encoded)} tokens")
    if prompt and not rule.include_prompt:
        alone = tokenizer.encode(prompt, max_length=longest)
        encoded = replace(encoded, prompt=len(alone) - alone.special[-1])
        notes.append("the prompt's tokens are left out of the text's vector, as the model's files say")
    return Prepared(text, encoded, len(prompt), tuple(notes), pair, len(whole))


def as_sentence(
    model: Model, text: str, pair: str | None = None, *, max_length: int | None = None, name: str = "the text"
) -> Prepared:
    """Prepare a text whose vector is read, by the model's own prompt, case and limit; errors as of `prepared`.

    Args:
        model: the model.
        text: the text.
        pair: a second text for the same input.
        max_length: a limit beside the model's own.
        name: of the text, for notes.
    """
    limits = [one for one in (model.pooling.max_length, max_length) if one is not None]
    return prepared(model, text, pair, rule=replace(model.pooling, max_length=min(limits, default=None)), name=name)


def as_read(model: Model, text: str, pair: str | None = None, *, max_length: int | None = None) -> Prepared:
    """A text as a trace of a sentence-transformers checkpoint has it.

    It stays without the prompt, whose tokens have no span, so that it can be read again.

    Args:
        model: the model.
        text: the text.
        pair: a second text for the same input.
        max_length: a limit instead of the model's own.

    Raises:
        InputError: an empty text.
        UnsupportedError: the model is one that headscope doesn't run.
    """
    found = prepared(model, text, pair, rule=limited(model.text_rule, max_length))
    own, spans = found.text[found.prompt :], list(found.encoded.spans)
    for at, place in enumerate(sources(axis_of(found.encoded), own, pair) if found.prompt else ()):
        span = spans[at]
        if place is not None and place[0] == 0 and span is not None:
            start, stop = (max(0, end - found.prompt) for end in span)
            spans[at] = (start, stop) if stop else None
    return replace(found, text=own, encoded=replace(found.encoded, spans=tuple(spans)), prompt=0)


def limited(rule: Pooling, max_length: int | None) -> Pooling:
    """The rule with a person's limit instead of its own."""
    return rule if max_length is None else replace(rule, max_length=max_length)


def _lowered(model: Model, text: str) -> str:
    """The text in lower case, but for special tokens, which a tokenizer finds before it changes the case."""
    special = "|".join(map(re.escape, sorted(model.tokenizer.special_tokens, key=len, reverse=True)))
    parts = re.split(f"({special})", text) if special else [text]
    return "".join(part if at % 2 else part.lower() for at, part in enumerate(parts))


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
    return Encoded(axis.ids, axis.tokens, axis.segments, axis.special, axis.words, axis.spans, trace.prompt)


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

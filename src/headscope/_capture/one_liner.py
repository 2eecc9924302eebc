"""`hs.trace(model, tokenizer, text)`: from a text to a trace of a live transformers model."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headscope._capture.captured import capture
from headscope._trace import Trace
from headscope.errors import InputError, UnsupportedError


def trace(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    pair: str | None = None,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    values: bool = True,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    strict: bool = True,
) -> Trace:
    """One forward pass of a live transformers model over a text, and what it leaves behind.

    Args:
        model: a model of transformers with one stack of attention, in any precision, on any device.
        tokenizer: its transformers tokenizer.
        text: the text.
        pair: a second one that goes with it.
        layers: as in hs.capture, like the rest.
        heads: numbers of the heads to keep in each layer.
        values: whether V is kept.
        dtype: "fp32", or "fp16" for half the memory.
        device: where copies stay until traces are asked for.
        strict: whether attention that can't be recorded raises an error; if not, `trace.unrecorded` lists it.

    Returns:
        The trace, with words and spans where the tokenizer knows them. The model is run in eval mode and put back.

    Raises:
        InputError: an empty text, a tokenizer that is none, a model with several stacks.
        UnsupportedError: attention that can't be seen; a model that is called with something else than ids.
    """
    if not text:
        raise InputError("the text is empty", where="text", advice="pass a text of at least one character")
    if not callable(tokenizer):
        raise InputError(
            f"{type(tokenizer).__name__} is no transformers tokenizer",
            where="tokenizer",
            advice="pass transformers.AutoTokenizer.from_pretrained(…)",
        )
    watch = capture(
        model,
        layers=layers,
        heads=heads,
        values=values,
        dtype=dtype,
        device=device,
        tokenizer=tokenizer,
        strict=strict,
    )
    fast = bool(getattr(tokenizer, "is_fast", False))
    encoded = tokenizer(text, pair, return_tensors="pt", return_special_tokens_mask=True, return_offsets_mapping=fast)
    special = encoded.pop("special_tokens_mask")[0].tolist()
    spans = encoded.pop("offset_mapping")[0].tolist() if fast else None
    parameter = next(model.parameters(), None)
    inputs = {name: value if parameter is None else value.to(parameter.device) for name, value in encoded.items()}
    _check_call(model, inputs)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode(), watch as captured:
            model(**inputs)
    finally:
        for module, training in modes:
            module.training = training
    found = captured.trace
    axis = found.queries
    axis = replace(axis, special=tuple(bool(one) for one in special))
    if spans is not None:
        sequences = encoded.sequence_ids(0)
        axis = replace(
            axis,
            words=_words(encoded.word_ids(0), sequences),
            spans=tuple(
                None if flag or one is None else (int(span[0]), int(span[1]))
                for span, flag, one in zip(spans, special, sequences, strict=True)
            ),
        )
    return found.replaced(queries=axis, keys=None, text=text, pair=pair)


def _check_call(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    """That the model is called as transformers calls its own."""
    try:
        inspect.signature(model.forward).bind(**inputs)
    except TypeError as error:
        raise UnsupportedError(
            f"{type(model).__name__} isn't called with what its tokenizer gives, {', '.join(inputs)}: {error}",
            where="model",
            advice="pass the model of transformers inside it, or capture a call of your own: "
            "with hs.capture(model, tokenizer=tokenizer) as captured: …",
        ) from error


def _words(words: list[int | None], sequences: list[int | None]) -> tuple[int | None, ...]:
    """Words counted over the whole input, those of the second text after those of the first."""
    first = [word for word, part in zip(words, sequences, strict=True) if word is not None and part == 0]
    offset = max(first, default=-1) + 1
    return tuple(
        None if word is None else word + (offset if part == 1 else 0)
        for word, part in zip(words, sequences, strict=True)
    )

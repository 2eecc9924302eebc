"""`hs.trace(model, tokenizer, text)`: from a text to a trace of a live transformers model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headscope.capture.captured import capture
from headscope.errors import InputError
from headscope.trace import TokenAxis, Trace


def trace(model: nn.Module, tokenizer: Any, text: str, pair: str | None = None, **options: Any) -> Trace:
    """One forward pass of a live transformers model over a text, and what it leaves behind.

    Args:
        model: a model of transformers with one stack of attention, in any precision, on any device.
        tokenizer: its transformers tokenizer.
        text: the text.
        pair: a second one that goes with it.
        options: as in hs.capture: layers, heads, values, dtype, device.

    Returns:
        The trace, with words and spans where the tokenizer knows them. The model is run in eval mode and put back.

    Raises:
        InputError: an empty text, a tokenizer that is none, a model with several stacks.
        UnsupportedError: attention that can't be seen.
    """
    if not text:
        raise InputError("the text is empty", where="text", advice="pass a text of at least one character")
    if not callable(tokenizer):
        raise InputError(
            f"{type(tokenizer).__name__} is no transformers tokenizer",
            where="tokenizer",
            advice="pass transformers.AutoTokenizer.from_pretrained(…)",
        )
    fast = bool(getattr(tokenizer, "is_fast", False))
    encoded = tokenizer(text, pair, return_tensors="pt", return_special_tokens_mask=True, return_offsets_mapping=fast)
    special = encoded.pop("special_tokens_mask")[0].tolist()
    spans = encoded.pop("offset_mapping")[0].tolist() if fast else None
    parameter = next(model.parameters(), None)
    inputs = {name: value if parameter is None else value.to(parameter.device) for name, value in encoded.items()}
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode(), capture(model, tokenizer=tokenizer, **options) as captured:
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
    return _with_axis(found, axis, text, pair)


def _words(words: list[int | None], sequences: list[int | None]) -> tuple[int | None, ...]:
    """Words counted over the whole input, those of the second text after those of the first."""
    first = [word for word, part in zip(words, sequences, strict=True) if word is not None and part == 0]
    offset = max(first, default=-1) + 1
    return tuple(
        None if word is None else word + (offset if part == 1 else 0)
        for word, part in zip(words, sequences, strict=True)
    )


def _with_axis(found: Trace, axis: TokenAxis, text: str, pair: str | None) -> Trace:
    return Trace(
        model=found.model,
        queries=axis,
        layers=found.layers,
        outputs=found.outputs.kept,
        text=text,
        pair=pair,
        ablated=found.ablated,
        source=found.source,
        precision=found.precision,
        stack=found.stack,
    )

"""`hs.trace(model, tokenizer, text)`: run a live transformers model on a text and return the trace."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headscope.errors import InputError, UnsupportedError
from headscope.live.captured import capture
from headscope.live.evaluating import device_of, evaluating
from headscope.settings import named
from headscope.traces import Trace


@named
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
    """Run a live transformers model on a text and return the trace of its attention.

        trace = hs.trace(model, tokenizer, "The cat sat on the mat.")
        trace[0, 3].weights

    The model runs in eval mode, without gradients; its training mode is restored afterwards.

    Args:
        model: a transformers model with one stack of attention, in any precision, on any device.
        tokenizer: its transformers tokenizer.
        text: the text.
        pair: the second text of a pair.
        layers: numbers of the layers to keep, counted from 0; all by default.
        heads: numbers of the heads to keep in each layer, counted from 0; all by default.
        values: True to keep V, which contexts require.
        dtype: precision in which Q, K and V are kept: "fp32" (the default) or "fp16", for half the memory.
        device: where the copies stay until the trace is built: "cpu", or the model's device.
        strict: True to raise an error if attention ran that can't be recorded; False to list it in `trace.unrecorded`.

    Returns:
        The trace, with words and character spans if the tokenizer provides them (fast tokenizers do).

    Raises:
        InputError: the text is empty, `tokenizer` is not a tokenizer, or the model has several stacks of attention.
        UnsupportedError: the model's attention can't be captured, or the model doesn't accept the tokenizer's output.
    """
    if not text:
        raise InputError("the text is empty", where="text", advice="pass a text of at least one character")
    if not callable(tokenizer):
        raise InputError(
            f"expected a transformers tokenizer, got {type(tokenizer).__name__}",
            where="tokenizer",
            advice="pass transformers.AutoTokenizer.from_pretrained(…)",
        )
    capturing = capture(
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
    device = device_of(model)
    inputs = {name: value.to(device) for name, value in encoded.items()}
    _check_call(model, inputs)
    _check_length(model, int(encoded["input_ids"].shape[1]))
    with evaluating(model), torch.inference_mode(), capturing as captured:
        model(**inputs)
    trace = captured.trace
    axis = trace.queries
    if axis.ids == tuple(encoded["input_ids"][0].tolist()):  # otherwise the model moved, left out or added tokens
        if len(special) == len(axis):  # without <eos>, EsmTokenizer returns a flag for it
            axis = replace(axis, special=tuple(bool(flag) for flag in special))
        if spans is not None:
            sequences = encoded.sequence_ids(0)
            axis = replace(
                axis,
                words=_words(encoded.word_ids(0), sequences),
                spans=tuple(
                    None if flag or sequence is None else (int(span[0]), int(span[1]))
                    for span, flag, sequence in zip(spans, special, sequences, strict=True)
                ),
            )
    return trace.replaced(queries=axis, text=text, pair=pair)


def _check_length(model: nn.Module, tokens: int) -> None:
    """Raise InputError if the text has more tokens than the model's table of positions takes.

    A table whose row for padding is fixed begins after it, as RoBERTa's.
    """
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            padding = module.padding_idx
            most = module.num_embeddings - (0 if padding is None else padding + 1)
            if tokens > most:
                raise InputError(
                    f"the text has {tokens:,} tokens, the model takes {most:,} at most",
                    where="text",
                    advice="shorten the text, or cut it: tokenizer(text, truncation=True, max_length=…) in hs.capture",
                )


def _check_call(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    """Raise UnsupportedError if the model's forward does not accept the tokenizer's output."""
    try:
        inspect.signature(model.forward).bind(**inputs)
    except ValueError:
        raise UnsupportedError(
            f"the forward of {type(model).__name__} has no signature, as in TorchScript",
            where="model",
            advice="pass the model itself, before it is traced or scripted, or make the call yourself: "
            "with hs.capture(model, tokenizer=tokenizer) as captured: …",
        ) from None
    except TypeError as error:
        raise UnsupportedError(
            f"{type(model).__name__} doesn't accept the tokenizer's output, {', '.join(inputs)}: {error}",
            where="model",
            advice="pass the transformers model inside it, or make the call yourself: "
            "with hs.capture(model, tokenizer=tokenizer) as captured: …",
        ) from error


def _words(words: list[int | None], sequences: list[int | None]) -> tuple[int | None, ...]:
    """Word numbers counted over the whole input: the second text's words follow the first's."""
    first = [word for word, part in zip(words, sequences, strict=True) if word is not None and part == 0]
    offset = max(first, default=-1) + 1
    return tuple(
        None if word is None else word + (offset if part == 1 else 0)
        for word, part in zip(words, sequences, strict=True)
    )

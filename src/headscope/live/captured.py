"""`with hs.capture(model) as captured`: open a session, let the model run, restore everything.

`hs.trace(model, text, tokenizer=tokenizer)` does so for one text: run a live transformers model on it and return the
trace.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from headscope.checkpoint.models_in_memory import kind_of as kind_of_held
from headscope.checkpoint.models_in_memory import to_open, unpacked
from headscope.checkpoint.tokenizer.face import checked_text
from headscope.errors import HeadscopeError, InputError, UnsupportedError
from headscope.live.calls import Consumer, Unrecorded
from headscope.live.hooks import UNCOMPILED, Attached, device_of, evaluating, original_of
from headscope.live.keeping.building import TraceBuilder
from headscope.live.keeping.copies import chosen_device, numbers_of
from headscope.live.keeping.generation import Sequences
from headscope.live.names.axes import vocabulary
from headscope.live.names.naming import Naming
from headscope.live.plan.classes import calls_sdpa, kind_of, models_in
from headscope.live.plan.refusals import refuse_others
from headscope.live.plan.stacks import plan_of, refuse_without_numbers
from headscope.live.seeing import inside, interface, multihead, operators, sdpa_watch
from headscope.live.seeing.readers import reads
from headscope.live.sessions import Session
from headscope.settings import named
from headscope.traces import Trace

DTYPES = {
    None: torch.float32,
    "fp32": torch.float32,
    "fp16": torch.float16,
    torch.float32: torch.float32,
    torch.float16: torch.float16,
}

GENERATED = "captured.generation, the prompt and all steps of generate() as one causal map; or "

OWN_CALL = "make the call yourself: with hs.capture(model, tokenizer=tokenizer) as captured: model(…)"


class Watching:
    """A context manager that opens and closes a session over a model: that of `feed`, and the base of the others."""

    def __init__(self, model: nn.Module, consumer: Consumer, *, strict: bool) -> None:
        model, _ = unpacked(model)
        advice = "pass a live model or a part of one; for a model from hs.open, call its trace(text) or effects(text)"
        refuse_others(model, "model", advice)
        model = original_of(model)
        self.model = model
        self.plan = plan_of(model, strict=strict)
        refuse_without_numbers(model, self.plan)
        self._attention = [module for _, module in self.plan.modules if id(module) in self.plan.paths]
        self._observed: list[nn.Module] = []
        self._session = Session(
            model,
            self.plan,
            consumer,
            strict=strict,
            may_bypass=frozenset(
                id(module)
                for module in self._attention
                if (kind := kind_of(type(module))).may_bypass or (calls_sdpa(module) and kind.computes_own_attention)
            ),
            prepare=partial(_prepare, self._observed),
        )
        self._open: ExitStack | None = None

    def __reduce__(self) -> Any:
        found = "a capture can't be pickled or copied: it belongs to a live model and its hooks"
        raise InputError(found, where="captured", advice="use its traces instead: captured.traces")

    def __enter__(self) -> Any:
        if self._open is not None:
            advice = "create a new one: with hs.capture(model) as captured"
            raise InputError("this block was already opened", where="with", advice=advice)
        if list(map(id, self.model.modules())) != list(self.plan.known):  # one was replaced
            raise InputError(
                f"modules of {type(self.model).__name__} were replaced after this capture was created",
                where="with",
                advice="change the model first, then create the capture: with hs.capture(model) as captured",
            )
        with ExitStack() as undo:
            undo.enter_context(interface.INSTALLED.used())
            interface.wrap(self._attention)
            undo.enter_context(multihead.FAST_PATH.used())
            if "torch._dynamo" in sys.modules or any(map(calls_sdpa, self._attention)):  # flex_attention compiles
                undo.enter_context(UNCOMPILED.used())
            operators.observe(sdpa_watch.observe)
            for module in self._attention:
                # Before the session's own hooks: if the model is this very module, they end the forward pass.
                in_torch = isinstance(module, nn.MultiheadAttention)
                for watched, applies in ((multihead.WATCHED, in_torch), (inside.WATCHED, reads(module))):
                    if applies:
                        undo.enter_context(watched.used(module))
                        self._observed.append(module)
            undo.callback(self._session.close)
            models = models_in(module for _, module in self.plan.modules)
            starts = {id(module): module for module in (self.model, *self.model.children(), *models)}
            self._session.open(list(starts.values()))
            self._open = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: Any) -> None:
        assert self._open is not None
        self._open.close()


def _prepare(observed: list[nn.Module]) -> None:
    """Prepare a forward pass for functions and hooks that were registered since the block began.

    Args:
        observed: the modules whose outputs are observed, after all hooks but those of sessions, in any thread.
    """
    interface.wrap()
    for module in observed:
        hooks: Any = module._forward_hooks
        for key, hook in list(hooks.items()):
            if isinstance(hook, Attached):
                hooks.move_to_end(key)


class Captured(Watching):
    """The traces that `hs.capture` records. They can be read inside the block and after it.

    Each forward pass of the model gives one trace per row of the batch and per stack of attention, with padding
    removed:

        with hs.capture(model) as captured:
            model(**inputs)
        captured.trace          # if there is exactly one
        captured.traces         # all of them
        captured["cross"]       # those of one stack

    Attributes:
        model: the captured model.
        plan: its attention modules, sorted into stacks.
    """

    def __init__(self, model: nn.Module, builder: TraceBuilder, *, strict: bool) -> None:
        super().__init__(model, builder, strict=strict)
        builder.expected = Counter(self.plan.stacks.values())
        self._builder = builder
        self._built: dict[int, list[Trace]] = {}

    @property
    def stacks(self) -> tuple[str, ...]:
        """Names of the model's stacks of attention, each with its own traces: self; or encoder, decoder, cross; …."""
        return self.plan.names

    @property
    def unrecorded(self) -> tuple[Unrecorded, ...]:
        """Attention that ran without being recorded, each with its module, class and operator; empty if none did.

        By default such a forward pass raises an error; with `hs.capture(model, strict=False)` it is listed here.
        """
        return tuple(self._session.unrecorded)

    @property
    def forwards(self) -> list[list[Trace]]:
        """The traces of each forward pass, ordered by row and, within a row, by stack."""
        for at, (forward, groups) in enumerate(self._builder.finished):
            if at not in self._built:
                self._built[at] = self._builder.build(forward, groups)
        return [self._built[at] for at in range(len(self._builder.finished))]

    @property
    def traces(self) -> list[Trace]:
        """All traces, ordered by forward pass, row and stack."""
        return [trace for forward in self.forwards for trace in forward]

    @property
    def trace(self) -> Trace:
        """The only trace.

        Raises:
            InputError: nothing was captured, or there is more than one trace.
        """
        traces = self.traces
        if len(traces) == 1:
            return traces[0]
        if not traces:
            stray = self._session.stray
            raise InputError(
                f"nothing was captured: {stray} attention calls ran outside a forward pass of the model"
                if stray
                else "nothing was captured: no forward pass of the model attended to any token inside the block",
                where="captured",
                advice="call the captured model itself inside the block, or capture the part that you call",
            )
        stacks = sorted({trace.stack for trace in traces})
        raise InputError(
            f"there are {len(traces)} traces, from {len(self.forwards)} forward passes, of stacks {', '.join(stacks)}",
            where="captured.trace",
            advice=f"use {GENERATED if self._grew() else ''}captured.traces, captured.forwards[i], or captured[stack]",
        )

    @property
    def generations(self) -> list[Trace]:
        """The sequences that generate() produced, each joined from its forward passes into one trace with causal maps.

        There is one trace for each row of a sequence's last forward pass and for each stack. It holds every token that
        went through the model: the prompt and all new tokens except the last, which the model never saw as input.
        Rows that changed places (beam search) and steps that were undone (assisted decoding) are followed.

        Raises:
            UnsupportedError: the cache held tokens before the block began, or the passes don't fit together.
        """
        return Sequences(self._builder).traces()

    @property
    def generation(self) -> Trace:
        """The only generated sequence.

        Raises:
            InputError: no sequence was generated, or there is more than one.
        """
        traces = self.generations
        if len(traces) == 1:
            return traces[0]
        if not traces:
            raise InputError(
                "no sequence was generated: no causal attention ran",
                where="captured.generation",
                advice="call model.generate(…) inside the block; captured.traces has what ran",
            )
        stacks = ", ".join(sorted({trace.stack for trace in traces}))
        raise InputError(
            f"{len(traces)} sequences were generated, in stacks {stacks}",
            where="captured.generation",
            advice="use captured.generations: one for each row and stack; trace.row and trace.stack say which",
        )

    def __getitem__(self, stack: str) -> list[Trace]:
        """The traces of one stack: `captured["cross"]`.

        Raises:
            InputError: the model has no such stack.
        """
        if stack not in self.stacks:
            found = (
                f"there is no stack {stack!r}: the stacks of {type(self.model).__name__} are {', '.join(self.stacks)}"
            )
            advice = "use one of these names; captured.traces[0] is one trace"
            raise InputError(found, where="captured[stack]", advice=advice)
        return [trace for trace in self.traces if trace.stack == stack]

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.traces)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.stacks)

    def __len__(self) -> int:
        """Number of traces."""
        return len(self.traces)

    def _grew(self) -> bool:
        """Return True if the last forward pass reads one token, or one more than the pass before, as in generate()."""
        last = [forward[0] for forward in self.forwards[-2:] if forward]
        return len(last) == 2 and (len(last[1]) == 1 < len(last[1].keys) or len(last[1].keys) == len(last[0].keys) + 1)

    def __exit__(self, kind: type[BaseException] | None, *others: Any) -> None:
        super().__exit__(kind, *others)
        if kind is None:
            self._builder.check_selection()

    def __repr__(self) -> str:
        traces, passes = len(self), len(self._builder.finished)
        return (
            f"capture of {self._builder.name}: {traces} trace{'' if traces == 1 else 's'} of {passes} forward "
            f"pass{'' if passes == 1 else 'es'}"
        )


@named
def capture(
    model: nn.Module,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    values: bool = True,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    tokenizer: Any = None,
    strict: bool = True,
    padding: str = "drop",
) -> Captured:
    """Record Q, K, V, the mask and the scale of every attention layer while the model runs.

    The model runs with its own attention kernels and gives the results that it would without the capture:

        with hs.capture(model, tokenizer=tokenizer) as captured:
            model(**inputs)
        captured.trace[0, 3].weights

    Args:
        model: a transformers model that uses the attention interface, or any module that contains
            nn.MultiheadAttention or calls scaled_dot_product_attention; a part of a model can be captured on its own.
            A pipeline, or an object of sentence-transformers, brings its tokenizer.
        layers: numbers of the layers to keep, counted from 0; all by default.
        heads: numbers of the heads to keep in each layer, counted from 0; all by default.
        values: True to keep V, which contexts require.
        dtype: precision in which Q, K and V are kept: "fp32" (the default) or "fp16", for half the memory.
        device: where the copies stay until a trace is built: "cpu", or the model's device to avoid the transfer.
        tokenizer: decodes ids: a transformers tokenizer, a tokenizers.Tokenizer, a list of tokens, or a dict of ids and
            tokens, in either direction.
        strict: True to raise an error at the end of a forward pass in which attention ran that can't be recorded;
            False to list it in `captured.unrecorded` and in each trace's `unrecorded`.
        padding: "drop" leaves out what stands before the first and after the last key that any query sees, and lists
            its queries in `trace.left_out`; "keep" keeps every position.

    Returns:
        A context manager that records while its block is open and holds the traces: `captured.trace`,
        `captured.traces`, `captured.generations`.

    Raises:
        UnsupportedError: the model's attention can't be captured. Raised before the model runs if its classes show it,
            otherwise when the layer runs or at the end of the forward pass.
        InputError: `model` is not an nn.Module, a layer or head doesn't exist, or `dtype`, `device` or `padding` is
            unknown.
    """
    if padding not in ("drop", "keep"):
        raise InputError(f"unknown way to treat padding: {padding!r}", where="padding", advice='use "drop" or "keep"')
    if dtype not in DTYPES:
        raise InputError(f"a capture can't keep dtype {dtype!r}", where="dtype", advice='use "fp32" or "fp16"')
    kept: dict[str, Any] = {
        "layers": None if layers is None else frozenset(numbers_of("layers", layers)),
        "heads": None if heads is None else tuple(numbers_of("heads", heads)),
        "values": values,
        "dtype": DTYPES[dtype],
        "device": chosen_device(device),
        "keeps_padding": padding == "keep",
    }
    model, tokenizer = unpacked(model, tokenizer)
    model = original_of(model)
    return Captured(model, TraceBuilder(model, name_of(model), Naming(vocabulary(tokenizer)), **kept), strict=strict)


def feed(model: nn.Module, consumer: Consumer, *, strict: bool = True) -> Watching:
    """Pass every attention call of a model to a consumer while the block is open.

        with feed(model, consumer):
            model(**inputs)

    Args:
        model: a live model, as in `capture`.
        consumer: receives each call with its live tensors; derived from headscope.live.Consumer.
        strict: True to raise an error at the end of a forward pass in which attention ran that can't be read.

    Returns:
        A context manager.

    Raises:
        InputError: `model` is not an nn.Module.
        UnsupportedError: the model's attention can't be captured.
    """
    return Watching(model, consumer, strict=strict)


def name_of(model: nn.Module) -> str:
    """The name under which a model was loaded; its class if it has none."""
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    return str(path) if path else type(model).__name__


@named
def trace(
    model: nn.Module,
    text: str,
    pair: str | None = None,
    *,
    tokenizer: Any = None,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    values: bool = True,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    strict: bool = True,
    hidden_states: bool = False,
) -> Trace:
    """Run a live transformers model on a text and return the trace of its attention.

        trace = hs.trace(model, "The cat sat on the mat.", tokenizer=tokenizer)
        trace[0, 3].weights

    The model runs in eval mode, without gradients; its training mode is restored afterwards.

    Args:
        model: a transformers model with one stack of attention, in any precision, on any device; or a pipeline.
        text: the text.
        pair: the second text of a pair.
        tokenizer: the model's transformers tokenizer, which is required unless a pipeline has one.
        layers: numbers of the layers to keep, counted from 0; all by default.
        heads: numbers of the heads to keep in each layer, counted from 0; all by default.
        values: True to keep V, which contexts require.
        dtype: precision in which Q, K and V are kept: "fp32" (the default) or "fp16", for half the memory.
        device: where the copies stay until the trace is built: "cpu", or the model's device.
        strict: True to raise an error if attention ran that can't be recorded; False to list it in `trace.unrecorded`.
        hidden_states: True to keep every layer's input, too, which `follow` and the residual's share in mixing read.

    Returns:
        The trace, with words and character spans if the tokenizer provides them (fast tokenizers do).

    Raises:
        InputError: the text is empty, `tokenizer` is not a tokenizer, or the model has several stacks of attention.
        UnsupportedError: the model's attention can't be captured, or the model doesn't accept the tokenizer's output.
        TypeError: `text` is not a string.
    """
    if wrong := [type(one) for one in (text, "" if pair is None else pair) if not isinstance(one, str)]:
        raise TypeError(
            f"trace() expected a text, got {wrong[0].__name__}; call it as trace(model, text, tokenizer=tokenizer). "
            "For ids, or a batch of several texts, call the model yourself: with hs.capture(model) as captured: "
            "model(**inputs)"
        )
    checked_text(text, "text")
    if isinstance(model, (str, os.PathLike)) or kind_of_held(model) == "sentence-transformers":
        raise to_open(model, "call hs.open(model).trace(text)")
    model, tokenizer = unpacked(model, tokenizer)
    capturing = capture(
        model, layers=layers, heads=heads, values=values, dtype=dtype, device=device, tokenizer=tokenizer, strict=strict
    )
    if not callable(tokenizer):
        raise InputError(
            f"expected a transformers tokenizer, got {type(tokenizer).__name__}",
            where="tokenizer",
            advice="pass tokenizer=transformers.AutoTokenizer.from_pretrained(…)",
        )
    fast = bool(getattr(tokenizer, "is_fast", False))
    encoded = tokenizer(text, pair, return_tensors="pt", return_special_tokens_mask=True, return_offsets_mapping=fast)
    special = encoded.pop("special_tokens_mask")[0].tolist()
    spans = encoded.pop("offset_mapping")[0].tolist() if fast else None
    device = device_of(model)
    inputs = {name: value.to(device) for name, value in encoded.items()}
    inputs |= {"output_hidden_states": True} if hidden_states else {}
    _check_call(model, inputs)
    _check_length(model, int(encoded["input_ids"].shape[1]))
    with evaluating(model), torch.inference_mode(), capturing as captured:
        _run(model, inputs)
    if len(captured.traces) > 1:
        found = f"{type(model).__name__} left {len(captured.traces)} traces, of {', '.join(captured.stacks)} attention"
        raise InputError(found, where="model", advice=f"pass a part of it, as model.get_encoder(), or {OWN_CALL}")
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


def _run(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    """Run a model on the tokenizer's output.

    Raises:
        InputError: the tokenizer has a token that the model has no embedding for.
        UnsupportedError: the model wants more than a text, such as an image, or the ids of a decoder.
    """
    try:
        model(**inputs)
    except HeadscopeError:
        raise
    except IndexError as error:
        found = f"{type(model).__name__} can't look up the id {int(inputs['input_ids'].max()):,}: {error}"
        advice = (
            "use the model's own tokenizer, or add rows for new tokens: model.resize_token_embeddings(len(tokenizer))"
        )
        raise InputError(found, where="tokenizer", advice=advice) from error
    except (AttributeError, TypeError, ValueError) as error:
        found = f"{type(model).__name__} doesn't run on a text alone: {error}"
        raise UnsupportedError(found, where="model", advice=OWN_CALL) from error


def _check_call(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    """Raise UnsupportedError if the model's forward does not accept the tokenizer's output."""
    try:
        inspect.signature(model.forward).bind(**inputs)
    except (TypeError, ValueError) as error:
        kind = type(model).__name__
        found = f"{kind} doesn't accept the tokenizer's output, {', '.join(inputs)}: {error}"
        instead = "the transformers model inside it"
        if isinstance(error, ValueError):
            found = f"the forward of {kind} has no signature, as in TorchScript"
            instead = "the model itself, before it is traced or scripted"
        raise UnsupportedError(found, where="model", advice=f"pass {instead}, or {OWN_CALL}") from error


def _words(words: list[int | None], sequences: list[int | None]) -> tuple[int | None, ...]:
    """Word numbers counted over the whole input: the second text's words follow the first's."""
    pairs = [*zip(words, sequences, strict=True)]
    offset = max((word for word, part in pairs if word is not None and part == 0), default=-1) + 1
    return tuple(None if word is None else word + (offset if part == 1 else 0) for word, part in pairs)

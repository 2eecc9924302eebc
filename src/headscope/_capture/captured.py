"""`with hs.capture(model) as captured`: open a session, let the model run, put everything back."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from headscope._capture import sdpa_watch, torch_nn, transformers_support
from headscope._capture.building import Selection, TraceBuilder
from headscope._capture.calls import Call, Consumer, Forward, Stack, Unrecorded
from headscope._capture.classes import kind_of, models_in, word_embeddings
from headscope._capture.generation import Sequences
from headscope._capture.refusals import out_of_sight, refuse_what_cannot_be_read
from headscope._capture.sessions import Listener, Session, WhileAnybodyLooks
from headscope._capture.stacks import Plan
from headscope._capture.tokens import vocabulary
from headscope._trace import Trace
from headscope.errors import InputError, UnsupportedError, first_line

DTYPES = {
    None: torch.float32,
    "fp32": torch.float32,
    "fp16": torch.float16,
    torch.float32: torch.float32,
    torch.float16: torch.float16,
}


def plan_of(model: nn.Module, *, strict: bool = True) -> Plan:
    """The attention modules of a model, refused here and now where they can't be read.

    Args:
        model: the model.
        strict: whether one module that capture can't see is enough to refuse the model.

    Raises:
        UnsupportedError: attention that capture can't see, or none at all.
    """
    name = type(model).__name__
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise UnsupportedError(
            f"nn.DataParallel runs copies of the model on {len(model.device_ids)} devices, which capture doesn't see",
            where=name,
            advice="capture the model inside: with hs.capture(model.module): model.module(**inputs)",
        )
    modules = tuple(model.named_modules())
    refuse_what_cannot_be_read(name, modules, strict=strict)
    torch_nn.refuse_own_forwards(name, modules)
    found = Plan(modules, _is_attention, [module for _, module in modules if _is_transformer(module)])
    if not found.paths:
        raise UnsupportedError(
            f"{name} has no attention that capture can see: none through transformers' attention interface, no "
            "nn.MultiheadAttention, no module that calls scaled_dot_product_attention",
            where=name,
            advice="capture a model that has one of these",
        )
    return found


def _is_attention(module: nn.Module) -> bool:
    kind = kind_of(type(module))
    return kind.uses_interface or kind.calls_sdpa or torch_nn.is_attention(module)


def _is_transformer(module: nn.Module) -> bool:
    return isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)) or kind_of(type(module)).is_model


def _run_uncompiled() -> Callable[[], None]:
    stance = torch.compiler.set_stance("force_eager")
    return lambda: stance.__exit__(None, None, None)


UNCOMPILED = WhileAnybodyLooks(_run_uncompiled)
"""Compiled models, run as they are written."""


class Watching:
    """What `capture` and `ablate` have in common: a session over a model, opened and closed whole."""

    def __init__(self, model: nn.Module, listener: Listener, *, strict: bool) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"{type(model).__name__} is no nn.Module",
                where="model",
                advice="pass a live PyTorch model or a part of one; what hs.open returned has trace(text)",
            )
        self.model = model
        self.plan = plan_of(model, strict=strict)
        self._listener = listener
        self._strict = strict
        self._open: ExitStack | None = None
        self._session: Session | None = None

    def __enter__(self) -> Any:
        if self._open is not None:
            raise InputError(
                "this block was opened before", where="with", advice="make a new one: with hs.capture(model) as again"
            )
        modules = [module for _, module in self.plan.modules]
        if [id(module) for module in self.model.modules()] != [id(module) for module in modules]:
            raise InputError(
                f"modules of {type(self.model).__name__} were replaced after this capture was made",
                where="with",
                advice="change the model first, then open the block: with hs.capture(model) as captured",
            )
        attention = [module for module in modules if id(module) in self.plan.paths]
        with ExitStack() as undo:
            transformers_support.INSTALLED.enter(attention)
            undo.callback(transformers_support.INSTALLED.leave)
            torch_nn.FAST_PATH.enter()
            undo.callback(torch_nn.FAST_PATH.leave)
            if "torch._dynamo" in sys.modules:
                UNCOMPILED.enter()
                undo.callback(UNCOMPILED.leave)
            sdpa_watch.install()
            session = Session(
                self.model,
                self.plan,
                self._listener,
                strict=self._strict,
                surely=frozenset(id(module) for module in modules if out_of_sight(module)),
                otherwise=frozenset(id(module) for module in attention if kind_of(type(module)).also_otherwise),
            )
            for module in attention:
                if torch_nn.is_attention(module):
                    # Before the session's own hooks: where the model is this very module, its forward ends there.
                    torch_nn.WATCHED.enter(module)
                    undo.callback(torch_nn.WATCHED.leave, module)
            undo.callback(session.close)
            models = models_in(modules)
            starts = {id(one): one for one in (self.model, *self.model.children(), *models)}
            session.open(list(starts.values()), word_embeddings(models))
            self._session = session
            self._open = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._open is not None
        self._open.close()


class _Fed:
    """Turns a consumer into a session's listener."""

    def __init__(self, consumer: Consumer) -> None:
        self.begin = consumer.begin
        self.end = consumer.end
        self.drop = consumer.drop
        self.wants = consumer.wants
        self.take = consumer.take

    def silences(self, stack: Stack, layer: int) -> dict[int, str]:
        return {}


class Feeding(Watching):
    """Hands every call of a model's attention to a consumer while the block is open.

    `with feed(model, consumer): model(**inputs)`. The consumer gets live tensors; see headscope._capture.calls.
    """

    def __init__(self, model: nn.Module, consumer: Consumer, *, strict: bool) -> None:
        super().__init__(model, _Fed(consumer), strict=strict)


class Captured(Watching):
    """What a capture has recorded so far. It may be read inside the block and after it.

    Attributes:
        model: the model.
        plan: its attention modules, sorted into stacks.
    """

    def __init__(self, model: nn.Module, builder: TraceBuilder, *, strict: bool) -> None:
        super().__init__(model, builder, strict=strict)
        self._builder = builder
        self._built: dict[int, list[Trace]] = {}
        self._stack: str | None = None

    @property
    def stacks(self) -> tuple[str, ...]:
        """The attentions that this model has, each with traces of its own: self, or encoder, decoder, cross, …."""
        return self.plan.names

    @property
    def unrecorded(self) -> tuple[Unrecorded, ...]:
        """Attention that ran in a forward pass and was not recorded: the module, its class, the operator. () for none.

        Unless the capture was made with `strict=False`, a forward pass that leaves something here raises an error.
        """
        return tuple(self._session.unrecorded) if self._session else ()

    @property
    def forwards(self) -> list[list[Trace]]:
        """For each forward pass its traces: row by row, in each row stack by stack."""
        for at, (forward, groups) in enumerate(self._builder.finished):
            if at not in self._built:
                self._built[at] = self._builder.build(forward, groups)
        return [self._built[at] for at in range(len(self._builder.finished))]

    @property
    def traces(self) -> list[Trace]:
        """Every trace: forward by forward, row by row, stack by stack."""
        return [trace for forward in self.forwards for trace in forward]

    @property
    def trace(self) -> Trace:
        """The only trace.

        Raises:
            InputError: there is none, or more than one.
        """
        return self._only(self.traces, "captured")

    @property
    def generations(self) -> list[Trace]:
        """The sequences that grew, forward pass by forward pass, as generate() lets them: each as one causal map.

        One trace for each row of the last pass of a sequence, and for each stack. It holds every token that went
        through the model: the prompt and all new ones but the last, which no pass has seen. Rows that changed places
        (beam search) and steps that were taken back (assisted decoding) are followed.

        Raises:
            UnsupportedError: the cache held tokens before the block began, or its passes don't fit together.
        """
        return Sequences(self._builder).traces()

    @property
    def generation(self) -> Trace:
        """The only sequence that grew.

        Raises:
            InputError: there is none, or more than one.
        """
        found = self.generations
        if len(found) == 1:
            return found[0]
        stacks = ", ".join(sorted({trace.stack for trace in found}))
        raise InputError(
            f"{len(found)} sequences grew, stacks {stacks}" if found else "no sequence grew: no causal attention ran",
            where="captured.generation",
            advice="use captured.generations: one for each row and stack; trace.row and trace.stack say which"
            if found
            else "call model.generate(…) inside the block; captured.traces has what ran",
        )

    def __getitem__(self, stack: str) -> list[Trace]:
        """The traces of one stack: `captured["cross"]`.

        Raises:
            InputError: the model has no such stack.
        """
        if stack not in self.stacks:
            raise InputError(
                f"there is no stack {stack!r}; {type(self.model).__name__} has {', '.join(self.stacks)}",
                where="captured[stack]",
                advice="use one of these names",
            )
        return [trace for trace in self.traces if trace.stack == stack]

    def __len__(self) -> int:
        """How many traces."""
        return len(self.traces)

    def _only(self, traces: list[Trace], where: str) -> Trace:
        if len(traces) == 1:
            return traces[0]
        if not traces:
            stray = self._session.stray if self._session else 0
            raise InputError(
                f"nothing was captured: {stray} calls of attention came from outside of a forward pass of the model"
                if stray
                else "nothing was captured: no forward pass of the model ran its attention inside the block",
                where=where,
                advice="call the model itself inside the block, or capture the part that you call",
            )
        stacks = sorted({trace.stack for trace in traces})
        raise InputError(
            f"there are {len(traces)} traces: {len(self.forwards)} forward passes, stacks {', '.join(stacks)}",
            where=f"{where}.trace",
            advice="use captured.traces, captured.forwards[i], or captured[stack]",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        if kind is None:
            self._builder.check_selection()

    def __repr__(self) -> str:
        traces, passes = len(self), len(self._builder.finished)
        return (
            f"capture of {self._builder.name}: {traces} trace{'' if traces == 1 else 's'} of {passes} forward "
            f"pass{'' if passes == 1 else 'es'}"
        )


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
) -> Captured:
    """Record Q, K, V, the mask's rule and the scale of every attention layer while the model runs its own fast path.

    `with hs.capture(model) as captured: model(**inputs)`, then `captured.trace` or `captured.traces`.

    Args:
        model: a model of transformers that goes through its attention interface, or any module with
            nn.MultiheadAttention or calls of scaled_dot_product_attention in it. A part of a model may be captured by
            itself.
        layers: numbers of the layers to keep; all unless told.
        heads: numbers of the heads to keep in each layer; all unless told.
        values: whether V is kept; contexts need it.
        dtype: "fp32" (what every precision is kept as unless told) or "fp16", for half the memory.
        device: where copies stay until traces are asked for: "cpu", or the model's own device to spare the transfer.
        tokenizer: to spell ids as pieces: a transformers tokenizer, a tokenizers.Tokenizer, or a list of pieces.
        strict: whether a forward pass in which attention ran that can't be recorded raises an error. If not,
            `captured.unrecorded` lists it, and so does `trace.unrecorded` of each trace.

    Raises:
        UnsupportedError: attention that can't be seen or can't be put into a trace; before anything runs, where the
            classes tell, else as the layer runs, or at the end of the forward pass.
        InputError: no model, a layer or head that isn't there, an unknown dtype or device.
    """
    if dtype not in DTYPES:
        raise InputError(f"a capture can't keep {dtype!r}", where="dtype", advice='use "fp32" or "fp16"')
    selection = Selection(
        layers=None if layers is None else frozenset(_numbers("layers", layers)),
        heads=None if heads is None else tuple(_numbers("heads", heads)),
        values=values,
        dtype=DTYPES[dtype],
        device=_device(device),
    )
    return Captured(model, TraceBuilder(model, name_of(model), selection, vocabulary(tokenizer)), strict=strict)


def _numbers(what: str, given: Iterable[int]) -> list[int]:
    try:
        found = [operator.index(one) for one in given]
    except TypeError as error:
        raise InputError(
            f"{given!r:.60} is no list of numbers", where=what, advice=f"name them from 0 on: {what}=[0, 3]"
        ) from error
    if not found:
        raise InputError(f"no {what} to keep", where=what, advice="name some, or leave it out to keep all")
    return found


def _device(given: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=given).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"copies can't be kept on {given!s:.40}: {first_line(error):.120}", where="device", advice='use "cpu"'
        ) from error


def feed(model: nn.Module, consumer: Consumer, *, strict: bool = True) -> Feeding:
    """Hand every call of a model's attention to a consumer while the block is open. See headscope._capture.calls."""
    return Feeding(model, consumer, strict=strict)


def name_of(model: nn.Module) -> str:
    """The name a model was loaded by, else its class."""
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    return str(path) if path else type(model).__name__


__all__ = ["Call", "Captured", "Consumer", "Feeding", "Forward", "capture", "feed", "plan_of"]

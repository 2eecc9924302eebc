"""Run the captured forward pass again with the model's own eager attention, which returns its weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope._capture.calls import Call, Forward, Stack
from headscope._capture.captured import feed
from headscope._capture.classes import models_in
from headscope._capture.readers import reader_of, reads
from headscope.errors import HeadscopeError

if TYPE_CHECKING:
    from headscope._capture.source import CapturedModel
    from headscope._trace import Trace

MOST_CELLS = 1 << 28
"""Maximum number of cells of a layer's map for which an eager forward pass is run: 1 GiB in fp32."""

See = Callable[[int, np.ndarray, np.ndarray, np.ndarray], None]
"""Called with a layer's number and, for the heads, queries and keys in the trace: the weights (heads, queries, keys),
and the q and k of this run, (heads, queries or keys, d_head) each."""


class Weights:
    """A consumer that passes on one stack's weights, reduced to the trace's heads, queries and keys."""

    def __init__(self, trace: Trace, source: CapturedModel, see: See) -> None:
        self.trace = trace
        self.source = source
        self.see = see
        self.layers: set[int] = set()

    def begin(self, forward: Forward) -> None:
        """Do nothing: there is nothing to prepare."""

    def end(self, forward: Forward) -> None:
        """Do nothing: there is nothing to finish."""

    def drop(self, forward: Forward) -> None:
        """Do nothing: there is nothing to discard."""

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True for the trace's layers, until each has been passed on."""
        return stack == self.source.stack and layer in self.trace.numbers and layer not in self.layers

    def take(self, forward: Forward, call: Call) -> None:
        """Pass on the weights of one layer."""
        if call.weights is None or (call.turn, *call.weights.shape[2:]) != (self.source.turn, *self.source.sizes):
            return
        self.layers.add(call.layer)
        cells, q, k = (x[self.source.row].float().cpu().numpy() for x in (call.weights, call.q, call.k))
        if self.source.queries is not None:
            cells, q = (x.compress(self.source.queries, axis=1) for x in (cells, q))
        if self.source.keys is not None:
            cells, k = cells.compress(self.source.keys, axis=2), k.compress(self.source.keys, axis=1)
        heads = list(self.trace.head_numbers(call.layer))
        self.see(call.layer, cells[heads], q[heads], k[[head * len(k) // len(q) for head in heads]])


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Switch all transformers modules in a model to eager attention inside the block, and restore them afterwards."""
    candidates = (getattr(module, "config", None) for module in model.modules())
    configs: list[Any] = list(
        {id(config): config for config in candidates if hasattr(config, "_attn_implementation_internal")}.values()
    )
    before = [(config, dict(vars(config))) for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = "eager"
        yield
    finally:
        for config, attributes in before:
            vars(config).clear()
            vars(config).update(attributes)


def eager_weights(trace: Trace, source: CapturedModel, see: See) -> str:
    """Run the captured forward pass again in eager attention and pass on its weights layer by layer.

    Args:
        trace: the trace.
        source: the model it was captured from.
        see: called for each layer.

    Returns:
        The reason why this was not possible; empty if it was.
    """
    model, called = source.model, source.called
    if model is None or called is None:
        return "the model no longer exists"
    reason = _why_not(trace, source, called)
    if reason:
        return reason
    consumer = Weights(trace, source, see)
    try:
        with ExitStack() as stack:
            for kind, dtype in source.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
            stack.enter_context(torch.no_grad())
            stack.enter_context(eager(model))
            stack.enter_context(feed(model, consumer, strict=False))
            called(*source.args, **source.kwargs, **_asking_for_weights(called, source.kwargs))
    except HeadscopeError as error:
        return error.found
    missing = sorted(set(trace.numbers) - consumer.layers)
    return f"eager attention returned no weights in layers {missing}" if missing else ""


def _why_not(trace: Trace, source: CapturedModel, called: nn.Module) -> str:
    if not models_in(called.modules()):
        return "only transformers models have an eager path"
    for module in model_readers(called):
        reason = reader.differs(module) if (reader := reader_of(type(module))) else None
        if reason:
            return reason
    if called.training:
        return "the model is in training mode, so two forward passes differ"
    if trace.ablated:
        return "heads were silenced, so the model's own forward pass differs"
    if not all(_plain(value) for value in (*source.args, *source.kwargs.values())):
        return "the model was called with a cache or another object that the first call may have changed"
    record = trace.layers[0]
    cells = max(len(record.q), trace.heads) * len(trace.queries) * len(trace.keys)
    if cells > MOST_CELLS:
        return f"a layer's map has {cells:,} cells, too many to compute at once"
    return ""


def _asking_for_weights(called: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The argument that makes modules with a reader return weights: they don't follow the eager implementation."""
    known = "output_attentions" in inspect.signature(called.forward).parameters
    return {"output_attentions": True} if known and "output_attentions" not in kwargs and model_readers(called) else {}


def model_readers(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that have a reader."""
    return [module for module in model.modules() if reads(module)]


def _plain(value: Any) -> bool:
    """Return True for tensors and numbers, and containers of these: arguments that a call doesn't change."""
    if isinstance(value, Mapping):
        return all(_plain(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return all(_plain(part) for part in value)
    return value is None or isinstance(value, (torch.Tensor, bool, int, float, str))

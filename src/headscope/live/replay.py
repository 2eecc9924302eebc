"""Run the captured forward pass again, with the model's own eager attention, which returns its weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from headscope.attention.precision import exact_products
from headscope.errors import HeadscopeError, UnsupportedError, first_line
from headscope.live.calls import Call, Consumer, Forward
from headscope.live.captured import feed
from headscope.live.hooks import drawing
from headscope.live.keeping.contents import Contents, together
from headscope.live.names.lookups import is_stateless
from headscope.live.plan.classes import attention_configs, in_training, models_in
from headscope.live.plan.stacks import Stack
from headscope.live.seeing.readers import reader_of, reads
from headscope.live.sessions import RUNNING

if TYPE_CHECKING:
    from headscope.live.keeping.source import CapturedModel
    from headscope.traces import Trace


MOST_CELLS = 1 << 28
"""Maximum number of cells of a layer's map for which an eager forward pass is run: 1 GiB in fp32."""

FAILS = (ArithmeticError, AssertionError, HeadscopeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of models that can't run as they are set, or with as many rows."""

See = Callable[[int, np.ndarray, np.ndarray, np.ndarray], None]
"""Called with a layer's number and, for the heads, queries and keys in the trace: the weights (heads, queries, keys),
and the q and k of this run, (heads, queries or keys, d_head) each."""


class _PassedWeights(Consumer):
    """Passes on one stack's weights, reduced to the trace's heads, queries and keys."""

    def __init__(self, trace: Trace, source: CapturedModel, see: See) -> None:
        self.trace = trace
        self.source = source
        self.see = see
        self.layers: set[int] = set()

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True for the trace's layers, until each has been passed on."""
        return stack == self.source.stack and layer in self.trace.numbers and layer not in self.layers

    def take(self, forward: Forward, call: Call) -> None:
        """Pass on the weights of one layer."""
        cut = self.source.cut
        if call.weights is None or (call.turn, *call.weights.shape[2:]) != (self.source.turn, *cut.sizes):
            return
        self.layers.add(call.layer)
        weights = call.weights[cut.row].float()
        _refuse_unapplied(call, cut.row, weights)
        cells, q, k = (x.float().cpu().numpy() for x in (weights, call.q[cut.row], call.k[cut.row]))
        if len(cut.queries) < cut.sizes[0]:
            cells, q = (x.take(cut.queries, axis=1) for x in (cells, q))
        if len(cut.keys) < cut.sizes[1]:
            cells, k = cells.take(cut.keys, axis=2), k.take(cut.keys, axis=1)
        heads = list(self.trace.head_numbers(call.layer))
        self.see(call.layer, cells[heads], q[heads], k[[head * len(k) // len(q) for head in heads]])


def _refuse_unapplied(call: Call, row: int, weights: torch.Tensor) -> None:
    """Refuse a row's weights that a module returns, and whose products with the values are not its contexts.

    Raises:
        UnsupportedError: they aren't, as where a module takes a sink's share off the contexts alone; or all are NaN, as
            where a class hides every key in its eager attention.
    """
    context = call.context[row].float()
    v = call.v[row].float().repeat_interleave(len(weights) // len(call.v[row]), 0)
    kind, reason = type(call.module).__name__, ""
    if bool(weights.isnan().all()):
        reason = f"the eager attention of {kind} gives nothing but NaN"
    elif bool(((weights @ v - context).abs() > (4 * call.eps + 1e-5) * (weights @ v.abs())).any()):
        reason = f"{kind} returns other weights than it applies"
    if reason:
        raise UnsupportedError(reason, where=call.path, advice="compare the contexts")


@contextmanager
def eager(model: nn.Module, source: CapturedModel) -> Iterator[None]:
    """Switch all transformers modules in a model to eager attention inside the block, and restore them afterwards."""
    configs = attention_configs(model.modules())
    before = [(config, dict(vars(config))) for config in configs]
    RUNNING.switched = frozenset(key for key, name in source.implementations.items() if name != "eager")
    given = [x for x in (*source.args, *source.kwargs.values()) if isinstance(x, torch.Tensor)]
    RUNNING.own_masks = not any(x.dim() == 4 and x.is_floating_point() for x in given)
    try:
        for config in configs:
            config._attn_implementation_internal = "eager"
        yield
    finally:
        RUNNING.switched, RUNNING.own_masks = frozenset(), False
        for config, attributes in before:
            vars(config).clear()
            vars(config).update(attributes)


@contextmanager
def as_then(source: CapturedModel) -> Iterator[None]:
    """Run the model in the block under the autocast of the captured pass, with the same random numbers as there.

    Products are exact, there are no gradients, and buffers of a model in training are restored.
    """
    called = source.called
    kept = [(buffer, buffer.clone()) for buffer in called.buffers()] if called and in_training(called) else []
    with ExitStack() as stack:
        for kind, dtype in source.autocast.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        stack.enter_context(exact_products())
        stack.enter_context(torch.no_grad())
        stack.enter_context(drawing(source.drawn))
        try:
            yield
        finally:
            for buffer, before in kept:
                buffer.copy_(before)


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
    if reason := _why_not_eager(trace, source, called) or why_not(trace, source, called):
        return reason
    consumer, asked = _PassedWeights(trace, source, see), {**source.kwargs}
    if "output_attentions" in inspect.signature(called.forward).parameters and any(map(reads, called.modules())):
        asked.setdefault("output_attentions", True)  # modules with a reader don't follow the eager implementation
    try:
        with as_then(source), eager(model, source), feed(model, consumer, strict=False):
            called(*source.args, **asked)
    except HeadscopeError as error:
        return error.found
    except FAILS as error:  # some classes have an eager attention that can't run as they are set
        return f"the model's eager attention fails: {first_line(error)}"
    missing = sorted(set(trace.numbers) - consumer.layers)
    return f"eager attention returned no weights in layers {missing}" if missing else ""


def why_not(trace: Trace, source: CapturedModel, called: nn.Module, *, training: bool = False) -> str:
    """The reason why a second forward pass would not be the same; empty if it would.

    Args:
        trace, source, called: the trace, the model, and the module that was called.
        training: True if a model in training mode draws the same random numbers again.
    """
    if source.has_changed:
        return "the weights have changed since"
    if not training and (in_training(called) or source.dropped):
        return f"the model {'is' if in_training(called) else 'was'} in training mode, so two forward passes differ"
    if trace.changed:
        return "heads were silenced or attended with another map, so the model's own forward pass differs"
    if not is_stateless((source.args, source.kwargs)):
        return "the model was called with a cache or another object that the first call may have changed"
    doubts: list[torch.Tensor] = []
    same = source.contents is None or Contents(source.args, source.kwargs).same(source.contents, doubts)
    if not same or together(doubts).any():
        return "the arguments of its call were changed in place since it began"
    return ""


def _why_not_eager(trace: Trace, source: CapturedModel, called: nn.Module) -> str:
    if not models_in(called.modules()):
        return "only transformers models have an eager path"
    for module in filter(reads, called.modules()):
        ran = source.implementations.get(id(getattr(module, "config", None)), "")
        if (reader := reader_of(type(module))) and (reason := reader.differs(module, ran)):
            return reason
    if source.changed_inside:
        return f"its attention function {source.changed_inside} changes what it is given, and eager attention doesn't"
    record = trace.layers[0]
    cells = max(len(record.q), trace.heads) * len(trace.queries) * len(trace.keys)
    if cells > MOST_CELLS:
        return f"a layer's map has {cells:,} cells, too many to compute at once"
    return ""

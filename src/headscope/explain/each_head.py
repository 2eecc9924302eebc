"""One output read again with each head's context replaced in turn, and the contexts that replace it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headscope.attention import silent
from headscope.explain.knockout import knockout
from headscope.explain.prefixes import Kept, changed_states
from headscope.explain.runs import BATCH_TOKENS
from headscope.explain.target import Target, read

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import Trace
    from headscope.model import Model

    Heads = Float[np.ndarray, "layers heads"]

LayerRead: TypeAlias = "Callable[[int, Float[np.ndarray, ' heads']], None]"
"""Called with a layer's number, and a number for each of its heads."""


def without_edge(kept: Kept, trace: Trace, query: int, key: int) -> Kept:
    """The same pass with other contexts to take from: in every head, `query` does not see `key`.

    Args:
        kept: the forward pass.
        trace: its trace, with values.
        query: the query's position, counted from 0.
        key: the key's position, counted from 0.

    Raises:
        InputError: no such position, or a key that is the only one that the query sees.
    """
    layers = []
    for number, layer in zip(trace.numbers, kept.layers, strict=True):
        contexts = layer.contexts.copy()
        for head in range(len(contexts)):
            contexts[head, query] = knockout(trace[number, head], query, key)
        layers.append(replace(layer, contexts=contexts))
    return replace(kept, layers=tuple(layers))


def changed_readings(
    model: Model,
    kept: Kept,
    other: Kept | None,
    goal: Target,
    method: str,
    progress: Callable[[int, int], None] | None = None,
    layer_read: LayerRead | None = None,
) -> tuple[Heads, Heads | None]:
    """The target's number, and what goes with it, with each head changed; the last layer first, since it costs least.

    Args:
        model: the model.
        kept: the forward pass as it is.
        other: where each head's context comes from; None to use the method.
        goal: the target.
        method: zero or mean.
        progress: called with the layers done and all layers, before each batch of heads and at the end.
        layer_read: called with each layer's numbers as soon as they are there.
    """
    sizes = model.anatomy.known()
    values = np.empty((sizes.layers, sizes.heads))
    aside = np.empty_like(values) if goal.aside else None
    step = max(1, BATCH_TOKENS // len(kept.last))
    for done, layer in enumerate(reversed(range(sizes.layers)), 1):
        for start in range(0, sizes.heads, step):
            if progress is not None:
                progress(done - 1, sizes.layers)  # which may end the run by an error
            heads = range(start, min(start + step, sizes.heads))
            contexts = kept.layers[layer].contexts[heads.start : heads.stop]
            if other is not None:
                instead = other.layers[layer].contexts[heads.start : heads.stop]
            else:
                instead = silent(contexts, method)
            readings = read(model, goal, changed_states(model.encoder, kept, layer, heads, instead, goal.row))
            values[layer, heads.start : heads.stop] = readings.values
            if aside is not None and readings.aside is not None:
                aside[layer, heads.start : heads.stop] = readings.aside
        if layer_read is not None:
            layer_read(layer, values[layer])
    if progress is not None:
        progress(sizes.layers, sizes.layers)
    return values, aside

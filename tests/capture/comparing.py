"""Captures, and comparisons of their weights with transformers' own eager attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from families import FAMILIES, Family
from headscope.live import capture

PADDABLE = [family for family in FAMILIES if family.takes not in ("image", "audio", "features")]


def captured_of(model: Any, *given: Any, **named: Any) -> Any:
    """What a capture has of one forward pass without gradients."""
    with torch.no_grad(), capture(model) as captured:
        model(*given, **named)
    return captured


def pass_of(
    family: Family, run_in: torch.dtype = torch.float32, *, padded: bool = True, left: bool = False, **options: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """A family's model, what was captured of a batch, and the inputs."""
    model, inputs = family.build(run_in), family.inputs(padded=padded, left=left)
    with torch.no_grad(), capture(model, **options) as captured:
        model(**inputs)
    return model, captured, inputs


def eager_attentions(
    model: Any, inputs: dict[str, Any], stacks: tuple[tuple[str, str], ...] = (("self", "attentions"),)
) -> dict[str, list[np.ndarray]]:
    """For each stack, transformers' weights layer by layer, (batch, heads, queries, keys)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    model.set_attn_implementation(before)
    weights = {}
    for stack, name in stacks:
        part = output[name]
        layers = part if isinstance(part, tuple) else part.attentions
        weights[stack] = [layer.float().numpy() for layer in layers]
    return weights


def assert_same_weights(captured: Any, expected: dict[str, list[np.ndarray]], tolerance: float) -> float:
    """Compare every cell of every head; return how far from uniform the weights are."""
    peaks = []
    for stack, layers in expected.items():
        traces = captured[stack]
        assert [len(trace.layers) for trace in traces] == [len(layers)] * len(layers[0])
        for row, trace in enumerate(traces):
            queries = slice(None) if trace.source.queries is None else trace.source.queries
            keys = slice(None) if trace.source.keys is None else trace.source.keys
            for layer, attention in enumerate(layers):
                cells = attention[row][:, queries][:, :, keys]
                ours = np.stack([np.asarray(trace[layer, head].weights) for head in range(trace.heads)])
                np.testing.assert_allclose(ours, cells, atol=tolerance)
                peaks.append(float(np.abs(cells - 1 / cells.shape[-1]).max()))
    return float(np.mean(peaks))

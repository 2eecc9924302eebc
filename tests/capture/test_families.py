"""Traces of live transformers models against transformers' own eager attentions, architecture by architecture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from families import FAMILIES, Family
from headscope.live import capture

PADDABLE = [family for family in FAMILIES if family.takes not in ("image", "audio", "features")]


def eager_attentions(
    model: Any, inputs: dict[str, Any], stacks: tuple[tuple[str, str], ...]
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


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_weights_are_the_eager_ones(family: Family) -> None:
    model = family.build()
    inputs = family.inputs(padded=family in PADDABLE)
    with torch.no_grad():
        alone = model(**inputs)
        with capture(model) as captured:
            watched = model(**inputs)
    for name, value in alone.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, watched[name]), f"{name} changed while it was looked at"
    expected = eager_attentions(model, inputs, family.stacks)
    peak = assert_same_weights(
        captured, expected, 1e-4 if family.name.startswith(("T5", "MT5", "UMT5", "Switch")) else 2e-5
    )
    assert peak > 0.04, "near-uniform attention would hide mistakes"
    assert captured.traces[0].layers[0].stage == family.stage
    if family in PADDABLE and family.takes == "text":
        assert [len(trace) for trace in captured.traces] == [7, 5]
        assert captured.traces[1].ids == tuple(inputs["input_ids"][1, :5].tolist())

"""Compiled models run uncompiled inside a block: the same traces as uncompiled, and their graphs are as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from comparing import captured_of, passed
from torch import nn

import headscope as hs
from families import BY_NAME
from headscope.live import capture

BERT = BY_NAME["BertModel"]
SHORT = replace(BERT, settings={**BERT.settings, "num_hidden_layers": 1})
"""A graph of one layer: half of the compiler's time, where the tests are not of what several layers leave."""


@pytest.fixture(autouse=True)
def no_graphs() -> None:
    torch._dynamo.reset()


def check_backend(backend: str) -> None:
    """Skip where inductor can't compile: it needs a C++ compiler and Python's headers."""
    try:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    except (RuntimeError, OSError) as error:
        pytest.skip(f"{backend} can't compile anything here (Debian: apt-get install g++ python3-dev): {error}")


def counting(backend: str) -> Any:
    """A backend that counts its graphs; to import it takes a second, in every worker."""
    from torch._dynamo.testing import CompileCounterWithBackend

    return CompileCounterWithBackend(backend)


def compiled(model: Any, backend: str = "eager", **options: Any) -> tuple[Any, Any]:
    """A model and how often it was compiled."""
    counter = counting(backend)
    return torch.compile(model, backend=counter, fullgraph=True, **options), counter


def assert_same(want: list[Any], traces: list[Any], tolerance: float) -> None:
    for one, other in zip(want, traces, strict=True):
        for name in ("stack", "row", "tokens", "numbers", "cut"):
            assert getattr(one, name) == getattr(other, name), name
        assert one.keys.tokens == other.keys.tokens
        for mine, its in zip(one.layers, other.layers, strict=True):
            assert (mine.name, mine.stage, mine.scale) == (its.name, its.stage, its.scale)
            assert (mine.mask.causal, mine.mask.window) == (its.mask.causal, its.mask.window)
            for part in ("q", "k", "v"):
                np.testing.assert_allclose(getattr(its, part), getattr(mine, part), rtol=0, atol=tolerance)
        for layer in one.numbers:
            np.testing.assert_allclose(other[layer].weights[...], one[layer].weights[...], rtol=0, atol=tolerance)
            np.testing.assert_allclose(other[layer, 1].output, one[layer, 1].output, rtol=0, atol=tolerance)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_same_traces_and_the_graph_as_it_was(backend: str) -> None:
    """Heads are silenced in the block as those of the model itself; the graph knows nothing of it."""
    check_backend(backend)
    model, inputs = SHORT.build(), SHORT.inputs(padded=True)
    want = captured_of(model, **inputs).traces
    graph, counter = compiled(model, backend)
    with torch.no_grad():
        alone, (output, captured) = graph(**inputs).last_hidden_state, passed(graph, **inputs)
        with hs.ablate(model, {(0, 1)}):
            expected = model(**inputs).last_hidden_state
        with hs.ablate(graph, {(0, 1)}):
            silenced, ablated = passed(graph, **inputs)
        torch.testing.assert_close(graph(**inputs).last_hidden_state, alone, rtol=0, atol=0)
    assert counter.frame_count == 1
    torch.testing.assert_close(output.last_hidden_state, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(silenced.last_hidden_state, expected, rtol=0, atol=0)
    assert not torch.allclose(silenced.last_hidden_state, alone, atol=1e-3)
    assert ablated.traces[0].ablated == {(0, 1)}
    assert_same(want, captured.traces, 1e-6)
    report = captured.traces[0].verify()
    assert report.agrees
    assert not report.skipped


def by_wrapping(model: Any) -> tuple[Any, Callable[..., Any]]:
    graph, _ = compiled(model)
    return graph, graph


def in_place(model: Any) -> tuple[Any, Callable[..., Any]]:
    model.compile(backend="eager", fullgraph=True)
    return model, model


def in_a_function(model: Any) -> tuple[Any, Callable[..., Any]]:
    return model, torch.compile(lambda **inputs: model(**inputs), backend="eager")


@pytest.mark.parametrize(
    ("way", "before"),
    [(by_wrapping, False), (in_place, False), (in_place, True), (in_a_function, False), (in_a_function, True)],
)
def test_same_traces_however_a_model_is_compiled(
    way: Callable[[Any], tuple[Any, Callable[..., Any]]], before: bool
) -> None:
    """Before the block or in it; one that was wrapped and had run before is in the test above."""
    model, inputs = SHORT.build(), SHORT.inputs(padded=True)
    want = captured_of(model, **inputs).traces
    watched, call = way(model)
    with torch.no_grad():
        if before:
            call(**inputs)
        with capture(watched) as captured:
            call(**inputs)
    assert_same(want, captured.traces, 1e-6)


def test_a_model_compiled_in_place_also_with_gradients() -> None:
    model, inputs = BERT.build(), BERT.inputs(padded=True)
    want = captured_of(model, **inputs).traces
    counter = counting("aot_eager")
    model.compile(backend=counter, fullgraph=True)
    with capture(model) as captured:
        model(**inputs).last_hidden_state.sum().backward()
    assert counter.frame_count == 0
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "query" in name)
    assert_same(want, captured.traces, 1e-6)


@pytest.mark.parametrize("model", [nn.TransformerEncoderLayer(8, 2, batch_first=True), nn.MultiheadAttention(8, 2)])
def test_other_attention_in_a_compiled_model(model: nn.Module) -> None:
    model = model.eval()
    inputs = (torch.randn(1, 5, 8),) * (3 if isinstance(model, nn.MultiheadAttention) else 1)
    for plain, other in zip(*(captured_of(one, *inputs).traces for one in (model, compiled(model)[0])), strict=True):
        np.testing.assert_allclose(other[0].weights[:], plain[0].weights[:], rtol=0, atol=1e-6)

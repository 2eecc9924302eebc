"""Compiled models run uncompiled inside a block: the same traces as uncompiled, and their graphs are as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from comparing import captured_of
from torch import nn

import headscope as hs
from families import BY_NAME
from headscope.errors import UnsupportedError
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


def traces_of(model: Any, call: Callable[..., Any], inputs: dict[str, Any]) -> list[Any]:
    with torch.no_grad(), capture(model) as captured:
        call(**inputs)
    return captured.traces


def assert_same(want: list[Any], traces: list[Any], tolerance: float) -> None:
    assert [(trace.stack, trace.row, trace.tokens) for trace in traces] == [
        (trace.stack, trace.row, trace.tokens) for trace in want
    ]
    for one, other in zip(want, traces, strict=True):
        assert one.numbers == other.numbers
        assert one.cut == other.cut
        assert one.keys.tokens == other.keys.tokens
        for mine, its in zip(one.layers, other.layers, strict=True):
            assert (mine.name, mine.stage, mine.scale) == (its.name, its.stage, its.scale)
            assert (mine.mask.causal, mine.mask.window) == (its.mask.causal, its.mask.window)
            for part in ("q", "k", "v"):
                np.testing.assert_allclose(getattr(its, part), getattr(mine, part), rtol=0, atol=tolerance)
        for layer in one.numbers:
            np.testing.assert_allclose(
                np.asarray(other[layer].weights), np.asarray(one[layer].weights), rtol=0, atol=tolerance
            )
            np.testing.assert_allclose(other[layer, 1].output, one[layer, 1].output, rtol=0, atol=tolerance)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_same_traces_and_the_graph_as_it_was(backend: str) -> None:
    check_backend(backend)
    model, inputs = BERT.build(), BERT.inputs(padded=True)
    want = traces_of(model, model, inputs)
    graph, counter = compiled(model, backend)
    with torch.no_grad():
        alone = graph(**inputs).last_hidden_state
        with capture(graph) as captured:
            output = graph(**inputs).last_hidden_state
        torch.testing.assert_close(graph(**inputs).last_hidden_state, alone, rtol=0, atol=0)
    assert counter.frame_count == 1
    torch.testing.assert_close(output, alone, rtol=0, atol=1e-5)
    assert_same(want, captured.traces, 1e-6)
    report = captured.traces[0].verify()
    assert report.agrees
    assert not report.skipped


OTHERS = ("Gemma2Model", "BartModel", "AlbertModel", "T5Model", "DebertaV2Model")


def by_wrapping(model: Any) -> tuple[Any, Callable[..., Any]]:
    graph, _ = compiled(model)
    return graph, graph


def in_place(model: Any) -> tuple[Any, Callable[..., Any]]:
    model.compile(backend="eager", fullgraph=True)
    return model, model


def in_a_function(model: Any) -> tuple[Any, Callable[..., Any]]:
    return model, torch.compile(lambda **inputs: model(**inputs), backend="eager")


WAYS = (by_wrapping, in_place, in_a_function)


@pytest.mark.parametrize(("name", "way"), [(name, WAYS[at % len(WAYS)]) for at, name in enumerate(OTHERS)])
def test_same_traces_of_other_families(name: str, way: Callable[[Any], tuple[Any, Callable[..., Any]]]) -> None:
    family = BY_NAME[name]
    model, inputs = family.build(), family.inputs(padded=family.takes != "image")
    want = traces_of(model, model, inputs)
    captured, call = way(model)
    assert_same(want, traces_of(captured, call, inputs), 2e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_was_compiled_before_the_block(way: Callable[[Any], tuple[Any, Callable[..., Any]]]) -> None:
    model, inputs = SHORT.build(), SHORT.inputs(padded=True)
    want = traces_of(model, model, inputs)
    captured, call = way(model)
    with torch.no_grad():
        call(**inputs)
    assert_same(want, traces_of(captured, call, inputs), 1e-6)


def test_a_model_compiled_in_place_also_with_gradients() -> None:
    model, inputs = BERT.build(), BERT.inputs(padded=True)
    want = traces_of(model, model, inputs)
    counter = counting("aot_eager")
    model.compile(backend=counter, fullgraph=True)
    with capture(model) as captured:
        model(**inputs).last_hidden_state.sum().backward()
    assert counter.frame_count == 0
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "query" in name)
    assert_same(want, captured.traces, 1e-6)


def test_nothing_is_left_behind() -> None:
    model, inputs = SHORT.build(), SHORT.inputs(padded=False)
    before = [(dict(module._forward_pre_hooks), dict(module._forward_hooks)) for module in model.modules()]
    graph, _ = compiled(model)
    traces_of(graph, graph, inputs)
    assert [(dict(module._forward_pre_hooks), dict(module._forward_hooks)) for module in model.modules()] == before
    assert not any(module._forward_pre_hooks_with_kwargs for module in model.modules())


def twice(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[Any, None]:
    """Attention that returns twice the contexts."""
    return 2 * torch.softmax(query @ key.mT * kwargs["scaling"], -1).matmul(value).transpose(1, 2).contiguous(), None


def without_an_edge(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[Any, None]:
    """Attention in which one head of one query of the first row has lost a key."""
    weights = torch.softmax(query @ key.mT * kwargs["scaling"], -1)
    axes = [torch.arange(size) for size in weights.shape]
    row, head, one, other = (
        axis.view([-1 if at == place else 1 for at in range(4)]) for place, axis in enumerate(axes)
    )
    lost = (row == 0) & (head == 1) & (one == 3) & (other == weights[0, 1, 3].argmax())
    return weights.masked_fill(lost, 0.0).matmul(value).transpose(1, 2).contiguous(), None


def by_hand(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[Any, None]:
    weights = torch.softmax(query @ key.mT * kwargs["scaling"], -1)
    return weights.matmul(value).transpose(1, 2).contiguous(), None


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("function", [twice, without_an_edge, by_hand])
def test_a_wrong_map_is_noticed_in_a_compiled_model(function: Callable[..., Any]) -> None:
    transformers.AttentionInterface.register("own", function)
    model, inputs = SHORT.build(), SHORT.inputs(padded=False)
    model.set_attn_implementation("own")
    graph, _ = compiled(model)
    if function is by_hand:
        assert_same(traces_of(model, model, inputs), traces_of(graph, graph, inputs), 1e-5)
        return
    with pytest.raises(UnsupportedError, match="something other than softmax"):
        traces_of(graph, graph, inputs)


class WithMore(nn.Module):
    """A model whose output attends once more, by hand."""

    def __init__(self, attend: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.model = SHORT.build()
        self.attend = attend

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.attend(self.model(**inputs).last_hidden_state)


def test_attention_by_hand_is_missed_in_a_compiled_model() -> None:
    graph, _ = compiled(WithMore(lambda x: torch.softmax(x @ x.mT, -1) @ x))
    with pytest.raises(UnsupportedError, match="was not recorded"):
        traces_of(graph, graph, SHORT.inputs(padded=False))


def test_heads_of_a_compiled_model_are_silenced() -> None:
    """As those of the model itself, in the block; the graph knows nothing of it."""
    model, inputs = SHORT.build(), SHORT.inputs(padded=False)
    graph, counter = compiled(model)
    with torch.no_grad():
        alone = graph(**inputs).last_hidden_state
        with hs.ablate(model, {(0, 1)}):
            want = model(**inputs).last_hidden_state
        with hs.ablate(graph, {(0, 1)}), capture(graph) as captured:
            silenced = graph(**inputs).last_hidden_state
        torch.testing.assert_close(graph(**inputs).last_hidden_state, alone, rtol=0, atol=0)
    torch.testing.assert_close(silenced, want, rtol=0, atol=0)
    assert not torch.allclose(silenced, alone)
    assert captured.traces[0].ablated == {(0, 1)}
    assert counter.frame_count == 1


@pytest.mark.parametrize("model", [nn.TransformerEncoderLayer(8, 2, batch_first=True), nn.MultiheadAttention(8, 2)])
def test_other_attention_in_a_compiled_model(model: nn.Module) -> None:
    model = model.eval()
    inputs = (torch.randn(1, 5, 8),) * (3 if isinstance(model, nn.MultiheadAttention) else 1)
    weights = []
    for one in (model, compiled(model)[0]):
        captured = captured_of(one, *inputs)
        weights.append([np.asarray(trace[0].weights) for trace in captured.traces])
    np.testing.assert_allclose(weights[1], weights[0], rtol=0, atol=1e-6)

"""Compiled models are captured in their graphs: the same traces as uncompiled, and no graph more than one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

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


def compiled(model: Any, backend: str = "eager", **options: Any) -> tuple[Any, CompileCounterWithBackend]:
    """A model and how often it was compiled. What graphs record doesn't depend on what runs them, as BERT's shows."""
    counter = CompileCounterWithBackend(backend)
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
@pytest.mark.parametrize(
    ("backend", "tolerance"), [("aot_eager", 1e-6), pytest.param("inductor", 1e-5, marks=pytest.mark.slow)]
)
def test_same_traces_with_one_graph_more(backend: str, tolerance: float) -> None:
    check_backend(backend)
    model, inputs = BERT.build(), BERT.inputs(padded=True)
    want = traces_of(model, model, inputs)
    graph, counter = compiled(model, backend)
    with torch.no_grad():
        alone = graph(**inputs).last_hidden_state
        assert counter.frame_count == 1
        for _ in range(2):
            with capture(graph) as captured:
                output = graph(**inputs).last_hidden_state
        assert counter.frame_count == 2
        torch.testing.assert_close(graph(**inputs).last_hidden_state, alone, rtol=0, atol=0)
        assert counter.frame_count == 2
    torch.testing.assert_close(output, alone, rtol=0, atol=tolerance)
    assert_same(want, captured.traces, tolerance)
    report = captured.traces[0].verify()
    assert report.agrees
    assert not report.skipped


OTHERS = ("Gemma2Model", "BartModel", "AlbertModel", "T5Model")


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(("Gemma2Model", "eager"), ("BartModel", "eager")),
        *(pytest.param(name, "aot_eager", marks=pytest.mark.slow) for name in OTHERS),
    ],
)
def test_same_traces_of_other_families(name: str, backend: str) -> None:
    family = BY_NAME[name]
    if backend == "eager" and name == "BartModel":
        family = replace(family, settings={**family.settings, "encoder_layers": 1, "decoder_layers": 1})
    model, inputs = family.build(), family.inputs(padded=family.takes != "image")
    want = traces_of(model, model, inputs)
    graph, counter = compiled(model, backend)
    assert_same(want, traces_of(model, graph, inputs), 2e-6)
    assert counter.frame_count == 1


def test_dynamic_shapes_need_no_graph_for_each_length() -> None:
    model = SHORT.build()
    graph, counter = compiled(model, dynamic=True)
    counts = []
    for length in (7, 9, 12):
        inputs = {"input_ids": torch.arange(5, 5 + length)[None]}
        assert_same(traces_of(model, model, inputs), traces_of(graph, graph, inputs), 1e-6)
        counts.append(counter.frame_count)
    assert len({*counts}) == 1


def test_a_model_compiled_in_place_also_with_gradients() -> None:
    model, inputs = BERT.build(), BERT.inputs(padded=True)
    want = traces_of(model, model, inputs)
    counter = CompileCounterWithBackend("aot_eager")
    model.compile(backend=counter, fullgraph=True)
    with capture(model) as captured:
        model(**inputs).last_hidden_state.sum().backward()
    assert counter.frame_count == 1
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "query" in name)
    assert_same(want, captured.traces, 1e-6)


def test_nothing_is_left_behind() -> None:
    model, inputs = SHORT.build(), SHORT.inputs(padded=False)
    before = [(dict(module._forward_pre_hooks), dict(module._forward_hooks)) for module in model.modules()]
    graph, _ = compiled(model)
    call = type(graph).__call__
    traces_of(graph, graph, inputs)
    assert [(dict(module._forward_pre_hooks), dict(module._forward_hooks)) for module in model.modules()] == before
    assert not any(module._forward_pre_hooks_with_kwargs for module in model.modules())
    assert type(graph).__call__ is call


def test_hooks_keep_their_places_after_a_compiled_call() -> None:
    model, inputs = SHORT.build(), SHORT.inputs(padded=False)
    graph, _ = compiled(model)
    handles = [module.register_forward_pre_hook(lambda *_: None) for module in model.modules()]
    with torch.no_grad(), capture(graph):
        before = [list(module._forward_pre_hooks) for module in model.modules()]
        graph(**inputs)
        assert [list(module._forward_pre_hooks) for module in model.modules()] == before
    for handle in handles:
        handle.remove()


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


@pytest.mark.parametrize("function", [twice, without_an_edge, by_hand])
def test_a_wrong_map_is_noticed_in_a_graph(function: Callable[..., Any]) -> None:
    transformers.AttentionInterface.register("own", function)
    try:
        model = SHORT.build()
        model.set_attn_implementation("own")
        graph, _ = compiled(model)
        inputs = SHORT.inputs(padded=False)
        if function is by_hand:
            assert_same(traces_of(model, model, inputs), traces_of(graph, graph, inputs), 1e-5)
            return
        with pytest.raises(UnsupportedError, match="something other than softmax"):
            traces_of(graph, graph, inputs)
    finally:
        del transformers.AttentionInterface._global_mapping["own"]


class WithMore(nn.Module):
    """A model whose output attends once more, by hand."""

    def __init__(self, attend: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.model = SHORT.build()
        self.attend = attend

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.attend(self.model(**inputs).last_hidden_state)


@pytest.mark.parametrize(
    "attend",
    [
        lambda x: torch.softmax(x @ x.mT, -1) @ x,
        lambda x: (x @ x.mT).softmax(dim=-1) @ x,
        lambda x: nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0],
    ],
)
def test_attention_by_hand_is_missed_in_a_graph(attend: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = WithMore(attend)
    graph, _ = compiled(model)
    with pytest.raises(UnsupportedError, match=r"was not recorded|outside transformers' attention interface"):
        traces_of(graph, graph, SHORT.inputs(padded=False))


def test_a_compiled_function_is_an_error() -> None:
    model, inputs = SHORT.build(), SHORT.inputs(padded=False)
    function = torch.compile(lambda: model(**inputs), backend="eager")
    with pytest.raises(UnsupportedError, match="compiled function"), torch.no_grad(), capture(model):
        function()


def test_heads_of_a_compiled_model_are_not_silenced() -> None:
    model, inputs = SHORT.build(), SHORT.inputs(padded=False)
    graph, _ = compiled(model)
    with pytest.raises(UnsupportedError, match="can't be silenced"), torch.no_grad(), hs.ablate(graph, {(0, 1)}):
        graph(**inputs)
    with torch.no_grad(), hs.ablate(model, {(0, 1)}), capture(model) as captured:
        model(**inputs)
    assert captured.traces[0].ablated == {(0, 1)}


@pytest.mark.parametrize("model", [nn.TransformerEncoderLayer(8, 2, batch_first=True), nn.MultiheadAttention(8, 2)])
def test_other_attention_in_a_graph_is_an_error(model: nn.Module) -> None:
    graph, _ = compiled(model.eval())
    inputs = (torch.randn(1, 5, 8),) * (3 if isinstance(model, nn.MultiheadAttention) else 1)
    with pytest.raises(UnsupportedError, match="outside transformers' attention interface"), capture(graph):
        graph(*inputs)

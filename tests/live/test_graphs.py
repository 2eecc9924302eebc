"""TorchScript and exported programs, given to each function that takes a model: read, or refused with the way out."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from comparing import assert_weights, captured_of, softmax_of, tokenizer
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import headscope as hs
from families import BY_NAME, TEXT
from headscope.errors import InputError, UnsupportedError
from headscope.live import ablate, capture

pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.arange(3, 9)[None]


class Plain(nn.Module):
    """Code that TorchScript compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.into(x).unflatten(-1, [4, 24]).transpose(1, 2).chunk(3, -1)
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        return softmax_of(*self.into(x).unflatten(-1, [4, 24]).transpose(1, 2).chunk(3, -1)[:2])


@cache
def bert() -> nn.Module:
    return replace(BY_NAME["BertModel"], settings={**TEXT, "return_dict": False}).build()


@cache
def traced() -> Any:
    return torch.jit.trace(bert(), (IDS,), check_trace=False)


def loaded() -> Any:
    file = io.BytesIO()
    torch.jit.save(traced(), file)
    file.seek(0)
    return torch.jit.load(file)


@cache
def exported() -> Any:
    return torch.export.export(Plain().eval(), (torch.randn(1, 6, 32),))


GRAPHS: dict[str, Callable[[], Any]] = {
    "traced": traced,
    "frozen": lambda: torch.jit.freeze(traced()),
    "loaded": loaded,
    "scripted": lambda: torch.jit.script(Plain().eval()),
    "a traced function": lambda: torch.jit.trace(lambda x: x * 2, (torch.ones(2),)),
    "exported": exported,
    "the module of an exported program": lambda: exported().module(),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_graphs_can_not_be_opened(kind: str) -> None:
    with pytest.raises(InputError, match="can't be opened: it has no config") as raised:
        hs.open(GRAPHS[kind]())
    assert f"before it is {'exported' if 'exported' in kind else 'traced or scripted'}" in str(raised.value)


def _trace(model: Any) -> Any:
    return hs.trace(model, "the cat", tokenizer=tokenizer())


FACES: list[Callable[[Any], Any]] = [capture, hs.describe, _trace, lambda model: ablate(model, [(0, 0)])]


@pytest.mark.parametrize("kind", ["exported", "a traced function"])
@pytest.mark.parametrize("face", FACES)
def test_what_is_no_module_says_what_to_pass(kind: str, face: Callable[[Any], Any]) -> None:
    graph = GRAPHS[kind]()
    with pytest.raises(InputError, match=f"expected an nn.Module, got {type(graph).__name__}") as raised:
        face(graph)
    assert "pass the model itself, before it is" in str(raised.value)


@pytest.mark.parametrize("face", [*FACES, lambda model: hs.trace(model, "the cat")])
def test_an_opened_model_says_what_to_call(face: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=r"expected an nn\.Module, got Model") as raised:
        face(hs.open())
    assert re.search(r"for a model from hs\.open, (look at its tree|call its trace\(text\))", str(raised.value))


@pytest.mark.parametrize("kind", ["traced", "frozen", "loaded"])
@torch.no_grad()
def test_a_traced_model_is_captured_with_a_stack_for_each_layer(kind: str) -> None:
    graph = GRAPHS[kind]()
    captured = captured_of(graph, IDS)
    assert captured.stacks == ("self", "self.2")
    with capture(bert()) as expected:
        bert()(IDS)
    for layer, trace in enumerate(captured.traces):
        assert trace.numbers == (0,)
        assert trace.verify().agrees
        assert_weights([trace], [[expected.trace[layer].weights[...]]])
    with ablate(graph, [(0, head) for head in range(4)], stack="self.1"):
        changed = graph(IDS)[0]
    with ablate(bert(), [(0, head) for head in range(4)]):
        torch.testing.assert_close(changed, bert()(IDS)[0])
    with pytest.raises(UnsupportedError, match="has no signature, as in TorchScript") as raised:
        _trace(graph)
    assert "before it is traced or scripted" in str(raised.value)


def test_descriptions_count_the_weights_or_say_that_they_are_constants() -> None:
    total = hs.describe(bert()).total
    assert hs.describe(traced()).total == hs.describe(loaded()).total == total
    for model in (torch.jit.freeze(traced()), nn.Sequential(nn.Linear(2, 2), torch.jit.freeze(traced()))):
        with pytest.raises(UnsupportedError, match="constants of frozen TorchScript"):
            hs.describe(model)


def test_attention_by_hand_in_a_graph() -> None:
    class ByHand(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.mT).softmax(-1) @ x

    graph = torch.jit.trace(ByHand(), (torch.randn(1, 6, 8),))
    with pytest.raises(UnsupportedError, match="no attention that can be captured") as raised:
        capture(graph)  # type: ignore[arg-type]
    assert "before it is traced or scripted" in str(raised.value)


WHOLE: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "script": lambda model, x: torch.jit.script(model),
    "trace": lambda model, x: torch.jit.trace(model, x),
    "fx": lambda model, x: torch.fx.symbolic_trace(model),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
}


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("layers", [1, 2])
def test_graphs_of_modules(kind: str, layers: int) -> None:
    """Each is one module: the attention of a whole model in it has a stack for each call."""
    model, x = nn.Sequential(*(Plain() for _ in range(layers))).eval(), torch.randn(2, 6, 32)
    with torch.no_grad():
        graph = WHOLE[kind](model, x)
        captured = captured_of(graph, x)
        assert captured.stacks == ("self", "self.2")[:layers]
        for stack, layer in zip(captured.stacks, model, strict=True):
            assert_weights(captured[stack], [layer.weights(x)])
            x = layer(x)


def test_a_scripted_layer_among_others() -> None:
    layers = [Plain() for _ in range(3)]
    model, x = nn.Sequential(layers[0], torch.jit.script(layers[1]), layers[2]), torch.randn(2, 6, 32)
    with torch.no_grad():
        captured = captured_of(model, x)
        assert [trace.numbers for trace in captured.traces] == [(0, 1, 2)] * 2
        assert_weights(captured, {1: layers[1].weights(layers[0](x))})

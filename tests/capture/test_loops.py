"""Attention in a loop of the model's own forward, over a list of layers that only make queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from comparing import captured_of
from torch import nn
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention

from headscope.errors import UnsupportedError
from headscope.live import ablate, capture

WIDTH, HEADS, TOKENS = 32, 4, 6


def split(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def merged(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Makes queries, keys and values; the model attends."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [split(part) for part in self.into(x).chunk(3, -1)]


class Loop(nn.Module):
    """Attends for its layers, in the order of `order`."""

    order: Iterable[int] = (0, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x + layer.out(merged(scaled_dot_product_attention(*layer(x))))  # type: ignore[operator]
        return x + layer.mlp(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at in self.order:
            x = self.step(self.layers[at], x)
        return x


class InPlace(Loop):
    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x += layer.out(merged(scaled_dot_product_attention(*layer(x))))  # type: ignore[operator]
        x += layer.mlp(x)  # type: ignore[operator]
        return x


class Skipping(Loop):
    order = (0, 2)


class Again(Loop):
    order = (0, 1, 2, 0, 1, 2)


class SkippingTheFirst(Loop):
    order = (1, 2)


class Shared(Loop):
    """One layer attends three times, each followed by an MLP of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.layers[0].out(merged(scaled_dot_product_attention(*self.layers[0](x))))  # type: ignore[operator]
            x = x + layer.mlp(x)  # type: ignore[operator]
        return x


class Functional(Loop):
    """Weights are handed to a function, so nothing runs in the layers before they attend."""

    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y, weights = x.transpose(0, 1), [layer.into.weight, layer.into.bias, None, None, False, 0.0]  # type: ignore
        weights += [layer.out.weight, layer.out.bias]  # type: ignore[union-attr]
        mixed, _ = multi_head_attention_forward(y, y, y, WIDTH, HEADS, *weights, training=False, need_weights=False)
        return x + mixed.transpose(0, 1)


class Inside(nn.Module):
    """A model with attention that is read, and a loop in one of its parts."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.first, self.encoder = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), loop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x + self.first(x, x, x, need_weights=False)[0])


def build(cls: type[nn.Module], *given: nn.Module) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return cls(*given).eval(), torch.randn(1, TOKENS, WIDTH)


@pytest.mark.parametrize(
    ("cls", "numbers"),
    [(Loop, (0, 1, 2)), (InPlace, (0, 1, 2)), (Skipping, (0, 2)), (Again, (0, 1, 2, 3, 4, 5))],
)
@torch.no_grad()
def test_layers_of_a_loop_are_numbered_in_order(cls: type[Loop], numbers: tuple[int, ...]) -> None:
    model, x = build(cls)
    captured = captured_of(model, x.clone())
    trace = captured.trace
    assert (captured.stacks, trace.numbers) == (("self",), numbers)
    assert {record.name for record in trace.layers} == {cls.__name__}
    assert trace.verify().agrees
    for number, at in zip(numbers, model.order, strict=True):  # type: ignore[arg-type]
        layer = model.layers[at]  # type: ignore[index]
        q, k, v = layer(x)
        weights = (q @ k.mT / 8**0.5).softmax(-1)
        for head in range(HEADS):
            np.testing.assert_allclose(trace[number, head].weights[:], weights[0, head], atol=1e-6)
            output = weights[0, head] @ v[0, head] @ layer.out.weight[:, 8 * head : 8 * head + 8].T
            np.testing.assert_allclose(trace[number, head].output[:], output, atol=1e-5)
        x = model.step(layer, x.clone())  # type: ignore[operator]


@torch.no_grad()
def test_a_loop_in_a_part_of_a_model_and_one_head_silenced() -> None:
    model, x = build(Inside, build(Loop)[0])
    captured = captured_of(model, x)
    assert [(trace.stack, trace.numbers) for trace in captured.traces] == [("first", (0,)), ("encoder", (0, 1, 2))]
    loop, x = build(Loop)
    with ablate(loop, [(0, head) for head in range(HEADS)]):
        found = loop(x)
    first: Layer = loop.layers[0]  # type: ignore[assignment,index]
    x = x + first.out.bias
    x = x + first.mlp(x)
    for layer in loop.layers[1:]:  # type: ignore[index]
        x = loop.step(layer, x)  # type: ignore[operator]
    torch.testing.assert_close(found, x)


@torch.no_grad()
def test_self_and_cross_attention_in_one_loop() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            names = ("q", "k", "v", "o", "cross_q", "cross_k", "cross_v", "cross_o")
            self.layers = nn.ModuleList(
                nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in names}) for _ in range(3)
            )

        def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                q, k, v = (split(layer[name](x)) for name in ("q", "k", "v"))  # type: ignore[index]
                x = x + layer["o"](merged(scaled_dot_product_attention(q, k, v)))  # type: ignore[index]
                q = split(layer["cross_q"](x))  # type: ignore[index]
                k, v = (split(layer[name](memory)) for name in ("cross_k", "cross_v"))  # type: ignore[index]
                given.append((q, k))
                x = x + layer["cross_o"](merged(scaled_dot_product_attention(q, k, v)))  # type: ignore[index]
            return x

    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    model, x = build(Both)
    captured = captured_of(model, x, torch.randn(1, 5, WIDTH))
    assert [(trace.stack, trace.numbers) for trace in captured.traces] == [("self", (0, 1, 2)), ("self.2", (0, 1, 2))]
    for layer, (q, k) in enumerate(given):
        weights = (q @ k.mT / 8**0.5).softmax(-1)
        np.testing.assert_allclose(captured.traces[1][layer, 2].weights[:], weights[0, 2], atol=1e-6)


@pytest.mark.parametrize("sequential", [False, True])
@torch.no_grad()
def test_plain_lists_of_linears(sequential: bool) -> None:
    """Projections side by side are two maps of a layer; those that follow each other are layers."""

    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
            self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = x
            for into, out in zip(self.into, self.out, strict=True):
                parts = into(found if sequential else x).chunk(3, -1)
                found = found + out(merged(scaled_dot_product_attention(*map(split, parts))))
            return found

    model, x = build(Lists)
    captured = captured_of(model, x)
    expected = [("self", (0, 1))] if sequential else [("self", (0,)), ("self.2", (0,))]
    assert [(trace.stack, trace.numbers) for trace in captured.traces] == expected
    assert all(trace.verify().agrees for trace in captured.traces)


@pytest.mark.parametrize("cls", [SkippingTheFirst, Shared, Functional])
@torch.no_grad()
def test_a_loop_whose_layers_are_unknown_is_refused(cls: type[Loop]) -> None:
    model, x = build(Inside, build(cls)[0])
    with capture(model), pytest.raises(UnsupportedError, match=f"{cls.__name__} attends several times") as raised:
        model(x)
    assert raised.value.where == "encoder"
    assert "let each layer's own module attend" in str(raised.value)

"""Heads that are modules of their own, in a list: heads of one layer, if a Linear reads them joined in order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from comparing import captured_of
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from headscope.errors import InputError, UnsupportedError
from headscope.live import ablate, capture

TOKENS, WIDTH, HEADS = 6, 32, 4
IDS = torch.arange(3, 3 + 2 * TOKENS).view(2, TOKENS)

Mix = Callable[["Joined", torch.Tensor], torch.Tensor]


class Head(nn.Module):
    """One causal head of 8."""

    def __init__(self, width: int = WIDTH // HEADS) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, width, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True)

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).mT / self.key.out_features**0.5
        return scores.masked_fill(~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(), -torch.inf).softmax(-1)


class WithAxis(Head):
    """The same with an axis of one head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x)[:, None] for part in (self.query, self.key, self.value))
        return scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]


def side_by_side(self: Joined, x: torch.Tensor) -> torch.Tensor:
    return self.proj(torch.cat([head(x) for head in self.heads], -1))


def reversed_order(self: Joined, x: torch.Tensor) -> torch.Tensor:
    return self.proj(torch.cat([head(x) for head in self.heads][::-1], -1))


def called_backwards(self: Joined, x: torch.Tensor) -> torch.Tensor:
    outputs = [head(x) for head in list(self.heads)[::-1]]
    return self.proj(torch.cat(outputs[::-1], -1))


def with_a_norm_each(self: Joined, x: torch.Tensor) -> torch.Tensor:
    return self.proj(torch.cat([head(nn.functional.layer_norm(x, [WIDTH])) for head in self.heads], -1))


def unjoined(self: Joined, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([head(x) for head in self.heads], -1)


def summed(self: Joined, x: torch.Tensor) -> torch.Tensor:
    return torch.stack([head(x) for head in self.heads]).sum(0).repeat(1, 1, HEADS)


def some(self: Joined, x: torch.Tensor) -> torch.Tensor:
    return self.proj(torch.cat([*[head(x) for head in list(self.heads)[:-1]], x[..., :8]], -1))


class Joined(nn.Module):
    """The heads of a layer, as `mix` puts them together."""

    def __init__(self, mix: Mix, cls: type[Head]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(cls() for _ in range(HEADS))
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.mix = mix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(self, x)


class Block(nn.Module):
    def __init__(self, mix: Mix, cls: type[Head]) -> None:
        super().__init__()
        self.ln, self.sa = nn.LayerNorm(WIDTH), Joined(mix, cls)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.sa(self.ln(x))


class Model(nn.Module):
    """A language model with three layers of four heads."""

    def __init__(self, mix: Mix = side_by_side, cls: type[Head] = Head) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, WIDTH)
        self.blocks = nn.Sequential(*(Block(mix, cls) for _ in range(3)))
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(ids)))


@pytest.mark.parametrize("cls", [Head, WithAxis])
@pytest.mark.parametrize("mix", [side_by_side, called_backwards, with_a_norm_each])
@torch.no_grad()
def test_heads_of_one_layer(mix: Mix, cls: type[Head]) -> None:
    model = Model(mix, cls).eval()
    captured = captured_of(model, IDS)
    assert captured.stacks == ("self",)
    for row, trace in enumerate(captured.traces):
        assert trace.numbers == (0, 1, 2)
        assert [record.name for record in trace.layers] == [f"blocks.{layer}.sa.heads" for layer in range(3)]
        assert trace.verify().agrees
        assert list(trace.tokens) == [str(one) for one in IDS[row].tolist()]
        x = model.embed(IDS[row : row + 1])
        table = trace.statistics()
        for layer, block in enumerate(model.blocks):
            given = block.ln(x)
            if mix is with_a_norm_each:
                given = nn.functional.layer_norm(given, [WIDTH])
            total = block.sa.proj.bias
            for number, head in enumerate(block.sa.heads):
                weights = head.weights(given)
                output = weights @ head.value(given) @ block.sa.proj.weight[:, 8 * number : 8 * number + 8].T
                total = total + output
                np.testing.assert_allclose(trace[layer, number].weights[:], weights[0], atol=1e-6)
                np.testing.assert_allclose(trace[layer, number].output[:], output[0], atol=1e-5)
                entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
                assert table["entropy"][layer, number] == pytest.approx(float(entropy), abs=1e-5)
            x = x + total


@torch.no_grad()
def test_one_layer_alone_and_one_selected() -> None:
    model = Model().eval()
    with capture(model.blocks[1].sa) as captured:
        model(IDS)
    assert [trace.numbers for trace in captured.traces] == [(0,), (0,)]
    assert captured.traces[0].layers[0].k.shape[0] == HEADS
    with capture(model, layers=[2]) as captured:
        model(IDS)
    assert [(trace.numbers, trace.layers[0].k.shape[0]) for trace in captured.traces] == [((2,), HEADS)] * 2


@torch.no_grad()
def test_lists_in_stages_and_lists_that_run_again() -> None:
    class Stages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make = lambda: nn.Sequential(*(Block(side_by_side, Head) for _ in range(2)))  # noqa: E731
            self.stages = nn.Sequential(make(), make())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.stages(self.stages(x))

    torch.manual_seed(0)
    model, x = Stages().eval(), torch.randn(1, TOKENS, WIDTH)
    captured = captured_of(model, x)
    trace = captured.trace
    assert trace.numbers == tuple(range(8))
    for layer in range(8):
        block = model.stages[layer // 2 % 2][layer % 2]
        for number, head in enumerate(block.sa.heads):
            np.testing.assert_allclose(trace[layer, number].weights[:], head.weights(block.ln(x))[0], atol=1e-6)
        x = block(x)


@pytest.mark.parametrize("mix", [reversed_order, unjoined, summed, some])
@torch.no_grad()
def test_side_by_side_but_not_joined(mix: Mix) -> None:
    model = Model(mix).eval()
    with (
        capture(model) as captured,
        pytest.raises(UnsupportedError, match="side by side, each with one head") as raised,
    ):
        model(IDS)
    assert raised.value.where == "blocks.0.sa.heads"
    assert "torch.cat" in str(raised.value)
    with capture(model, strict=False) as captured:
        model(IDS)
    assert [call.operator for call in captured.unrecorded] == [
        f"scaled_dot_product_attention in {3 if mix is some else 4} modules side by side"
    ] * 3


@pytest.mark.parametrize("in_place", [False, True])
@torch.no_grad()
def test_layers_of_one_head_in_a_list_follow_each_other(in_place: bool) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Head(WIDTH) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            for layer in self.layers:
                if in_place:
                    x += layer(x)
                else:
                    x = x + layer(x)
            return x

    torch.manual_seed(0)
    model, x = Layers().eval(), torch.randn(1, TOKENS, WIDTH)
    captured = captured_of(model, x)
    trace = captured.trace
    assert [record.name for record in trace.layers] == ["layers.0", "layers.1", "layers.2"]
    for number, layer in enumerate(model.layers):
        np.testing.assert_allclose(trace[number, 0].weights[:], layer.weights(x)[0], atol=1e-6)  # type: ignore[operator]
        x = x + layer(x)


@torch.no_grad()
def test_a_head_that_is_a_module_is_silenced_there() -> None:
    model = Model().eval()
    with ablate(model, [(1, 3)]), pytest.raises(InputError, match="attends with 1 in one call"):
        model(IDS)
    with ablate(model, [(1, 0)]), pytest.raises(UnsupportedError, match="one head of several") as raised:
        model(IDS)
    assert raised.value.where == "blocks.1.sa.heads"
    assert "register_forward_hook" in str(raised.value)
    with pytest.raises(InputError, match="stack self has layers 0 to 2"):
        ablate(model, [(3, 0)])

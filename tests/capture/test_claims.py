"""Statements of docs/reference/capturing.md that no other test makes sure of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from comparing import captured_of
from test_own_attention import Mixer, weights_of
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from families import BY_NAME
from headscope.errors import NoteWarning
from headscope.live import capture

LOWER = torch.ones(6, 6, dtype=torch.bool).tril()


class Masked(Mixer):
    """A mask as PyTorch accepts it, not as a tensor of (queries, keys)."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        mixed = scaled_dot_product_attention(*self.parts(x), **self.options)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("mask", "allowed"),
    [
        (torch.zeros(6, 1), None),
        (torch.ones(6, 1, dtype=torch.bool), None),
        (torch.full((1, 1), 2.5), None),
        ((torch.arange(6) < 4)[None], (torch.arange(6) < 4)[None]),
        (LOWER.expand(2, 1, 6, 6), LOWER),
        (causal_upper_left(6, 6), LOWER),
        (causal_lower_right(6, 6), LOWER),
    ],
    ids=["a column", "a bool column", "a number", "a row", "expanded", "causal from the left", "causal from the right"],
)
def test_any_mask_that_pytorch_accepts(mask: Any, allowed: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    mixer, x = Masked(attn_mask=mask).eval(), torch.randn(2, 6, 32)
    with torch.no_grad():
        alone = mixer(x)
        with capture(mixer) as captured:
            assert torch.equal(mixer(x), alone)
        expected = weights_of(mixer, x, allowed)
    for trace in captured.traces:
        kept = np.ix_(range(4), trace.positions, trace.key_positions)
        np.testing.assert_allclose(trace[0].weights[...], expected[trace.row].numpy()[kept], atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_for_gradients_is_not_recorded(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        """Its parts are called again in the backward pass, around the model itself."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Mixer(), Mixer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in (self.first, self.second):
                x = checkpoint(part, x, use_reentrant=reentrant)  # type: ignore[assignment]
            return x

    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(2, 6, 32, requires_grad=True)
    expected = torch.autograd.grad(model.second(model.first(x)).sum(), x)[0]
    with capture(model) as captured:
        model(x).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert [len(forward) for forward in captured.forwards] == [4]
    assert captured.unrecorded == ()


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_in_transformers_is_not_recorded(reentrant: bool) -> None:
    family = BY_NAME["BertModel"]
    model = family.build().train()
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    with capture(model) as captured, pytest.warns(NoteWarning, match="in training mode"):
        model(**family.inputs(padded=False)).last_hidden_state.sum().backward()
    assert len(captured.forwards) == 1
    assert {trace.numbers for trace in captured.traces} == {(0, 1)}


GRAPHS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "script": lambda model, x: torch.jit.script(model),
    "trace": lambda model, x: torch.jit.trace(model, x),
    "fx": lambda model, x: torch.fx.symbolic_trace(model),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
}


class Plain(nn.Module):
    """Code that TorchScript compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).unflatten(-1, [4, 8]).transpose(1, 2)
        k = self.k(x).unflatten(-1, [4, 8]).transpose(1, 2)
        v = self.v(x).unflatten(-1, [4, 8]).transpose(1, 2)
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (one(x).unflatten(-1, [4, 8]).transpose(1, 2) for one in (self.q, self.k))
        return (q @ k.mT * 8**-0.5).softmax(-1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("layers", [1, 2])
def test_graphs_of_modules(kind: str, layers: int) -> None:
    """Each is one module: the attention of a whole model in it has a stack for each call."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Plain() for _ in range(layers))).eval(), torch.randn(2, 6, 32)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = GRAPHS[kind](model, x)
        captured = captured_of(graph, x)
        assert captured.stacks == ("self", "self.2")[:layers]
        for stack, layer in zip(captured.stacks, model, strict=True):
            expected = layer.weights(x)
            for trace in captured[stack]:
                np.testing.assert_allclose(trace[0].weights[...], expected[trace.row], atol=1e-6)
            x = layer(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_layer_among_others() -> None:
    torch.manual_seed(0)
    layers = [Plain() for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, x = nn.Sequential(layers[0], torch.jit.script(layers[1]), layers[2]), torch.randn(2, 6, 32)
    with torch.no_grad():
        captured = captured_of(model, x)
        assert [trace.numbers for trace in captured.traces] == [(0, 1, 2)] * 2
        expected = layers[1].weights(layers[0](x))
        np.testing.assert_allclose(captured.traces[1][1].weights[...], expected[1], atol=1e-6)

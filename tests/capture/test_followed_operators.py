"""Tokens are followed through operators that are observed as well: attention itself, and products of batches."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import pytest
import torch
from comparing import captured_of
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from headscope.live.genuine import from_library

IDS = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:12].reshape(2, 6)


class Attention(nn.Module):
    """Two heads of 8, whose contexts are the output: nothing carries the tokens around them."""

    def __init__(self, norm: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 16, 2, 8) / 4)
        self.out = nn.Linear(16, 16)
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.einsum("bsd,pdhe->pbhse", self.norm(x), self.weight)
        return self.out(sdpa(q, k, v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Layers without residual streams, and what happens between them."""

    def __init__(self, norm: Callable[[torch.Tensor], torch.Tensor], between: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(Attention(norm) for _ in range(3))
        self.between = between

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.words(ids)
        for at, layer in enumerate(self.layers):
            x = self.between(layer(x), at)
        return x


NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "layer_norm": lambda x: nn.functional.layer_norm(x, (16,)),
    "native_layer_norm": lambda x: torch.native_layer_norm(x, (16,), None, None, 1e-5)[0],
}


@pytest.mark.parametrize("norm", NORMS)
def test_contexts_stand_for_their_queries(norm: str) -> None:
    model = Model(NORMS[norm], lambda x, at: x)
    captured = captured_of(model, IDS)
    assert [list(trace.ids) for trace in captured.traces] == IDS.tolist()


@pytest.mark.parametrize("axis", [0, 1])
def test_tokens_that_move_between_layers_are_not_named(axis: int) -> None:
    model = Model(NORMS["none"], lambda x, at: x.flip(axis) if at == 0 else x)
    captured = captured_of(model, IDS)
    assert all(number == -1 for trace in captured.traces for number in trace.ids)


def test_a_librarys_function_whose_closure_has_itself() -> None:
    def countdown(n: int) -> int:
        return countdown(n - 1) if n else 0

    assert countdown(2) == 0
    assert not from_library(countdown)
    assert countdown.__closure__ is not None
    twin = FunctionType(countdown.__code__, vars(torch.nn.functional), "countdown", None, countdown.__closure__)
    countdown.__closure__[0].cell_contents = twin
    assert not from_library(twin)  # its code is not in the library's file
    assert from_library(nn.Linear.forward)


def test_a_parameter_that_is_made_in_the_pass() -> None:
    model = Model(NORMS["none"], lambda x, at: nn.Parameter(x) if at == 0 else x)
    captured = captured_of(model, IDS)
    assert all(number == -1 for trace in captured.traces for number in trace.ids)

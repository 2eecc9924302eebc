"""Several threads capture one model at the same time: each sees only its own forward passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from comparing import Mixer, captured_of, own, refused
from torch import nn

import headscope as hs
from families import BY_NAME
from headscope.errors import UnsupportedError
from patience import PATIENCE

THREADS = 4


def transformers_model() -> tuple[nn.Module, nn.Module, Callable[[int], torch.Tensor]]:
    """A model, one of its inner modules, and for each thread an input of another length."""
    model = BY_NAME["BertModel"].build()
    return model, model.encoder.layer[1], lambda at: torch.arange(5, 10 + at)[None]


def numbers(at: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 32 * (5 + at)).view(1, 5 + at, 32)


def torch_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 2, 32, batch_first=True)


def torch_model() -> tuple[nn.Module, nn.Module, Callable[[int], torch.Tensor]]:
    model = nn.TransformerEncoder(torch_layer(), 2, enable_nested_tensor=False).eval()
    return model, model.layers[1], numbers


def own_model() -> tuple[nn.Module, nn.Module, Callable[[int], torch.Tensor]]:
    """Custom attention that calls PyTorch's."""
    model = nn.Sequential(Mixer(), Mixer())
    return model, model[1], numbers


MODELS = [transformers_model, torch_model, own_model]


def together(run: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What a function gives in threads that run at the same time."""
    with ThreadPoolExecutor(count) as pool:
        return [given.result(PATIENCE) for given in [pool.submit(run, at) for at in range(count)]]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_each_thread_sees_its_own_forward_passes(make: Callable[[], Any]) -> None:
    """All blocks are open and all forward passes are running at the same time."""
    torch.manual_seed(0)
    model, inner, given = make()
    expected = [captured_of(model, given(at)).trace for at in range(THREADS)]
    opened, inside, done = (threading.Barrier(THREADS, timeout=PATIENCE) for _ in range(3))

    def run(at: int) -> Any:
        with torch.no_grad(), hs.capture(model) as captured:
            opened.wait()
            model(given(at))
            done.wait()
        return captured

    inner.register_forward_pre_hook(lambda *_: (inside.wait(), None)[1])
    for captured, alone in zip(together(run), expected, strict=True):
        assert len(captured.forwards) == 1
        trace = captured.trace
        assert len(trace.layers) == 2
        for ours, theirs in zip(trace.layers, alone.layers, strict=True):
            np.testing.assert_allclose(ours.q, theirs.q, atol=1e-6)
            np.testing.assert_allclose(ours.k, theirs.k, atol=1e-6)
        assert trace.verify(reference=False).agrees


@pytest.mark.parametrize("first", ["closes", "opens"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_block_opens_or_closes_while_another_thread_is_inside_a_forward_pass(
    make: Callable[[], Any], first: str
) -> None:
    torch.manual_seed(0)
    model, inner, given = make()
    inside, changed = threading.Event(), threading.Event()
    slow: list[int] = []

    def wait(*_: Any) -> None:
        if threading.get_ident() in slow:
            inside.set()
            assert changed.wait(PATIENCE)

    def run(at: int) -> Any:
        if at == 0:
            slow.append(threading.get_ident())
            return captured_of(model, given(0))
        try:
            assert first == "closes" or inside.wait(PATIENCE)
            with torch.no_grad(), hs.capture(model) as captured:
                if first == "opens":
                    changed.set()
                model(given(1))
                assert inside.wait(PATIENCE)
        finally:
            changed.set()
        return captured

    hook = inner.register_forward_pre_hook(wait)
    found = together(run, 2)
    hook.remove()
    for at in range(2):
        assert len(found[at].trace.queries) == 5 + at
        assert len(found[at].trace.layers) == 2
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_blocks_within_blocks_count_each_call_once(make: Callable[[], Any]) -> None:
    model, _, given = make()
    with torch.no_grad(), hs.capture(model) as outer:
        inner = captured_of(model, given(0))
        model(given(1))
    assert [len(trace.queries) for trace in outer.traces] == [5, 6]
    assert len(inner.trace.layers) == len(outer.traces[0].layers) == 2


def test_a_forward_pass_of_a_thread_without_a_block() -> None:
    """If one thread has a block, the forward pass belongs to it; if several do, it belongs to none of them."""
    model, _, given = transformers_model()
    opened, ran = threading.Barrier(3, timeout=PATIENCE), threading.Barrier(3, timeout=PATIENCE)

    def run(at: int) -> Any:
        with torch.no_grad(), nullcontext() if at == 2 else hs.capture(model) as captured:
            opened.wait()
            model(given(at))
            ran.wait()
        return captured

    assert [len(captured.trace.queries) for captured in together(run, 3)[:2]] == [5, 6]
    with torch.no_grad(), hs.capture(model) as captured:
        together(lambda at: [model(given(at)) for _ in range(5)] and None)
    assert sorted(trace.ids for trace in captured.traces) == [
        tuple(range(5, 10 + at)) for at in range(THREADS) for _ in range(5)
    ]
    for trace in captured.traces:
        assert trace.numbers == (0, 1)
        assert trace.verify(reference=False).agrees


def divided(layers: Sequence[nn.Module], elsewhere: Collection[int], *, directly: bool = False) -> Any:
    """A model that runs some of its layers in another thread, by calling them or their forward."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            for at, layer in enumerate(self.layers):
                call = layer.forward if directly else layer
                x = pool.submit(call, x).result() if at in elsewhere else layer(x)
        return x

    return own(forward, layers=nn.ModuleList(layers))


X = numbers(0)


@pytest.mark.parametrize("directly", [False, True])
@pytest.mark.parametrize("elsewhere", [{1}, {0, 1, 2}])
@pytest.mark.parametrize("layer", [Mixer, torch_layer])
def test_a_layer_that_another_thread_runs_is_named(
    layer: Callable[[], nn.Module], elsewhere: set[int], directly: bool
) -> None:
    """A forward pass is recorded in one thread: a layer that it has sent to another ends it with an error."""
    model = divided([layer() for _ in range(3)], elsewhere, directly=directly)
    with torch.no_grad(), hs.capture(model, strict=False) as captured:
        expected = model(X)
    assert {call.module.split(".")[1] for call in captured.unrecorded} == {str(at) for at in elsewhere}
    refused(rf"attention in another thread in layers\.{min(elsewhere)}", model, X)
    with torch.no_grad(), hs.capture(model.layers[1]) as captured:
        torch.testing.assert_close(model(X), expected)
    assert directly or len(captured.traces) == 1  # which is captured alone, whichever thread runs it


def test_a_transformers_layer_that_another_thread_runs_is_named() -> None:
    model, _, ids = transformers_model()
    run = model.encoder.layer[1].forward

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run, *args, **kwargs).result()

    model.encoder.layer[1].forward = elsewhere  # type: ignore[method-assign]
    refused(r"another thread in encoder\.layer\.1", model, ids(0))


def test_a_child_that_another_thread_runs_is_named() -> None:
    """What begins a forward pass of its own elsewhere is missing here all the same."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            result: torch.Tensor = pool.submit(self.second, self.first(x)).result()
        return result

    model = own(forward, first=Mixer(), second=Mixer())
    with torch.no_grad(), hs.capture(model), pytest.raises(UnsupportedError, match="another thread in second"):
        model(X)


def test_layers_without_a_call_are_listed() -> None:
    """A model may skip layers, so that is no error; the trace and its report say so."""
    model = own(lambda self, x: self.layers[1](x), layers=nn.ModuleList([Mixer(), Mixer()]))
    captured = captured_of(model, X)
    note = "no attention of layers.0 was seen in this forward pass"
    assert captured.trace.numbers == (1,)
    assert captured.trace.notes == (note,)
    assert note in captured.trace.verify().notes
    with torch.no_grad(), hs.capture(model, layers=[1]) as captured:
        model(X)
    assert captured.trace.notes == ()

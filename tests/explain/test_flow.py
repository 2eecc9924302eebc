"""Rollout and value zeroing against their papers' definitions: whole matrices, and layers run with a value set to 0."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import headscope as hs
from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.explain.mixing import KINDS
from naive_layers import MINILM, NaiveLayer, minilm, naive_layers
from random_models import ids, made, random_model

TEXT = "The cat sat on the mat because it was tired."


def opened(folder: Path, module: Any, given: dict[str, Any]) -> SimpleNamespace:
    model = hs.open(folder)
    trace = model.trace(**given)
    with torch.no_grad():
        return SimpleNamespace(model=model, trace=trace, layers=naive_layers(module.double(), trace.ids))


@pytest.fixture(scope="module", params=["Bert", "DistilBert", "Electra", "MiniLM"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    if request.param == "MiniLM":
        return opened(MINILM, minilm(), {"text": TEXT})
    checkpoint = made(tmp_path_factory.mktemp(request.param), request.param)
    return opened(checkpoint.folder, checkpoint.module, {"ids": ids(11)})


def naive_rollout(layers: list[NaiveLayer], kind: str) -> np.ndarray:
    """(S, S): A_L ... A_1, each with rows that sum to 1."""
    flow = torch.eye(len(layers[0].x), dtype=torch.float64)
    for layer in layers:
        mixing = layer.vectors(kind).norm(dim=-1)
        flow = mixing / mixing.sum(-1, keepdim=True) @ flow
    found: np.ndarray = flow.detach().numpy()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_rollout_is_the_product_of_all_layers(both: SimpleNamespace, kind: str) -> None:
    expected = naive_rollout(both.layers, kind)
    for token in (0, 4, -1):
        to = both.trace.rollout(to=token, kind=kind)
        assert (to.dims, to.labels) == (("tokens",), both.trace.tokens)
        np.testing.assert_allclose(to.array, expected[token], atol=2e-6)
        np.testing.assert_allclose(both.trace.rollout(from_=token, kind=kind).array, expected[:, token], atol=2e-6)
        assert to.array.sum() == pytest.approx(1, abs=1e-5)


def test_rollout_of_weights_is_half_identity_and_half_mean(both: SimpleNamespace) -> None:
    """Abnar and Zuidema 2020: A = 0.5 W + 0.5 I."""
    flow = np.eye(len(both.trace))
    for layer in both.layers:
        flow = (0.5 * layer.p.mean(0).detach().numpy() + 0.5 * np.eye(len(flow))) @ flow
    np.testing.assert_allclose(both.trace.rollout(to=3).array, flow[3], atol=2e-6)


def test_rollout_says_what_it_needs(both: SimpleNamespace) -> None:
    for given in ({}, {"to": 1, "from_": 2}):
        with pytest.raises(InputError, match="exactly one of `to` and `from_`"):
            both.trace.rollout(**given)
    with pytest.raises(InputError, match="no token 99"):
        both.trace.rollout(to=99)
    module = random_model("Bert")
    with hs.capture(module, layers=[1, 2]) as captured:
        module(input_ids=torch.tensor([ids(7)]))
    with pytest.raises(TraceError, match="only some layers"):
        captured.trace.rollout(to=1)


def test_a_causal_model_keeps_what_comes_later_out() -> None:
    module = random_model("Bert", is_decoder=True)
    with hs.capture(module) as captured:
        module(input_ids=torch.tensor([ids(9)]))
    flow = captured.trace.rollout(to=4)
    assert flow.array[5:].max() == 0
    assert flow.array.sum() == pytest.approx(1, abs=1e-6)
    assert captured.trace.mixing_ratio("Attn-N").ratios[:, 0] == pytest.approx(0, abs=1e-6)


def without_value(layer: NaiveLayer, key: int) -> torch.Tensor:
    """(S, d_model): the layer's output with token `key`'s value vector set to 0 in all heads."""

    def zero(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[:, key] = 0
        return output

    handle = layer.value.register_forward_hook(zero)
    try:
        with torch.no_grad():
            output = layer.module(layer.x[None])
    finally:
        handle.remove()
    found = output[0] if isinstance(output, tuple) else output
    return found[0] if found.dim() == 3 else found


def test_value_zeroing_is_the_layer_run_without_each_value(both: SimpleNamespace) -> None:
    for number in (0, len(both.layers) - 1):
        layer = both.layers[number]
        changed = torch.stack([without_value(layer, key) for key in range(len(both.trace))])  # (key, query, d_model)
        expected = 1 - torch.cosine_similarity(changed, layer.output[None], dim=-1).detach().numpy()
        for query in (0, 5):
            row = both.trace.value_zeroing(number, query)
            assert row.dims == ("keys",)
            np.testing.assert_allclose(row.array, expected[:, query], rtol=2e-3, atol=1e-10)
        kept = both.model.trace(ids=both.trace.ids, segments=both.trace.segments, hidden_states=True)
        np.testing.assert_allclose(kept.value_zeroing(number, 5).array, expected[:, 5], rtol=2e-3, atol=1e-10)


def test_value_zeroing_in_blocks_is_value_zeroing(both: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    from headscope.explain import mixing

    whole = both.trace.value_zeroing(1, 2).array
    monkeypatch.setattr(mixing, "BLOCK_KEYS", 3)
    np.testing.assert_allclose(both.trace.value_zeroing(1, 2).array, whole, rtol=1e-3, atol=1e-11)


def test_value_zeroing_needs_the_whole_layer() -> None:
    module = random_model("Bert")
    with hs.capture(module) as captured:
        module(input_ids=torch.tensor([ids(7)]))
    with pytest.raises(UnsupportedError, match="Of a live model only attention is known"):
        captured.trace.value_zeroing(0, 1)

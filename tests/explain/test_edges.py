"""Effects of cutting one edge of each head: against transformers' eager attention with that score masked by hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope as hs
from explain.tops import TEXT, readable
from headscope.errors import InputError
from headscope.runs.effects import effects_of
from headscope.runs.texts import encoded_trace
from random_models import run

D_HEAD = 8


def cut_in_torch(module: Any, ids: list[int], layer: int, head: int, query: int, key: int) -> Any:
    """A pass in which one head's query can't see one key: softmax(q k^T / sqrt(d)) v of that head written out."""
    attention = module.bert.encoder.layer[layer].attention
    seen: dict[str, torch.Tensor] = {}
    hooks = [
        getattr(attention.self, role).register_forward_hook(
            lambda _, __, out, role=role: seen.update({role: out[0, :, head * D_HEAD : (head + 1) * D_HEAD]})
        )
        for role in ("query", "key", "value")
    ]

    def change(_: Any, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        scores = seen["query"] @ seen["key"].T / D_HEAD**0.5
        scores[query, key] = float("-inf")
        context = given[0].clone()
        context[0, :, head * D_HEAD : (head + 1) * D_HEAD] = scores.softmax(-1) @ seen["value"]
        return (context,)

    hooks.append(attention.output.dense.register_forward_pre_hook(change))
    outputs = run(module, [ids])
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.mark.parametrize("wanted", [None, ("embedding",)])
def test_edges_are_those_of_a_masked_score(tmp_path: Path, wanted: Any) -> None:
    checkpoint = readable(tmp_path, "Bert", "ForMaskedLM")
    model = hs.open(tmp_path)
    result = model.effects(TEXT, wanted, edge=(3, 2))
    assert (result.method, result.edge) == ("edge", (3, 2))
    ids = list(model.trace(TEXT).ids)
    for layer in range(3):
        for head in range(4):
            outputs = cut_in_torch(checkpoint.module, ids, layer, head, 3, 2)
            if wanted is None:
                after = float(outputs.logits[0, result.target.row, result.target.index])
            else:
                vector = outputs.hidden_states[-1][0].double().mean(0).numpy()
                after = float(vector @ result.target.direction) / result.target.length
            assert result.change[layer, head] == pytest.approx(after - result.base, abs=1e-5)
    assert np.abs(result.change).max() > 1e-4


def test_layers_arrive_from_the_last_to_the_first(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "ForMaskedLM")
    model = hs.open(tmp_path)
    arrived: dict[int, np.ndarray] = {}
    steps: list[tuple[int, int]] = []
    trace = model.trace(TEXT)
    result = effects_of(
        model,
        encoded_trace(trace),
        text=TEXT,
        progress=lambda done, all_: steps.append((done, all_)),
        layer_read=lambda layer, change: arrived.update({layer: change}),
    )
    assert (list(arrived), steps) == ([2, 1, 0], [(0, 3), (1, 3), (2, 3), (3, 3)])
    np.testing.assert_array_equal(np.stack([arrived[layer] for layer in range(3)]), result.change)
    np.testing.assert_allclose(result.change, model.effects(TEXT).change, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge": (0, 99)}, "99"),
        ({"edge": (0, 1), "method": "mean"}, "mean and edge"),
        ({"edge": (0, 1), "patch_from": TEXT}, "patch_from and edge"),
    ],
)
def test_refusals(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    readable(tmp_path, "Bert", "ForMaskedLM")
    with pytest.raises(InputError, match=message):
        hs.open(tmp_path).effects(TEXT, **options)

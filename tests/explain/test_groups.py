"""Groups of heads, silenced, beside draws: against slices of W_O set to 0 in the library's own model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

import headscope as hs
from explain.tops import TEXT, edited_pass, readable
from headscope.runs.edits import Edit
from headscope.runs.groups import DRAWS, silenced_groups
from naive_layers import MINILM

TIRED = "The animal did not cross the street because it was too tired."
HEADS = 4


@pytest.fixture(scope="module")
def without() -> Callable[[list[int], Iterable[int]], np.ndarray]:
    """The last hidden state of all-MiniLM-L6-v2 in transformers, with these heads' slices of W_O set to 0."""
    module = AutoModel.from_pretrained(MINILM, attn_implementation="eager", dtype=torch.float64).eval()

    def state(ids: list[int], heads: Iterable[int]) -> np.ndarray:
        weights = [layer.attention.output.dense.weight for layer in module.encoder.layer]
        kept = [weight.detach().clone() for weight in weights]
        with torch.inference_mode():
            for layer, head in (divmod(n, 12) for n in heads):
                weights[layer][:, 32 * head : 32 * (head + 1)] = 0
            hidden: np.ndarray = module(torch.tensor([ids])).last_hidden_state[0].numpy().copy()
            for weight, old in zip(weights, kept, strict=True):
                weight[:] = old
        return hidden

    return state


def cosine(a: np.ndarray, b: np.ndarray) -> Any:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_groups_of_a_sentence_are_those_of_the_library(
    minilm: hs.Model, without: Callable[[list[int], Iterable[int]], np.ndarray]
) -> None:
    trace = minilm.trace(TIRED)
    ids, told = list(trace.ids), []
    found = silenced_groups(minilm, trace, draws=5, progress=lambda done, of: told.append((done, of)))
    weights = np.array([np.asarray(trace[n // 12, n % 12].weights)[:, 0].mean() for n in range(72)])
    first, *layers = found.groups
    assert (first.group.name, sorted(first.group.heads)) == ("[CLS]", np.flatnonzero(weights > 0.5).tolist())
    assert [sorted(one.group.heads) for one in layers] == [[*range(n, n + 12)] for n in range(0, 72, 12)]
    assert (first.value, layers[5].value) == pytest.approx((0.928, 0.807), abs=1e-3)
    old = without(ids, [])
    for one in (first, layers[1], layers[5]):
        new = without(ids, one.group.heads)
        assert one.value == pytest.approx(cosine(new.mean(0), old.mean(0)), abs=1e-5)
        np.testing.assert_allclose(one.turn, 1 - cosine(new, old), atol=1e-5)
    length = np.linalg.norm(old.mean(0))
    moves = [without(ids, [n]).mean(0) - old.mean(0) for n in range(12, 24)]
    assert layers[1].summed == pytest.approx(np.linalg.norm(sum(moves)) / length, abs=1e-5)
    together = without(ids, range(12, 24)).mean(0) - old.mean(0)
    assert layers[1].together == pytest.approx(np.linalg.norm(together) / length, abs=1e-5)
    assert found.alone[5, 11] == pytest.approx(cosine(without(ids, [71]).mean(0), old.mean(0)), abs=1e-5)
    order = np.argsort(-weights, kind="stable")
    assert found.order == order.tolist()
    for count in (2, 40, 72):
        assert found.curve[count] == pytest.approx(cosine(without(ids, order[:count]).mean(0), old.mean(0)), abs=1e-5)
    assert set(found.at_random[72]) == {found.curve[72]}
    done, of = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert {done[-1]} == {*of}


def test_draws_have_as_many_heads_of_each_layer(tmp_path: Path) -> None:
    """Every probability beside a group is that of one of the sets it may be drawn from, by naive hooks."""
    made = readable(tmp_path, "Bert", "ForMaskedLM")
    model = hs.open(made.folder)
    trace = model.trace(TEXT)
    found = silenced_groups(model, trace, labels=[("both", [(0, 1), (2, 3)])])
    ids = list(trace.ids)
    at = ids.index(4)

    def share(heads: Iterable[int]) -> float:
        logits = edited_pass(made.module, ids, [Edit(*divmod(n, HEADS)) for n in heads]).logits[0, at]
        return float(logits.double().softmax(-1)[found.target.index])

    def among(drawn: np.ndarray, sets: Iterable[tuple[int, ...]]) -> int:
        """Each draw is one of these; how many of them were drawn."""
        values = np.array([share(one) for one in sets])
        near = np.abs(drawn[:, None] - values).argmin(1)
        np.testing.assert_allclose(drawn, values[near], atol=1e-6)
        return len({*near.tolist()})

    both = found.groups[-1]
    assert both.value == pytest.approx(share((1, 11)), abs=1e-6)
    assert found.base == pytest.approx(share(()), abs=1e-6)
    assert both.matched is not None
    assert both.matched.shape == both.drawn.shape == (DRAWS,)
    assert among(both.matched, product(range(4), range(8, 12))) > 12
    assert among(both.drawn, combinations(range(12), 2)) > 40
    layers = [one for one in found.groups if one.group.kind == "layer"]
    assert [one.matched for one in layers] == [None] * 3
    assert len(layers[0].drawn) == DRAWS

"""Maps in place of a head's weights: the maps themselves, and headscope's encoder against live models under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope as hs
from commands import answer
from headscope.attention.patterns import _mixed, draws, identity, shuffled, uniform
from headscope.errors import InputError, TraceError
from headscope.live import ablate
from random_models import ids, made

WAYS = ("mean", "uniform", "shuffle", "shuffle:3", "identity")
STEMS = ("Bert", "DistilBert", "EuroBert", "ModernBert", "MPNet", "DebertaV2", "RoFormer")
LIMIT = 1e-4
"""Of fp32 in two implementations, over three layers."""


def half_sharper(weights: np.ndarray) -> np.ndarray:
    cells = weights**1.5
    return cells / cells.sum(-1, keepdims=True)


def test_uniform_and_identity_are_rows_of_weights() -> None:
    allowed = np.array([[True, False, True], [False, True, False], [False, False, False]])
    assert uniform(allowed).tolist() == [[0.5, 0, 0.5], [0, 1, 0], [0, 0, 0]]
    assert identity(np.array([1, 2]), 3).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_shuffling_permutes_the_weights_of_the_keys_that_are_seen() -> None:
    rng = np.random.default_rng(0)
    allowed = np.tril(np.ones((40, 40), dtype=bool))
    weights = rng.random((40, 40)) * allowed
    numbers = draws((0, 3, 1), np.arange(40), 40)
    cells = shuffled(weights, allowed, numbers)
    assert not cells[~allowed].any()
    for row in range(40):
        assert sorted(cells[row, : row + 1]) == sorted(weights[row, : row + 1])
    assert not np.array_equal(cells, weights)
    places = np.sort(rng.choice(60, 40, replace=False))  # the same keys, with others between them that nobody sees
    wide, seen = np.zeros((40, 60)), np.zeros((40, 60), dtype=bool)
    wide[:, places], seen[:, places] = weights, allowed
    np.testing.assert_array_equal(shuffled(wide, seen, draws((0, 3, 1), np.arange(40), 60))[:, places], cells)


def test_every_permutation_is_about_as_likely_as_any_other() -> None:
    """Of three keys, over 6,000 rows: each of the six orders about a thousand times, within five deviations."""
    numbers = draws((7, 0, 0), np.arange(6000), 3)
    orders, counts = np.unique(np.argsort(numbers, axis=1), axis=0, return_counts=True)
    assert len(orders) == 6
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(6000 * (1 / 6) * (5 / 6))
    assert not np.array_equal(numbers, draws((8, 0, 0), np.arange(6000), 3))
    assert not np.array_equal(numbers, draws((7, 0, 1), np.arange(6000), 3))


def test_numbers_are_those_of_splitmix64() -> None:
    """The first outputs of the generator with seed 1234567, as its reference implementation prints them."""
    state, found = 1234567, []
    for _ in range(3):
        found.append(int(_mixed(np.array([state], dtype=np.uint64))[0]))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


EVERY_WAY = (*WAYS, half_sharper)


@pytest.mark.parametrize(
    ("stem", "way"),
    [
        *(("Bert", way) for way in EVERY_WAY),
        *((stem, EVERY_WAY[at % 6]) for n, stem in enumerate(STEMS[1:]) for at in (n, n + 2)),
    ],
)
def test_the_encoder_and_live_models_agree(tmp_path: Path, stem: str, way: Any) -> None:
    checkpoint = made(tmp_path, stem)
    model, row = hs.open(tmp_path), list(ids(17))
    heads = {(1, 1): way, (2, 0): "zero", (0, 2): "uniform"}
    trace = model.trace(ids=row, ablate=heads)
    with torch.no_grad(), ablate(checkpoint.module, heads), hs.capture(checkpoint.module) as captured:
        expected = checkpoint.module(torch.tensor([row])).last_hidden_state[0].numpy()
    np.testing.assert_allclose(trace.outputs["last_hidden_state"], expected, atol=LIMIT)
    plain = model.trace(ids=row, ablate={(2, 0): "zero", (0, 2): "uniform"}).outputs["last_hidden_state"].array
    assert np.abs(plain - expected).max() > 100 * LIMIT
    assert (trace.swapped, trace.ablated) == (captured.trace.swapped, captured.trace.ablated)
    for head in ((1, 1), (2, 0), (0, 2)):
        ours, theirs = trace[head].written, captured.trace[head].written
        assert (ours is None) == (theirs is None) == (head == (1, 1) and way is half_sharper)
        if ours is not None and theirs is not None:
            np.testing.assert_allclose(ours, theirs, atol=LIMIT)


@pytest.mark.parametrize("way", [*WAYS, half_sharper, np.full((17, 17), 1 / 17)])
@pytest.mark.parametrize("hidden_states", [True, False])
def test_a_trace_under_another_map_is_verified(tmp_path: Path, way: Any, hidden_states: bool) -> None:
    """By the paper's formulas and by transformers, which is given what the head wrote, unless the map is not kept."""
    made(tmp_path, "Bert")
    trace = hs.open(tmp_path).trace(ids=ids(17), ablate={(1, 1): way}, hidden_states=hidden_states)
    report = trace.verify()
    assert report.agrees, report
    names = {check.name for check in report.checks}
    skipped = dict(report.skipped)
    assert ("hidden states" in names) == isinstance(way, str)
    assert ("sum over heads" in names) == (isinstance(way, str) or hidden_states)
    assert ("transformers" in skipped) == (not isinstance(way, str))


def test_the_array_is_what_the_head_writes_with(bundled: Any) -> None:
    """A named map, given as an array, changes nothing; nor do the head's own weights."""
    text = "The cat sat on the mat."
    whole = bundled.trace(text)
    same = bundled.trace(text, ablate={(1, 2): np.asarray(whole[1, 2].weights)})
    np.testing.assert_allclose(
        same.outputs["last_hidden_state"], whole.outputs["last_hidden_state"].array, atol=LIMIT / 10
    )
    cells = np.full((len(whole), len(whole)), 1 / len(whole))
    named, given = (bundled.trace(text, ablate={(1, 2): way}) for way in ("uniform", cells))
    np.testing.assert_allclose(named.outputs["last_hidden_state"], given.outputs["last_hidden_state"].array, atol=1e-6)
    assert (named.swapped, given.swapped) == ({(1, 2): "uniform"}, {(1, 2): "array"})
    W_O = bundled.W_O(1, 2)
    np.testing.assert_allclose(named[1, 2].output, cells @ given[1, 2].v @ W_O, atol=1e-5)
    with pytest.raises(TraceError, match="multiply the map by the values"):
        assert given[1, 2].output.any()


def test_a_head_has_one_way_however_it_is_counted(bundled: Any) -> None:
    with pytest.raises(InputError, match="the head has two ways"):
        bundled.trace("A cat.", ablate={(0, 1): "uniform", (-4, 1): "mean"})
    named = bundled.trace("A cat.", ablate=[(0, 1), (-4, 1), (-4, -3)])
    assert named.ablated == {(0, 1)}


def test_filling_takes_ways(bundled: Any) -> None:
    text = "He shook his [MASK] and went away."
    plain, filled = (bundled.fill(text, ablate=heads)[0] for heads in ((), {(3, 3): "uniform"}))
    logits = bundled.trace(text, ablate={(3, 3): "uniform"}).outputs["logits"].array[filled.position]
    assert filled.ids[0] == logits.argmax()
    assert filled.probabilities != plain.probabilities
    with pytest.raises(InputError, match="has no rows for padding"):
        bundled.trace(["a cat", "a cat sat here"], ablate={(0, 0): np.eye(4)})


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({(0, 0): "half"}, "unknown way to change a head: 'half'"),
        ({(0, 9): "uniform"}, "there is no head 9"),
        ({(0, 0): np.eye(3)}, r"the map is \(3, 3\)"),
        ({0: "uniform"}, "expected heads as .*got 0"),
    ],
)
def test_what_the_encoder_refuses(bundled: Any, heads: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bundled.trace("The cat sat.", ablate=heads)


def test_a_file_keeps_the_ways(bundled: Any, tmp_path: Path) -> None:
    heads = {(1, 2): "shuffle:4", (0, 1): np.eye(9), (2, 0): "mean", (3, 3): "zero"}
    trace = bundled.trace("The cat sat on the mat.", ablate=heads)
    again = hs.load(trace.save(tmp_path / "swapped.safetensors"), model=bundled)
    assert again.swapped == {(0, 1): "array", (1, 2): "shuffle:4", (2, 0): "mean"} == trace.swapped
    assert again.ablated == {(2, 0), (3, 3)}
    np.testing.assert_allclose(again[1, 2].output, trace[1, 2].output, atol=1e-6)
    assert "1 under another map" not in repr(again)
    assert "2 silenced, 2 under another map" in repr(again)
    assert again.notes[-1].startswith("heads attended with another map: 0.1 (array), 1.2 (shuffle:4)")
    assert "replaced: shuffle:4" in repr(again[1, 2])
    told = answer("attend", str(tmp_path / "swapped.safetensors"), "--heads", "1.2")
    assert told["swapped"] == [[0, 1, "array"], [1, 2, "shuffle:4"], [2, 0, "mean"]]
    plain = bundled.trace("The cat sat on the mat.").save(tmp_path / "plain.safetensors")
    assert b'"swapped"' not in plain.read_bytes()
    assert hs.load(plain).swapped == {}


def test_measures_that_read_what_heads_wrote_refuse_another_map(bundled: Any) -> None:
    """Weights, scores and statistics of weights are the head's own; the rest names the head."""
    text = "The cat sat on the mat."
    plain = bundled.trace(text, hidden_states=True)
    trace = bundled.trace(text, ablate={(3, 1): "uniform"}, hidden_states=True)
    np.testing.assert_allclose(trace[3, 1].weights, plain[3, 1].weights, atol=1e-6)
    assert "entropy" in trace.statistics()
    asked = [
        lambda: trace.mixing_ratio(),
        lambda: trace.mixing_ratio("Attn-W"),
        lambda: trace.rollout(to=1),
        lambda: trace.norm_map(3),
        lambda: trace.norm_map(3, head=1),
        lambda: trace.value_zeroing(3, 1),
        lambda: trace[3, 0].promotes(1),
        lambda: trace[3].promotes(1),
        lambda: trace[3, 1].why(1, 2),
    ]
    for ask in asked:
        with pytest.raises(TraceError, match=r"head 3\.1 wrote something else"):
            ask()
    found = trace.findings()
    assert all((cell.layer, cell.head) != (3, 1) for finding in found for cell in finding.cells)

"""Lazy maps are indexed as NumPy arrays are; for anything else they are their array."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from by_hand import axis_of
from headscope.attention.scores import Mask, attend
from headscope.errors import HeadscopeError, InputError
from headscope.results.lazy_maps import LazyMap
from headscope.traces import LayerRecord, Trace

LAYERS, HEADS, KV_HEADS, TOKENS, WIDTH = 3, 4, 2, 11, 8


WINDOW = Mask(window=(4, 2))


def made(tokens: int = TOKENS, mask: Mask = WINDOW, layers: int = LAYERS, heads: int = HEADS) -> Trace:
    """A trace of random queries and keys."""
    random = np.random.default_rng(0)
    records = []
    for _ in range(layers):
        q = random.normal(size=(heads, tokens, WIDTH)).astype("f4")
        k, v = (random.normal(size=(KV_HEADS, tokens, WIDTH)).astype("f4") for _ in range(2))
        _, lse = attend(q, k, v, scale=0.5, mask=mask)
        records.append(LayerRecord(q=q, k=k, v=v, lse=lse, scale=0.5, mask=mask))
    return Trace(model="made", queries=axis_of(tokens), layers=records, outputs={})


def by_hand(trace: Trace) -> np.ndarray:
    """(layers, heads, queries, keys): the paper's softmax over whole rows, in fp64."""
    found = []
    for record in trace.layers:
        k = np.repeat(record.k, len(record.q) // len(record.k), axis=0)
        scores = record.scale * np.einsum("hqd,hkd->hqk", record.q.astype("f8"), k.astype("f8"))
        tokens = scores.shape[-1]
        if record.mask is WINDOW:
            seen = np.tri(tokens, k=2, dtype=bool) & ~np.tri(tokens, k=-5, dtype=bool)
            scores = np.where(seen, scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        found.append(powers / powers.sum(-1, keepdims=True))
    return np.array(found)


TRACE = made()
MAPS = {"head": TRACE[1, 2].weights, "layer": TRACE[1].weights, "trace": TRACE.weights}
FLAGS = np.random.default_rng(1).random((TOKENS, TOKENS)) > 0.5
VALUES = np.random.default_rng(2).normal(size=(TOKENS, 5))
VECTOR = VALUES[:, 0]

INDEXED: dict[str, Callable[[Any], Any]] = {
    "w[0]": lambda w: w[0],
    "w[-1]": lambda w: w[-1],
    "w[..., ::3]": lambda w: w[..., ::3],
    "w[..., ::-2, :]": lambda w: w[..., ::-2, :],
    "w[..., -1:0:-3]": lambda w: w[..., -1:0:-3],
    "w[..., 5:5]": lambda w: w[..., 5:5],
    "w[..., None, 2]": lambda w: w[..., None, 2],
    "w[None]": lambda w: w[None],
    "w[[0, 2, 2]]": lambda w: w[[0, 2, 2]],
    "w[..., [1, 3]]": lambda w: w[..., [1, 3]],
    "w[..., [1, 3], [2, 4]]": lambda w: w[..., [1, 3], [2, 4]],
    "w[[1], :, ..., [2]]": lambda w: w[[1], ..., [2]],
    "w[0, ..., [2, 3]]": lambda w: w[0, ..., [2, 3]],
    "w[..., [[1, 3], [0, 0]]]": lambda w: w[..., [[1, 3], [0, 0]]],
    "w[..., -1, -1]": lambda w: w[..., -1, -1],
    "w[flags]": lambda w: w[..., FLAGS],
    "w[row of flags]": lambda w: w[..., FLAGS[0]],
    "w[w > 0.1]": lambda w: w[w > 0.1],
    "w[()]": lambda w: w[()],
    "w[...]": lambda w: w[...],
    "w[[]]": lambda w: w[[]],
    "w[True]": lambda w: w[True],
    "list": lambda w: np.array(list(w)),
    "len": len,
    "shape, dtype, ndim, size": lambda w: (*w.shape, str(w.dtype) == "float32", w.ndim, w.size),
    "np.shape": np.shape,
    "in": lambda w: (1.5 in w, 0.0 in w),
}
"""What computes no more than it needs."""

AS_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "w * 2": lambda w: w * 2,
    "1 - w": lambda w: 1 - w,
    "w > 0.1": lambda w: w > 0.1,
    "w - w": lambda w: w - w,
    "row + w": lambda w: VECTOR + w,
    "abs": abs,
    "np.log1p": np.log1p,
    "np.maximum": lambda w: np.maximum(w, 0.1),
    "np.where": lambda w: np.where(w > 0.1, w, 0),
    "np.add(dtype)": lambda w: np.add(w, 1, dtype="f8"),
    "np.maximum.reduce": lambda w: np.maximum.reduce(w),
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "np.transpose": np.transpose,
    "astype": lambda w: w.astype("f8"),
    "round": lambda w: w.round(2),
    "mean(-1)": lambda w: w.mean(axis=-1),
    "np.mean": lambda w: np.mean(w, axis=(-1, -2)),
    "np.sum(where)": lambda w: np.sum(w, axis=-1, where=FLAGS),
    "std": lambda w: w.std(),
    "argmax": lambda w: w.argmax(-1),
    "np.median": lambda w: np.median(w, axis=-1),
    "diagonal": lambda w: w.diagonal(0, -2, -1),
    "w @ values": lambda w: w @ VALUES,
    "values.T @ w": lambda w: VALUES.T @ w,
    "np.einsum": lambda w: np.einsum("...qk,kd->...qd", w, VALUES),
    "np.stack": lambda w: np.stack([w, w]),
    "np.sort": lambda w: np.sort(w, axis=-1),
    "np.allclose": lambda w: np.allclose(w, w),
    "reshape": lambda w: w.reshape(-1, TOKENS),
    "tolist": lambda w: w.tolist(),
    "torch": lambda w: torch.tensor(w).numpy(),
    "pandas": lambda w: pd.DataFrame(np.asarray(w).reshape(-1, TOKENS)).to_numpy(),
}
"""What takes the whole map."""


def agree(actual: Any, expected: Any) -> None:
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", MAPS)
def test_maps_are_what_the_paper_says(kind: str) -> None:
    expected = {"head": by_hand(TRACE)[1, 2], "layer": by_hand(TRACE)[1], "trace": by_hand(TRACE)}[kind]
    assert MAPS[kind].shape == expected.shape
    np.testing.assert_allclose(np.asarray(MAPS[kind]), expected, atol=1e-6)


@pytest.mark.parametrize("cells", [1 << 18, 40], ids=["at once", "some rows"])
@pytest.mark.parametrize("expression", INDEXED)
def test_an_index_means_what_it_means_for_an_array(
    expression: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.results.lazy_maps.TILE_CELLS", cells)
    for lazy in MAPS.values():
        agree(INDEXED[expression](lazy), INDEXED[expression](np.asarray(lazy)))


@pytest.mark.parametrize("expression", AS_ARRAYS)
def test_anything_else_is_of_the_whole_map(expression: str) -> None:
    for lazy in MAPS.values():
        actual = AS_ARRAYS[expression](lazy)
        assert not isinstance(actual, LazyMap)
        agree(actual, AS_ARRAYS[expression](np.asarray(lazy)))


def test_results_are_written_where_numpy_is_told_to() -> None:
    lazy, whole = TRACE[0].weights, np.asarray(TRACE[0].weights)
    place = np.empty(whole.shape, "f4")
    assert np.multiply(lazy, 2, out=place) is place
    agree(place, whole * 2)
    sums = np.empty(whole.shape[:-1])
    assert np.sum(lazy, axis=-1, out=sums) is sums
    agree(sums, whole.sum(-1))


@pytest.mark.parametrize("cells", [1 << 18, 40])
def test_blocks_are_the_map_in_order(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.results.lazy_maps.TILE_CELLS", cells)
    for lazy in MAPS.values():
        filled = np.full(lazy.shape, np.nan)
        for place, part in lazy.blocks():
            assert np.isnan(filled[place]).all()
            assert part.size <= max(cells, TOKENS)
            filled[place] = part
        agree(filled, np.asarray(lazy))


def test_a_map_that_does_not_fit_says_its_size_and_the_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.results.lazy_maps.MOST_BYTES", 4 * HEADS * TOKENS**2)
    agree(TRACE[1].weights.mean(), np.asarray(TRACE[1].weights).mean())
    for use in (lambda w: w * 2, np.log, lambda w: w.mean(), np.asarray, lambda w: w.T):
        with pytest.raises(InputError, match=r"0\.0 GB as an array") as caught:
            use(TRACE.weights)
        assert "blocks()" in str(caught.value.advice)
    agree(TRACE.weights[...], np.stack([TRACE[layer].weights for layer in range(LAYERS)]))
    assert 0.0 in TRACE.weights


def test_what_an_array_has_not_a_map_has_not() -> None:
    with pytest.raises(AttributeError, match="a map of weights has no attribute 'banana'"):
        TRACE[0, 0].weights.banana


def test_a_map_is_no_place_to_write_to() -> None:
    weights = TRACE[0, 0].weights
    with pytest.raises(TypeError):
        weights[0] = 1  # type: ignore[index]
    with pytest.raises(InputError, match="nothing can be written"):
        weights += 1
    with pytest.raises(InputError, match="nothing can be written"):
        np.add(1, 2, out=weights)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(weights > 0.1)


@pytest.mark.parametrize("index", [11, (0, 11), (0, 0, 0), ([0, 99], 0), (0, [99]), "cell"], ids=str)
def test_cells_that_are_not_there(index: Any) -> None:
    with pytest.raises((InputError, IndexError)):
        TRACE[0, 0].weights[index]


BIG = 3000


def test_indices_and_blocks_hold_a_few_rows_at_a_time() -> None:
    weights = made(BIG, Mask(), layers=1, heads=2)[0, 1].weights
    tracemalloc.start()
    try:
        most = max(float(part.max()) for _, part in weights.blocks())
        chosen = weights[:, 5], weights[np.arange(BIG), np.arange(BIG)], weights[::100, ::100]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * BIG * BIG / 2  # half of the map in fp32; a few blocks of 1 MiB exist at the same time
    assert most <= 1
    assert [part.shape for part in chosen] == [(BIG,), (BIG,), (BIG // 100, BIG // 100)]


def test_a_layer_and_its_heads() -> None:
    layer = TRACE[1]
    assert (layer.layer, len(layer), layer.numbers) == (1, HEADS, (0, 1, 2, 3))
    assert layer.q.shape == (HEADS, TOKENS, WIDTH)
    assert layer.k.shape == layer.v.shape == (KV_HEADS, TOKENS, WIDTH)
    assert layer.lse.shape == (HEADS, TOKENS)
    assert (layer.scale, layer.stage, layer.name, layer.mask) == (0.5, "projected", "", WINDOW)
    assert [head.head for head in layer] == [0, 1, 2, 3]
    agree(layer[2].weights, layer.weights[2])
    agree(layer.scores[3, 4], TRACE[1, 3].scores[4])
    agree(layer.context, layer.weights @ np.repeat(layer.v, HEADS // KV_HEADS, axis=0))
    agree(TRACE[-1].weights, TRACE.weights[LAYERS - 1])
    agree(TRACE[np.int64(1)].weights, TRACE[1].weights)
    assert repr(TRACE.weights) == "weights (3 layers, 4 heads, 11 queries, 11 keys), computed when indexed"
    assert "4 heads of 8" in repr(layer)


def test_layers_and_heads_that_are_not_there() -> None:
    with pytest.raises(InputError, match="layer 3"):
        TRACE[3]
    with pytest.raises(InputError, match="head 4"):
        TRACE[1][4]
    with pytest.raises(TypeError):
        iter(TRACE)
    with pytest.raises(HeadscopeError, match="W_O"):
        TRACE[1].output


def test_layers_of_different_heads_are_no_one_array() -> None:
    few, many = made(layers=1, heads=2), made(layers=1)
    both = Trace(model="made", queries=few.queries, layers=[*few.layers, *many.layers], outputs={})
    with pytest.raises(InputError, match="2 to 4 heads"):
        both.weights
    assert both[1].scores.shape == (HEADS, TOKENS, TOKENS)

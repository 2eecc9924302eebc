"""Lazy maps behave like NumPy arrays: a table of expressions, each compared with NumPy's result."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headscope.attention.scores import Mask, attend
from headscope.errors import HeadscopeError, InputError
from headscope.results.arrays import LazyMap, TokenAxis
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
    axis = TokenAxis(
        tokens=tuple(map(str, range(tokens))),
        ids=tuple(range(tokens)),
        segments=(0,) * tokens,
        special=(False,) * tokens,
        words=(None,) * tokens,
        spans=(None,) * tokens,
    )
    return Trace(model="made", queries=axis, layers=records, outputs={})


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

STILL_MAPS: dict[str, Callable[[Any], Any]] = {
    "w * 2": lambda w: w * 2,
    "2 * w": lambda w: 2 * w,
    "w * float64": lambda w: w * np.float64(2),
    "-w": lambda w: -w,
    "w > 0.1": lambda w: w > 0.1,
    "w == w": lambda w: w == w,
    "(w > 0.1) & (w < 0.5)": lambda w: (w > 0.1) & (w < 0.5),
    "~(w > 0.1)": lambda w: ~(w > 0.1),
    "w ** 2": lambda w: w**2,
    "1 - w": lambda w: 1 - w,
    "w / 3": lambda w: w / 3,
    "w // 0.1": lambda w: w // 0.1,
    "w + row": lambda w: w + VECTOR,
    "column * w": lambda w: VECTOR[:, None] * w,
    "w - w.mT": lambda w: w - np.swapaxes(w, -1, -2),
    "w + (2, 1, 1, S, S)": lambda w: w + np.ones((2, 1, 1, TOKENS, TOKENS)),
    "w - mean of rows": lambda w: w - w.mean(axis=-1, keepdims=True),
    "abs": abs,
    "np.log1p": lambda w: np.log1p(w),
    "np.exp": lambda w: np.exp(w),
    "np.sqrt": lambda w: np.sqrt(w),
    "np.maximum": lambda w: np.maximum(w, 0.1),
    "np.add(dtype)": lambda w: np.add(w, 1, dtype="f8"),
    "np.where": lambda w: np.where(w > 0.1, w, 0),
    "np.clip": lambda w: np.clip(w, 0.1, 0.2),
    "clip": lambda w: w.clip(0.1),
    "round": lambda w: w.round(2),
    "np.round": lambda w: np.round(w, 2),
    "np.isclose": lambda w: np.isclose(w, 0),
    "np.isnan": lambda w: np.isnan(w),
    "np.nan_to_num": lambda w: np.nan_to_num(w),
    "T": lambda w: w.T,
    "np.transpose": lambda w: np.transpose(w),
    "swapaxes": lambda w: w.swapaxes(0, -1),
    "astype": lambda w: w.astype("f8"),
    "astype int": lambda w: (w * 10).astype(int),
}

NUMBERS: dict[str, Callable[[Any], Any]] = {
    "std": lambda w: w.std(),
    "std(-1, ddof=1)": lambda w: w.std(axis=-1, ddof=1),
    "std(0)": lambda w: w.std(0),
    "np.std": lambda w: np.std(w, axis=(-1, -2)),
    "var": lambda w: w.var(),
    "np.var": lambda w: np.var(w, axis=-2, keepdims=True),
    "sum": lambda w: w.sum(),
    "np.sum(-1)": lambda w: np.sum(w, axis=-1),
    "np.sum(keepdims)": lambda w: np.sum(w, axis=0, keepdims=True),
    "sum of two axes": lambda w: w.sum(axis=(-1, -2)),
    "sum(initial)": lambda w: w.sum(axis=-1, initial=5),
    "sum(where)": lambda w: w.sum(axis=-2, where=FLAGS),
    "max(where)": lambda w: w.max(axis=-1, where=FLAGS, initial=-1),
    "mean(where)": lambda w: w.mean(where=FLAGS),
    "np.mean": lambda w: np.mean(w),
    "np.mean(-1)": lambda w: np.mean(w, axis=-1),
    "np.mean(dtype)": lambda w: np.mean(w, axis=0, dtype="f8"),
    "mean of flags": lambda w: (w > 0.1).mean(),
    "sum of flags": lambda w: (w > 0.1).sum(axis=-1),
    "max": lambda w: w.max(),
    "np.max": lambda w: np.max(w, axis=-1),
    "np.min": lambda w: np.min(w, axis=-2),
    "prod": lambda w: (w + 1).prod(axis=-1),
    "any": lambda w: (w > 0.9).any(axis=-1),
    "all": lambda w: np.all(w >= 0),
    "argmax": lambda w: w.argmax(),
    "argmax(-1)": lambda w: w.argmax(axis=-1),
    "argmax(0)": lambda w: np.argmax(w, axis=0, keepdims=True),
    "argmin(-1)": lambda w: w.argmin(-1),
    "argmin(-2)": lambda w: np.argmin(w, axis=-2),
    "np.ptp": lambda w: np.ptp(w, axis=-1),
    "np.median": lambda w: np.median(w, axis=-1),
    "np.median of all": lambda w: np.median(w),
    "np.percentile": lambda w: np.percentile(w, 90, axis=-1),
    "np.quantile of several": lambda w: np.quantile(w, [0.1, 0.9], axis=-1),
    "np.nanmax": lambda w: np.nanmax(w, axis=-1),
    "np.linalg.norm": lambda w: np.linalg.norm(w, axis=-1),
    "np.count_nonzero": lambda w: np.count_nonzero(w, axis=-1),
    "np.add.reduce": lambda w: np.add.reduce(w, axis=-1),
    "np.maximum.reduce": lambda w: np.maximum.reduce(w),
    "np.add.accumulate": lambda w: np.add.accumulate(w, axis=-1),
    "np.cumsum": lambda w: np.cumsum(w, axis=-1),
    "cumsum": lambda w: w.cumsum(-1),
    "w @ values": lambda w: w @ VALUES,
    "w @ vector": lambda w: w @ VECTOR,
    "values.T @ w": lambda w: VALUES.T @ w,
    "vector @ w": lambda w: VECTOR @ w,
    "w @ w": lambda w: w @ w,
    "w.T @ values": lambda w: np.swapaxes(w, -1, -2) @ VALUES,
    "np.matmul": lambda w: np.matmul(w, VALUES),
    "np.einsum": lambda w: np.einsum("...qk,kd->...qd", w, VALUES),
    "np.divmod": lambda w: np.divmod(w, 0.1)[1],
    "np.sort": lambda w: np.sort(w, axis=-1),
    "np.argsort": lambda w: np.argsort(w, axis=-1, kind="stable"),
    "np.concatenate": lambda w: np.concatenate([w, w], axis=0),
    "np.stack": lambda w: np.stack([w, 2 * w]),
    "np.triu": lambda w: np.triu(w, 1),
    "np.diagonal": lambda w: np.diagonal(w, axis1=-2, axis2=-1),
    "diagonal(-1)": lambda w: w.diagonal(-1, -2, -1),
    "diagonal(3)": lambda w: w.diagonal(3, axis1=-1, axis2=-2),
    "np.trace": lambda w: np.trace(w, axis1=-2, axis2=-1),
    "reshape": lambda w: w.reshape(-1, TOKENS),
    "ravel": lambda w: w.ravel(),
    "np.ravel": lambda w: np.ravel(w),
    "tolist": lambda w: w.tolist(),
    "np.copy": lambda w: np.copy(w),
    "np.where(w)": lambda w: np.array(np.where(w > 0.5)),
    "np.nonzero": lambda w: np.array(np.nonzero(w > 0.5)),
    "np.argwhere": lambda w: np.argwhere(w > 0.5),
    "np.unique": lambda w: np.unique(w > 0.5),
    "np.histogram": lambda w: np.histogram(w, bins=4, range=(0, 1))[0],
    "np.allclose": lambda w: np.allclose(w, w * (1 + 1e-9)),
    "np.array_equal": lambda w: np.array_equal(w, w + 1),
    "np.shape": lambda w: np.shape(w),
    "np.ndim": lambda w: np.ndim(w),
    "np.size": lambda w: np.size(w),
    "len": len,
    "list": lambda w: np.array(list(w)),
    "float of a sum": lambda w: float(w.sum()),
    "in": lambda w: (1.5 in w, 0.0 in w),
    "dtype": lambda w: (w > 1).dtype,
    "ndim": lambda w: w.ndim,
    "size": lambda w: w.size,
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
    "w[w > array]": lambda w: w[np.asarray(w) > 0.1],
    "w.T[w.T > 0.1]": lambda w: w.T[w.T > 0.1],
    "w[()]": lambda w: w[()],
    "w[...]": lambda w: w[...],
    "w[[]]": lambda w: w[[]],
    "w[True]": lambda w: w[True],
    "w.T[1]": lambda w: w.T[1],
    "(w * 2)[..., 3, :2]": lambda w: (w * 2)[..., 3, :2],
}


def agree(actual: Any, expected: Any) -> None:
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", MAPS)
def test_maps_are_what_the_paper_says(kind: str) -> None:
    expected = {"head": by_hand(TRACE)[1, 2], "layer": by_hand(TRACE)[1], "trace": by_hand(TRACE)}[kind]
    assert MAPS[kind].shape == expected.shape
    np.testing.assert_allclose(np.asarray(MAPS[kind]), expected, atol=1e-6)


@pytest.mark.parametrize("cells", [1 << 18, 40], ids=["at once", "some rows"])
@pytest.mark.parametrize("expression", STILL_MAPS)
def test_what_is_cell_by_cell_stays_a_map(expression: str, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.results.tiled.TILE_CELLS", cells)
    for lazy in MAPS.values():
        actual, expected = STILL_MAPS[expression](lazy), STILL_MAPS[expression](np.asarray(lazy))
        assert isinstance(actual, LazyMap)
        assert actual.dtype == expected.dtype or "mean" in expression  # a map's mean is of fp64
        agree(actual, expected)
        agree(actual[1:3], expected[1:3])
        agree(actual.sum(axis=0), expected.sum(axis=0))


@pytest.mark.parametrize("cells", [1 << 18, 40], ids=["at once", "some rows"])
@pytest.mark.parametrize("expression", NUMBERS)
def test_what_numpy_gives_of_a_map_is_what_it_gives_of_its_array(
    expression: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.results.tiled.TILE_CELLS", cells)
    monkeypatch.setattr("headscope.results.reductions.TILE_CELLS", cells)
    for lazy in MAPS.values():
        actual, expected = NUMBERS[expression](lazy), NUMBERS[expression](np.asarray(lazy))
        assert not isinstance(actual, LazyMap)
        if isinstance(expected, np.dtype):
            assert actual == expected
        else:
            agree(actual, expected)


def test_results_are_written_where_numpy_is_told_to() -> None:
    lazy, whole = TRACE[0].weights, np.asarray(TRACE[0].weights)
    place = np.empty(whole.shape, "f4")
    assert np.multiply(lazy, 2, out=place) is place
    agree(place, whole * 2)
    sums = np.empty(whole.shape[:-1])
    assert np.sum(lazy, axis=-1, out=sums) is sums
    agree(sums, whole.sum(-1))
    products = np.empty((HEADS, TOKENS, 5))
    assert np.matmul(lazy, VALUES, out=products) is products
    agree(products, whole @ VALUES)
    np.std(lazy, axis=-1, out=sums)
    agree(sums, whole.std(-1))


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


@pytest.mark.parametrize(
    "reduction",
    [
        lambda w: w.sum(axis=7),
        lambda w: w.sum(axis=(0, 0)),
        lambda w: w.argmax(axis=3),
        lambda w: w.transpose(0, 0),
        lambda w: w.transpose(0),
    ],
)
def test_missing_axes_raise(reduction: Callable[[LazyMap], Any]) -> None:
    with pytest.raises(InputError, match=r"ax[ei]s"):
        reduction(TRACE[0, 0].weights)


@pytest.mark.parametrize("other", [np.ones((5, 3)), np.ones(5)], ids=["matrix", "vector"])
def test_products_that_do_not_fit(other: np.ndarray) -> None:
    with pytest.raises(ValueError, match="matmul"):
        TRACE[0, 0].weights @ other


BIG = 3000

LINEAR: dict[str, Callable[[LazyMap], Any]] = {
    "std": lambda w: w.std(),
    "mean(-1)": lambda w: np.mean(w, axis=-1),
    "mean(0)": lambda w: w.mean(0),
    "flags": lambda w: (w > 0.1).sum(),
    "entropy": lambda w: -(w * np.log(np.maximum(w, 1e-30))).sum(axis=-1),
    "transposed": lambda w: w.T.max(axis=0),
    "argmax": lambda w: w.argmax(-1),
    "median": lambda w: np.median(w, axis=-1),
    "product": lambda w: w @ np.ones((BIG, 4), "f4"),
    "product from the left": lambda w: np.ones((4, BIG), "f4") @ w,
    "two heads": lambda w: np.abs(w - 2 * w).max(),
    "diagonal": lambda w: w.diagonal(),
    "chosen": lambda w: w[w > 0.9],
}


@pytest.fixture(scope="module")
def long() -> Trace:
    return made(BIG, Mask(), layers=1, heads=2)


@pytest.mark.parametrize("expression", LINEAR)
def test_reductions_hold_a_few_rows_at_a_time(long: Trace, expression: str) -> None:
    weights = long[0, 1].weights
    tracemalloc.start()
    try:
        LINEAR[expression](weights)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * BIG * BIG / 2  # half of the map in fp32; a few blocks of 1 MiB exist at the same time


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

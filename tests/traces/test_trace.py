"""The trace as users see it: maps that are indexed as arrays are, the model's numbers, its file, its errors."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save as safetensors

import headscope as hs
from by_hand import axis_of, by_definition, some_heads
from headscope.attention.scores import Mask, attend
from headscope.errors import HeadscopeError, InputError, MissingExtraError, TraceError
from headscope.files import fault
from headscope.results.arrays import Named
from headscope.results.lazy_maps import LazyMap
from headscope.traces import LayerRecord, Trace, load
from making import sealed_trace
from peak import Peak
from random_models import ids, made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> hs.Model:
    folder = tmp_path_factory.mktemp("bert")
    made(folder, "Bert", "ForPreTraining")
    return hs.open(folder)


@pytest.fixture(scope="module")
def trace(model: hs.Model) -> Trace:
    return model.trace(ids=ids(11), hidden_states=True)


def test_only_the_indexed_tile_is_computed() -> None:
    tiles: list[tuple[int, int]] = []

    def tile(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        tiles.append((len(rows), len(columns)))
        return np.zeros((len(rows), len(columns)), "f4")

    lazy = LazyMap("weights", (1000, 1000), tile)
    assert lazy[3, 4] == 0
    assert lazy[5:7, :9].shape == (2, 9)
    assert tiles == [(1, 1), (2, 9)]
    assert lazy.shape == (1000, 1000)
    assert len(lazy) == 1000
    assert lazy.size == 10**6


@pytest.mark.parametrize("index", [(3, 0), (0, 4), (-4, 0), (0, -5)])
def test_a_missing_head_raises_and_names_the_range(trace: Trace, index: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"has \d heads|has \d layers") as refused:
        trace[index]
    assert "count from 0" in (refused.value.advice or "")


def test_a_trace_is_indexed_by_layer_and_head(trace: Trace) -> None:
    for indexed, wrong, message in (
        (trace, (0.5, (0,), (0, 1, 2), "0,1"), r"expected a layer or a \(layer, head\) pair"),
        (some_heads(stack="encoder"), ((1, 1), (5, 0), (6, 1)), "was not kept"),
    ):
        for index in wrong:
            with pytest.raises(InputError, match=message):
                indexed[index]  # type: ignore[index]
    with pytest.raises(InputError, match="expected a layer"):
        trace[np.array([0, 1])]  # type: ignore[call-overload]
    with pytest.raises(InputError, match="there is no layer 9"):
        trace.head_numbers(9)


def test_an_output_is_the_papers(trace: Trace, model: hs.Model) -> None:
    one = trace[2, 1]
    np.testing.assert_allclose(one.output, one.weights[:] @ one.v @ model.layers[2].heads[1].W_O, atol=1e-5)


def test_outputs_have_named_axes(trace: Trace) -> None:
    assert repr(trace.outputs["last_hidden_state"]).startswith("last_hidden_state (tokens 11, d_model 32)\n[[")
    assert "\n" not in repr(trace.outputs)
    assert trace.outputs["logits"].dims == ("tokens", "vocabulary")
    assert trace.outputs["pooler_output"].shape == (32,)
    assert {"last_hidden_state", "logits", "seq_relationship_logits", "pooler_output"} <= set(trace.outputs)
    assert len(trace.hidden_states) == 4
    np.testing.assert_array_equal(trace.hidden_states[-1], trace.outputs["last_hidden_state"])
    with pytest.raises(InputError, match="no output 'attentions'"):
        trace.outputs["attentions"]
    with pytest.raises(KeyError):
        trace.outputs["attentions"]


def test_hidden_states_are_kept_only_on_request(model: hs.Model) -> None:
    assert model.trace(ids=[5, 6]).hidden_states == ()


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_the_file_gives_the_same_trace_back(tmp_path: Path, trace: Trace, model: hs.Model, dtype: str) -> None:
    assert trace.outputs["pooler_output"].shape == (32,)
    path = trace.save(tmp_path / "cat.safetensors", dtype=dtype)
    again = hs.load(path, model=model)
    limit = 1e-6 if dtype == "fp32" else 0.02
    for name in ("model", "fingerprint", "queries", "ablated", "text"):
        assert getattr(again, name) == getattr(trace, name), name
    for layer in range(3):
        np.testing.assert_allclose(again[layer, 1].weights, trace[layer, 1].weights, atol=limit)
        np.testing.assert_allclose(again[layer, 1].output, trace[layer, 1].output, atol=limit * 10)
        np.testing.assert_array_equal(again.layers[layer].lse, trace.layers[layer].lse)
    assert again.precision == dtype
    np.testing.assert_array_equal(again.outputs["pooler_output"], trace.outputs["pooler_output"])
    assert again.outputs["logits"].shape == (11, 60)


def test_without_a_model_a_loaded_trace_says_what_it_lacks(tmp_path: Path, trace: Trace) -> None:
    again = hs.load(trace.save(tmp_path / "t.safetensors"))
    np.testing.assert_array_equal(again[0, 0].context, trace[0, 0].context)
    with pytest.raises(TraceError, match="W_O") as refused:
        again[0, 0].output
    assert "hs.load(file, model=" in (refused.value.advice or "")
    with pytest.raises(InputError, match="seq_relationship_logits"):
        again.outputs["seq_relationship_logits"]


def test_another_models_trace_is_refused(tmp_path: Path, trace: Trace) -> None:
    made(tmp_path / "other", "Bert", num_hidden_layers=2)
    path = trace.save(tmp_path / "t.safetensors")
    with pytest.raises(TraceError, match="not from this model"):
        hs.load(path, model=hs.open(tmp_path / "other"))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_any_damage_is_noticed(tmp_path: Path, trace: Trace, dtype: str) -> None:
    """A bit at any place, half of a file, none, and files that are no trace."""
    path = trace.save(tmp_path / "t.safetensors", dtype=dtype)
    whole, chosen, other = path.read_bytes(), np.random.default_rng(0), {"a": np.zeros(3)}
    begin = 8 + int.from_bytes(whole[:8], "little")
    places = [*chosen.integers(0, begin, 60), *chosen.integers(begin, len(whole), 60)]
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << int(chosen.integers(8))]) + whole[at + 1 :] for at in places]
    for data in (*flipped, whole[: len(whole) // 2], b"", safetensors(other), safetensors(other, {"headscope": "{"})):
        path.write_bytes(data)
        with pytest.raises(TraceError) as refused:
            hs.load(path)
        assert refused.value.where == str(path)
        assert refused.value.advice
    path.write_bytes(whole)
    assert repr(hs.load(path)) == repr(trace)


def test_the_numbers_are_those_whose_seal_was_checked(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program writes to the file, as quickly as its clock counts, right after the seal was found whole."""
    path = trace.save(tmp_path / "trace.safetensors")
    before = path.stat()

    def then_overwritten(data: bytes) -> str | None:
        found = fault(data)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return found

    monkeypatch.setattr("headscope.traces.file.fault", then_overwritten)
    loaded = load(path)
    for ours, kept in zip(loaded.layers, trace.layers, strict=True):
        for name in ("q", "k", "v", "lse"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(kept, name))
            assert getattr(ours, name).flags.writeable  # as PyTorch wants them


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path, trace: Trace) -> None:
    path = trace.save(tmp_path / "t.safetensors")
    with pytest.raises(TraceError, match="format version 3"):
        hs.load(sealed_trace(path, path.read_bytes(), version=3))


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "lse of other tokens": ({"lse": np.zeros((4, 10))}, r"lse \(4, 10\)"),
    "k of another width": ({"k": np.zeros((4, 11, 7), "f4")}, r"k \(4, 11, 7\)"),
    "three key heads": ({"k": np.zeros((3, 11, 8), "f4")}, r"k \(3, 11, 8\)"),
    "v of other tokens": ({"v": np.zeros((4, 10, 8), "f4")}, r"v \(4, 10, 8\)"),
    "q of fewer tokens": ({"q": np.zeros((4, 10, 8), "f4")}, "10 queries and 11 keys for 11 and 11 tokens"),
    "mask": ({"mask": Mask(keys=np.ones(5, bool))}, r"\(5,\) for 11 keys"),
    "bias": ({"mask": Mask(bias=np.ones((2, 11, 11), "f4"))}, r"bias \(2, 11, 11\)"),
    "the same layer twice": ({"number": 1}, "numbered 1, 1, 2"),
    "the same head twice": ({"numbers": (1, 1, 2, 3)}, "numbers 1, 1, 2, 3"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_layers_that_do_not_fit_their_tokens_are_refused(trace: Trace, kind: str) -> None:
    change, message = MISFITS[kind]
    first, *others = trace.layers
    with pytest.raises(TraceError, match=message):
        trace.replaced(layers=[replace(first, **change), *others])
    with pytest.raises(TraceError, match="there is no layer"):
        trace.replaced(layers=[])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        hs.load(tmp_path / "none.safetensors")


def test_saving_is_all_or_nothing(tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="can't be written"):
        trace.save(tmp_path / "no folder" / "t.safetensors")
    with pytest.raises(InputError, match="fp8"):
        trace.save(tmp_path / "t.safetensors", dtype="fp8")
    path = trace.save(tmp_path / "t.safetensors")
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headscope.files.os.replace", fail)
    with pytest.raises(InputError, match="the disk is full"):
        trace.save(path, dtype="fp16")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["t.safetensors"]


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_numbers_beyond_fp16_are_not_saved_in_it(name: str, tmp_path: Path) -> None:
    trace = hs.open().trace("The cat sat.")
    records = list(trace.layers)
    records[1] = replace(records[1], **{name: getattr(records[1], name) * np.float32(1e7)})  # type: ignore[arg-type]
    loud, path = trace.replaced(layers=records), tmp_path / "t.safetensors"
    with pytest.raises(InputError, match=rf"layer 1: {name} has numbers beyond 65,504") as refusal:
        loud.save(path, dtype="fp16")
    assert 'dtype="fp32"' in str(refusal.value.advice)
    assert not list(tmp_path.iterdir())
    loud.save(path)
    assert (getattr(hs.load(path).layers[1], name) == getattr(records[1], name)).all()


def test_infinity_of_the_model_itself_is_saved_in_fp16(tmp_path: Path) -> None:
    trace = hs.open().trace("The cat sat.")
    v = np.array(trace.layers[1].v)
    v[0, 1, 2], v[1, 0, 3] = np.inf, np.nan
    broken = trace.replaced(layers=[trace.layers[0], replace(trace.layers[1], v=v), *trace.layers[2:]])
    again = hs.load(broken.save(tmp_path / "t.safetensors", dtype="fp16")).layers[1].v
    np.testing.assert_allclose(again, v, rtol=1e-3, atol=1e-6)


def test_named_arrays_are_arrays() -> None:
    named = Named("x", ("a", "b"), np.ones((2, 3), "f4"))
    assert np.asarray(named) is named.array
    assert np.array(named, copy=True) is not named.array
    assert (named[0] == 1).all()
    assert len(named) == 2
    assert named.dtype == np.float32
    other = Named("x", ("a", "b"), np.arange(6.0).reshape(2, 3))
    assert (other.max(), other.T.shape, other.argmax(-1).tolist()) == (5, (3, 2), [2, 2])
    np.testing.assert_array_equal(other - named, other.array - 1)
    np.testing.assert_array_equal(np.sqrt(other) > 1, np.sqrt(other.array) > 1)
    np.testing.assert_array_equal(2 * other, 2 * other.array)
    assert pickle.loads(pickle.dumps(other)).dims == ("a", "b")
    assert other in {other}
    with pytest.raises(AttributeError, match="banana"):
        other.banana


@pytest.mark.parametrize("through_file", [False, True])
def test_numbers_are_the_models(tmp_path: Path, through_file: bool) -> None:
    trace = some_heads(stack="encoder")
    record = trace.layers[1]
    if through_file:
        trace = load(trace.save(tmp_path / "some.safetensors"))
    assert trace.numbers == (0, 5)
    assert trace.head_numbers(5) == (1, 3)
    assert (trace.stack, trace.layers[1].name) == ("encoder", "at.5")
    np.testing.assert_array_equal(trace[5, 3].q, record.q[1])
    np.testing.assert_array_equal(trace[5, 3].k, record.k[1])
    assert (trace[5, 3].layer, trace[5, 3].head) == (5, 3)
    assert trace[-1, -1].layer == 5


def test_a_trace_says_what_it_holds() -> None:
    rng = np.random.default_rng(0)

    def record(heads: int, keys: int) -> LayerRecord:
        q, k = (rng.standard_normal((heads, n, 4)).astype(np.float32) for n in (3, keys))
        return LayerRecord(q, k, None, np.zeros((heads, 3), np.float32), 0.5)

    assert "made (encoder): 4 tokens, 2 layers x 2 heads of 8" in repr(some_heads(stack="encoder"))
    uneven = Trace(model="made", queries=axis_of(3), layers=[record(2, 3), record(6, 3), record(4, 3)], outputs={})
    assert "made: 3 tokens, 3 layers x 2 to 6 heads" in repr(uneven)
    cross = Trace(model="made", queries=axis_of(3), keys=axis_of(5), layers=[record(2, 5)], outputs={}, stack="cross")
    assert "made (cross): 3 queries, 5 keys, 1 layers x 2 heads of 4" in repr(cross)


LAYERS, HEADS, KV_HEADS, TOKENS, WIDTH = 3, 4, 2, 11, 8


WINDOW = Mask(window=(4, 2))


def drawn(tokens: int = TOKENS, mask: Mask = WINDOW, layers: int = LAYERS, heads: int = HEADS) -> Trace:
    """A trace of random queries and keys."""
    random = np.random.default_rng(0)
    records = []
    for _ in range(layers):
        q = random.normal(size=(heads, tokens, WIDTH)).astype("f4")
        k, v = (random.normal(size=(KV_HEADS, tokens, WIDTH)).astype("f4") for _ in range(2))
        _, lse = attend(q, k, v, scale=0.5, mask=mask)
        records.append(LayerRecord(q=q, k=k, v=v, lse=lse, scale=0.5, mask=mask))
    return Trace(model="made", queries=axis_of(tokens), layers=records, outputs={})


TRACE = drawn()
MAPS = {"head": TRACE[1, 2].weights, "layer": TRACE[1].weights, "trace": TRACE.weights}
FLAGS = np.random.default_rng(1).random((TOKENS, TOKENS)) > 0.5
VALUES = np.random.default_rng(2).normal(size=(TOKENS, 5))
KNOWN = {"np": np, "pd": pd, "torch": torch, "FLAGS": FLAGS, "VALUES": VALUES, "TOKENS": TOKENS}


def expressions(text: str) -> dict[str, Callable[[Any], Any]]:
    """Functions of a map `w`, by what they compute."""
    return {one: eval(f"lambda w: {one}", KNOWN) for one in map(str.strip, text.split(";"))}


INDEXED = expressions("""
    w[0]; w[-1]; w[..., ::3]; w[..., ::-2, :]; w[..., -1:0:-3]; w[..., 5:5]; w[..., 20:30];
    w[..., 1:9:3, ::-1]; w[..., [0, 2], :]; w[..., np.array([1, 3]), 2]; w[..., FLAGS[0], 0:4];
    w[..., np.int64(3), np.int64(4)]; w[..., None, 2]; w[None]; w[[0, 2, 2]]; w[..., [1, 3]];
    w[..., [1, 3], [2, 4]]; w[[1], ..., [2]]; w[0, ..., [2, 3]]; w[..., [[1, 3], [0, 0]]]; w[..., -1, -1];
    w[..., FLAGS]; w[..., FLAGS[0]]; w[w > 0.1]; w[()]; w[...]; w[[]]; w[True]; np.array(list(w)); len(w);
    (*w.shape, str(w.dtype) == "float32", w.ndim, w.size); np.shape(w); (1.5 in w, 0.0 in w)
""")
"""What computes no more than it needs."""

AS_ARRAYS = expressions("""
    w * 2; 1 - w; w > 0.1; w - w; VALUES[:, 0] + w; abs(w); np.log1p(w); np.maximum(w, 0.1); np.where(w > 0.1, w, 0);
    np.add(w, 1, dtype="f8"); np.maximum.reduce(w); w.T; w.mT; np.transpose(w); w.astype("f8"); w.round(2);
    w.mean(axis=-1); np.mean(w, axis=(-1, -2)); np.sum(w, axis=-1, where=FLAGS); w.std(); w.argmax(-1);
    np.median(w, axis=-1); w.diagonal(0, -2, -1); w @ VALUES; VALUES.T @ w;
    np.einsum("...qk,kd->...qd", w, VALUES); np.stack([w, w]); np.sort(w, axis=-1); np.allclose(w, w);
    w.reshape(-1, TOKENS); w.tolist(); torch.tensor(w).numpy();
    pd.DataFrame(np.asarray(w).reshape(-1, TOKENS)).to_numpy()
""")
"""What takes the whole map."""


def agree(actual: Any, expected: Any) -> None:
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", MAPS)
def test_maps_are_what_the_paper_says(kind: str) -> None:
    parts = [by_definition(one.q, one.k, one.v, one.scale, one.mask)[:2] for one in TRACE.layers]
    scores, whole = (np.array(layers) for layers in zip(*parts, strict=True))
    expected = {"head": whole[1, 2], "layer": whole[1], "trace": whole}[kind]
    assert MAPS[kind].shape == expected.shape
    np.testing.assert_allclose(np.asarray(MAPS[kind]), expected, atol=1e-6)
    np.testing.assert_allclose(TRACE[1, 2].scores, scores[1, 2], atol=1e-5)


@pytest.mark.parametrize("cells", [1 << 18, 40], ids=["at once", "some rows"])
@pytest.mark.parametrize("expression", INDEXED)
def test_an_index_means_what_it_means_for_an_array(
    expression: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.results.lazy_maps.TILE_CELLS", cells)
    for lazy in (*MAPS.values(), TRACE[1, 2].scores):
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
    assert np.asarray(lazy, dtype=np.float64).dtype == np.float64


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
    empty = LazyMap("weights", (2, 3, 0), lambda *places: np.zeros(tuple(map(len, places))))
    assert ([*empty.blocks()], 1.0 in empty) == ([], False)


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
    with pytest.raises(ValueError, match="no array to share"):
        np.array(TRACE[0, 0].weights, copy=False)


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


@pytest.mark.parametrize("index", [11, -12, (0, 11), (0, 0, 0), ([0, 99], 0), (0, [99]), "cell"], ids=str)
def test_cells_that_are_not_there(index: Any) -> None:
    with pytest.raises(InputError if index != "cell" else (InputError, IndexError)):
        TRACE[0, 0].weights[index]


BIG = 3000


def test_indices_and_blocks_hold_a_few_rows_at_a_time() -> None:
    weights = drawn(BIG, Mask(), layers=1, heads=2)[0, 1].weights
    with Peak() as peak:
        most = max(float(part.max()) for _, part in weights.blocks())
        chosen = weights[:, 5], weights[np.arange(BIG), np.arange(BIG)], weights[::100, ::100]
    assert peak.bytes < 4 * BIG * BIG / 2  # half of the map in fp32; a few blocks of 1 MiB exist at the same time
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
    title, *rows = repr(TRACE[1, 2].weights).split("\n")
    assert title == "weights (11 queries, 11 keys), computed when indexed"
    assert np.array([row.strip(" []").split() for row in rows], float) == pytest.approx(
        TRACE[1, 2].weights[...], abs=1e-3
    )
    assert "4 heads of 8" in repr(layer)


def test_layers_and_heads_that_are_not_there() -> None:
    with pytest.raises(InputError, match="head 4"):
        TRACE[1][4]
    with pytest.raises(TypeError):
        iter(TRACE)
    with pytest.raises(HeadscopeError, match="W_O"):
        TRACE[1].output


def test_layers_of_different_heads_are_no_one_array() -> None:
    few, many = drawn(layers=1, heads=2), drawn(layers=1)
    both = Trace(model="made", queries=few.queries, layers=[*few.layers, *many.layers], outputs={})
    with pytest.raises(InputError, match="2 to 4 heads"):
        both.weights
    assert both[1].scores.shape == (HEADS, TOKENS, TOKENS)


# Weights of words: a map joined by words, of texts and pairs.


TEXT, PAIR = "The unbelievable cat-lovers sat.", "Antidisestablishmentarianism!"


def by_hand(tokens: tuple[str, ...], weights: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Clark et al. 2019, section 4.1, cell by cell; `##` continues a word."""
    words: list[list[int]] = []
    for at, token in enumerate(tokens):
        if token.startswith("##"):
            words[-1].append(at)
        else:
            words.append([at])
    cells = np.array([[np.mean([sum(weights[i, j] for j in to) for i in word]) for to in words] for word in words])
    return ["".join(tokens[at].removeprefix("##") for at in word) for word in words], cells


@pytest.fixture(scope="module")
def worded(bundled: hs.Model) -> hs.Trace:
    worded = bundled.trace(TEXT, PAIR)
    assert sum(token.startswith("##") for token in worded.tokens) > 3
    return worded


def test_weights_between_words_are_sums_of_means(worded: hs.Trace) -> None:
    for layer, head in ((0, 0), (2, 1), (3, 3)):
        words, cells = by_hand(worded.tokens, np.asarray(worded[layer, head].weights, dtype=np.float64))
        found = worded[layer, head].by_words()
        np.testing.assert_allclose(found, cells, atol=1e-6)
        np.testing.assert_allclose(found.array.sum(-1), 1, atol=1e-5)
        assert [word.lower() for word in found.queries] == [word.lower() for word in words]
        assert found.labels == found.queries
        assert found.dims == ("queries", "keys")
        frame = found.to_pandas()
        assert (list(frame.index), frame.index.name, frame.columns.name) == (list(found.queries), "query", "key")
        assert frame.loc["unbelievable", "sat"] == pytest.approx(cells[words.index("unbelievable"), words.index("sat")])


def test_special_tokens_are_words_that_can_be_left_out(worded: hs.Trace) -> None:
    whole, without = worded[1, 1].by_words(), worded[1, 1].by_words(special=False)
    kept = [at for at, word in enumerate(whole.queries) if not word.startswith("[")]
    np.testing.assert_array_equal(without, whole[np.ix_(kept, kept)])
    assert without.queries == tuple(whole.queries[at] for at in kept)
    assert (without.array.sum(-1) < 1).all()


def test_all_heads_at_once(worded: hs.Trace) -> None:
    every, layer = worded.by_words(), worded[2].by_words(special=False)
    assert every.heads == tuple((at, head) for at in range(4) for head in range(4))
    for place, head in enumerate(every.heads):
        np.testing.assert_array_equal(every[place], worded[head].by_words())
    np.testing.assert_array_equal(layer[3], worded[2, 3].by_words(special=False))
    assert layer.heads == ((2, 0), (2, 1), (2, 2), (2, 3))
    frame = every.to_pandas()
    assert frame.index.names == ["layer", "head", "query"]
    assert frame.loc[(2, 3)].loc["sat", "The"] == pytest.approx(worded[2, 3].by_words().to_pandas().loc["sat", "The"])


def test_keys_of_cross_attention_have_their_own_names() -> None:
    crossed = some_heads(keys=6, stack="cross")
    found = crossed[0, 1].by_words()
    assert (found.shape, found.queries, found.labels) == ((4, 6), crossed.tokens, crossed.keys.tokens)
    np.testing.assert_allclose(found, crossed[0, 1].weights, atol=1e-6)
    assert crossed.frame(0, 1).shape == (4, 6)


def test_a_frame_has_the_tokens_as_names(worded: hs.Trace) -> None:
    frame = worded.frame(3, 1)
    assert (list(frame.index), list(frame.columns)) == ([*worded.tokens], [*worded.tokens])
    np.testing.assert_array_equal(frame.to_numpy(), worded[3, 1].weights[:])
    kept = np.flatnonzero(~worded.special)
    np.testing.assert_allclose(
        worded.frame(3, 1, special=False), worded[3, 1].weights[:][np.ix_(kept, kept)], atol=1e-6
    )
    pd.testing.assert_frame_equal(worded.frame(3, 1, words=True), worded[3, 1].by_words().to_pandas())


@pytest.mark.parametrize("words", [False, True])
def test_a_text_of_special_tokens_alone_has_an_empty_frame(words: bool) -> None:
    model = hs.open()
    whole = model.trace("The cat sat.")
    bare = model.trace(ids=[number for number, special in zip(whole.ids, whole.special, strict=True) if special])
    frame = bare.frame(0, 1, words=words, special=False)
    assert (frame.shape, frame.index.name, frame.columns.name) == ((0, 0), "query", "key")
    every = bare.by_words(special=False).to_pandas()
    assert (every.shape, list(every.index.names)) == ((0, 0), ["layer", "head", "query"])


def test_arrays_of_xarray(worded: hs.Trace) -> None:
    words = worded.by_words()
    found = words.to_xarray()
    assert (found.dims, found.name) == (("heads", "queries", "keys"), "weights")
    cell = found.sel(heads="2.1", queries="sat", keys="The")
    assert float(cell) == worded[2, 1].by_words().to_pandas().loc["sat", "The"]
    np.testing.assert_array_equal(found.coords["keys"], list(words.queries))
    states = worded.outputs["last_hidden_state"]
    assert (states.to_xarray().dims, [*states.to_xarray().coords]) == (states.dims, [])
    np.testing.assert_array_equal(states.to_xarray(), states)


def test_tables_of_xarray(worded: hs.Trace) -> None:
    table = worded.statistics(["entropy", "first"])
    found = table.to_xarray()
    assert [*found.data_vars] == [*table]
    assert float(found["entropy"].sel(layers=3, heads=1)) == table["entropy"][3, 1]
    queries = worded.statistics("entropy", per_query=True)
    np.testing.assert_array_equal(queries.to_xarray()["entropy"].sel(layers=2, heads=0), queries["entropy"].array[2, 0])


@pytest.mark.parametrize("name", ["pandas", "xarray"])
def test_a_missing_library_is_named(name: str, worded: hs.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=f"{name} is not installed"):
        getattr(worded[0, 0].by_words(), f"to_{name}")()

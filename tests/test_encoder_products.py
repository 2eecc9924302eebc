"""Products with weights as they are stored, attention without mask, norms and scratch memory, each against fp64."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

import headscope as hs
from headscope.encoder import Input, attending, forward
from headscope.encoder.attending import attend_everywhere
from headscope.encoder.products import (
    BEYOND,
    FEW_TEXTS,
    FEW_TOKENS,
    QKVBuffer,
    as_stored,
    block_rows,
    empty_aligned,
    few_product,
    is_aligned,
    many_product,
    transposed,
)
from headscope.encoder.role_weights import SCRATCH_NUMBERS
from headscope.traces import LayerRecord
from random_models import ids, made


def fresh(_purpose: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, np.nan, dtype=np.float32)


@pytest.mark.parametrize("tokens", [1, 12, FEW_TOKENS, FEW_TOKENS + 1, 70])
@pytest.mark.parametrize("rows", [8, 96, 50])
@pytest.mark.parametrize("layout", ["whole", "some rows", "transposed"])
def test_products_are_those_of_fp64(tokens: int, rows: int, layout: str) -> None:
    generator = np.random.default_rng(rows)
    x = generator.normal(size=(tokens, 40)).astype(np.float32)
    stored = generator.normal(size=(rows, 40)).astype(np.float32)
    if layout == "some rows":
        stored = np.concatenate([stored, stored, stored])[rows : 2 * rows]
    elif layout == "transposed":
        stored = np.asfortranarray(stored)
    expected = x.astype(np.float64) @ stored.astype(np.float64).T
    wide = np.full((tokens, 3 * rows), np.nan, dtype=np.float32)
    np.testing.assert_allclose(few_product(x, stored, wide[:, rows : 2 * rows]), expected, atol=2e-5)
    assert np.isnan(wide[:, :rows]).all()
    assert np.isnan(wide[:, 2 * rows :]).all()
    columns = many_product(x, stored, np.full((rows, tokens), np.nan, dtype=np.float32))
    np.testing.assert_allclose(columns, expected.T, atol=2e-5)


@pytest.mark.parametrize(("out", "into"), [(768, 768), (3072, 768), (768, 3072), (1152, 768), (1024, 4096), (50, 40)])
@pytest.mark.parametrize("tokens", [1, 12, 32])
def test_blocks_divide_a_weight_and_are_small_enough_for_blas(out: int, into: int, tokens: int) -> None:
    rows = block_rows(out, into, tokens)
    assert out % 4 != 0 if rows == 0 else out % rows == 0
    assert rows * tokens <= 1200
    assert rows * tokens * into <= 10**6


@pytest.mark.parametrize("shape", [(1,), (3, 5), (12, 768)])
def test_memory_begins_at_a_cache_line(shape: tuple[int, ...]) -> None:
    arrays = [empty_aligned(shape) for _ in range(5)]
    assert all(is_aligned(array) and array.shape == shape and array.flags.c_contiguous for array in arrays)
    assert not is_aligned(np.frombuffer(bytes(256), np.uint8)[1:65])


def test_arrays_in_a_buffer_lie_one_after_another() -> None:
    buffer = QKVBuffer(26)
    first, second = buffer.take((2, 4)), buffer.take((3, 6))
    first[...], second[...] = 1, 2
    assert first.shape == (2, 4)
    np.testing.assert_array_equal(first, 1)
    assert second.__array_interface__["data"][0] - first.__array_interface__["data"][0] == first.nbytes


@pytest.mark.parametrize("family", ["Bert", "EuroBert"])
def test_the_buffer_of_a_text_is_as_large_as_its_queries_keys_and_values(tmp_path: Path, family: str) -> None:
    made(tmp_path, family)
    layers = hs.open(tmp_path).trace(ids=ids(9)).layers
    ends = [array.__array_interface__["data"][0] + array.nbytes for layer in layers for array in layer_arrays(layer)]
    starts = [array.__array_interface__["data"][0] for layer in layers for array in layer_arrays(layer)]
    assert starts[1:] == ends[:-1]


def layer_arrays(layer: LayerRecord) -> tuple[np.ndarray, ...]:
    return layer.q, layer.k, layer.v


def test_copies_are_the_weights_side_by_side() -> None:
    kept, stored = {}, [np.arange(rows * 40, dtype=np.float32).reshape(rows, 40) for rows in (8, 96, 70)]
    below = np.concatenate(stored)
    copy, across = as_stored(kept, "a", stored), transposed(kept, "a", stored)
    np.testing.assert_array_equal(copy, below)
    np.testing.assert_array_equal(across, below.T)
    assert is_aligned(copy)
    assert is_aligned(across)
    assert across.strides[0] >= (174 + BEYOND) * 4
    assert across.strides[0] // 64 % 2 == 1
    assert as_stored(kept, "a", stored) is copy


def test_a_weight_that_begins_at_a_cache_line_needs_no_copy_as_stored() -> None:
    weight = empty_aligned((8, 16))
    assert as_stored({}, "a", [weight]) is weight


@pytest.mark.parametrize("family", ["Bert", "Albert", "ModernBert", "EuroBert", "DebertaV2"])
@pytest.mark.parametrize("tokens", [9, FEW_TOKENS + 9])
def test_many_texts_are_as_each(tmp_path: Path, family: str, tokens: int) -> None:
    """A list of texts multiplies by copies, a text by weights as stored."""
    made(tmp_path, family)
    model = hs.open(tmp_path)
    assert model.encoder.copies is None
    many, alone = model.encoder.for_many_texts, model.encoder
    sequence = Input(np.array(ids(tokens)), np.zeros(tokens, dtype=np.int64))
    (with_copies,), (alone_states,) = (encoder.forward([sequence], hidden_states=True) for encoder in (many, alone))
    assert many.copies
    for first, last in zip(alone_states.hidden, with_copies.hidden, strict=True):
        np.testing.assert_allclose(last, first, atol=2e-5)


def test_copies_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers' matrices in both orders, or nothing: what is copied doesn't depend on what was computed before."""
    built = made(tmp_path, "Bert").module
    matrices = [parameter for name, parameter in built.named_parameters() if ".layer." in name and parameter.ndim == 2]
    size = 2 * 4 * sum(parameter.numel() for parameter in matrices)
    monkeypatch.setattr(forward, "COPIED_BYTES", size)
    assert hs.open(tmp_path).encoder.for_many_texts.copies is not None
    monkeypatch.setattr(forward, "COPIED_BYTES", size - 1)
    assert hs.open(tmp_path).encoder.for_many_texts.copies is None


@pytest.mark.parametrize("text", ["The cat sat.", 9 * "The cat sat on the mat. "])
def test_the_same_call_gives_the_same_bytes(text: str) -> None:
    """However often, whatever was computed in between, and with the model opened anew; one text, and a list of them."""
    used = hs.open()
    first, *later = (used.trace(text) for _ in range(5))
    many = [text] * (FEW_TEXTS + 2)
    once, *again = (list(map(bytes_of, model.trace(many))) for model in (used, used, hs.open()))
    assert all(bytes_of(trace) == bytes_of(first) for trace in (*later, hs.open().trace(text)))
    assert all(traces == once for traces in again)


def bytes_of(trace: hs.Trace) -> list[bytes]:
    """All numbers of the layers, to the bit."""
    return [array.tobytes() for layer in trace.layers for array in (*layer_arrays(layer), layer.lse)]


@pytest.mark.parametrize("cells", [300, 5000, 1 << 17])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("size", [0.3, 1.0, 12.0, 300.0])
def test_attention_is_torchs(monkeypatch: pytest.MonkeyPatch, cells: int, kv_heads: int, size: float) -> None:
    """Also with scores beyond exp's range in fp32, where the highest score of each row is subtracted."""
    monkeypatch.setattr(attending, "TILE_CELLS", cells)
    generator = np.random.default_rng(int(size))
    q = (size * generator.normal(size=(6, 33, 8))).astype(np.float32)
    k, v = generator.normal(size=(2, kv_heads, 40, 8)).astype(np.float32)
    context, lse = attend_everywhere(q, k, v, scale=0.35, scratch=fresh)
    exact = [torch.from_numpy(x.astype(np.float64)) for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*exact, scale=0.35, enable_gqa=True)
    keys = exact[1].repeat_interleave(6 // kv_heads, 0)
    sums = torch.logsumexp(0.35 * exact[0] @ keys.transpose(1, 2), -1)
    np.testing.assert_allclose(context, expected.numpy(), atol=3e-6 * max(1, size))
    np.testing.assert_allclose(lse, sums.numpy(), atol=1e-6, rtol=1e-6)


def test_infinite_numbers_stay_visible() -> None:
    q, k, v = np.ones((3, 1, 4, 8), dtype=np.float32)
    q[0, 2, 3] = np.inf
    k[0, 1, 3] = np.nan
    context, _ = attend_everywhere(q, k, v, scale=1.0, scratch=fresh)
    assert np.isnan(context).any()


def test_scratch_memory_is_each_threads_own_and_bounded(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    encoder = hs.open(tmp_path).encoder
    first = encoder.scratch("tile", (4, 5))
    assert np.shares_memory(first, encoder.scratch("tile", (10,)))
    assert not np.shares_memory(first, encoder.scratch("scaled", (10,)))
    elsewhere: list[np.ndarray] = []
    worker = threading.Thread(target=lambda: elsewhere.append(encoder.scratch("tile", (4, 5))))
    worker.start()
    worker.join()
    assert not np.shares_memory(first, elsewhere[0])
    large = encoder.scratch("tile", (SCRATCH_NUMBERS + 1,))
    assert not np.shares_memory(large, encoder.scratch("tile", (SCRATCH_NUMBERS + 1,)))


def test_a_trace_holds_no_scratch_memory(tmp_path: Path) -> None:
    """A second text leaves the first one's trace as it is."""
    made(tmp_path, "NomicBert", "ForMaskedLM")
    model = hs.open(tmp_path)
    trace = model.trace(ids=ids(30), hidden_states=True)
    copies = [state.array.copy() for state in trace.hidden_states]
    weights = trace[1].weights[:].copy()
    model.trace(ids=ids(30, 1), hidden_states=True)
    for state, copy in zip(trace.hidden_states, copies, strict=True):
        np.testing.assert_array_equal(state.array, copy)
    np.testing.assert_array_equal(trace[1].weights[:], weights)


@pytest.mark.parametrize(
    ("settings", "threads"),
    [({"OMP_NUM_THREADS": "1"}, 1), ({"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "1"}, 2)],
)
def test_threads_are_blas_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], threads: int
) -> None:
    made(tmp_path, "Bert")
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    pool = hs.open(tmp_path).encoder.threads
    assert (1 if pool is None else pool._max_workers) == threads


def test_the_tests_multiply_in_as_many_threads_as_conftest_says() -> None:
    """If NumPy is imported before, processes wait for one another's threads, and take three times as long."""
    numbers = {found["num_threads"] for found in threadpool_info() if found["internal_api"] == "openblas"}
    assert numbers == {min(int(os.environ["OPENBLAS_NUM_THREADS"]), os.cpu_count() or 1)}

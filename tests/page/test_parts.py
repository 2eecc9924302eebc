"""The parts of a large trace against fp64; traces of some layers and heads, and of cross-attention, shown and saved."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope as hs
from by_hand import Projection, axis_of, by_definition, ends, some_heads
from headscope.attention.scores import Mask
from headscope.errors import InputError
from headscope.heads import grid
from headscope.heads.measure import all_patterns
from headscope.page import trace_parts
from headscope.page.trace import page_bytes
from headscope.page.trace_parts import header_bytes, is_large, part
from headscope.screens import saving
from headscope.screens.attention_sheets import attend_sheet
from headscope.screens.saving import save_attention
from headscope.screens.terminal import Paper, plain_text
from headscope.traces import LayerRecord, Trace
from making import sealed_trace
from small_bert import small_bert

TOKENS, HEADS, KEY_HEADS, WIDTH = 23, 4, 2, 5
RANDOM = np.random.default_rng(7)
HIDDEN = np.arange(TOKENS) < TOKENS - 3
BIAS = RANDOM.normal(size=(HEADS, TOKENS, TOKENS)).astype(np.float32)
MASKS = {
    "everything": Mask(),
    "causal": Mask(causal=True),
    "window": Mask(window=(2, 4)),
    "padding": Mask(keys=HIDDEN),
    "bias": Mask(bias=BIAS),
}


def trace_with(mask: Mask, *, lse: bool = False) -> Trace:
    generator = np.random.default_rng(3)
    q = generator.normal(size=(HEADS, TOKENS, WIDTH)).astype(np.float32)
    k, v = (generator.normal(size=(KEY_HEADS, TOKENS, WIDTH)).astype(np.float32) for _ in range(2))
    record = LayerRecord(q, k, v, lse=None, scale=0.7, mask=mask)
    if lse:
        assert record.lse.shape == (HEADS, TOKENS)
    axis = axis_of(TOKENS, special=ends(TOKENS), words=tuple(n // 2 for n in range(TOKENS)))
    trace = Trace(model="random", queries=axis, layers=[record], outputs={}, text=None)
    return trace.replaced(source=Projection(HEADS, WIDTH, 11))


@cache
def defined(name: str) -> np.ndarray:
    """The weights of all heads with a mask, by their definition."""
    record = trace_with(MASKS[name]).layers[0]
    return by_definition(record.q, record.k, record.v, record.scale, record.mask)[1]


def weights(trace: Trace, head: int) -> np.ndarray:
    (name,) = (name for name, mask in MASKS.items() if mask is trace.layers[0].mask)
    return defined(name)[head]


def norms(trace: Trace, head: int) -> np.ndarray:
    v = trace.layers[0].v
    return np.asarray(np.linalg.norm(v[head // 2].astype(float) @ Projection(HEADS, WIDTH, 11).W_O(0, head), axis=-1))


def numbers(trace: Trace, **request: Any) -> np.ndarray:
    return np.frombuffer(part(trace, request), "<f4")


@pytest.mark.parametrize("lse", [True, False])
def test_parts_of_a_trace_in_half_precision_are_computed_in_fp32(lse: bool) -> None:
    """Products of numbers of some hundreds are beyond fp16 before the scale."""
    whole = trace_with(Mask())
    loud = {"q": 300 * whole.layers[0].q, "k": 300 * whole.layers[0].k, "v": 1e4 * whole.layers[0].v}
    halves = {name: array.astype(np.float16) for name, array in loud.items()}
    record = replace(whole.layers[0], **halves, scale=1e-5, lse=None)  # type: ignore[arg-type]
    if lse:
        assert np.isfinite(record.lse).all()
    trace = whole.replaced(layers=[record], precision="fp16")
    _, cells, contexts, _ = by_definition(*(halves[name].astype(float) for name in "qkv"), record.scale, record.mask)
    tile = numbers(trace, want="tile", layer=0, head=3, box=[0, TOKENS, 0, TOKENS], height=TOKENS, width=TOKENS)
    np.testing.assert_allclose(tile.reshape(TOKENS, TOKENS), cells[3], atol=1e-6)
    keys = [2, 5]
    masses = numbers(trace, want="masses", layer=0, queries=[4], keys=keys)
    np.testing.assert_allclose(masses, cells[:, 4, keys].sum(-1), atol=1e-6)
    W_O = np.stack([Projection(HEADS, WIDTH, 11).W_O(0, head) for head in range(HEADS)])
    sizes = numbers(trace, want="writes", layer=0, query=6)[:HEADS]
    np.testing.assert_allclose(sizes, np.linalg.norm(np.einsum("hd,hdm->hm", contexts[:, 6], W_O), axis=-1), rtol=1e-5)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("cells", [1 << 20, 60])
def test_a_picture_of_every_cell_is_the_head_s_weights(name: str, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_parts, "CELLS", cells)
    trace = trace_with(MASKS[name])
    for head in range(HEADS):
        box = [2, 20, 3, 21]
        whole = numbers(trace, want="tile", layer=0, head=head, box=box, height=100, width=100).reshape(18, 18)
        np.testing.assert_allclose(whole, weights(trace, head)[2:20, 3:21], atol=1e-6)
    assert not trace.layers[0].has_lse, "log-sum-exps of a long text take minutes"


@pytest.mark.parametrize(("height", "width", "every"), [(7, 5, 1), (23, 4, 1), (4, 23, 3), (50, 50, 4), (3, 3, 5)])
def test_a_picture_is_pooled_by_its_largest_cell(height: int, width: int, every: int) -> None:
    trace = trace_with(MASKS["causal"])
    picture = numbers(
        trace, want="tile", layer=0, head=1, box=[0, TOKENS, 0, TOKENS], height=height, width=width, every=every
    )
    rows = weights(trace, 1)[::every]
    tall, wide = min(height, len(rows)), min(width, TOKENS)
    expected = np.zeros((tall, wide))
    for i in range(len(rows)):
        for j in range(TOKENS):
            at = i * tall // len(rows), j * wide // TOKENS
            expected[at] = max(expected[at], rows[i, j])
    np.testing.assert_allclose(picture.reshape(tall, wide), expected, atol=1e-6)


@pytest.mark.parametrize("cells", [1 << 20, 30])
@pytest.mark.parametrize("normed", [False, True])
def test_words_are_joined_and_hidden_keys_redistributed(
    normed: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean over a word's queries of the sum over a word's keys, divided by what is left of the row."""
    monkeypatch.setattr(trace_parts, "CELLS", cells)
    trace = trace_with(MASKS["everything"])
    words = [[1], [2, 3, 4], [5, 6], *([n] for n in range(7, 22))]
    joined = {"starts": np.cumsum([0, *map(len, words)]).tolist(), "members": [n for word in words for n in word]}
    size = len(words)
    request: dict[str, Any] = {"want": "tile", "layer": 0, "head": 2, "height": 100, "width": 100, "normed": normed}
    request |= {"rows": joined, "columns": joined, "renormalise": True}
    rows = weights(trace, 2)
    kept = rows / rows[:, 1:22].sum(-1, keepdims=True) * (norms(trace, 2) if normed else 1)
    expected = np.array([[kept[np.ix_(down, across)].sum(-1).mean() for across in words] for down in words])
    picture = numbers(trace, **request, box=[0, size, 0, size])
    np.testing.assert_allclose(picture.reshape(size, size), expected, rtol=1e-5)
    inner = numbers(trace, **request, box=[1, 4, 1, 6])
    np.testing.assert_allclose(inner.reshape(3, 5), expected[1:4, 1:6], rtol=1e-5)


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("kept", [None, list(range(1, 22))])
def test_the_weight_between_sets_of_tokens(lse: bool, name: str, normed: bool, kept: list[int] | None) -> None:
    trace = trace_with(MASKS[name], lse=lse)
    queries, keys = [4, 5, 9], [2, 3, 7]
    request = {"want": "masses", "layer": 0, "queries": queries, "keys": keys, "kept": kept, "normed": normed}
    expected = []
    for head in range(HEADS):
        rows = weights(trace, head)[queries]
        share = 1 if kept is None else rows[:, kept].sum(-1)
        mass = (rows[:, keys] * (norms(trace, head)[keys] if normed else 1)).sum(-1)
        expected.append((mass / share).mean())
    np.testing.assert_allclose(numbers(trace, **request), expected, rtol=1e-5)


def test_a_head_s_arrays_are_the_trace_s() -> None:
    trace = trace_with(MASKS["bias"])
    record = trace.layers[0]
    expected = np.concatenate([record.q[3].ravel(), record.k[1].ravel(), BIAS[3].ravel()])
    np.testing.assert_array_equal(numbers(trace, want="head", layer=0, head=3), expected)
    np.testing.assert_array_equal(numbers(trace, want="values", layer=0, head=3), record.v[1].ravel())
    np.testing.assert_allclose(numbers(trace, want="norms", layer=0, head=3), norms(trace, 3), rtol=1e-5)


def test_what_the_heads_write_at_a_query() -> None:
    trace = trace_with(MASKS["causal"]).replaced(ablated=frozenset({(0, 1)}))
    v = trace.layers[0].v
    written = np.stack(
        [weights(trace, head)[9] @ v[head // 2] @ Projection(HEADS, WIDTH, 11).W_O(0, head) for head in range(HEADS)]
    )
    written[1] = 0
    total = written.sum(0)
    sizes, shares = numbers(trace, want="writes", layer=0, query=9).reshape(2, HEADS)
    np.testing.assert_allclose(sizes, np.linalg.norm(written, axis=-1), rtol=1e-4)
    np.testing.assert_allclose(shares, written @ total / (total @ total), atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_statistics_of_some_heads_are_from_every_nth_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MEASURED_CELLS", TOKENS**2 // 2)
    monkeypatch.setattr(grid, "RUN", 2)
    trace = trace_with(MASKS[name])
    assert is_large(trace)
    answer = numbers(trace, want="measures", layer=0, heads=[1, 4])
    assert not trace.layers[0].has_lse
    broken, rest = answer[:3], answer[3:]
    assert not broken.any()
    names = list(grid.ON_PAGE)
    table = dict(zip(names, rest[: 3 * len(names)].reshape(-1, 3), strict=True))
    thumbs = rest[3 * len(names) :].reshape(3, TOKENS, TOKENS)
    rows = [row for row in range(TOKENS) if row // 2 % 3 == 0]
    seen = [row for row in rows if name != "padding" or HIDDEN[row]]
    for at, head in enumerate((1, 2, 3)):
        whole = weights(trace, head)
        assert table["strongest"][at] == pytest.approx(whole[seen].max(-1).mean(), rel=1e-5)
        logs = np.log(whole[seen], where=whole[seen] > 0, out=np.zeros_like(whole[seen]))
        assert table["entropy"][at] == pytest.approx(-(whole[seen] * logs).sum(-1).mean(), rel=1e-4)
        np.testing.assert_allclose((thumbs[at][rows] / 255) ** 2, whole[rows], atol=8e-3)


def test_heads_whose_numbers_are_nan_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MEASURED_CELLS", TOKENS**2 // 4)
    monkeypatch.setattr(grid, "RUN", 1)
    trace = trace_with(MASKS["causal"])
    record = trace.layers[0]
    q = record.q.copy()
    q[2, 1] = np.nan  # a query that isn't measured
    trace = trace.replaced(layers=[replace(record, q=q)])
    answer = numbers(trace, want="measures", layer=0, heads=[0, 4])
    assert answer[:4].tolist() == [0, 0, 1, 0]


def test_the_header_has_shapes_and_tokens_and_no_arrays() -> None:
    trace = trace_with(MASKS["padding"])
    raw = header_bytes(trace)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    view = json.loads(header.pop("__metadata__")["headscope.view"])
    assert list(header) == ["layers.0.mask.keys"]
    assert view["away"]["layers.0.q"] == [HEADS, TOKENS, WIDTH]
    assert view["away"]["layers.0.k"] == [KEY_HEADS, TOKENS, WIDTH]
    assert view["norms"] is True
    assert len(view["labels"]) == TOKENS
    assert len(raw) < 8 + length + 2 * TOKENS
    assert not trace.layers[0].has_lse


def test_what_a_trace_lacks_is_refused() -> None:
    trace = trace_with(MASKS["everything"])
    heads = ({"want": "head", "layer": layer, "head": head} for layer, head in ((0, HEADS), (-1, 0)))
    rows = {"want": "writes", "layer": 0, "query": TOKENS}, {"want": "beside", "query": -1}
    for lacking in ({}, {"want": "all"}, *heads, *rows):
        with pytest.raises(InputError):
            part(trace, lacking)
    bare = trace.replaced(layers=[replace(trace.layers[0], v=None)])
    for request in (
        {"want": "values", "layer": 0, "head": 0},
        {"want": "norms", "layer": 0, "head": 0},
        {"want": "writes", "layer": 0, "query": 0},
    ):
        with pytest.raises(InputError, match="no values"):
            part(bare, request)
    assert isinstance(bare, hs.Trace)


# Traces of some layers and heads, and of cross-attention: the model's own numbers and labels.


NUMBERS = (0, 5)
KEPT_HEADS = (1, 3)


def screen(trace: Trace, **options: Any) -> str:
    return plain_text(attend_sheet(trace, **options).drawings, Paper(width=100))


def test_the_grid_has_the_models_numbers() -> None:
    displayed = screen(some_heads())
    assert "the heads that were kept: 2 layers × 2 heads" in displayed
    lines = displayed.splitlines()
    head = next(at for at, line in enumerate(lines) if line.lstrip().startswith("head "))
    assert lines[head].split() == ["head", "1", "3"]
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["layer", "0"], ["layer", "5"]]
    assert [(one.layer, one.head) for one in all_patterns(some_heads())] == [(0, 1), (0, 3), (5, 1), (5, 3)]
    assert "all heads: 2 layers × 2 heads" in screen(some_heads(numbers=(None, None), heads=None))  # type: ignore[arg-type]
    trace = some_heads()
    for one in all_patterns(trace, [5]):
        cells = np.asarray(trace[one.layer, one.head].weights)
        assert one.means["first"] == pytest.approx(cells[:, 0].mean(), abs=1e-5)
    assert "layer 5: 2 heads" in screen(some_heads(), layer=5)
    assert "layer 5: 2 heads" in screen(some_heads(), layer=-1)
    assert "layer 5, head 3 (counted from 0)" in screen(some_heads(), layer=5, head=3)
    with pytest.raises(InputError, match="layer 1 was not kept: the trace has layers 0, 5"):
        screen(some_heads(), layer=1)
    trace = some_heads(keys=6)
    for options in ({}, {"top": 6}, {"query": "q2", "top": 6}):
        displayed = screen(trace, layer=5, head=3, **options)
        assert "k5" in displayed
        assert "q2" in displayed
    assert "k5" not in screen(trace)
    assert "k5" in screen(trace, layer=5, head=3, start=5)
    with pytest.raises(InputError, match="no token 6: the text has 6 tokens"):
        screen(trace, layer=5, head=3, start=6)


def test_saved_weights_carry_the_numbers(tmp_path: Path) -> None:
    trace = some_heads()
    assert save_attention(trace, tmp_path / "all.npz") == "weights of 2 × 2 heads, 4 × 4 each"
    saved = np.load(tmp_path / "all.npz")
    assert set(saved.files) == {"weights", "layers", "heads", "tokens", "ids", "segments"}
    assert saved["layers"].tolist() == [0, 5]
    assert saved["heads"].tolist() == [1, 3]
    assert saved["weights"].shape == (2, 2, 4, 4)
    np.testing.assert_array_equal(saved["weights"][1, 1], np.asarray(trace[5, 3].weights))
    assert (tuple(saved["tokens"]), tuple(saved["ids"])) == (trace.tokens, trace.ids)
    save_attention(trace, tmp_path / "one.npz", layer=-1, head=1)
    saved = np.load(tmp_path / "one.npz")
    assert (saved["layers"].tolist(), saved["heads"].tolist()) == ([5], [1])
    np.testing.assert_array_equal(saved["weights"][0, 0], np.asarray(trace[5, 1].weights))
    save_attention(trace, tmp_path / "one.csv", layer=5)
    rows = (tmp_path / "one.csv").read_text().splitlines()[1:]
    assert {tuple(row.split(",")[:2]) for row in rows} == {("5", "1"), ("5", "3")}
    trace = trace.replaced(layers=(trace.layers[0], replace(trace.layers[1], numbers=(0, 2))))
    with pytest.raises(InputError, match="layers 0 and 5 have different heads"):
        save_attention(trace, tmp_path / "unlike.npz")
    save_attention(trace, tmp_path / "unlike.csv")
    rows = (tmp_path / "unlike.csv").read_text().splitlines()[1:]
    assert {tuple(row.split(",")[:2]) for row in rows} == {("0", "1"), ("0", "3"), ("5", "0"), ("5", "2")}
    fewer = {name: getattr(trace.layers[1], name)[:1] for name in ("q", "k", "v", "lse")}
    trace = trace.replaced(layers=(trace.layers[0], replace(trace.layers[1], numbers=(2,), **fewer)))
    assert save_attention(trace, tmp_path / "unlike.csv") == "weights of 3 heads, 4 × 4 each"
    assert len((tmp_path / "unlike.csv").read_text().splitlines()) == 1 + 3 * 4 * 4


def test_the_page_is_told_the_numbers(tmp_path: Path) -> None:
    again = hs.load(sealed_trace(tmp_path / "page.safetensors", page_bytes(some_heads(), dtype="fp32")))
    assert again.numbers == NUMBERS
    assert [again.head_numbers(number) for number in NUMBERS] == [KEPT_HEADS, KEPT_HEADS]
    np.testing.assert_allclose(np.asarray(again[5, 3].weights), np.asarray(some_heads()[5, 3].weights), atol=1e-6)
    assert page_bytes(some_heads(keys=6))


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return hs.open(small_bert(tmp_path_factory.mktemp("small"))).trace("The cat sat.")


def test_csv_is_one_line_per_cell_and_safetensors_is_the_trace(trace, tmp_path):
    save_attention(trace, tmp_path / "w.csv", layer=0)
    rows = list(csv.DictReader((tmp_path / "w.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 2 * 6 * 6
    weights = np.zeros((2, 6, 6), np.float32)
    for row in rows:
        weights[int(row["head"]), int(row["query"]), int(row["key"])] = float(row["weight"])
        assert row["key_token"] == trace.tokens[int(row["key"])]
    np.testing.assert_array_equal(weights[1], np.asarray(trace[0, 1].weights))
    save_attention(trace, tmp_path / "w.safetensors", layer=0)
    again = hs.load(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(np.asarray(again[1, 1].weights), np.asarray(trace[1, 1].weights))


def test_what_cannot_be_saved_is_refused_and_nothing_is_written(trace, tmp_path, monkeypatch):
    for name, message in (("w.png", "unsupported suffix"), ("w", "has no suffix"), ("w.npy", "unsupported suffix")):
        with pytest.raises(InputError, match=message):
            save_attention(trace, tmp_path / name)
    with pytest.raises(InputError, match="can't be written"):
        save_attention(trace, tmp_path / "no" / "w.npz")
    monkeypatch.setattr(saving, "MOST_CELLS", {".csv": 100})
    with pytest.raises(InputError, match="144 values, too many"):
        save_attention(trace, tmp_path / "w.csv")
    assert not list(tmp_path.iterdir())
    save_attention(trace, tmp_path / "w.csv", layer=0, head=0)

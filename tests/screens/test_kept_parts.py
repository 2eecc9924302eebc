"""Traces of some layers and heads, and of cross-attention: shown and saved with the model's own numbers and labels."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope as hs
from by_hand import axis_of
from headscope.errors import InputError
from headscope.heads.measure import all_patterns
from headscope.page.trace import page_bytes
from headscope.results.arrays import TokenAxis
from headscope.screens import saving
from headscope.screens.attention_sheets import attend_sheet
from headscope.screens.saving import save_arrays, save_attention
from headscope.screens.terminal import Paper, plain_text
from headscope.traces import LayerRecord, Trace
from small_bert import small_bert

NUMBERS = (0, 5)
HEADS = (1, 3)


def axis(prefix: str, size: int) -> TokenAxis:
    return axis_of([f"{prefix}{at}" for at in range(size)])


def made(keys: int | None = None, numbers: tuple[int, ...] = NUMBERS, heads: Any = HEADS) -> Trace:
    """A trace of some layers and heads; in cross-attention where the number of keys is given."""
    generator = np.random.default_rng(4)
    layers = []
    for number in numbers:
        q = generator.normal(size=(2, 4, 8)).astype(np.float32)
        k = generator.normal(size=(2, keys or 4, 8)).astype(np.float32)
        s = q @ k.swapaxes(1, 2) * 0.5
        lse = np.log(np.exp(s).sum(-1))
        layers.append(LayerRecord(q, k, k, lse, 0.5, number=number, numbers=heads))
    return Trace(
        model="made", queries=axis("q", 4), keys=None if keys is None else axis("k", keys), layers=layers, outputs={}
    )


def screen(trace: Trace, **options: Any) -> str:
    return plain_text(attend_sheet(trace, **options).drawings, Paper(width=100))


def test_the_grid_has_the_models_numbers() -> None:
    displayed = screen(made())
    assert "the heads that were kept: 2 layers × 2 heads" in displayed
    lines = displayed.splitlines()
    head = next(at for at, line in enumerate(lines) if line.lstrip().startswith("head "))
    assert lines[head].split() == ["head", "1", "3"]
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["layer", "0"], ["layer", "5"]]
    assert [(one.layer, one.head) for one in all_patterns(made())] == [(0, 1), (0, 3), (5, 1), (5, 3)]
    assert "all heads: 2 layers × 2 heads" in screen(made(numbers=(None, None), heads=None))  # type: ignore[arg-type]


def test_patterns_are_those_of_the_layer_that_is_meant() -> None:
    trace = made()
    for one in all_patterns(trace, [5]):
        cells = np.asarray(trace[one.layer, one.head].weights)
        assert one.means["first"] == pytest.approx(cells[:, 0].mean(), abs=1e-5)


def test_one_layer_and_one_head() -> None:
    assert "layer 5: 2 heads" in screen(made(), layer=5)
    assert "layer 5: 2 heads" in screen(made(), layer=-1)
    assert "layer 5, head 3 (counted from 0)" in screen(made(), layer=5, head=3)
    with pytest.raises(InputError, match="layer 1 was not kept: the trace has layers 0, 5"):
        screen(made(), layer=1)


def test_keys_of_cross_attention_have_their_own_labels() -> None:
    trace = made(keys=6)
    for options in ({}, {"top": 6}, {"query": "q2", "top": 6}):
        displayed = screen(trace, layer=5, head=3, **options)
        assert "k5" in displayed
        assert "q2" in displayed
    assert "k5" not in screen(trace)


def test_saved_weights_carry_the_numbers(tmp_path: Path) -> None:
    trace = made()
    assert save_attention(trace, tmp_path / "all.npz") == "weights of 2 × 2 heads, 4 × 4 each"
    saved = np.load(tmp_path / "all.npz")
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


def test_the_page_is_told_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "page.safetensors"
    path.write_bytes(page_bytes(made(), dtype="fp32"))
    again = hs.load(path)
    assert again.numbers == NUMBERS
    assert [again.head_numbers(number) for number in NUMBERS] == [HEADS, HEADS]
    np.testing.assert_allclose(np.asarray(again[5, 3].weights), np.asarray(made()[5, 3].weights), atol=1e-6)
    assert page_bytes(made(keys=6))


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return hs.open(small_bert(tmp_path_factory.mktemp("small"))).trace("The cat sat.")


def test_csv_is_one_line_per_cell(trace, tmp_path):
    save_attention(trace, tmp_path / "w.csv", layer=0)
    rows = list(csv.DictReader((tmp_path / "w.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 2 * 6 * 6
    weights = np.zeros((2, 6, 6), np.float32)
    for row in rows:
        weights[int(row["head"]), int(row["query"]), int(row["key"])] = float(row["weight"])
        assert row["key_token"] == trace.tokens[int(row["key"])]
    np.testing.assert_array_equal(weights[1], np.asarray(trace[0, 1].weights))


def test_safetensors_is_the_trace(trace, tmp_path):
    save_attention(trace, tmp_path / "w.safetensors", layer=0)
    again = hs.load(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(np.asarray(again[1, 1].weights), np.asarray(trace[1, 1].weights))


@pytest.mark.parametrize("name", ["w.png", "w", "w.npy"])
def test_other_kinds_are_refused_and_nothing_is_written(trace, tmp_path, name):
    with pytest.raises(InputError, match=r"unsupported suffix|has no suffix"):
        save_attention(trace, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(trace, tmp_path):
    with pytest.raises(InputError, match="can't be written"):
        save_attention(trace, tmp_path / "no" / "w.npz")


def test_an_array_that_would_need_pickle_is_refused(tmp_path):
    with pytest.raises(ValueError, match="pickle"):
        save_arrays(tmp_path / "w.npz", {"a": np.array([object()])})
    assert not list(tmp_path.iterdir())


def test_a_file_that_would_be_too_large_is_refused(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "MOST_CELLS", {".csv": 100})
    with pytest.raises(InputError, match="144 values, too many"):
        save_attention(trace, tmp_path / "w.csv")
    save_attention(trace, tmp_path / "w.csv", layer=0, head=0)

"""Files of weights and slices: read back by others, whole or not at all."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import headscope as hs
from headscope.errors import InputError
from headscope.screens import saving
from headscope.screens.saving import save_arrays, save_attention
from small_bert import small_bert


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return hs.open(small_bert(tmp_path_factory.mktemp("small"))).trace("The cat sat.")


def test_npz_holds_every_head(trace, tmp_path):
    message = save_attention(trace, tmp_path / "w.npz")
    assert message == "weights of 2 × 2 heads, 6 × 6 each"
    with np.load(tmp_path / "w.npz") as file:
        assert file["weights"].shape == (2, 2, 6, 6)
        np.testing.assert_array_equal(file["weights"][1, 0], np.asarray(trace[1, 0].weights))
        assert tuple(file["tokens"]) == trace.tokens
        assert tuple(file["ids"]) == trace.ids
        assert list(file["layers"]) == list(file["heads"]) == [0, 1]


def test_npz_of_one_head(trace, tmp_path):
    save_attention(trace, tmp_path / "w.npz", layer=-1, head=0)
    with np.load(tmp_path / "w.npz") as file:
        assert (list(file["layers"]), list(file["heads"])) == ([1], [0])
        np.testing.assert_array_equal(file["weights"][0, 0], np.asarray(trace[1, 0].weights))


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

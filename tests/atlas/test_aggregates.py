"""Aggregates against NumPy over all values at once, whatever the order, the parts and the memory in hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import parquet

from headscope.atlas.aggregates import MEASURES, aggregate, aggregates_record, aggregates_table, measures
from headscope.atlas.store import part_bytes, part_record
from headscope.files import fault, label_of

HEADS = ((0, 0), (0, 1), (2, 0))
STATISTICS = ("entropy", "offset")

VALUES = st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))


def by_numpy(column: np.ndarray) -> dict[str, float]:
    there = column[~np.isnan(column)].astype(np.float64)
    if not len(there):
        return {"count": 0} | dict.fromkeys(MEASURES[1:], np.nan)
    result = {"count": len(there), "mean": np.mean(there), "deviation": np.std(there), "min": there.min()}
    for name in ("q05", "q25", "q50", "q75", "q95"):
        result[name] = np.quantile(there, int(name[1:]) / 100)
    return result | {"max": there.max()}


def same(result: dict[str, np.ndarray], column: int, expected: dict[str, float]) -> None:
    scale = max(abs(expected["min"]), abs(expected["max"]), 1e-30) if expected["count"] else 1
    for name, number in expected.items():
        np.testing.assert_allclose(result[name][column], number, rtol=1e-12, atol=1e-12 * scale, err_msg=name)


@given(arrays(np.float32, st.tuples(st.integers(0, 40), st.integers(1, 3)), elements=VALUES))
def test_measures_are_numpys(values):
    result = measures(values.copy())
    for column in range(values.shape[1]):
        same(result, column, by_numpy(values[:, column]))


@given(arrays(np.float32, st.tuples(st.integers(1, 40), st.just(2)), elements=VALUES), st.randoms())
def test_order_changes_no_bit(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    one, other = measures(values.copy()), measures(values[order])
    for name in MEASURES:
        assert one[name].tobytes() == other[name].tobytes()


def written(folder: Path, values: np.ndarray, cuts: list[int]) -> list[Path]:
    paths = []
    for number, rows in enumerate(np.split(values, cuts)):
        data = part_bytes(
            documents=["a"],
            windows=[(0, at, 5) for at in range(len(rows))],
            heads=HEADS,
            values=rows,
            statistics=STATISTICS,
            label=f"{'0' * 64} parts/part-{number:05}.parquet ",
            record={"texts": str(number)},
        )
        paths.append(folder / f"part-{number:05}.parquet")
        paths[-1].write_bytes(data)
    return paths


@pytest.mark.parametrize("budget", [1, 100, 1 << 24])
def test_partition_and_memory_in_hand_change_no_bit(tmp_path, budget):
    values = np.random.default_rng(0).normal(size=(57, 3, 2)).astype(np.float32)
    values[values > 1.5] = np.nan
    values[:, 2, 1] = np.nan
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = aggregate(written(tmp_path / "whole", values, []), STATISTICS, 3)
    cut = aggregate(written(tmp_path / "cut", values, [0, 10, 11, 40]), STATISTICS, 3, budget=budget)
    for at, name in enumerate(STATISTICS):
        for measure in MEASURES:
            assert whole[name][measure].tobytes() == cut[name][measure].tobytes()
        for head in range(3):
            same(whole[name], head, by_numpy(values[:, head, at]))


def test_files_say_the_same(tmp_path):
    values = np.random.default_rng(1).normal(size=(9, 3, 2)).astype(np.float32)
    values[:, 1, 0] = np.nan
    result = aggregate(written(tmp_path, values, [4]), STATISTICS, 3)
    table = aggregates_table(result, HEADS)
    record = json.loads(json.dumps(aggregates_record(result, HEADS, 9), allow_nan=False))
    assert (record["windows"], record["layers"], record["heads"]) == (9, [0, 2], [[0, 1], [0]])
    assert table.column_names == ["statistic", "layer", "head", *MEASURES]
    rows = table.to_pylist()
    assert [(row["statistic"], row["layer"], row["head"]) for row in rows] == [
        (name, *head) for name in STATISTICS for head in HEADS
    ]
    for row in rows:
        at = record["layers"].index(row["layer"])
        for measure in MEASURES:
            assert row[measure] == record["statistics"][row["statistic"]][measure][at][row["head"]]
    assert rows[1]["count"] == 0
    assert rows[1]["mean"] is None


def test_a_part_is_the_same_bytes_and_knows_its_record(tmp_path):
    values = np.random.default_rng(2).normal(size=(5, 3, 2)).astype(np.float32)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (one,), (other,) = written(tmp_path / "a", values, []), written(tmp_path / "b", values, [])
    assert one.read_bytes() == other.read_bytes()
    assert part_record(one.read_bytes()) == {"texts": "0"}
    assert label_of(one.read_bytes()) == f"{'0' * 64} parts/part-00000.parquet "
    assert fault(one.read_bytes()) is None
    assert fault(one.read_bytes()[:-1]) == "its bytes do not match the hash written with them"
    assert fault(one.read_bytes()[:1000]) == "the hash written with it is missing"
    assert fault(b"") == "it is empty"


def test_nothing_is_null_in_a_part_and_no_nan(tmp_path):
    values = np.zeros((2, 3, 2), dtype=np.float32)
    values[0, 0, 0] = np.nan
    (path,) = written(tmp_path, values, [])
    column = parquet.read_table(path).column("entropy")
    assert column.null_count == 1
    assert column[0].as_py() is None
    assert np.isnan(column.to_numpy()[0])

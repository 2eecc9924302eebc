"""Aggregates against NumPy over all values at once, whatever the order, the parts and the memory in hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import parquet
from surveying import OPTIONS

import headscope as hs
from headscope.atlas.aggregates import MEASURES, aggregate, aggregates_record, aggregates_table, measures
from headscope.atlas.result import _place
from headscope.atlas.store import part_bytes, part_record
from headscope.errors import InputError
from headscope.files import fault, label_of
from headscope.results.head_values import HeadDistances

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


# How far the heads are apart, as a matrix, clusters and a figure; the way back to one's own rows.


TEXTS = ["The cat sat.", "", "A dog ran home to the old house.", "She reads."]


def average_linkage(distances: np.ndarray, count: int) -> set[frozenset[int]]:
    """Sokal and Michener 1958, as it reads: join the two groups whose members are nearest on average."""
    groups = [frozenset([at]) for at in range(len(distances))]
    while len(groups) > count:
        a, b = min(
            itertools.combinations(groups, 2), key=lambda two: distances[np.ix_(sorted(two[0]), sorted(two[1]))].mean()
        )
        groups = [group for group in groups if group not in (a, b)] + [a | b]
    return set(groups)


def test_the_similarity_of_a_survey_has_names_clusters_and_a_figure(tmp_path: Path, whole: hs.Survey) -> None:
    found = whole.similarity
    assert found.heads == tuple((layer, head) for layer in range(4) for head in range(4))
    frame = found.to_pandas()
    assert frame.loc["1.2", "3.0"] == found[6, 12]
    for count in (1, 3, 7, 16, 99):
        groups = found.clusters(count)
        members = {frozenset(found.heads.index(head) for head in group) for group in groups}
        assert members == average_linkage(found.array, count)
        assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)
    axes = found.plot(save=tmp_path / "heads.svg")
    assert {text.get_text() for text in axes.texts} <= {f"{layer}.{head}" for layer, head in found.heads}
    assert len(axes.texts) > 8
    assert "<svg" in (tmp_path / "heads.svg").read_text(encoding="utf-8")


def test_a_trace_s_distances_have_the_same(bert: hs.Model) -> None:
    found = bert.trace("the cat sat on the mat.").head_distances()
    assert isinstance(found, HeadDistances)
    assert sorted(itertools.chain(*found.clusters(2))) == sorted(found.heads)
    assert HeadDistances.of(np.zeros((1, 1)), [(0, 0)]).clusters(3) == [[(0, 0)]]
    with pytest.raises(InputError, match="count is 0"):
        found.clusters(0)
    with pytest.raises(InputError, match="not a number"):
        HeadDistances.of(np.full((2, 2), np.nan), found.heads[:2]).clusters(2)


def files_of(folder: Path) -> dict[str, tuple[Any, pd.DataFrame]]:
    """A corpus in each form, and its rows as pandas reads them."""
    frame = pd.DataFrame({"text": TEXTS, "stars": [4, 1, 3, 5]})
    frame.to_csv(folder / "a#b.csv", index=False)
    frame.to_parquet(folder / "rows.parquet")
    frame.to_json(folder / "rows.jsonl", orient="records", lines=True)
    return {
        "csv": (folder / "a#b.csv", pd.read_csv(folder / "a#b.csv")),
        "parquet": (folder / "rows.parquet", frame),
        "jsonl": (folder / "rows.jsonl", pd.read_json(folder / "rows.jsonl", lines=True)),
        "texts": (TEXTS, frame),
    }


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "texts"])
def test_rows_join_back_to_one_s_own(form: str, tmp_path: Path) -> None:
    """By pandas' own merge: each text's number of tokens beside its stars; an empty text was refused."""
    corpus, frame = files_of(tmp_path)[form]
    windows = hs.survey("-", corpus, out=tmp_path / "out", **OPTIONS).windows().to_pandas()
    assert set(windows["file"].dropna()) == (set() if form == "texts" else {Path(corpus).name})
    joined = windows[(windows["layer"] == 0) & (windows["head"] == 0)].merge(frame, left_on="row", right_index=True)
    assert joined["stars"].tolist() == [4, 3, 5]
    tokens = [len(hs.open("-").trace(text).tokens) for text in joined["text"]]
    assert joined["tokens"].tolist() == tokens


@pytest.mark.parametrize("digits", [5000, 19])
def test_a_name_of_many_digits_is_no_row(digits: int) -> None:
    """Python by itself reads no number of 5000 digits, and pyarrow none of 19 nines."""
    assert _place("9" * digits, set()) == _place("9" * digits + ":1", set()) == (None, None)
    assert _place("9" * 18, set()) == (None, 10**18 - 1)
    assert _place("a.csv#" + "9" * digits, {"a.csv"}) == ("a.csv", None)


def test_files_of_their_own_have_no_row_and_blank_lines_count(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a#1.txt").write_text("The cat sat on the mat.\n\nIt slept.", encoding="utf-8")
    lines = [json.dumps({"text": "A dog ran."}), "", json.dumps({"text": "She reads."})]
    (folder / "b.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for pieces in (1, 2):
        survey = hs.survey("-", folder, out=tmp_path / f"out{pieces}", pieces=pieces, **OPTIONS)
        places = set(
            map(tuple, survey.windows().select(["file", "row"]).to_pandas().astype(object).itertuples(index=False))
        )
        found = {(file, None if row != row else row) for file, row in places}
        assert found == {("a#1.txt", None), ("b.jsonl", 0), ("b.jsonl", 2)}

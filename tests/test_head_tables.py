"""Tables of heads: names of columns, places, rows, differences and intervals, each written out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from headscope.errors import InputError
from headscope.heads.intervals import mean_interval
from headscope.results.effect_records import Effects
from headscope.results.head_values import HeadValues, Measure
from headscope.results.table import HeadTable, MissingMeasureError, stacked

ENTROPY = Measure("entropy", meaning="spread", unit="nats", high=None)
CHANGE = Measure("effect", meaning="change", unit="logit", low=None, high=None)
HEADS = ((0, 2), (1, 2))
"""Layers 3 and 5 kept heads 0 and 2, and 1 and 2: columns 0, 1 and 2."""
PLACES = [((3, 0), (0, 0)), ((3, 2), (0, 2)), ((5, 1), (1, 1)), ((5, 2), (1, 2))]


def placed(numbers: list[float]) -> np.ndarray:
    """(layers, heads) from a number for each head, in the columns of their numbers."""
    array = np.full((2, 3), np.nan)
    for (_, position), number in zip(PLACES, numbers, strict=True):
        array[position] = number
    return array


def table(numbers: list[float], **more: Any) -> HeadTable:
    return HeadTable({"entropy": HeadValues.of(ENTROPY, placed(numbers))}, (3, 5), HEADS, **more)


def test_a_head_stands_in_the_column_of_its_number() -> None:
    found = table([1, 2, 3, 4])
    assert found.across == (0, 1, 2)
    assert list(found.positions().items()) == PLACES
    assert found.rows() == [
        {"layer": layer, "head": head, "entropy": at}
        for at, (layer, head) in zip((1, 2, 3, 4), [(3, 0), (3, 2), (5, 1), (5, 2)], strict=True)
    ]
    assert found.of((5, 1)) == {"entropy": 3}
    with pytest.raises(InputError, match=r"no head \(5, 0\)"):
        found.of((5, 0))
    with pytest.raises(MissingMeasureError, match="has entropy"):
        found["norm"]


@pytest.mark.parametrize("first", [True, False])
def test_rows_go_along_the_axes_as_the_arrays_do(first: bool) -> None:
    """Steps before layers: all heads of a step together. Queries after heads: all queries of a head together."""
    whole = np.stack([placed([1, 2, 3, 4]), placed([5, 6, 7, 8])], axis=0 if first else -1)
    dims = ("steps", "layers", "heads") if first else ("layers", "heads", "queries")
    along = {"steps": (10, 20)} if first else {"queries": range(2)}
    found = HeadTable({"entropy": HeadValues.of(ENTROPY, whole, dims)}, (3, 5), HEADS, along=along)
    keys = list(found.rows()[0])
    assert keys == (["step", "layer", "head", "entropy"] if first else ["layer", "head", "query", "entropy"])
    values = [row["entropy"] for row in found.rows()]
    assert values == ([1, 2, 3, 4, 5, 6, 7, 8] if first else [1, 5, 2, 6, 3, 7, 4, 8])
    np.testing.assert_array_equal(found.of((5, 2))["entropy"], [4, 8])
    assert len({tuple(row[key] for key in keys[:3]) for row in found.rows()}) == 8


def test_columns_are_named_by_one_rule() -> None:
    numbers = placed([1, 2, 3, 4])
    sampled = HeadValues.of(CHANGE, numbers, low=numbers - 1, high=numbers + 1, over="documents", interval="bootstrap")
    plain = HeadValues.of(CHANGE, numbers)
    assert [name for name, _ in plain.columns()] == ["effect"]
    assert [name for name, _ in sampled.columns()] == ["effect", "effect_low", "effect_high"]
    names = [name for name, _ in plain.minus(plain).columns()]
    assert names == ["effect_a", "effect_b", "effect_change", "effect_low", "effect_high"]
    change = replace(sampled, array=numbers + 2).minus(sampled, low=numbers, high=numbers + 3)
    assert {name: float(array[1, 2]) for name, array in change.columns()} == {
        "effect_a": 4,
        "effect_a_low": 3,
        "effect_a_high": 5,
        "effect_b": 6,
        "effect_b_low": 3,
        "effect_b_high": 5,
        "effect_change": 2,
        "effect_low": 4,
        "effect_high": 7,
    }


def test_rows_arrow_and_json_say_the_same() -> None:
    found = table([1, math.nan, 3, 4], facts={"label": {(3, 0): "previous word"}}, broken=frozenset({(3, 2)}))
    missing = [{**row, "entropy": None if row["entropy"] != row["entropy"] else row["entropy"]} for row in found.rows()]
    assert missing[1] == {"layer": 3, "head": 2, "entropy": None, "label": None}
    assert found.arrow().to_pylist() == missing
    record = json.loads(json.dumps(found.json(), allow_nan=False))
    assert record["rows"] == missing
    assert record["broken"] == [[3, 2]]
    assert record["measures"][0]["unit"] == "nats"
    assert [row["entropy"] for row in found.rows(by="entropy")][:3] == [4, 3, 1]
    for name in ("norm", "label"):
        with pytest.raises(MissingMeasureError, match=f"no column of numbers '{name}'"):
            found.rows(by=name)
    assert json.dumps(table([1, math.inf, 3, 4]).json(), allow_nan=False) == json.dumps(
        table([1, math.nan, 3, 4]).json()
    )


def test_the_strongest_are_by_size_and_never_nan() -> None:
    values = HeadValues.of(CHANGE, placed([1, -3, math.nan, 2]))
    found = HeadTable({"effect": values}, (3, 5), HEADS)
    assert found.strongest("effect") == [(3, 2), (5, 2), (3, 0)]
    bounds = {"low": placed([0.5, -7, math.nan, -1]), "high": placed([2, 1, math.nan, 3])}
    sampled = replace(found, columns={"effect": replace(values, **bounds)})
    assert sampled.strongest("effect", sure=True) == [(3, 0)]
    assert found.strongest("effect", 1, sure=True) == [(3, 2)]  # nothing was sampled: every number but 0 is sure
    assert not HeadValues.of(CHANGE, np.zeros((2, 2))).sure().any()


def test_a_difference_has_both_sides_and_their_facts() -> None:
    a = table([1, 2, 3, 4], facts={"label": {(3, 0): "broad"}}, source="one")
    b = table([2, 2, 3, 8], facts={"label": {(3, 0): "[SEP]"}}, source="other")
    change = b.minus(a)
    assert change["entropy"].sides == (a["entropy"], b["entropy"])
    np.testing.assert_array_equal(change["entropy"], placed([1, 0, 0, 4]))
    assert change.rows()[0] == {
        "layer": 3,
        "head": 0,
        "entropy_a": 1,
        "entropy_b": 2,
        "entropy_change": 1,
        "entropy_low": pytest.approx(math.nan, nan_ok=True),
        "entropy_high": pytest.approx(math.nan, nan_ok=True),
        "label_a": "broad",
        "label_b": "[SEP]",
    }
    spread = np.std([1, 2, 3, 4, 2, 2, 3, 8])
    np.testing.assert_allclose(change["entropy"].far(), placed([1, 0, 0, 4]) / spread)
    assert "change of entropy: +0 to +4" in repr(change["entropy"])
    with pytest.raises(InputError, match="2 layers of 3 heads and 1 layers of 2 heads"):
        replace(a, layers=(3,), heads=((0, 2),)).minus(b)
    with pytest.raises(InputError, match="share no measure"):
        replace(a, columns={}).minus(b)
    gaps = replace(b, broken=frozenset({(3, 2)}), left_out={"norm": "no values"}).minus(a)
    assert (gaps.broken, gaps.left_out) == (frozenset({(3, 2)}), {"norm": "no values"})
    one, three = stacked([a], "documents"), stacked([a, b, b], "documents")
    for other in (one, a, replace(three, along={"documents": (0, 1, 5)})):
        with pytest.raises(InputError, match=r"different entries: .* and documents \[0, 1, 2\]"):
            three.minus(other)


def test_a_mean_over_documents_is_paired_and_has_students_interval() -> None:
    """Document by document in plain Python; a document without a number on one side counts on neither."""
    generator = np.random.default_rng(0)
    sides = [[placed(generator.normal(size=4).tolist()) for _ in range(4)] for _ in range(2)]
    sides[0][1][0, 0] = np.nan
    sides[1][2][1, 2] = np.nan
    for documents in sides:
        for document in documents:
            document[1, 1] = np.nan
    sides[0][0][1, 1] = sides[1][0][1, 1] = 1.0
    tables = [
        stacked([HeadTable({"entropy": HeadValues.of(ENTROPY, of)}, (3, 5), HEADS) for of in documents], "documents")
        for documents in sides
    ]
    change = tables[1].minus(tables[0]).over("documents")
    assert not change.along
    found = change["entropy"]
    assert len(found.sides) == 2
    assert (found.over, found.interval) == ("documents", "t")
    percentiles = {3: 4.303, 4: 3.182}  # Student's t at 97.5 % with 2 and 3 degrees of freedom
    for _, position in PLACES:
        pairs = [(a[position], b[position]) for a, b in zip(*sides, strict=True)]
        pairs = [(a, b) for a, b in pairs if not math.isnan(a + b)]
        apart = [b - a for a, b in pairs]
        n = len(apart)
        mean = sum(apart) / n
        assert found[position] == pytest.approx(mean)
        assert found.a[position] == pytest.approx(sum(a for a, _ in pairs) / n)
        assert found.b[position] == pytest.approx(sum(b for _, b in pairs) / n)
        assert found.low is not None
        assert found.high is not None
        if n < 2:
            assert np.isnan(found.low[position])
            continue
        half = percentiles[n] * math.sqrt(sum((x - mean) ** 2 for x in apart) / (n - 1) / n)
        assert found.low[position] == pytest.approx(mean - half, rel=1e-3)
        assert found.high[position] == pytest.approx(mean + half, rel=1e-3)
    assert np.isnan(found[0, 1])
    mean, low, _ = mean_interval(np.array([[1.0], [math.nan]]))
    assert mean == 1
    assert np.isnan(low)


def test_numbers_are_scaled_to_the_measures_range_or_that_of_the_numbers() -> None:
    """From 0 to 4, as entropies have no upper bound; from -2 to 2, as effects have no bound at all."""
    np.testing.assert_array_equal(table([1, 2, 3, 4])["entropy"].scaled(), placed([0.25, 0.5, 0.75, 1]))
    np.testing.assert_array_equal(HeadValues.of(CHANGE, placed([-2, 0, 1, 2])).scaled(), placed([0, 0.5, 0.75, 1]))
    np.testing.assert_array_equal(table([0, 0, 0, 0])["entropy"].scaled(), placed([0, 0, 0, 0]))
    share = HeadValues.of(Measure("previous"), placed([0.1, 0.2, 0.3, 0.4])).scaled()
    np.testing.assert_array_equal(share, placed([0.1, 0.2, 0.3, 0.4]))


@pytest.mark.parametrize("record", [HeadValues, Effects])
def test_no_attribute_has_the_name_of_a_method_of_arrays(record: type) -> None:
    """`np.mean(values)` would call `values.mean`."""
    names = {field.name for field in fields(record)} | {name for name in dir(record) if not name.startswith("_")}
    assert not {name for name in names if callable(getattr(np.ndarray, name, None))}

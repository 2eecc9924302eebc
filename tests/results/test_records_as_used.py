"""Records in other people's hands: pandas, `==`, `in`, counts and names that are none, tables with a third axis."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import headscope as hs
from headscope.errors import InputError
from headscope.results.explained import Prediction
from headscope.results.head_values import HeadValues, Measure
from headscope.traces import Trace

TEXT = "she took off her [MASK]."


@pytest.fixture(scope="module")
def trace(bundled: hs.Model) -> Trace:
    return bundled.trace(TEXT)


def test_pandas_takes_an_array_with_named_axes_as_it_takes_numpys(trace: Trace, bundled: hs.Model) -> None:
    for record in (trace.statistics()["entropy"], trace.rollout(to=1), bundled.effects(TEXT), trace.outputs["logits"]):
        array = np.asarray(record)
        pandas.testing.assert_frame_equal(pandas.DataFrame(record), pandas.DataFrame(array))
        assert float(array.max()) in record
        assert 1e9 not in record
        assert [np.shape(row) for row in record] == [np.shape(row) for row in array]


def test_mappings_of_arrays_are_equal_if_their_arrays_are(trace: Trace, bundled: hs.Model) -> None:
    again, other = bundled.trace(TEXT), bundled.trace("he put on his [MASK].")
    for one, same, another in (
        (trace.statistics(), again.statistics(), other.statistics()),
        (trace.statistics(per_query=True), again.statistics(per_query=True), trace.statistics()),
        (trace.outputs, again.outputs, other.outputs),
        (trace.outputs, dict(again.outputs), None),
        (trace.statistics(), trace.statistics(), trace.statistics(["entropy"])),
    ):
        assert one == same
        assert one != another


@pytest.mark.parametrize("name", [["entropy", "previous"], (3, 1), None])
def test_a_measure_is_asked_for_by_its_name_alone(trace: Trace, known_survey: Path, name: Any) -> None:
    for record, has in (
        (trace.statistics(), r"table\.of\(\(3, 1\)\)"),
        (hs.Survey(known_survey), r"survey\.table\(\)\.of"),
    ):
        with pytest.raises(InputError, match=has):
            record[name]
        assert name not in record
        assert record.get(name) is None
    with pytest.raises(InputError, match="there is no output"):
        trace.outputs[name]


@pytest.mark.parametrize("count", [-1, 1.5, "3"])
def test_a_count_of_the_strongest_is_a_whole_number(trace: Trace, bundled: hs.Model, count: Any) -> None:
    match = hs.match(bundled, "a hat", ["a cap"], check=False)
    why = trace[0, 0].why(1, 2)
    prediction = Prediction("sequence", ("no", "yes"), np.zeros(2), np.full(2, 0.5), trace.queries)
    pairs = hs.pair_heads(bundled, [(["the", "cat", "sat"], [(0, 1)])] * 2)
    for call in (
        bundled.effects(TEXT).strongest,
        bundled.attribute(TEXT, check=False).strongest,
        hs.compare(bundled, bundled).strongest,
        lambda count: trace.statistics().strongest("entropy", count),
        *(match[0].strongest, match[0].links, why.strongest),
        lambda count: match.check(0, count),
        *(prediction.rows, lambda top: pairs.predict(bundled.trace(words=["a", "cat"]), top=top)),
    ):
        with pytest.raises(InputError, match=re.escape(f"is {count!r}")):
            call(count)
    assert bundled.effects(TEXT).strongest(np.int64(2)) == bundled.effects(TEXT).strongest(2)


def test_a_table_with_a_third_axis_says_so(trace: Trace) -> None:
    queries = trace.statistics(per_query=True)
    for call in (lambda: queries.strongest("entropy"), queries["entropy"].strongest, queries["entropy"].plot):
        with pytest.raises(InputError, match="the axes layers, heads, queries"):
            call()
    with pytest.raises(InputError, match="no axis 'documents', but queries"):
        queries.over("documents")
    with pytest.raises(InputError, match="layers and heads alone"):
        trace.statistics().over("queries")


def test_a_change_is_of_one_measure(trace: Trace, bert: hs.Model) -> None:
    table = trace.statistics()
    assert (np.asarray(table["entropy"].minus(table["entropy"])) == 0).all()
    for other in (table["previous"], np.asarray(table["entropy"]), bert.trace("a cat").statistics()["entropy"], None):
        with pytest.raises(InputError, match="no change of one measure"):
            table["entropy"].minus(other)  # type: ignore[arg-type]


def test_effects_name_the_strongest_head_by_its_number_or_say_that_there_is_none(bundled: hs.Model) -> None:
    effects = bundled.effects(TEXT)
    layer, head = np.unravel_index(np.abs(np.asarray(effects)).argmax(), effects.shape)
    numbers = tuple(tuple(range(5, 5 + size)) for size in effects.shape)
    mean = HeadValues.of(Measure("effect"), effects.array, each=(effects.array,), over="texts")
    for one in (effects, mean):
        assert f"most: layer {layer}, head {head}, " in repr(one)
        assert f"most: layer {layer + 5}, head {head + 5}, " in repr(replace(one, numbers=numbers))
        assert repr(replace(one, array=np.full(effects.shape, np.nan))).endswith("most: nothing to measure")


def test_one_document_is_no_plural(bundled: hs.Model) -> None:
    assert repr(hs.match(bundled, "a hat", "a cap", check=False)).startswith("1 document by ")
    assert repr(hs.match(bundled, "a hat", ["a cap", "a coat"], check=False)).startswith("2 documents by ")

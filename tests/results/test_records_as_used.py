"""Records in other people's hands: pandas, `==`, `in`, counts and names that are none, tables with a third axis."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import headscope as hs
from headscope.errors import InputError
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
    for call in (
        bundled.effects(TEXT).strongest,
        bundled.attribute(TEXT, check=False).strongest,
        hs.compare(bundled, bundled).strongest,
        lambda count: trace.statistics().strongest("entropy", count),
        *(match[0].strongest, match[0].links, why.strongest),
        lambda count: match.check(0, count),
    ):
        with pytest.raises(InputError, match=re.escape(f"count is {count!r}")):
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


def test_one_document_is_no_plural(bundled: hs.Model) -> None:
    assert repr(hs.match(bundled, "a hat", "a cap", check=False)).startswith("1 document by ")
    assert repr(hs.match(bundled, "a hat", ["a cap", "a coat"], check=False)).startswith("2 documents by ")

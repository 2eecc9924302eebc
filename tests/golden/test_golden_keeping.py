"""The comparison of goldens itself: what is a difference, and what is rounding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from golden.keeping import CLOSE, differing, plain, spelled

VALUE = {"a": [1, 2.5, "head 0.3: 12.5 % of 0.0012"], "b": {"c": None, "d": True}, "e": []}


def changed(**other: Any) -> dict[str, Any]:
    return {**VALUE, **other}


@pytest.mark.parametrize(
    ("new", "line"),
    [
        (changed(a=[1, 2.5001, VALUE["a"][2]]), ".a[1] is 2.5001, was 2.5"),
        (changed(a=[1.0, 2.5, VALUE["a"][2]]), ".a[0] is 1.0, was 1"),
        (changed(a=[1, 2.5, "head 0.3: 12.7 % of 0.0012"]), ".a[2] is 'head 0.3: 12.7 % of 0.0012', was"),
        (changed(a=[1, 2.5, "head 0.3: 12.5 % of 0.0012."]), ".a[2] is"),
        (changed(a=[1, 2.5]), ".a has 2 items, had 3"),
        (changed(b={"c": None, "d": 1}), ".b.d is 1, was True"),
        (changed(b={"d": True, "c": None}), ".b: the order is d, c"),
        (changed(b={"c": None}), ".b.d is gone"),
        (changed(f=0), ".f is new"),
        (changed(e={}), ".e is {}, was []"),
    ],
)
def test_differences(new: Any, line: str) -> None:
    (only,) = differing(new, VALUE, CLOSE)
    assert only.startswith(line)


def test_rounding() -> None:
    new = changed(a=[1, 2.5 + CLOSE, "head 0.3: 12.6 % of 0.0013"])
    assert list(differing(new, VALUE, CLOSE)) == []


def test_arrays_are_told_apart_by_sums_that_depend_on_all_cells() -> None:
    array = np.random.default_rng(0).normal(size=(30, 40)).astype(np.float32)
    kept = plain({"array": array})
    assert list(differing(plain({"array": array.copy()}), kept, CLOSE)) == []
    swapped = array.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    for other in (swapped, array.T.copy().reshape(30, 40), array.astype(np.float64), array[:29]):
        assert list(differing(plain({"array": other}), kept, CLOSE))


def test_json_is_what_was_written() -> None:
    assert json.loads(spelled(VALUE)) == VALUE

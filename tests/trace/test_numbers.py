"""A trace of some layers and heads is addressed by the model's own numbers, in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from by_hand import axis_of
from headscope.errors import InputError
from headscope.traces import LayerRecord, Trace, load


def some_layers() -> Trace:
    """Layers 0 and 5 of a model, heads 1 and 3 of each."""
    rng = np.random.default_rng(0)

    def part() -> np.ndarray:
        return rng.standard_normal((2, 3, 4)).astype(np.float32)

    records = [
        LayerRecord(part(), part(), part(), np.zeros((2, 3), np.float32), 0.5, name=f"at.{n}", number=n, numbers=(1, 3))
        for n in (0, 5)
    ]
    axis = axis_of("abc", ids=(7, 8, 9))
    return Trace(model="made", queries=axis, layers=records, outputs={}, stack="encoder")


@pytest.mark.parametrize("through_file", [False, True])
def test_numbers_are_the_models(tmp_path: Path, through_file: bool) -> None:
    trace = some_layers()
    record = trace.layers[1]
    if through_file:
        trace = load(trace.save(tmp_path / "some.safetensors"))
    assert trace.numbers == (0, 5)
    assert trace.head_numbers(5) == (1, 3)
    assert (trace.stack, trace.layers[1].name) == ("encoder", "at.5")
    np.testing.assert_array_equal(trace[5, 3].q, record.q[1])
    np.testing.assert_array_equal(trace[5, 3].k, record.k[1])
    assert (trace[5, 3].layer, trace[5, 3].head) == (5, 3)
    assert trace[-1, -1].layer == 5


def test_a_trace_says_what_it_holds() -> None:
    rng = np.random.default_rng(0)

    def record(heads: int, keys: int) -> LayerRecord:
        q, k = (rng.standard_normal((heads, n, 4)).astype(np.float32) for n in (3, keys))
        return LayerRecord(q, k, None, np.zeros((heads, 3), np.float32), 0.5)

    assert "made (encoder): 3 tokens, 2 layers x 2 heads of 4" in repr(some_layers())
    uneven = Trace(model="made", queries=axis_of(3), layers=[record(2, 3), record(6, 3), record(4, 3)], outputs={})
    assert "made: 3 tokens, 3 layers x 2 to 6 heads" in repr(uneven)
    cross = Trace(model="made", queries=axis_of(3), keys=axis_of(5), layers=[record(2, 5)], outputs={}, stack="cross")
    assert "made (cross): 3 queries, 5 keys, 1 layers x 2 heads of 4" in repr(cross)


@pytest.mark.parametrize("place", [(1, 1), (5, 0), (6, 1)])
def test_what_was_not_kept_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="was not kept"):
        some_layers()[place]

"""Traces of live transformers models against transformers' own eager attentions, architecture by architecture."""

from __future__ import annotations

import pytest
from comparing import PADDABLE, assert_same_weights, eager_attentions, watched

from families import FAMILIES, IN_GROUPS, Family


@pytest.mark.parametrize("family", [*FAMILIES, IN_GROUPS], ids=str)
def test_weights_are_the_eager_ones(family: Family) -> None:
    model = family.build()
    inputs = family.inputs(padded=family in PADDABLE)
    captured = watched(model, inputs)
    expected = eager_attentions(model, inputs, family.stacks)
    peak = assert_same_weights(
        captured, expected, 1e-4 if family.name.startswith(("T5", "MT5", "UMT5", "Switch")) else 2e-5
    )
    assert peak > 0.04, "near-uniform attention would hide mistakes"
    assert captured.traces[0].layers[0].stage == family.stage
    if family in PADDABLE and family.takes == "text":
        assert [len(trace) for trace in captured.traces] == [7, 5]
        assert captured.traces[1].ids == tuple(inputs["input_ids"][1, :5].tolist())

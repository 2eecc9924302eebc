"""A trace's weights against other arrays: the worst cell, both numbers, and arrays that don't fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import headscope as hs
from headscope.errors import InputError
from headscope.traces import Trace

LAYERS, HEADS, TOKENS = 3, 4, 9


def model_and_inputs() -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=64, vocab_size=50
    )
    ids = torch.randint(5, 50, (3, TOKENS))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    mask[1, 7:] = 0
    return BertModel(config).eval(), {"input_ids": ids, "attention_mask": mask}


@pytest.fixture(scope="module")
def made() -> tuple[list[Trace], tuple[torch.Tensor, ...]]:
    """Traces of a batch, and the attentions that transformers returns."""
    model, inputs = model_and_inputs()
    with torch.no_grad(), hs.capture(model) as captured:
        model(**inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return captured.traces, model(**inputs, output_attentions=True).attentions


FORMS: dict[str, Callable[[Trace, Any], Any]] = {
    "attentions": lambda trace, given: given,
    "a list": lambda trace, given: list(given),
    "NumPy": lambda trace, given: [one.numpy() for one in given],
    "one array": lambda trace, given: np.stack([one.numpy() for one in given]),
    "one tensor": lambda trace, given: torch.stack(given),
    "the row": lambda trace, given: [one[trace.row] for one in given],
    "the row as a batch": lambda trace, given: [one[trace.row : trace.row + 1] for one in given],
    "one array of the row": lambda trace, given: np.stack([one[trace.row].numpy() for one in given]),
    "without padding": lambda trace, given: [
        one[trace.row][:, trace.positions][:, :, trace.key_positions] for one in given
    ],
    "fp64": lambda trace, given: [one.double() for one in given],
    "bf16": lambda trace, given: [one.bfloat16() for one in given],
    "fp16": lambda trace, given: [one.half().numpy() for one in given],
    "with gradients": lambda trace, given: [one.clone().requires_grad_() for one in given],
    "lazy maps": lambda trace, given: [trace[layer].weights for layer in range(LAYERS)],
    "one lazy map": lambda trace, given: trace.weights,
}


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_weights_in_every_form_agree(made: Any, form: str, row: int) -> None:
    traces, attentions = made
    report = traces[row].verify(against=FORMS[form](traces[row], attentions))
    (check,) = report.checks
    assert report.agrees, report
    assert check.name == "weights (given)"
    assert check.tolerance == pytest.approx(8 * 2**-7 if form == "bf16" else 8 * 2**-10 if form == "fp16" else 2e-5)


@pytest.mark.parametrize("form", ["attentions", "one array", "without padding"])
def test_the_worst_cell_is_named_with_both_numbers(made: Any, form: str) -> None:
    """Positions are those in the trace: row 1 has two tokens of padding at the start."""
    traces, attentions = made
    wrong = [one.clone() for one in attentions]
    wrong[1][1, 2, 5, 4] += 0.25
    wrong[2][1, 0, 3, 3] -= 0.125
    check = traces[1].verify(against=FORMS[form](traces[1], tuple(wrong))).worst
    assert not check.agrees
    assert (check.layer, check.head, check.query, check.key) == (1, 2, 3, 2)
    assert check.worst == pytest.approx(0.25, abs=1e-5)
    assert check.ours == pytest.approx(float(traces[1][1, 2].weights[3, 2]))
    assert check.theirs == pytest.approx(float(wrong[1][1, 2, 5, 4]))


@pytest.mark.parametrize(("times", "agrees"), [(0.5, True), (4, False)])
def test_the_tolerance_tells(made: Any, times: float, agrees: bool) -> None:
    traces, attentions = made
    wrong = [one.clone() for one in attentions]
    wrong[2][0, 3, 8, 8] += times * 2e-5
    assert traces[0].verify(against=wrong).agrees is agrees


def test_nan_is_no_agreement(made: Any) -> None:
    traces, attentions = made
    wrong = [one.clone() for one in attentions]
    wrong[0][0, 0, 0, 0] = float("nan")
    report = traces[0].verify(against=wrong)
    assert not report.agrees
    assert report.to_dict()["checks"][0]["theirs"] is None


def test_layers_and_heads_that_were_not_kept(made: Any) -> None:
    _, attentions = made
    model, inputs = model_and_inputs()
    with torch.no_grad(), hs.capture(model, layers=[2, 0], heads=[3, 1]) as captured:
        model(**inputs)
    for trace in captured.traces:
        assert trace.verify(against=attentions).agrees
        assert trace.verify(against=[attentions[layer][:, [1, 3]] for layer in (0, 2)]).agrees
        wrong = [one.clone() for one in attentions]
        wrong[2][:, 3, 4, 4] += 0.5
        check = trace.verify(against=wrong).worst
        assert (check.layer, check.head) == (2, 3)


def test_a_trace_from_a_file(made: Any, tmp_path: Path) -> None:
    traces, attentions = made
    for dtype in ("fp32", "fp16"):
        again = hs.load(traces[1].save(tmp_path / f"{dtype}.safetensors", dtype=dtype))
        assert again.verify(against=attentions).agrees


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda given: (), "empty"),
    "a word": (lambda given: "attentions", "expected weights, got str"),
    "a number": (lambda given: 3, "expected weights, got int"),
    "a mapping": (lambda given: {0: given[0]}, "expected weights, got dict"),
    "a layer": (lambda given: given[0][0], "4 or 5 axes, got 3"),
    "one head": (lambda given: [one[0, 0] for one in given], "of shape"),
    "no tensors": (lambda given: (None,) * LAYERS, "got None"),
    "too few layers": (lambda given: given[:2], "2 layers"),
    "too few heads": (lambda given: [one[:, :3] for one in given], "3 heads"),
    "too few rows": (lambda given: [one[:2] for one in given], "2 rows"),
    "more tokens": (lambda given: [torch.nn.functional.pad(one, (0, 1, 0, 1)) for one in given], "10 queries"),
    "fewer keys": (lambda given: [one[..., :8] for one in given], "8 keys"),
    "steps": (lambda given: (given,) * LAYERS, "generate"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_an_error(made: Any, kind: str) -> None:
    traces, attentions = made
    change, message = WRONG[kind]
    with pytest.raises(InputError, match=message):
        traces[2].verify(against=change(attentions))

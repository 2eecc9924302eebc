"""`verify` agrees with every correct trace in every precision, and differs if an error is four times its tolerance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headscope as hs
from families import BY_NAME, here
from headscope.live import capture
from headscope.traces import LayerRecord, Trace
from headscope.verify import Check, Report, Worst
from products import in_turn
from random_models import ids, made

PRECISIONS = ["fp32", "bf16", "fp16", "autocast bf16", "autocast fp16", "kept in fp16", "bf16, kept in fp16"]


def half(precision: str) -> torch.dtype:
    """The precision in which the model runs, if not fp32."""
    return torch.float16 if precision in ("fp16", "autocast fp16") else torch.bfloat16


def autocast(precision: str) -> torch.autocast:
    return torch.autocast("cpu", dtype=half(precision), enabled=precision.startswith("autocast"))


@cache
def built(name: str, dtype: torch.dtype) -> Any:
    """A model that is kept alive, because verifying its traces runs it again."""
    if name != "MultiheadAttention":
        return BY_NAME[name].build(dtype)
    torch.manual_seed(0)
    return nn.MultiheadAttention(16, 2, batch_first=True).eval().to(dtype)


def traced(name: str, precision: str, implementation: str = "sdpa") -> list[Trace]:
    dtype = half(precision) if precision in ("bf16", "fp16", "bf16, kept in fp16") else torch.float32
    model: Any = built(name, dtype)
    kept = "fp16" if "kept" in precision else None
    with torch.no_grad(), autocast(precision), capture(model, dtype=kept) as captured:
        if name == "MultiheadAttention":
            x = 3 * torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
            model(*[x.to(dtype)] * 3)
        else:
            model.set_attn_implementation(implementation)
            model(**BY_NAME[name].inputs(padded=True))
    return captured.traces


@cache
def right(precision: str) -> tuple[Trace, Report]:
    """A correct trace of BERT, and what is found in it."""
    trace = traced("BertModel", precision)[0]
    return trace, trace.verify()


RIGHT = here("BertModel", "RobertaModel", "LlamaModel", "MistralModel", "ModernBertModel", "GPT2Model", "T5Model")


@pytest.mark.parametrize(("name", "implementation", "precision"), in_turn(RIGHT, ("sdpa", "eager"), PRECISIONS))
def test_every_right_capture_agrees(name: str, implementation: str, precision: str) -> None:
    for trace in traced(name, precision, implementation):
        report = trace.verify()  # outside autocast, as users call it
        assert report.agrees, report
        # Which id enters is undecided where all do, as after an encoder.
        assert {name for name, _ in report.skipped} <= ({"tokens"} if trace.stack == "cross" else set())


class Injected:
    """Move one number of one comparison a given number of tolerances away from its expected value.

    Args:
        check: the unchanged comparison's result.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, check: Check, factor: float) -> None:
        self.done = False
        original = Worst.see

        def see(worst: Worst, ours: Any, theirs: Any, axes: Any, *, allowed: Any = None, **given: Any) -> None:
            ours = np.array(ours, dtype=np.float64)
            if worst._fixed["name"] == check.name and ours.size and not self.done:
                self.done = True
                at = (0,) * ours.ndim
                limit = check.tolerance if allowed is None else np.broadcast_to(allowed, ours.shape)[at]
                ours[at] = np.asarray(theirs)[at] + factor * limit
            original(worst, ours, theirs, axes, allowed=allowed, **given)

        monkeypatch.setattr(Worst, "see", see)


def checked(report: Report, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def assert_both_sides(patch: pytest.MonkeyPatch, trace: Trace, before: Report, check: str, factor: float) -> None:
    injected = Injected(patch, checked(before, check), factor)
    report = trace.verify()
    assert injected.done
    assert checked(report, check).agrees == (factor < 1)
    assert all(one.agrees for one in report.checks if one.name != check)


@pytest.mark.parametrize("factor", [0.99, 4.0])
@pytest.mark.parametrize("check", ["row sums", "module output", "weights (eager)"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_both_sides_of_every_tolerance_of_a_capture(
    monkeypatch: pytest.MonkeyPatch, precision: str, check: str, factor: float
) -> None:
    assert_both_sides(monkeypatch, *right(precision), check, factor)


PARTS = ("queries", "keys", "values", "weights", "context")


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Report]:
    """The trace of a checkpoint as a file kept it, and what is found in it."""
    folder = tmp_path_factory.mktemp("saved")
    made(folder / "bert", "Bert")
    model = hs.open(folder / "bert")
    trace = hs.load(model.trace(ids=ids(10)).save(folder / "t.safetensors", dtype=request.param), model=model)
    return trace, trace.verify()


@pytest.mark.parametrize("factor", [0.99, 4.0])
@pytest.mark.parametrize("check", [*PARTS, "row sums", "sum over heads", "weights (eager)", "hidden states"])
def test_both_sides_of_every_tolerance_of_a_checkpoint(
    saved: tuple[Trace, Report], monkeypatch: pytest.MonkeyPatch, check: str, factor: float
) -> None:
    assert_both_sides(monkeypatch, *saved, check, factor)


def changed(trace: Trace, change: Callable[[LayerRecord], dict[str, Any]]) -> Trace:
    """The trace with its second layer changed and its log-sum-exps recomputed."""
    layers = list(trace.layers)
    layers[1] = dataclasses.replace(layers[1], lse=None, **change(layers[1]))
    return trace.replaced(layers=layers)


def swapped(array: np.ndarray) -> np.ndarray:
    """Swap two tokens."""
    order = np.arange(array.shape[1])
    order[[1, 3]] = order[[3, 1]]
    return array[:, order]


ERRORS: dict[str, Callable[[LayerRecord], dict[str, Any]]] = {
    "two queries swapped": lambda record: {"q": swapped(record.q)},
    "two keys swapped": lambda record: {"k": swapped(record.k)},
    "two values swapped": lambda record: {"v": swapped(record.v)},  # type: ignore[arg-type]
    "another scale": lambda record: {"scale": record.scale * 1.25},
    "a hidden key": lambda record: {"mask": dataclasses.replace(record.mask, keys=np.arange(record.k.shape[1]) != 2)},
    "a causal mask": lambda record: {"mask": dataclasses.replace(record.mask, causal=True)},
    "heads in another order": lambda record: {"q": record.q[::-1], "k": record.k[::-1]},
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_real_errors_are_found_in_every_precision(precision: str, error: str) -> None:
    trace, before = right(precision)
    assert before.agrees
    report = changed(trace, ERRORS[error]).verify(reference=False)
    assert not checked(report, "module output").agrees
    assert checked(report, "module output").layer == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_multihead_attention_agrees_and_differs(precision: str) -> None:
    for trace in traced("MultiheadAttention", precision):
        report = trace.verify()
        assert report.agrees, report
        record = dataclasses.replace(trace.layers[0], q=swapped(trace.layers[0].q), lse=None)
        assert not trace.replaced(layers=[record]).verify().agrees


@pytest.mark.parametrize("precision", ["fp32", "bf16", "kept in fp16"])
def test_a_log_sum_exp_that_is_off_shows_in_the_row_sums(precision: str) -> None:
    """On both sides of the tolerance, in any precision of the model: rows of weights are computed in fp32."""
    trace, before = right(precision)
    allowed = checked(before, "row sums").tolerance
    assert allowed < 1e-4
    for factor in (0.9, 4.0):
        lse = trace.layers[1].lse.copy()
        lse[2, 3] -= np.log1p(factor * allowed)
        layers = [trace.layers[0], dataclasses.replace(trace.layers[1], lse=lse)]
        moved = Trace(model="x", queries=trace.queries, layers=layers, outputs={})
        report = moved.verify()
        assert report.agrees == (factor < 1)
        assert report.agrees or report.checks[0].place == "layer 1, head 2, query 3"

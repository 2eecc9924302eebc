"""`verify` agrees with correct traces, and names the cell of an error; a trace's weights against other arrays."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import load_file, save_file
from transformers import BertConfig, BertModel

import headscope as hs
from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.screens.report_sheets import verify_sheet
from headscope.screens.terminal import Paper, plain_text
from headscope.traces import Trace
from headscope.verify import Report
from making import change_json
from random_models import SIZES, ids, made


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Of a random BERT."""
    return hs.open(made(tmp_path_factory.mktemp("bert"), "Bert").folder).trace(ids=ids(12))


def test_the_tolerance_for_large_scores_is_their_rounding(tmp_path: Path) -> None:
    """For scores in the hundreds, fp32 is exact to about 1e-5, and so are the weights."""
    made(tmp_path, "Bert")
    weights = load_file(tmp_path / "model.safetensors")
    sharp = {name: tensor * (100 if ".query." in name else 1) for name, tensor in weights.items()}
    save_file(sharp, tmp_path / "model.safetensors", metadata={"format": "pt"})
    trace = hs.open(tmp_path).trace(ids=ids(17))
    assert max(np.abs(layer.lse).max() for layer in trace.layers) > 150
    report = trace.verify()
    assert report.agrees
    (rows,) = (check for check in report.checks if check.name == "row sums")
    assert 2e-5 < rows.tolerance < 1e-3
    layers = [dataclasses.replace(layer, lse=layer.lse + np.float32(2e-3)) for layer in trace.layers]
    moved = Trace(model="moved", queries=trace.queries, layers=layers, outputs={})
    assert not moved.verify().agrees


@pytest.mark.parametrize(
    ("part", "check", "place"), [("q", "queries", "query 7"), ("k", "keys", "key 7"), ("v", "values", "key 7")]
)
def test_one_wrong_number_is_found_where_it_is(trace: Trace, part: str, check: str, place: str) -> None:
    """The planted difference is a hundred thousand times any rounding error, so the place is the same everywhere."""
    layers = list(trace.layers)
    values = getattr(layers[1], part).copy()
    values[2, 7, 3] += 0.5
    layers[1] = dataclasses.replace(layers[1], **{part: values})
    report = trace.replaced(layers=layers).verify(reference=False)
    assert not report.agrees
    failed = next(one for one in report.checks if one.name == check)
    assert not failed.agrees
    assert failed.worst == pytest.approx(0.5, abs=1e-3)
    assert (failed.layer, failed.head, failed.query if part == "q" else failed.key) == (1, 2, 7)
    others = {one.name for one in report.checks if not one.agrees}
    assert {"q": "weights", "k": "weights", "v": "context"}[part] in others
    lines = plain_text(verify_sheet(report).drawings, Paper(100)).splitlines()
    (line,) = (line for line in lines if line.startswith(f"{check} "))
    assert line.split(maxsplit=4)[1:3] == ["NO", "5.0e-01"]
    assert line.split(maxsplit=4)[4] == f"layer 1, head 2, {place}"


def test_a_trace_from_a_file_agrees_within_its_precision(trace: Trace, tmp_path: Path) -> None:
    model = trace.source
    full = hs.load(trace.save(tmp_path / "a.safetensors"), model=model).verify(reference=False)
    assert full.agrees
    half = hs.load(trace.save(tmp_path / "b.safetensors", dtype="fp16"), model=model).verify(reference=False)
    assert half.agrees
    assert half.worst.worst > full.worst.worst
    alone = hs.load(tmp_path / "a.safetensors").verify()
    assert alone.agrees
    assert [check.name for check in alone.checks] == ["row sums"]
    assert "hs.load(file, model=" in alone.skipped[0][1]


def test_not_a_number_in_the_weights_is_named_and_never_agrees(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.layer.1.attention.self.key.bias"][:] = np.nan
    save_file(tensors, tmp_path / "model.safetensors")
    report = hs.open(tmp_path).trace(ids=[5, 6, 7]).verify()
    assert not report.agrees
    assert any("NaN or infinity in: encoder.layer.1.attention.self.key.bias" in note for note in report.notes)
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["agrees"] is False


def test_unused_tensors_are_named_and_no_obstacle_if_they_cannot_be_read(tmp_path: Path) -> None:
    """A used one is: an error names it."""
    made(tmp_path, "Bert")
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    turns = {"rotary.turns": torch.zeros(2, dtype=torch.complex64)}
    safetensors.torch.save_file({**tensors, **turns}, tmp_path / "model.safetensors")
    trace = hs.open(tmp_path).trace(ids=[5, 6, 7])
    report = trace.verify(reference=False)
    assert report.agrees
    assert any("unexpected tensors: rotary.turns" in note for note in report.notes)
    bias = {"pooler.dense.bias": tensors["pooler.dense.bias"].to(torch.complex64)}
    safetensors.torch.save_file({**tensors, **bias}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match="stored as C64"):
        hs.open(tmp_path).trace(ids=[5, 6, 7]).verify(reference=False)


def test_a_config_that_transformers_rejects_is_reported(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    change_json(tmp_path / "config.json", hidden_act=None)
    report = hs.open(tmp_path).trace(ids=[5, 6, 7]).verify()
    assert report.agrees
    assert any(name == "transformers" and "raised" in reason for name, reason in report.skipped)


def test_untrained_weights_are_called_so(trace: Trace, tmp_path: Path) -> None:
    torch.manual_seed(0)
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path / "fresh")
    fresh = hs.open(tmp_path / "fresh").trace(ids=ids(20)).verify(reference=False)
    assert fresh.agrees
    assert fresh.skipped == (("transformers", "not requested"),)
    assert any("newly initialised" in note for note in fresh.notes)
    assert not any("newly initialised" in note for note in trace.verify(reference=False).notes)


def test_nothing_compared_is_no_agreement() -> None:
    assert not Report("x", ()).agrees


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
def batch() -> tuple[list[Trace], tuple[torch.Tensor, ...]]:
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
    "heads in fp16": lambda trace, given: [list(one[trace.row].half().numpy()) for one in given],
    "heads in bf16": lambda trace, given: [list(one[trace.row].bfloat16().requires_grad_()) for one in given],
    "with gradients": lambda trace, given: [one.clone().requires_grad_() for one in given],
    "lazy maps": lambda trace, given: [trace[layer].weights for layer in range(LAYERS)],
    "one lazy map": lambda trace, given: trace.weights,
}


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_weights_in_every_form_agree(batch: Any, form: str, row: int) -> None:
    traces, attentions = batch
    report = traces[row].verify(against=FORMS[form](traces[row], attentions))
    (check,) = report.checks
    assert report.agrees, report
    assert check.name == "weights (given)"
    assert check.tolerance == pytest.approx(8 * 2**-7 if "bf16" in form else 8 * 2**-10 if "fp16" in form else 2e-5)


@pytest.mark.parametrize("form", ["attentions", "one array", "without padding"])
def test_the_worst_cell_is_named_with_both_numbers(batch: Any, form: str) -> None:
    """Positions are those in the trace: row 1 has two tokens of padding at the start."""
    traces, attentions = batch
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
def test_the_tolerance_tells(batch: Any, times: float, agrees: bool) -> None:
    traces, attentions = batch
    wrong = [one.clone() for one in attentions]
    wrong[2][0, 3, 8, 8] += times * 2e-5
    assert traces[0].verify(against=wrong).agrees is agrees


def test_nan_is_no_agreement(batch: Any) -> None:
    traces, attentions = batch
    wrong = [one.clone() for one in attentions]
    wrong[0][0, 1, 2, 3] = wrong[1][0, 0, 0, 0] = float("nan")
    wrong[2][0, 0, 0, 0] = 99
    report = traces[0].verify(against=wrong)
    assert not report.agrees
    assert (np.isnan(report.worst.worst), report.worst.place) == (True, "layer 0, head 1, query 2, key 3")
    assert report.to_dict()["checks"][0]["theirs"] is None


@pytest.mark.parametrize("number", [0.0, float("inf")])
def test_a_row_that_is_of_no_softmax_is_no_agreement(batch: Any, number: float) -> None:
    """And no warning of NumPy's, which would be an error here."""
    traces, attentions = batch
    wrong = [one.clone() for one in attentions]
    wrong[0][0, 0, 3] = number
    report = traces[0].verify(against=wrong)
    assert not report.agrees
    assert report.worst.place.startswith("layer 0, head 0, query 3")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trace]:
    """What a capture with these options kept, saved, and read again with the model."""
    folder = tmp_path_factory.mktemp("kept")
    live = made(folder, "Bert").module
    model = hs.open(folder)

    def read(**options: Any) -> Trace:
        with torch.inference_mode(), hs.capture(live, **options) as captured:
            live(torch.tensor([ids(12)]))
        return hs.load(captured.traces[0].save(folder / "trace.safetensors"), model=model)

    return read


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ({"layers": [1]}, "the attention of layers 1, not of every layer"),
        ({"layers": [0, 1]}, "the attention of layers 0, 1, not of every layer"),
        ({"heads": [0, 3]}, "only some heads"),
    ],
)
def test_a_part_of_a_trace_is_verified_as_far_as_it_goes(
    kept: Any, options: dict[str, Any], lacks: str, tmp_path: Path
) -> None:
    trace = kept(**options)
    report = trace.verify()
    assert report.agrees
    assert [check.name for check in report.checks] == ["row sums"]
    assert {name: lacks in why for name, why in report.skipped} == {
        "the paper's way": True,
        "transformers": True,
    }
    assert trace.to_html(tmp_path / "part.html").stat().st_size
    with pytest.raises(TraceError, match=lacks):
        trace.to_html(tmp_path / "runs.html", runs=True)
    for part in (trace, hs.load(trace.save(tmp_path / "part.safetensors"))):
        with pytest.raises(TraceError, match=lacks):
            part.rollout(to=0)


def test_near_uniform_heads_have_their_own_numbers(kept: Any) -> None:
    trace = kept(layers=[0, 2], heads=[1, 3])
    q = np.array(trace.layers[1].q) * 100
    q[1] = 0
    sharp = [dataclasses.replace(record, q=record.q * 100, lse=None) for record in trace.layers]
    notes = trace.replaced(layers=[sharp[0], dataclasses.replace(sharp[1], q=q, lse=None)]).verify().notes
    assert [note for note in notes if "near-uniform" in note] == ["near-uniform heads (layer.head): 2.3"]


def test_numbers_that_a_capture_rounded_are_remembered_in_a_file(kept: Any) -> None:
    trace = kept(dtype="fp16")
    assert trace.precision == "fp16"
    assert trace.verify().agrees
    assert kept().precision == "fp32"


def test_layers_and_heads_that_were_not_kept(batch: Any) -> None:
    _, attentions = batch
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


def test_a_trace_from_a_file(batch: Any, tmp_path: Path) -> None:
    traces, attentions = batch
    for dtype in ("fp32", "fp16"):
        again = hs.load(traces[1].save(tmp_path / f"{dtype}.safetensors", dtype=dtype))
        assert again.verify(against=attentions).agrees


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda given: (), r"there are no weights, but \(\)"),
    "what was not asked for": (lambda given: None, "there are no weights, but None"),
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
    "lists of unlike lengths": (lambda given: [[[[1.0], [1.0, 2.0]]]] * LAYERS, "layer 0: lists of unlike lengths"),
    "steps": (lambda given: (given,) * LAYERS, "generate"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_an_error(batch: Any, kind: str) -> None:
    traces, attentions = batch
    change, message = WRONG[kind]
    with pytest.raises(InputError, match=message):
        traces[2].verify(against=change(attentions))

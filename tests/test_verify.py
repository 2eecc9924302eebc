"""`verify` agrees with correct traces, and names the cell of an error."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import headscope as hs
from headscope.screens.report_sheets import verify_sheet
from headscope.screens.terminal import Paper, plain_text
from headscope.traces import Trace
from headscope.verify import Report, Worst
from random_models import FAMILIES, ids, made

NAMES = [
    "row sums",
    "queries",
    "keys",
    "values",
    "weights",
    "context",
    "sum over heads",
    "weights (eager)",
    "hidden states",
]


@pytest.mark.parametrize("stem", FAMILIES)
def test_every_computation_agrees_for_every_family(tmp_path: Path, stem: str) -> None:
    made(tmp_path, stem)
    report = hs.open(tmp_path).trace(ids=ids(17)).verify()
    assert [check.name for check in report.checks] == NAMES
    assert report.agrees
    assert report.skipped == ()
    assert all(0 <= check.worst <= check.tolerance for check in report.checks)
    assert json.loads(json.dumps(report.to_dict()))["agrees"] is True


def test_a_silenced_head_is_verified_too(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    assert hs.open(tmp_path).trace(ids=ids(9), ablate={(0, 1), (2, 3)}).verify().agrees


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


def tampered(trace: Trace, part: str, layer: int, index: tuple[int, int, int]) -> Trace:
    """The trace with one number of one layer changed."""
    layers = list(trace.layers)
    values = getattr(layers[layer], part).copy()
    values[index] += 0.5
    layers[layer] = dataclasses.replace(layers[layer], **{part: values})
    return Trace(
        model=trace.model,
        queries=trace.queries,
        layers=layers,
        outputs=trace.outputs.kept,
        source=trace.source,
    )


@pytest.mark.parametrize(
    ("part", "check", "place"),
    [("q", "queries", "query 7"), ("k", "keys", "key 7"), ("v", "values", "key 7")],
)
def test_the_screen_says_where_the_worst_difference_is(tmp_path: Path, part: str, check: str, place: str) -> None:
    """The planted difference is a hundred thousand times any rounding error, so the place is the same everywhere."""
    made(tmp_path, "Bert")
    trace = hs.open(tmp_path).trace(ids=ids(12))
    report = tampered(trace, part, 1, (2, 7, 3)).verify(reference=False)
    lines = plain_text(verify_sheet(report).drawings, Paper(100)).splitlines()
    (line,) = (line for line in lines if line.startswith(f"{check} "))
    assert line.split(maxsplit=4)[1:3] == ["NO", "5.0e-01"]
    assert line.split(maxsplit=4)[4] == f"layer 1, head 2, {place}"


@pytest.mark.parametrize(("part", "check"), [("q", "queries"), ("k", "keys"), ("v", "values")])
def test_one_wrong_number_is_found_where_it_is(tmp_path: Path, part: str, check: str) -> None:
    made(tmp_path, "Bert")
    trace = hs.open(tmp_path).trace(ids=ids(12))
    report = tampered(trace, part, 1, (2, 7, 3)).verify(reference=False)
    assert not report.agrees
    failed = next(one for one in report.checks if one.name == check)
    assert not failed.agrees
    assert failed.worst == pytest.approx(0.5, abs=1e-3)
    assert (failed.layer, failed.head, failed.query if part == "q" else failed.key) == (1, 2, 7)
    others = {one.name for one in report.checks if not one.agrees}
    assert {"q": "weights", "k": "weights", "v": "context"}[part] in others


def test_a_wrong_log_sum_exp_shows_in_the_row_sums(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    trace = hs.open(tmp_path).trace(ids=ids(6))
    lse = trace.layers[2].lse.copy()
    lse[3, 4] += 0.1
    layers = [*trace.layers[:2], dataclasses.replace(trace.layers[2], lse=lse)]
    report = Trace(model="x", queries=trace.queries, layers=layers, outputs={}).verify()
    assert not report.agrees
    assert report.checks[0].place == "layer 2, head 3, query 4"
    assert report.skipped


def test_a_trace_from_a_file_agrees_within_its_precision(tmp_path: Path) -> None:
    made(tmp_path / "bert", "Bert")
    model = hs.open(tmp_path / "bert")
    trace = model.trace(ids=ids(10))
    full = hs.load(trace.save(tmp_path / "a.safetensors"), model=model).verify(reference=False)
    assert full.agrees
    half = hs.load(trace.save(tmp_path / "b.safetensors", dtype="fp16"), model=model).verify(reference=False)
    assert half.agrees
    assert half.worst.worst > full.worst.worst
    alone = hs.load(tmp_path / "a.safetensors").verify()
    assert alone.agrees
    assert [check.name for check in alone.checks] == ["row sums"]
    assert "hs.load(file, model=" in alone.skipped[0][1]


def test_transformers_can_be_left_out(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    report = hs.open(tmp_path).verify(hs.open(tmp_path).trace(ids=[5, 6, 7]), reference=False)
    assert report.skipped == (("transformers", "not requested"),)


def rewrite(folder: Path, name: str, change: object) -> None:
    tensors = load_file(folder / "model.safetensors")
    match = next(key for key in tensors if name in key)
    if change is None:
        del tensors[match]
    else:
        tensors[match] = np.full_like(tensors[match], change)
    save_file(tensors, folder / "model.safetensors")


def test_not_a_number_in_the_weights_is_named_and_never_agrees(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    rewrite(tmp_path, "encoder.layer.1.attention.self.key.bias", np.nan)
    report = hs.open(tmp_path).trace(ids=[5, 6, 7]).verify()
    assert not report.agrees
    assert any("NaN or infinity in: encoder.layer.1.attention.self.key.bias" in note for note in report.notes)
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["agrees"] is False


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "a_projection.weight": np.zeros((2, 2), "f4")}, tmp_path / "model.safetensors")
    notes = hs.open(tmp_path).trace(ids=[5, 6, 7]).verify(reference=False).notes
    assert any("unexpected tensors: a_projection.weight" in note for note in notes)


def test_a_config_that_transformers_rejects_is_reported(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": None}))
    report = hs.open(tmp_path).trace(ids=[5, 6, 7]).verify()
    assert report.agrees
    assert any(name == "transformers" and "raised" in reason for name, reason in report.skipped)


def test_untrained_weights_are_called_so(tmp_path: Path) -> None:
    import torch
    import transformers

    from random_models import SIZES

    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path / "fresh")
    fresh = hs.open(tmp_path / "fresh").trace(ids=ids(20)).verify(reference=False)
    assert fresh.agrees
    assert any("newly initialised" in note for note in fresh.notes)
    made(tmp_path / "sharp", "Bert")
    sharp = hs.open(tmp_path / "sharp").trace(ids=ids(20)).verify(reference=False)
    assert not any("newly initialised" in note for note in sharp.notes)


def test_worst_keeps_the_first_nan() -> None:
    worst = Worst("x", "", 1.0, "")
    worst.see(np.array([1.0, 2.0]), np.array([1.0, 1.0]), ("query",), layer=0)
    worst.see(np.array([np.nan, 9.0]), np.array([1.0, 1.0]), ("query",), layer=1)
    worst.see(np.array([99.0]), np.array([1.0]), ("query",), layer=2)
    check = worst.check()
    assert np.isnan(check.worst)
    assert check.place == "layer 1, query 0"
    assert not check.agrees


def test_nothing_compared_is_no_agreement() -> None:
    assert not Report("x", ()).agrees

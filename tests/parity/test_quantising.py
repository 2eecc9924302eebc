"""`headscope parity A --quantise plan`: every loss against files that are quantised and pooled here by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from transformers import AutoTokenizer
from typer.testing import CliRunner

import headscope as hs
from headscope.cli import app
from headscope.results.json_schemas import json_schema
from headscope.results.quantising import QuantisePlan, Recipe
from headscope.screens.parity_sheet import quantise_sheet
from headscope.screens.terminal import Paper, plain_text
from headscope.verify.quantising import processor_of, shortest
from parity.exports import NAMES, export, quantise
from parity.sides import TEXTS, small

BAD = "/model/encoder/layer.0/output/dense/MatMul"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint, and its export, in which one matrix has a number that leaves the others few steps."""
    folder = tmp_path_factory.mktemp("plan")
    path = export(small(folder / "bert", num_hidden_layers=1), folder / "bert" / "model.onnx")
    model = onnx.load(path)
    node = next(node for node in model.graph.node if node.name == BAD)
    tensor = next(one for one in model.graph.initializer if one.name == node.input[1])
    matrix = numpy_helper.to_array(tensor).copy()
    matrix[:, 0] *= 40
    tensor.CopyFrom(numpy_helper.from_array(matrix, tensor.name))
    onnx.save(model, path)
    return folder / "bert", path


def vectors(folder: Path, path: Path) -> np.ndarray:
    """The mean of the last hidden states, by onnxruntime and transformers' tokenizer."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        batch = tokenizer(text, return_tensors="np", return_token_type_ids=True)
        (last,) = session.run(None, {name: batch[name].astype(np.int64) for name in NAMES})
        rows.append(last[0].astype(np.float64).mean(0))
    return np.stack([row / np.linalg.norm(row) for row in rows])


def cosine(files: tuple[Path, Path], target: Path, **options: Any) -> float:
    """The mean cosine of a file that is quantised so."""
    quantise(files[1], target, **options)
    return float((vectors(files[0], files[1]) * vectors(files[0], target)).sum(1).mean())


@pytest.fixture(scope="module")
def plan(files: tuple[Path, Path]) -> QuantisePlan:
    """The plan for a cosine that lies between those of all in int8 and of all but the bad matrix."""
    return hs.quantise_plan(files[0], files[1], TEXTS, cosine=0.9999, per_channel=False)


def test_losses_and_recipes_are_those_of_files_made_by_hand(
    files: tuple[Path, Path], plan: QuantisePlan, tmp_path: Path
) -> None:
    tensor, channel = plan.recipes[:2]
    assert tensor.cosine == pytest.approx(cosine(files, tmp_path / "t.onnx"), abs=1e-6)
    assert tensor.size == (tmp_path / "t.onnx").stat().st_size
    assert channel.cosine == pytest.approx(cosine(files, tmp_path / "c.onnx", per_channel=True), abs=1e-6)
    assert len(plan.matrices) == 6 + 3  # six in the layer; words, positions, types
    assert plan.matrices[0].node == BAD
    for matrix in (plan.matrices[0], plan.matrices[-1]):
        alone = cosine(files, tmp_path / "a.onnx", nodes_to_quantize=[matrix.node])
        assert matrix.loss == pytest.approx(1 - alone, abs=1e-6)
    assert [one.loss for one in plan.matrices] == sorted((one.loss for one in plan.matrices), reverse=True)


def test_the_list_reaches_the_target_and_a_shorter_one_does_not(
    files: tuple[Path, Path], plan: QuantisePlan, tmp_path: Path
) -> None:
    names = plan.nodes_to_exclude
    assert plan.reached
    assert names[0] == BAD
    assert names == [matrix.node for matrix in plan.matrices[: len(names)]]
    reached = cosine(files, tmp_path / "p.onnx", nodes_to_exclude=names)
    assert plan.target <= reached == pytest.approx(plan.recipes[-1].cosine, abs=1e-6)
    assert cosine(files, tmp_path / "s.onnx", nodes_to_exclude=names[:-1]) < plan.target
    assert f"keep {len(names)} of 9 matrices in fp32, with per_channel=False" in plan.sentence()


LOSSES = (0.05, 0.03, 0.02, 0.004)
"""Of four matrices alone, and below what is left with the first n of them in fp32."""
ADDING, LESS, MORE = (0.104, 0.054, 0.024, 0.004, 0.0), (0.08, 0.03, 0.01, 0.001, 0.0), (0.2, 0.11, 0.06, 0.03, 0.01)


@pytest.mark.parametrize(
    ("left", "target", "count"),
    [(ADDING, 0.5, 0), (ADDING, 0.97, 2), (ADDING, 1.0, 4), (LESS, 0.96, 1), (LESS, 0.985, 2), (MORE, 0.93, 2),
     (MORE, 0.96, 3), (MORE, 0.999, 4)],
)  # fmt: skip
def test_the_shortest_list_is_found_wherever_the_search_begins(
    left: tuple[float, ...], target: float, count: int
) -> None:
    found, recipe = shortest(lambda kept: Recipe("", 1 - left[kept], 0.0, kept), LOSSES, target)
    assert (found, recipe.size) == (count, count)
    assert (recipe.cosine >= target) == (left[-1] <= 1 - target)


def test_the_command_finds_the_file_beside_the_weights(files: tuple[Path, Path], tmp_path: Path) -> None:
    import jsonschema

    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:2]), encoding="utf-8")
    args = ["parity", str(files[0]), str(texts), "--quantise", "plan"]
    result = CliRunner().invoke(app, [*args, "--set", "cosine=0.5", "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    jsonschema.Draft202012Validator(json_schema("plan")).validate(record)
    assert record["nodes_to_exclude"] == []
    assert record["per_channel"] is True
    assert record["texts"] == 2
    assert "nothing has to stay in fp32" in record["sentence"]


def test_the_screen_says_what_to_try_first_and_where_it_was_measured(plan: QuantisePlan) -> None:
    screen = " ".join(plain_text(quantise_sheet(plan).drawings, Paper(width=100)).split())
    assert "per_channel=True first: mean cosine" in screen
    assert f"nodes_to_exclude=[ {BAD!r}," in screen
    assert f"measured on {plan.processor}" in screen


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("model name\t: AMD EPYC 9654\nflags\t\t: fpu avx512f avx512_vnni\n", ("AMD EPYC 9654", True)),
        ("model name\t: i7-8700\nflags\t\t: fpu avx2\n", ("i7-8700", False)),
        ("model name\t: Arm\nFeatures\t: asimddp\n", ("Arm", None)),
    ],
)
def test_the_processor(tmp_path: Path, lines: str, expected: tuple[str, bool | None]) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{lines}\nprocessor\t: 1\n{lines}", encoding="utf-8")
    assert processor_of(tmp_path / "cpuinfo") == expected
    assert processor_of(tmp_path / "none")[1] is None


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("m.onnx",), "an ONNX file has no tokenizer"),
        (("-",), "has no onnx/model.onnx or model.onnx beside its weights"),
        (("-", "none.onnx"), "there is no such file"),
        (("-", "a", "b"), "a plan reads one corpus"),
        (("-", "--set", "cosine=2"), "cosine is 2.0"),
        (("-", "--quantise", "plans"), "unknown quantise 'plans'"),
    ],
)
def test_what_cannot_be_planned_is_refused(args: tuple[str, ...], says: str) -> None:
    plan = () if "--quantise" in args else ("--quantise", "plan")
    result = CliRunner().invoke(app, ["parity", *args, *plan])
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


def test_a_quantised_file_and_nodes_without_names(files: tuple[Path, Path], tmp_path: Path) -> None:
    quantise(files[1], tmp_path / "q.onnx")
    with pytest.raises(hs.HeadscopeError, match="has a matrix in fp32"):
        hs.quantise_plan(files[0], tmp_path / "q.onnx", TEXTS)
    model = onnx.load(files[1])
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, tmp_path / "n.onnx")
    with pytest.raises(hs.HeadscopeError, match="has no name of its own"):
        hs.quantise_plan(files[0], tmp_path / "n.onnx", TEXTS)

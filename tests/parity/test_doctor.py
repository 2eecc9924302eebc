"""`hs.doctor`: each planted fault is found by name, and sound models raise no alarm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoTokenizer
from typer.testing import CliRunner

import headscope as hs
from compare.models import Edit, edited, scaled
from explain.minilm import minilm_folder
from headscope.cli import app
from headscope.verify.parity import PROBES
from making import write_safetensors
from parity.sides import TEXTS, small

LAYER = "encoder.layer.1."
HEAD = slice(8, 16)


def constant(value: float, rows: slice = slice(None)) -> Edit:
    def edit(array: np.ndarray) -> np.ndarray:
        array[rows] = value
        return array

    return edit


def twin(array: np.ndarray) -> np.ndarray:
    array[24:32] = array[HEAD]
    return array


PARTS = ("query", "key", "value")
FAULTS: dict[str, tuple[Mapping[str, Edit], str, dict[str, int]]] = {
    "NaN": ({f"{LAYER}output.dense.weight": constant(np.nan, slice(3, 4))}, "numbers", {}),
    "infinity": ({"word_embeddings.weight": constant(np.inf, slice(50, 51))}, "numbers", {}),
    "a fresh norm": ({f"{LAYER}output.LayerNorm.weight": constant(1.0)}, "fresh norms", {}),
    "W_V of a head is 0": (
        {
            f"{LAYER}attention.self.value.weight": constant(0, HEAD),
            f"{LAYER}attention.self.value.bias": constant(0, HEAD),
        },
        "dead heads",
        {"layer": 1, "head": 1},
    ),
    "queries of a layer are 0": (
        {f"{LAYER}attention.self.query.{end}": constant(0) for end in ("weight", "bias")},
        "uniform layers",
        {"layer": 1},
    ),
    "two heads alike": ({f"{LAYER}attention.self.{part}.weight": twin for part in PARTS}, "twin heads", {"layer": 1}),
    "overflow at the last position": ({"position_embeddings.weight": constant(3e38, slice(63, 64))}, "lengths", {}),
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("doctor") / "bert"
    return folder, small(folder)


def wrong(report: hs.Report) -> list[str]:
    return [check.name for check in report.checks if not check.agrees]


@pytest.mark.parametrize("stem", ["Bert", "ModernBert", "MPNet", "EuroBert", "DebertaV2"])
def test_random_weights_with_trained_norms_raise_no_alarm(tmp_path: Path, stem: str) -> None:
    small(tmp_path / "a", stem)
    report = hs.doctor(tmp_path / "a", TEXTS)
    assert wrong(report) == []
    assert len(report.checks) == 20
    assert report.skipped == ()


def test_real_models_raise_no_alarm() -> None:
    for name in ("-", str(minilm_folder())):
        report = hs.doctor(name, PROBES[::4])
        assert wrong(report) == [], repr(report)
        assert not any(note.startswith("unusual") for note in report.notes)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_a_planted_fault_is_found_by_name(bert: tuple[Path, Any], tmp_path: Path, fault: str) -> None:
    edits, name, place = FAULTS[fault]
    report = hs.doctor(edited(tmp_path / "b", edits, bert[0]), TEXTS)
    assert wrong(report) == [name], repr(report)
    check = next(check for check in report.checks if check.name == name)
    assert check.advice
    assert {axis: getattr(check, axis) for axis in place} == place


def test_a_missing_weight_and_a_contradiction(bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder = edited(tmp_path / "b", {}, bert[0])
    tensors = dict(load_file(folder / "model.safetensors"))
    del tensors[f"{LAYER}attention.output.dense.bias"]
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    report = hs.doctor(folder, TEXTS)
    assert "missing weights" in wrong(report)
    found = next(check for check in report.checks if check.name == "missing weights")
    assert "attention.output.dense.bias" in found.compared


def test_a_tokenizer_of_another_model(bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder = edited(tmp_path / "b", {"word_embeddings.weight": lambda table: table[:40].copy()}, bert[0])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 40}))
    report = hs.doctor(folder, TEXTS)
    assert "tokenizer" in wrong(report)


def test_a_collapsed_model_and_foreign_texts_are_unusual(bert: tuple[Path, Any], tmp_path: Path) -> None:
    same = edited(tmp_path / "b", {"encoder.layer.2.output.LayerNorm.bias": constant(50.0)}, bert[0])
    report = hs.doctor(same, TEXTS)
    assert report.agrees
    assert any(note.startswith("unusual: mean cosine of the texts' vectors") for note in report.notes)
    foreign = hs.doctor(bert[0], ["the cat", "Это собака"])
    unknown = next(check for check in foreign.checks if check.name == "unknown")
    assert unknown.worst == pytest.approx(2 / 4)


def test_numbers_against_plain_formulas(bert: tuple[Path, Any]) -> None:
    report = hs.doctor(bert[0], TEXTS)
    numbers = {check.name: check.worst for check in report.checks}
    tokenizer = AutoTokenizer.from_pretrained(bert[0])
    rows = []
    for text in TEXTS:
        with torch.inference_mode():
            rows.append(bert[1](torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0].mean(0))
    cosine = torch.nn.functional.cosine_similarity
    pairs = [float(cosine(rows[i], rows[j], dim=0)) for i in range(5) for j in range(i)]
    assert numbers["random pairs"] == pytest.approx(np.mean(pairs), abs=1e-5)
    half = type(bert[1]).from_pretrained(bert[0], dtype=torch.bfloat16).float().eval()
    apart = []
    for text, row in zip(TEXTS, rows, strict=True):
        with torch.inference_mode():
            again = half(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0].mean(0)
        apart.append(float((again - row).norm() / row.norm()))
    assert numbers["bf16"] == pytest.approx(max(apart), rel=1e-3)


def without_mask(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {**kwargs, "attention_mask": None}


def test_a_live_model_that_ignores_its_mask(bert: tuple[Path, Any]) -> None:
    folder, module = bert
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert wrong(hs.doctor(module, TEXTS, tokenizer=tokenizer)) == []
    hook = module.register_forward_pre_hook(without_mask, with_kwargs=True)
    try:
        report = hs.doctor(module, TEXTS, tokenizer=str(folder))
    finally:
        hook.remove()
    assert wrong(report) == ["alone", "padding"]
    with pytest.raises(hs.HeadscopeError, match="needs a tokenizer"):
        hs.doctor(module, TEXTS)


SENTENCE_FILES: dict[str, tuple[str, Any, str]] = {
    "width": ("1_Pooling/config.json", {"pooling_mode": "mean", "embedding_dimension": 768}, "768, the model has 32"),
    "window": ("sentence_bert_config.json", {"max_seq_length": 4096}, "4,096, the model takes 64"),
    "prompt": (
        "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": "query"},
        "no prompt 'query'",
    ),
    "damaged": ("modules.json", [3], "a module is 3"),
}


@pytest.mark.parametrize("fault", SENTENCE_FILES)
def test_a_file_of_sentence_transformers_that_contradicts_the_model(
    bert: tuple[Path, Any], tmp_path: Path, fault: str
) -> None:
    folder = edited(tmp_path / "b", {}, bert[0])
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean", "embedding_dimension": 32}))
    assert wrong(hs.doctor(folder, TEXTS[:1])) == []
    file, content, says = SENTENCE_FILES[fault]
    (folder / file).write_text(json.dumps(content))
    report = hs.doctor(folder, TEXTS[:1])
    assert wrong(report) == ["pooling"]
    assert says in report.checks[-1].compared


def test_a_checkpoint_without_its_tokenizer(bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder = edited(tmp_path / "b", {}, bert[0])
    (folder / "tokenizer.json").unlink()
    report = hs.doctor(folder, TEXTS)
    assert wrong(report) == ["tokenizer"]
    assert "PreTrainedTokenizerFast" in next(check for check in report.checks if not check.agrees).compared


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_weights_beyond_fp16_are_unusual(bert: tuple[Path, Any], tmp_path: Path) -> None:
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings")  # before a norm: the sizes don't matter
    large = {f"embeddings.{name}.weight": scaled(slice(None), 1e8) for name in names}
    report = hs.doctor(edited(tmp_path / "b", large, bert[0]), TEXTS[:2])
    assert wrong(report) == []
    assert next(check for check in report.checks if check.name == "fp16").worst == np.inf
    assert any("fp16 is inf" in note for note in report.notes)


def test_beside_an_earlier_run(bert: tuple[Path, Any], tmp_path: Path) -> None:
    """From its report, and from the JSON that the command printed, on the screen, too."""
    tuned = edited(tmp_path / "b", {f"{LAYER}attention.self.query.weight": scaled(HEAD, 3.0)}, bert[0])
    before = hs.doctor(bert[0])
    numbers = {check.name: check.worst for check in before.checks}
    after = hs.doctor(tuned, earlier=before)
    assert {check.name: check.earlier for check in after.checks} == numbers
    assert numbers["random pairs"] != {check.name: check.worst for check in after.checks}["random pairs"]
    (tmp_path / "before.json").write_text(run(str(bert[0]), "--json", code=0).stdout)
    printed = json.loads(run(str(tuned), "--earlier", str(tmp_path / "before.json"), "--json", code=0).stdout)
    assert {check["name"]: check["earlier"] for check in printed["checks"]} == pytest.approx(
        numbers, rel=1e-3, abs=1e-6
    )
    lines = run(str(tuned), "--earlier", str(tmp_path / "before.json"), code=0).stdout.splitlines()
    assert any(line.split()[-1:] == ["earlier"] for line in lines)
    assert not any(line.endswith("  earlier") for line in run(str(tuned), code=0).stdout.splitlines())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"checks": [1]}', '{"checks": [{"name": "a", "worst": "b"}]}'])
def test_what_is_no_earlier_run(bert: tuple[Path, Any], tmp_path: Path, content: str) -> None:
    (tmp_path / "before.json").write_text(content)
    assert (
        "headscope doctor MODEL --json" in run(str(bert[0]), "--earlier", str(tmp_path / "before.json"), code=2).stderr
    )


def run(*args: str, code: int) -> Any:
    result = CliRunner().invoke(app, ["doctor", *args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_the_command(bert: tuple[Path, Any], tmp_path: Path) -> None:
    sick = edited(tmp_path / "b", FAULTS["two heads alike"][0], bert[0])
    text = run(str(sick), code=1).stdout
    assert "1 of 20 lines are wrong" in " ".join(text.split())
    assert "! twin heads: 1, heads whose W_Q" in text
    found = json.loads(run(str(sick), "--json", code=1).stdout)
    assert [check["name"] for check in found["checks"] if not check["agrees"]] == ["twin heads"]
    assert found["checks"][6]["tolerance"] is None
    assert "nothing is wrong" in run(str(bert[0]), code=0).stdout


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: hs.doctor("-", []), "there is no text"),
    (lambda: hs.doctor("no-such/thing/at/all"), "no-such"),
    (lambda: hs.doctor(3), "got int"),
    (lambda: hs.doctor("-", earlier=3), "expected a report or the name of a file, got int"),  # type: ignore[arg-type]
    (lambda: hs.doctor("-", earlier="no-such-file"), "(?i)no such file"),
]


@pytest.mark.parametrize(("call", "says"), BAD)
def test_what_cannot_be_examined_is_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(hs.HeadscopeError, match=says):
        call()

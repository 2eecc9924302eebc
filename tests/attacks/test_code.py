"""Checkpoints that bring code along: none of it runs, and nobody is asked whether it may."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headscope as hs
from attacks.hostile import SENTINEL, UNSAFE
from headscope.errors import HeadscopeError, UnsupportedError
from headscope.live import modules_of_checkpoint
from headscope.live.built import configured
from making import change_json
from small_bert import small_bert

REPOSITORY = Path(__file__).parent.parent.parent
CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import BertConfig, BertModel, BertTokenizer
class Config(BertConfig): model_type = "foreign"
class Model(BertModel): config_class = Config
class Tokenizer(BertTokenizer): pass
"""
CLASSES = {"AutoConfig": "mod.Config", "AutoModel": "mod.Model", "AutoModelForCausalLM": "mod.Model"}
TOKENIZER = {"AutoTokenizer": ["mod.Tokenizer", None]}


def hostile(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> Path:
    """A checkpoint whose code leaves a file called `mark`, with these fields in its two configs."""
    folder.mkdir()
    small_bert(folder)
    change_json(folder / "config.json", **config)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "mod.py").write_text(CODE.format(mark=str(folder / "mark")))
    return folder


ATTACKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "unknown type": ({"model_type": "foreign", "auto_map": CLASSES}, {}),
    "no type": ({"model_type": None, "auto_map": CLASSES}, {}),
    "known type": ({"auto_map": CLASSES}, {}),
    "tokenizer": ({}, {"auto_map": TOKENIZER, "tokenizer_class": "Tokenizer"}),
    "tokenizer, as a list": ({}, {"auto_map": TOKENIZER["AutoTokenizer"], "tokenizer_class": "Tokenizer"}),
    "both": ({"model_type": "foreign", "auto_map": {**CLASSES, **TOKENIZER}}, {"auto_map": TOKENIZER}),
    "kernel": ({"attn_implementation": "foreign/kernel"}, {}),
    "kernel, as transformers keeps it": ({"_attn_implementation": {"": "foreign/kernel"}}, {}),
    "kernel of experts": ({"experts_implementation": "foreign/kernel"}, {}),
    "patches": ({"fusion_config": {"patch": True}}, {}),
}


@pytest.fixture
def yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input that agrees to everything, as a corpus on standard input may."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 99))


@pytest.mark.usefixtures("yes")
def test_the_code_runs_where_transformers_loads_it(tmp_path: Path) -> None:
    """The control experiment: with this standard input, transformers runs the checkpoint's code."""
    folder = hostile(tmp_path / "model", *ATTACKS["unknown type"])
    transformers.AutoModel.from_pretrained(folder)
    assert (folder / "mark").exists()


@pytest.mark.usefixtures("yes")
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize(
    "use",
    [
        lambda folder: hs.survey(folder, ["the cat sat"], statistics="same", report=False),
        lambda folder: hs.open(folder).trace("the cat sat").verify(),
        lambda folder: hs.open(folder).attribute("the cat [MASK]"),
        lambda folder: modules_of_checkpoint(json.loads((folder / "config.json").read_text())),
    ],
    ids=["survey", "verify", "attribute", "modules"],
)
def test_no_code_runs_and_nobody_is_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, use: Callable[[Path], object]
) -> None:
    folder = hostile(tmp_path / "model", *ATTACKS[name])
    with suppress(HeadscopeError):
        use(folder)
    assert not (folder / "mark").exists()
    assert "trust" not in "".join(capfd.readouterr())
    assert sys.stdin.read() == "y\n" * 99


NOT_RUN = {"unknown type": "auto_map", "tokenizer": "tokenizer", "kernel": "attn_implementation"}
NOT_RUN["patches"] = "fusion_config"


@pytest.mark.parametrize(("name", "word"), NOT_RUN.items())
def test_a_survey_says_what_it_does_not_run(tmp_path: Path, name: str, word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        hs.survey(hostile(tmp_path / "model", *ATTACKS[name]), ["the cat sat"], statistics="same", report=False)


@pytest.mark.parametrize("name", UNSAFE)
def test_a_survey_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Weights of a `.bin` come from headscope's own reader; torch's unpickler never sees the file."""
    monkeypatch.chdir(tmp_path)
    small_bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    UNSAFE[name][0](tmp_path)
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("torch.load was called"))
    with pytest.raises(UNSAFE[name][1]):
        hs.survey(tmp_path, ["the cat sat"], statistics="same", report=False)
    assert not Path(SENTINEL).exists()


def test_a_survey_of_a_binary_is_that_of_its_safetensors(tmp_path: Path) -> None:
    model = hs.open(small_bert(tmp_path))
    expected = hs.survey(tmp_path, ["the cat sat"], statistics="same", report=False)
    state = {name: torch.from_numpy(np.array(model.checkpoint.read(name))) for name in model.checkpoint.tensors}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    result = hs.survey(tmp_path, ["the cat sat"], statistics="same", report=False)
    np.testing.assert_array_equal(result["same"], expected["same"])
    assert result.manifest["model"]["sha256"] == expected.manifest["model"]["sha256"]


def test_configs_inside_a_config_bring_no_code(tmp_path: Path) -> None:
    """Classes of several towers build the inner ones by `from_config`, which asks, too."""
    inner = {"model_type": "gpt2", "n_layer": 1, "auto_map": CLASSES}
    config = configured(transformers.LlavaConfig, {"text_config": inner, "auto_map": CLASSES}, where=str(tmp_path))
    assert not hasattr(config, "auto_map")
    assert not hasattr(config.text_config, "auto_map")
    with pytest.raises(UnsupportedError, match="attn_implementation"):
        configured(transformers.LlavaConfig, {"text_config": {**inner, "attn_implementation": "a/b"}}, where="here")


AUTO = re.compile(r"Auto\w+\.from_pretrained\((?!…|\.\.\.)[^()]*\)?")


def test_the_project_loads_nothing_that_may_ask() -> None:
    """transformers' auto classes run a checkpoint's code once somebody says yes; the named classes never do."""
    folders = [REPOSITORY / name for name in ("src", "benchmarks", "docs", "examples", "training")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md", ".ipynb")]
    calls = [call for path in files for call in AUTO.findall(path.read_text(encoding="utf-8"))]
    assert len(files) > 300
    assert calls
    assert [call for call in calls if "trust_remote_code=False" not in call] == []

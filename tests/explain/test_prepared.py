"""What is done to a text before a model sees it, at every way in, against sentence-transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope as hs
from explain.minilm import minilm_folder

A = "The cat sat on the mat and looked at the dog. " * 30
B = "Where is the old ship of the line? It left the harbour at dawn. " * 24
SHORT = "She took off her HAT and sat down."


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The published model, and what sentence-transformers writes of it."""
    from sentence_transformers import SentenceTransformer

    made = {"published": minilm_folder()}
    for name in ("saved", "cut", "prompt", "without prompt", "first without prompt", "lower"):
        model = SentenceTransformer(str(minilm_folder()), device="cpu")
        if name == "cut":
            model.max_seq_length = 128
        if "prompt" in name:
            model.prompts, model.default_prompt_name = {"find": "Find the BEST: "}, "find"
            model.set_pooling_include_prompt(name == "prompt")
        if name.startswith("first"):
            model[1].pooling_mode = "cls"
        made[name] = tmp_path_factory.mktemp("saved") / name
        model.save_pretrained(str(made[name]))
        if name == "lower":
            _cased(made[name])
    return made


def _cased(folder: Path) -> None:
    """A tokenizer that keeps the case, in a model that lower-cases."""
    for name, field, value in (
        ("tokenizer_config.json", "do_lower_case", False),
        ("sentence_bert_config.json", "do_lower_case", True),
    ):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, field: value}))
    state = json.loads((folder / "tokenizer.json").read_text())
    state["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(state))


NAMES = ("published", "saved", "cut", "prompt", "without prompt", "first without prompt", "lower")


@pytest.mark.parametrize("name", NAMES)
def test_every_way_in_gives_the_library_s_cosine(folders: dict[str, Path], name: str) -> None:
    from sentence_transformers import SentenceTransformer

    first, second = SHORT, A
    library: Any = SentenceTransformer(str(folders[name]), device="cpu")
    vectors = library.encode([first, second]).astype(np.float64)
    cosine = float(vectors[0] @ vectors[1])
    model = hs.open(folders[name])
    target = ("similarity", second)
    found = model.attribute(first, target, check=False)
    assert found.total == pytest.approx(cosine, abs=2e-6)
    assert found.gap == pytest.approx(0, abs=1e-5)
    assert model.attribute(first, target, method="alti", check=False).scores.sum() == pytest.approx(1, abs=1e-4)
    assert model.effects(first, target, method="gradient").base == pytest.approx(cosine, abs=2e-6)
    tokens = library.tokenize([library.prompts.get(library.default_prompt_name, "") + first])["input_ids"][0].tolist()
    assert list(found.axis.ids) == tokens
    if "prompt" not in name:  # a match puts the prompts of queries and documents before its texts, and no default
        assert hs.match(model, first, second, level="output", check=False)[0].score == pytest.approx(cosine, abs=2e-6)
    assert hs.parity(model, np.stack(vectors).astype(np.float32), [first, second], tolerance=2e-5).agrees
    assert hs.parity(model, library, [first, second], tolerance=2e-5).agrees


@pytest.mark.parametrize("name", ["published", "saved", "cut", "without prompt"])
def test_long_texts_are_cut_as_the_library_cuts_them(folders: dict[str, Path], name: str) -> None:
    from sentence_transformers import SentenceTransformer

    library: Any = SentenceTransformer(str(folders[name]), device="cpu")
    one, other = library.encode([A, B]).astype(np.float64)
    model = hs.open(folders[name])
    found = model.effects(A, ("similarity", B), method="gradient")
    assert found.base == pytest.approx(float(one @ other), abs=2e-6)
    assert len(found.axis) == library.max_seq_length


def test_notes_say_what_was_done(folders: dict[str, Path]) -> None:
    cut = hs.open(folders["cut"])
    assert cut.pooling.max_length == 128
    notes = cut.effects(SHORT, ("similarity", A), method="gradient").notes
    assert len(notes) == 1
    assert notes[0].endswith("was cut from 362 to 128 tokens")
    assert cut.effects(A, ("embedding",), method="gradient").notes == ("the text was cut from 362 to 128 tokens",)
    assert cut.attribute(A, max_length=20, check=False).notes == ("the text was cut from 362 to 20 tokens",)
    notes = hs.open(folders["without prompt"]).attribute(SHORT, check=False).notes
    assert notes[0] == "the model's prompt 'Find the BEST: ' was put before the text"
    assert "left out of the text's vector" in notes[1]
    lowered = hs.open(folders["lower"]).attribute(SHORT, check=False)
    assert lowered.notes == ("the text was lower-cased, as the model's files say",)
    assert lowered.text == SHORT.lower()


def test_a_special_token_keeps_its_case(folders: dict[str, Path]) -> None:
    from sentence_transformers import SentenceTransformer

    text = "The [MASK] SAT down."
    library: Any = SentenceTransformer(str(folders["lower"]), device="cpu")
    found = hs.open(folders["lower"]).attribute(text, ("embedding",), check=False)
    assert list(found.axis.ids) == library.tokenize([text])["input_ids"][0].tolist()


def test_the_screen_says_what_was_cut(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from headscope.cli import app

    arguments = ("attribute", str(folders["cut"]), A, "--set", "check=false")
    shown = CliRunner().invoke(app, list(arguments)).output
    assert "the text was cut from 362 to 128 tokens" in " ".join(shown.split())
    record = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert record["notes"] == ["the text was cut from 362 to 128 tokens"]

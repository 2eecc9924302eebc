"""A text's vector, and the parts of a cosine by it, against sentence-transformers' pooling written out in torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope as hs
from explain.minilm import minilm_folder, pooled_by_torch
from headscope.checkpoint.sentence import read_pooling
from headscope.errors import CheckpointError, HeadscopeError, InputError, NoteWarning, UnsupportedError
from headscope.results.explained import Pooling
from small_bert import small_bert

A = "She took off her hat and sat down, tired."
B = "Weary, the woman removed her hat and took a seat."
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def stated(folder: Path, pooling: dict[str, object], modules: object = None) -> Path:
    """The folder with the files that sentence-transformers writes."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(MODULES if modules is None else modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.fixture(scope="module")
def minilm() -> hs.Model:
    return hs.open(minilm_folder())


def output_level(model: hs.Model, a: str, b: str) -> Any:
    return hs.match(model, a, b, level="output", check=False)[0]


def test_cells_add_up_to_the_cosine_of_sentence_transformers(minilm: hs.Model) -> None:
    vectors = pooled_by_torch(minilm_folder(), [A, B])
    found = output_level(minilm, A, B)
    assert found.scoring.pooling == Pooling("mean", normalized=True, stated=True, max_length=256)
    assert found.cells.sum() == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    states = [minilm.trace(text).outputs["last_hidden_state"].array.astype(float) for text in (A, B)]
    lengths = np.prod([len(state) * np.linalg.norm(state.mean(0)) for state in states])
    by_hand = [[float(x @ y) / lengths for y in states[1]] for x in states[0]]
    np.testing.assert_allclose(found.cells, by_hand, atol=1e-6)
    embedding = minilm.trace(A).outputs["sentence_embedding"]
    np.testing.assert_allclose(embedding, vectors[0].numpy(), atol=1e-6)
    assert "sentence_embedding" in list(minilm.trace(A).outputs)
    assert found.notes == ()


def test_a_long_text_is_cut_where_sentence_transformers_cuts_it(minilm: hs.Model) -> None:
    long = "The cat sat on the mat and looked at the dog. " * 30
    vectors = pooled_by_torch(minilm_folder(), [long, B])
    with pytest.warns(NoteWarning, match="the query was cut to 256 tokens"):
        found = output_level(minilm, long, B)
    assert found.score == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    assert found.notes == ("the query was cut from 362 to 256 tokens",)


def test_pooling_by_the_first_token(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(minilm_folder() / name, tmp_path / name)
    stated(tmp_path, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [*MODULES, NORMALIZE])
    vectors = pooled_by_torch(minilm_folder(), [A, B], mode="cls")
    model = hs.open(tmp_path)
    found = output_level(model, A, B)
    assert found.score == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    assert found.cells[0, 0] == pytest.approx(found.score)
    assert np.count_nonzero(found.cells) == 1
    np.testing.assert_allclose(model.trace(A).outputs["sentence_embedding"], vectors[0].numpy(), atol=1e-6)


def test_without_modules_json_the_mean_is_the_stated_default(tmp_path: Path) -> None:
    model = hs.open(small_bert(tmp_path))
    result = output_level(model, "the cat sat", "the dog")
    assert not result.scoring.stated
    assert "the default" in str(model.pooling)
    states = [model.trace(text).outputs["last_hidden_state"].array.astype(float) for text in ("the cat sat", "the dog")]
    a, b = (state.mean(0) for state in states)
    assert result.score == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)
    outputs = model.trace("the cat").outputs
    assert "sentence_embedding" not in list(outputs)
    with pytest.raises(InputError, match="no output 'sentence_embedding'"):
        outputs["sentence_embedding"]


@pytest.mark.parametrize(
    ("config", "modules", "error", "message"),
    [
        ({"pooling_mode_max_tokens": True}, None, UnsupportedError, "max_tokens"),
        ({"pooling_mode": "lasttoken"}, None, UnsupportedError, "lasttoken"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            None,
            UnsupportedError,
            "mean_tokens' and 'cls_token",
        ),
        ({}, None, UnsupportedError, "no mode"),
        ({}, [*MODULES, {"path": "2_Dense", "type": "x.Dense"}], UnsupportedError, "Dense"),
        ({}, [MODULES[0], {"path": "../../etc", "type": "x.Pooling"}], CheckpointError, r"\.\./\.\./etc"),
        ({}, [MODULES[0], {"path": "elsewhere", "type": "x.Pooling"}], CheckpointError, "no elsewhere/config.json"),
        ({}, {"a": 1}, CheckpointError, "expected a JSON list"),
        ({}, [7], CheckpointError, "a module is 7"),
    ],
)
def test_pooling_that_is_no_sum_is_refused(
    tmp_path: Path, config: dict[str, object], modules: object, error: type[HeadscopeError], message: str
) -> None:
    model = hs.open(stated(small_bert(tmp_path), config, modules))
    with pytest.raises(error, match=message):
        output_level(model, "the cat", "the dog")


def test_what_the_files_say_beside_the_mode(tmp_path: Path) -> None:
    folder = stated(small_bert(tmp_path), {"pooling_mode": "mean"})
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6, "do_lower_case": true}')
    (folder / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    )
    model = hs.open(folder)
    assert read_pooling(model.checkpoint) == Pooling("mean", False, True, 6, True, "query: ")
    with pytest.warns(NoteWarning, match="the document was cut to 6 tokens"):
        found = output_level(model, "The", "the dog sat on the mat")
    assert len(found.document.axis) == 6
    assert "the document was cut from 8 to 6 tokens" in found.notes
    assert "the query was lower-cased, as the model's files say" in found.notes
    assert any("'query: '" in note for note in found.notes)


@pytest.mark.parametrize("damage", [b"[", b'1, "a": 2', b"\xff", b"[" * 200 + b"]" * 200, b"null"])
def test_damaged_modules(tmp_path: Path, damage: bytes) -> None:
    folder = small_bert(tmp_path)
    (folder / "modules.json").write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"can't be read|expected"):
        output_level(hs.open(folder), "the cat", "the dog")

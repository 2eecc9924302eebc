"""The parts of a cosine, against sentence-transformers' pooling written out in torch, and against naive loops."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import headscope as hs
from explain.minilm import minilm_folder, pooled_by_torch
from headscope.checkpoint.sentence import Pooling, read_pooling
from headscope.errors import CheckpointError, HeadscopeError, InputError, UnsupportedError
from headscope.explain.similarity import cells_of, drops
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


def test_cells_add_up_to_the_cosine_of_sentence_transformers(minilm: hs.Model) -> None:
    pytest.importorskip("transformers")
    vectors = pooled_by_torch(minilm_folder(), [A, B])
    result = minilm.token_similarity(A, B)
    assert result.pooling == Pooling("mean", normalized=True, stated=True, max_length=256)
    assert result.cells.shape == (len(result.tokens_a), len(result.tokens_b))
    assert result.cosine == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    embedding = minilm.trace(A).outputs["sentence_embedding"]
    np.testing.assert_allclose(embedding, vectors[0].numpy(), atol=1e-6)
    assert "sentence_embedding" in list(minilm.trace(A).outputs)
    assert result.notes == ()


def test_a_long_text_is_cut_where_sentence_transformers_cuts_it(minilm: hs.Model) -> None:
    pytest.importorskip("transformers")
    long = "The cat sat on the mat and looked at the dog. " * 30
    vectors = pooled_by_torch(minilm_folder(), [long, B])
    result = minilm.token_similarity(long, B)
    assert result.cosine == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    assert result.notes == ("the first text was cut from 362 to 256 tokens, as sentence-transformers cuts it",)


def test_pooling_by_the_first_token(minilm: hs.Model, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(minilm_folder() / name, tmp_path / name)
    stated(tmp_path, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [*MODULES, NORMALIZE])
    vectors = pooled_by_torch(minilm_folder(), [A, B], mode="cls")
    model = hs.open(tmp_path)
    result = model.token_similarity(A, B)
    assert result.cosine == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    assert np.count_nonzero(result.cells) == 1
    assert result.special_share == 1
    assert np.isnan(result.drop_a[0])
    assert not result.drop_a[1:].any()
    np.testing.assert_allclose(model.trace(A).outputs["sentence_embedding"], vectors[0].numpy(), atol=1e-6)


def test_cells_and_drops_are_the_naive_ones() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(size, 7)).astype(np.float32) for size in (5, 3))
    mean = Pooling("mean")
    vector = b.astype(float).mean(0)

    def plain(rows: np.ndarray) -> float:
        item = rows.astype(float).mean(0)
        return item @ vector / np.linalg.norm(item) / np.linalg.norm(vector)

    lengths = np.linalg.norm(a.astype(float).mean(0)) * np.linalg.norm(vector)
    by_hand = [[float(x.astype(float) @ y.astype(float)) / (15 * lengths) for y in b] for x in a]
    np.testing.assert_allclose(cells_of(a, b, mean), by_hand, rtol=1e-12)
    without = [plain(a) - plain(np.delete(a, at, axis=0)) for at in range(5)]
    np.testing.assert_allclose(drops(a, vector, mean), without, rtol=1e-9)
    assert np.isnan(drops(a[:1], vector, mean)).all()


def test_running_again_without_a_token(minilm: hs.Model) -> None:
    result = minilm.token_similarity(A, B, rerun=True)
    trace, other = minilm.trace(A), minilm.trace(B).outputs["sentence_embedding"]
    assert result.rerun_a is not None
    assert result.rerun_b is not None
    for at in (0, 4, len(trace) - 1):
        ids = [index for place, index in enumerate(trace.ids) if place != at]
        again = minilm.trace(ids=ids).outputs["sentence_embedding"]
        assert result.rerun_a[at] == pytest.approx(result.cosine - float(again @ other), abs=1e-6)
    assert np.abs(result.rerun_a - result.drop_a).max() > 1e-3


def test_the_share_of_special_tokens_and_the_strongest_pairs(minilm: hs.Model) -> None:
    result = minilm.token_similarity(A, B)
    inner = result.cells[1:-1, 1:-1]
    assert result.special == pytest.approx(result.cells.sum() - inner.sum())
    assert result.special_share == pytest.approx(result.special / result.cosine)
    pairs = result.strongest(3)
    assert [result.cells[pair] for pair in pairs] == sorted(inner.ravel(), reverse=True)[:3]
    assert (result.tokens_a[pairs[0][0]], result.tokens_b[pairs[0][1]]) == ("hat", "hat")
    assert result.parts_a.sum() == pytest.approx(result.cosine)
    assert result.parts_b.sum() == pytest.approx(result.cosine)


def test_without_modules_json_the_mean_is_the_stated_default(tmp_path: Path) -> None:
    model = hs.open(small_bert(tmp_path))
    result = model.token_similarity("the cat sat", "the dog")
    assert not result.pooling.stated
    assert "the default" in str(result.pooling)
    states = [model.trace(text).outputs["last_hidden_state"].array.astype(float) for text in ("the cat sat", "the dog")]
    a, b = (state.mean(0) for state in states)
    assert result.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)
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
        model.token_similarity("the cat", "the dog")


def test_what_the_files_say_beside_the_mode(tmp_path: Path) -> None:
    folder = stated(small_bert(tmp_path), {"pooling_mode": "mean"})
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6, "do_lower_case": true}')
    (folder / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    )
    model = hs.open(folder)
    assert read_pooling(model.checkpoint) == Pooling("mean", False, True, 6, True, "query: ")
    with pytest.raises(InputError, match="the first text has upper case"):
        model.token_similarity("The cat", "the dog")
    result = model.token_similarity("the cat", "the dog sat on the mat")
    assert len(result.tokens_b) == 6
    assert len(result.notes) == 2
    assert "'query: '" in result.notes[1]


@pytest.mark.parametrize("damage", [b"[", b'1, "a": 2', b"\xff", b"[" * 200 + b"]" * 200, b"null"])
def test_damaged_modules(tmp_path: Path, damage: bytes) -> None:
    folder = small_bert(tmp_path)
    (folder / "modules.json").write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"can't be read|expected"):
        hs.open(folder).token_similarity("the cat", "the dog")

"""A text's vector, and the parts of a cosine by it, against sentence-transformers itself and its pooling in torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.checkpoint.sentence import read_pooling
from headscope.errors import CheckpointError, HeadscopeError, InputError, NoteWarning, UnsupportedError
from headscope.results.explained import Pooling
from naive_layers import MINILM
from products import pairwise
from small_bert import small_bert

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

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


def pooled_by_torch(folder: Path, texts: list[str], *, mode: str = "mean", max_length: int = 256) -> Any:
    """Vectors as sentence-transformers makes them, written out: the masked mean or [CLS], then length 1."""
    tokenizer, module = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.inference_mode():
        hidden = module(**batch).last_hidden_state.double()
    mask = batch["attention_mask"][..., None].double()
    vectors = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9) if mode == "mean" else hidden[:, 0]
    return torch.nn.functional.normalize(vectors, p=2, dim=1)


def output_level(model: hs.Model, a: str, b: str) -> Any:
    return hs.match(model, a, b, level="output", check=False)[0]


def test_cells_add_up_to_the_cosine_of_sentence_transformers(minilm: hs.Model) -> None:
    vectors = pooled_by_torch(MINILM, [A, B])
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


def test_pooling_by_the_first_token(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(MINILM / name, tmp_path / name)
    stated(tmp_path, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [*MODULES, NORMALIZE])
    vectors = pooled_by_torch(MINILM, [A, B], mode="cls")
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


SAT, RAN = "The cat sat on the mat.", "A dog ran home."


def bi_encoder(mode: str, normalised: bool, **options: Any) -> SentenceTransformer:
    """A model of the library, which is imported late: most workers run no test with it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

    transformer = Transformer(str(BUNDLED))
    modules = [transformer, PoolingModule(transformer.get_embedding_dimension(), pooling_mode=mode)]
    return SentenceTransformer(modules=modules + [Normalize()] * normalised, device="cpu", **options)


@pytest.mark.parametrize(("mode", "normalised", "measure"), pairwise(("mean", "cls"), (False, True), ("cosine", "dot")))
def test_a_truncated_vector_is_sentence_transformers(mode: str, normalised: bool, measure: str, tmp_path: Path) -> None:
    library = bi_encoder(mode, normalised, truncate_dim=8, similarity_fn_name=measure)
    library.save(str(tmp_path))
    vectors = library.encode([SAT, RAN])
    score = float(library.similarity(vectors[0], vectors[1]))
    whole = bi_encoder(mode, normalised, similarity_fn_name=measure)
    assert abs(score - float(whole.similarity(*whole.encode([SAT, RAN])))) > 0.001
    for model in (hs.open(tmp_path), hs.open(library)):
        embedding = model.trace(SAT).outputs["sentence_embedding"]
        np.testing.assert_allclose(embedding, vectors[0], atol=1e-5)
        for level in ("input", "output"):
            match = hs.match(model, SAT, RAN, level=level)[0]
            assert match.score == pytest.approx(score, abs=1e-5)
            assert match.cells.sum() == pytest.approx(score - getattr(match, "rest", 0), abs=1e-4)
        assert "its first 8 numbers" in str(model.pooling)


def test_outputs_that_read_the_vector_read_its_first_numbers(tmp_path: Path) -> None:
    bi_encoder("mean", True, truncate_dim=8).save(str(tmp_path))
    model = hs.open(tmp_path)
    states = model.trace(SAT).outputs["last_hidden_state"].array.astype(float)
    silenced = model.trace(SAT, ablate=[(2, 1)]).outputs["last_hidden_state"].array.astype(float)
    other = model.trace(RAN).outputs["last_hidden_state"].array.astype(float)
    own, without, there = (torch.tensor(part.mean(0)[:8]) for part in (states, silenced, other))
    cosine = torch.nn.functional.cosine_similarity
    expected = {
        ("similarity", RAN): (cosine(own, there, dim=0), cosine(without, there, dim=0)),
        ("embedding_distance",): (torch.tensor(0.0), 1 - cosine(own, without, dim=0)),
        ("embedding",): (torch.tensor(1.0), without @ own / (own @ own)),
    }
    for target, (before, after) in expected.items():
        effects = model.effects(SAT, target)
        assert effects.base == pytest.approx(float(before), abs=1e-5)
        assert np.asarray(effects)[2, 1] == pytest.approx(float(after - before), abs=1e-5)
    answer = model.attribute(SAT, ("similarity", RAN))
    assert answer.total == pytest.approx(float(expected["similarity", RAN][0]), abs=1e-5)
    assert answer.gap == pytest.approx(0, abs=1e-4)


def test_null_truncates_nothing_and_what_is_no_number_is_refused(tmp_path: Path) -> None:
    bi_encoder("mean", True).save(str(tmp_path))
    file = tmp_path / "config_sentence_transformers.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"truncate_dim": None}))
    assert hs.open(tmp_path).trace(SAT).outputs["sentence_embedding"].shape == (192,)
    for wrong in (0, -8, "8", 8.5, True):
        file.write_text(json.dumps(settings | {"truncate_dim": wrong}))
        with pytest.raises(CheckpointError, match=r"truncate_dim is .*, expected a positive number"):
            hs.match(hs.open(tmp_path), SAT, RAN)

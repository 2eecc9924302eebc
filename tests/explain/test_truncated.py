"""Vectors of which only some numbers count, as sentence-transformers itself saves and computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import CheckpointError

A, B = "The cat sat on the mat.", "A dog ran home."


def bi_encoder(mode: str, normalised: bool, **options: Any) -> SentenceTransformer:
    transformer = Transformer(str(BUNDLED))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode=mode)]
    return SentenceTransformer(modules=modules + [Normalize()] * normalised, device="cpu", **options)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("mode", ["mean", "cls"])
@pytest.mark.parametrize("measure", ["cosine", "dot"])
def test_a_truncated_vector_is_sentence_transformers(mode: str, normalised: bool, measure: str, tmp_path: Path) -> None:
    library = bi_encoder(mode, normalised, truncate_dim=8, similarity_fn_name=measure)
    library.save(str(tmp_path))
    vectors = library.encode([A, B])
    score = float(library.similarity(vectors[0], vectors[1]))
    whole = bi_encoder(mode, normalised, similarity_fn_name=measure)
    assert abs(score - float(whole.similarity(*whole.encode([A, B])))) > 0.001
    for model in (hs.open(tmp_path), hs.open(library)):
        embedding = model.trace(A).outputs["sentence_embedding"]
        np.testing.assert_allclose(embedding, vectors[0], atol=1e-5)
        for level in ("input", "output"):
            match = hs.match(model, A, B, level=level)[0]
            assert match.score == pytest.approx(score, abs=1e-5)
            assert match.cells.sum() == pytest.approx(score - getattr(match, "rest", 0), abs=1e-4)
        assert "its first 8 numbers" in str(model.pooling)


def test_outputs_that_read_the_vector_read_its_first_numbers(tmp_path: Path) -> None:
    bi_encoder("mean", True, truncate_dim=8).save(str(tmp_path))
    model = hs.open(tmp_path)
    states = model.trace(A).outputs["last_hidden_state"].array.astype(float)
    silenced = model.trace(A, ablate=[(2, 1)]).outputs["last_hidden_state"].array.astype(float)
    other = model.trace(B).outputs["last_hidden_state"].array.astype(float)
    own, without, there = (torch.tensor(part.mean(0)[:8]) for part in (states, silenced, other))
    cosine = torch.nn.functional.cosine_similarity
    expected = {
        ("similarity", B): (cosine(own, there, dim=0), cosine(without, there, dim=0)),
        ("embedding_distance",): (torch.tensor(0.0), 1 - cosine(own, without, dim=0)),
        ("embedding",): (torch.tensor(1.0), without @ own / (own @ own)),
    }
    for target, (before, after) in expected.items():
        effects = model.effects(A, target)
        assert effects.base == pytest.approx(float(before), abs=1e-5)
        assert np.asarray(effects)[2, 1] == pytest.approx(float(after - before), abs=1e-5)
    answer = model.attribute(A, ("similarity", B))
    assert answer.total == pytest.approx(float(expected["similarity", B][0]), abs=1e-5)
    assert answer.gap == pytest.approx(0, abs=1e-4)


def test_null_truncates_nothing_and_what_is_no_number_is_refused(tmp_path: Path) -> None:
    bi_encoder("mean", True).save(str(tmp_path))
    file = tmp_path / "config_sentence_transformers.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"truncate_dim": None}))
    assert hs.open(tmp_path).trace(A).outputs["sentence_embedding"].shape == (192,)
    for wrong in (0, -8, "8", 8.5, True):
        file.write_text(json.dumps(settings | {"truncate_dim": wrong}))
        with pytest.raises(CheckpointError, match=r"truncate_dim is .*, expected a positive number"):
            hs.match(hs.open(tmp_path), A, B)

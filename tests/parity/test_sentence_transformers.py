"""A SentenceTransformer as a side: its tokenizer, its pooling, its vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headscope as hs
from explain.minilm import minilm_folder

TEXTS = ("A cat sat on the mat.", "NASA launched a new telescope.", "Where is the old ship? " * 60)


@pytest.fixture(scope="module")
def model() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_folder()), device="cpu")


def test_a_sentence_transformer_is_the_same_as_its_checkpoint(model: Any) -> None:
    report = hs.parity(minilm_folder(), model, TEXTS, tolerance=2e-5)
    assert report.agrees, repr(report)
    assert len(report.tokens[2]) == 256
    vectors = model.encode(list(TEXTS))
    assert hs.parity(model, vectors[:1], TEXTS[:1], tolerance=2e-5).agrees
    assert hs.parity(minilm_folder(), vectors, TEXTS, tolerance=2e-5).agrees


def test_another_pooling_or_prompt_is_seen(model: Any) -> None:
    batch = model.tokenize(list(TEXTS[:2]))
    first = model[0](batch)["token_embeddings"][:, 0].detach().numpy()
    first = first / np.linalg.norm(first, axis=1, keepdims=True)
    assert "it pools the first token" in hs.parity(minilm_folder(), first, TEXTS[:2]).sentence()
    model.prompts, model.default_prompt_name = {"query": "query: "}, "query"
    try:
        assert hs.parity(minilm_folder(), model, TEXTS[:2]).sentence().startswith("part at the tokens")
    finally:
        model.default_prompt_name = None


def test_a_module_more_is_refused(model: Any) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense

    more = SentenceTransformer(modules=[*model.children(), Dense(384, 8)])
    with pytest.raises(hs.HeadscopeError, match="a SentenceTransformer of Transformer, Pooling, Normalize, Dense"):
        hs.parity(minilm_folder(), more, TEXTS)

"""A model in memory has its own class, count and name; what reads it again reads it, not the model it came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED

TEXTS = ["The cat sat on the mat.", "A dog ran to the park.", "We went home."] * 4


@pytest.fixture(scope="module")
def changed() -> BertModel:
    model = BertModel.from_pretrained(BUNDLED).eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(3)
    return model


def test_a_classifier_is_called_by_its_class_and_counts_its_own_parameters() -> None:
    classifier = BertForSequenceClassification.from_pretrained(BUNDLED, num_labels=3)
    model = hs.open(classifier)
    text = repr(model)
    assert "BertForSequenceClassification" in text
    assert f"{sum(part.numel() for part in classifier.parameters()):,} parameters" in text
    assert repr(hs.open(BertForSequenceClassification(classifier.config))) != text


def test_two_models_of_one_origin_differ_by_name(changed: BertModel) -> None:
    before, after, again = hs.open(BUNDLED), hs.open(changed), hs.open(changed)
    assert len({before.name, after.name, again.name}) == 3
    comparison = hs.compare(hs.open(BertModel.from_pretrained(BUNDLED)), after)
    assert comparison.a != comparison.b
    assert comparison.b == after.name


def test_a_survey_of_a_model_in_memory_reads_that_model(changed: BertModel, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    model = hs.open(changed, tokenizer=tokenizer)
    survey = hs.survey(model, tmp_path / "texts.txt", out=tmp_path / "out", threads=1)
    live = hs.survey(changed, tmp_path / "texts.txt", tokenizer=tokenizer, out=tmp_path / "live", threads=1)
    np.testing.assert_allclose(survey["entropy"], live["entropy"], atol=1e-4)
    assert survey.manifest["model"]["name"] == model.name

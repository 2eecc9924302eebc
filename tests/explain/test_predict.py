"""Predictions of classifiers: `predict`, against transformers' own logits and probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

import headscope as hs
from commands import answer, run
from explain.tops import NAMES, TEXT, readable
from headscope.errors import InputError
from headscope.runs.predicting import outcomes
from random_models import Made


def logits_of(made: Made, text: str) -> np.ndarray:
    """The logits of transformers for the ids that headscope reads."""
    trace = hs.open(made.folder).trace(text)
    with torch.inference_mode():
        return made.module(torch.tensor([trace.ids])).logits[0].double().numpy()


def test_classes_have_the_probabilities_of_transformers(classes: Made) -> None:
    prediction = hs.open(classes.folder).predict(TEXT)
    logits = logits_of(classes, TEXT)
    expected = torch.softmax(torch.from_numpy(logits), -1).numpy()
    np.testing.assert_allclose(prediction.probabilities, expected, atol=1e-5)
    assert prediction.label == NAMES[str(logits.argmax())]
    assert [row["label"] for row in prediction.rows()] == [NAMES[str(at)] for at in np.argsort(-logits)]
    assert prediction.kind == "sequence"
    assert prediction.label in repr(prediction)
    record = answer("predict", classes.folder, TEXT)
    assert record["predictions"] == prediction.rows()
    assert record["task"] == "sequence"


@pytest.mark.parametrize(
    ("config", "kind", "formula"),
    [
        ({"problem_type": "multi_label_classification"}, "several", torch.sigmoid),
        ({"num_labels": 1}, "score", torch.sigmoid),
        ({"num_labels": 1, "problem_type": "regression"}, "regression", None),
        ({"problem_type": "single_label_classification"}, "sequence", lambda x: torch.softmax(x, -1)),
    ],
)
def test_the_config_says_what_logits_mean(tmp_path: Path, config: dict[str, Any], kind: str, formula: Any) -> None:
    made = readable(tmp_path, "Bert", "ForSequenceClassification", **config)
    prediction = hs.open(str(tmp_path)).predict(TEXT)
    logits = logits_of(made, TEXT)
    np.testing.assert_allclose(prediction.logits, logits, atol=1e-4)
    assert prediction.kind == kind
    screen = run("predict", str(tmp_path), TEXT).stdout
    model = hs.open(str(tmp_path))
    attribution, effects, outcome = model.attribute(TEXT), model.effects(TEXT), outcomes(model, model.trace(TEXT))
    if formula is None:
        assert (attribution.prediction, effects.base_aside, outcome) == ((), None, [])
        assert prediction.probabilities is None
        assert "probability" not in screen
    else:
        np.testing.assert_allclose(prediction.probabilities, formula(torch.from_numpy(logits)).numpy(), atol=1e-5)
        shares = {row["label"]: row["probability"] for row in prediction.rows()}
        for choices in (attribution.prediction, outcome[0].top):  # in an explanation and on the page
            assert [choice.share for choice in choices] == pytest.approx([shares[one.label] for one in choices])
        assert effects.base_aside == pytest.approx(shares[effects.target.label])
        assert f"{prediction.rows()[0]['probability']:.3f}" in screen


def test_a_tagger_predicts_a_label_for_each_token(tmp_path: Path) -> None:
    made = readable(tmp_path, "Bert", "ForTokenClassification")
    prediction = hs.open(str(tmp_path)).predict(TEXT)
    logits = logits_of(made, TEXT)
    shares = torch.softmax(torch.from_numpy(logits), -1).numpy()
    rows = prediction.rows()
    assert [row["label"] for row in rows] == [NAMES[str(at)] for at in logits.argmax(-1)]
    np.testing.assert_allclose([row["probability"] for row in rows], shares.max(-1), atol=1e-5)
    assert [row["token"] for row in rows] == list(hs.open(str(tmp_path)).trace(TEXT).tokens)
    lines = run("predict", str(tmp_path), TEXT, "--csv").stdout.splitlines()
    assert lines[0] == "position,token,label,logit,probability"
    assert len(lines) == len(rows) + 1
    with pytest.raises(hs.errors.InputError, match="a class for each token"):
        prediction.label


def test_fill_and_predict_name_each_other(classes: Made, bert: hs.Model) -> None:
    with pytest.raises(hs.errors.UnsupportedError, match=r"ask for its classes \(predict\)"):
        hs.open(classes.folder).fill("the [MASK]")
    with pytest.raises(hs.errors.UnsupportedError, match="fill its masks"):
        bert.predict("the cat")


def test_one_command_predicts_what_the_checkpoint_can(small: str, tmp_path: Path) -> None:
    """A model with both heads fills the masks of a text that has some, and classifies one that has none."""
    assert answer("predict", small, "the [MASK] sat")["schema"] == "headscope/fill"
    assert "no [MASK]" in run("predict", small, "the cat", code=2).stderr
    readable(tmp_path, "Bert", "ForPreTraining")
    assert answer("predict", tmp_path, "the [MASK] sat")["schema"] == "headscope/fill"


@pytest.mark.parametrize("command", ["effects", "attribute"])
def test_an_explanation_of_a_classifier_begins_with_its_prediction(classes: Made, command: str) -> None:
    prediction = hs.open(classes.folder).predict(TEXT)
    best = prediction.rows()[0]
    screen = " ".join(run(command, classes.folder, TEXT).stdout.split())
    assert f"the model predicts {best['label']!r}, probability {best['probability']:.4f}; then " in screen
    assert screen.index("the model predicts") < screen.index("logit")


def test_silenced_heads_and_pairs(classes: Made) -> None:
    model = hs.open(classes.folder)
    whole, silenced = model.predict(TEXT), model.predict(TEXT, ablate=[(0, 0), (0, 1)])
    assert not np.allclose(whole.logits, silenced.logits)
    paired = model.predict(TEXT, "He took off his hat.")
    assert len(paired.axis) > len(whole.axis)


def test_a_classifier_with_nan_is_an_error(tmp_path: Path) -> None:
    made = readable(tmp_path, "Bert", "ForSequenceClassification")
    with torch.no_grad():
        made.module.classifier.bias[0] = float("nan")
    made.module.save_pretrained(tmp_path)
    with pytest.raises(hs.errors.CheckpointError, match="NaN or infinite"):
        hs.open(str(tmp_path)).predict(TEXT)


def test_every_table_is_a_table_of_pandas(bert: hs.Model) -> None:
    import pandas

    masked, pairs = "He took off his [MASK].", [(["A", "cat", "sat"], [(1, 0)])] * 2
    effects, trace = bert.effects(masked), bert.trace(masked)
    tables = [effects, bert.attribute(masked), trace.statistics(), trace.mixing_ratio(), bert.fill(masked)[0]]
    tables += [bert.parameters, hs.match(bert, "a cat", ["the cat sat", "a dog"])]
    tables += [found.table for found in (hs.pair_heads(bert, pairs), hs.pair_heads(bert, pairs, by="row"))]
    for table in tables:
        frame = table.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert len(frame) == len(table.rows()) > 0
    frame = effects.to_pandas()
    assert list(frame.columns) == ["layer", "head", "change", "probability"]
    np.testing.assert_array_equal(frame["change"].to_numpy().reshape(effects.shape), effects.change)


def test_classes_without_names_have_those_of_transformers(tmp_path: Path) -> None:
    """transformers saves no names of its own; a pipeline calls them LABEL_0 and LABEL_1."""
    readable(tmp_path, "Bert", "ForSequenceClassification", num_labels=2)
    folder = tmp_path
    config = json.loads((folder / "config.json").read_text())
    assert "id2label" not in config
    assert AutoConfig.from_pretrained(folder).id2label == {0: "LABEL_0", 1: "LABEL_1"}
    model = hs.open(folder)
    for number, name in enumerate(("LABEL_0", "LABEL_1")):
        expected = model.effects(TEXT, ("class", number))
        for target in (("class", name), name):
            found = model.effects(TEXT, target)
            assert found.base == expected.base
            np.testing.assert_array_equal(found, expected)
    named, numbered = (
        run("effects", str(folder), TEXT, "--target", name, "--json").stdout for name in ("LABEL_1", "1")
    )
    assert named == numbered
    with pytest.raises(InputError, match="there is no class 'LABEL_2'") as raised:
        model.effects(TEXT, ("class", "LABEL_2"))
    assert "LABEL_0, LABEL_1" in str(raised.value)

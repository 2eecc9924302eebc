"""`headscope effects`, `attribute` and `predict`: what they print, against transformers and the guide."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
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
from headscope.results.explained import Attribution
from headscope.runs.predicting import outcomes
from headscope.screens.explain_sheets import attribution_sheet, effects_sheet
from headscope.screens.inked import heat_map, inked_text, signed_style
from headscope.screens.labels import width
from headscope.screens.terminal import Paper, lines_of, plain_text
from making import change_json
from naive_layers import MINILM
from random_models import Made
from small_bert import small_bert

MASKED = "she took off her [MASK] and sat down ."
DOCS = Path(__file__).parents[2] / "docs"
GUIDE, DETAIL = [(DOCS / name).read_text(encoding="utf-8") for name in ("explain.md", "reference/explaining.md")]
HAT = "She took off her hat and sat down, tired."


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A labeller of tokens; no test changes it."""
    return readable(tmp_path_factory.mktemp("tagger"), "Bert", "ForTokenClassification")


def table(*args: object) -> list[dict[str, str]]:
    """The rows of a command's CSV."""
    return list(csv.DictReader(io.StringIO(run(*args, "--csv").stdout)))


@pytest.mark.parametrize(
    ("command", "items", "column"), [("effects", "heads", "change"), ("attribute", "tokens", "score")]
)
def test_json_and_csv_have_what_python_has(small: str, command: str, items: str, column: str) -> None:
    """Of the top few, CSV and Markdown have the strongest rows of all, the strongest first; JSON has all."""
    result = getattr(hs.open(small), command)(MASKED)
    record, rows = answer(command, small, MASKED), table(command, small, MASKED)
    for found in (record[items], rows):
        np.testing.assert_allclose([float(one[column]) for one in found], np.ravel(result), atol=1e-6)
    if command == "effects":
        assert {"kind": "word", "default": True, "position": 5}.items() <= record["target"].items()
        assert record["base"] == pytest.approx(result.base)
        assert [(item["layer"], item["head"]) for item in record["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert [float(row["probability"]) for row in rows] == [item["probability"] for item in record["heads"]]
    else:
        assert (record["method"], record["rest"]) == ("decompx", pytest.approx(result.rest))
        assert [row["token"] for row in rows] == list(result.tokens)
    screen = run(command, small, MASKED).stdout
    for words in {"effects": ["(the default)"], "attribute": ["the biases", "took"]}[command]:
        assert words in screen
    top = ("--top", "2")
    assert table(command, small, MASKED, *top) == sorted(rows, key=lambda row: -abs(float(row[column])))[:2]
    assert len(run(command, small, MASKED, "--markdown", *top).stdout.splitlines()) == 2 + 2
    assert answer(command, small, MASKED, *top) == record


def test_targets_by_options(small: str, tagger: Made) -> None:
    assert answer("effects", small, MASKED, "--target", "hat")["target"]["label"] == "hat"
    assert answer("attribute", small, MASKED, "--target", "hat", "--at", "5")["target"]["position"] == 5
    assert answer("attribute", small, MASKED, "--set", "vector=true")["target"]["kind"] == "embedding"
    like = answer("attribute", small, MASKED, "--like", "her hat")
    assert like["total"] == pytest.approx(hs.match(small, MASKED, "her hat").scores[0], abs=1e-6)
    for target, name in (("good", "good"), ("1", "fair")):
        label = answer("attribute", tagger.folder, TEXT, "--target", target, "--at", "4")["target"]
        assert (label["kind"], label["label"], label["position"]) == ("token", name, 4)


@pytest.mark.parametrize("paper", [Paper(40), Paper(80, unicode=False), Paper(60, colour=True)])
def test_screens_fit(small: str, paper: Paper) -> None:
    model = hs.open(small)
    sheets = (effects_sheet("x", model.effects(MASKED)), attribution_sheet("x", model.attribute(MASKED)))
    for sheet in sheets:
        for line in lines_of(sheet.drawings, paper):
            assert sum(width(text) for text, _ in line) <= paper.width
        if not paper.unicode:
            assert plain_text(sheet.drawings, paper).isascii()


def test_ink_is_signed() -> None:
    labels, values = ("a", "b", "·c", "d"), np.array([1.0, -0.5, 0.01, float("nan")])
    assert plain_text([inked_text(labels, values)], Paper()) == "a█ b-▒c d\n"
    assert plain_text([inked_text(labels, values)], Paper(unicode=False)) == "a@ b-=c d\n"
    styles = [style for _, style in lines_of([inked_text(labels, values)], Paper(colour=True))[0]]
    assert [style for style in styles if style] == [signed_style(1.0), signed_style(-0.5)]
    grid = plain_text([heat_map(np.array([[0.5, -0.25], [0.0, 0.001]]), "logit")], Paper())
    assert grid.splitlines()[1].split() == ["layer", "0", "+100", "-50"]
    assert grid.splitlines()[2].split() == ["layer", "1", "·", "·"]
    assert "0.5 (logit)" in grid


def test_a_hostile_token_is_no_markup(small: str) -> None:
    result = hs.open(small).attribute(MASKED)
    tokens = ("[CLS]", "\x1b[31m", "[red]", *result.tokens[3:])
    axis = replace(result.axis, tokens=tokens, spans=(None,) * len(result.axis))
    sheet = attribution_sheet("x", replace(result, axis=axis))
    assert "\x1b" not in plain_text(sheet.drawings, Paper())
    assert "\x1b" not in sheet.table().csv()
    assert [row["token"] for row in sheet.record()["tokens"]] == list(axis.tokens)


@pytest.mark.parametrize("chosen", [(), (1,), ("1.0",), ("1.0", "--query", 3)])
def test_attend_opens_with_findings(tmp_path: Path, chosen: tuple[object, ...]) -> None:
    folder = small_bert(tmp_path)
    every = hs.open(folder).trace(HAT).findings(layers=[1] if chosen else None, most=None)
    expected = [one.as_dict() for one in every if len(chosen) < 3 or any(cell.head == 0 for cell in one.cells)][:5]
    assert expected
    options = ("--heads", *chosen) if chosen else ()
    assert answer("attend", folder, HAT, *options)["findings"] == json.loads(json.dumps(expected))
    screen = run("attend", folder, HAT, *map(str, options), env={"COLUMNS": "200"}).stdout
    opening = [line[2:] for line in screen.splitlines() if line.startswith("• ")]
    assert opening == [one["sentence"] for one in expected[:3]]
    assert screen.splitlines()[1].startswith("• ")


def test_summary_and_head_have_expansion_rates(minilm: hs.Model) -> None:
    rates = [layer.expansion_rate for layer in minilm.layers]
    assert answer("summary", MINILM)["expansion_rates"] == pytest.approx(rates)
    assert answer("head", MINILM, "3.5")["expansion_rate"] == pytest.approx(rates[3])
    screen = run("head", MINILM, "3.5", env={"COLUMNS": "200"}).stdout
    assert "The expansion rate of layer 3 is 1.392" in screen


def test_the_guide_shows_what_the_models_give(minilm: hs.Model) -> None:
    for finding in minilm.trace(HAT).findings():
        assert finding.sentence in GUIDE
    promotion = hs.open().trace("She took off her [MASK] and sat down by the fire.")[3].promotes(5, top=5)
    for line in repr(promotion).splitlines():
        assert line in DETAIL


def test_amounts_that_cancel_are_shown_as_ranks(minilm: hs.Model) -> None:
    """And a share that masking contradicts is marked."""
    result = minilm.attribute(HAT)
    paper = Paper(width=100)

    def screen(shown: Attribution) -> str:
        return plain_text(attribution_sheet("x", shown).drawings, paper)

    plain = screen(result)
    assert f"kappa {result.kappa:.2f}" in plain
    assert f"{result.checks[0].share:+.4f}" in plain
    assert f"{result.checks[0].change:+.4f}" in plain
    assert "!" not in plain
    wrong = tuple(replace(part, change=-part.share) for part in result.checks)
    cancelling = replace(result, total=result.total / 100, checks=wrong)
    ranked = screen(cancelling)
    assert f"{cancelling.kappa:.1f}: parts" in ranked
    assert f"{result.checks[0].share:+.4f}" not in ranked
    assert [line.split()[2:4] for line in ranked.splitlines() if " ! " in f"{line} "][:2] == [["+", "1"], ["+", "2"]]
    assert f"contradicts the share's sign: {wrong[0].label}" in " ".join(ranked.split())
    assert "even the ranks may be noise" in " ".join(screen(replace(result, total=result.total / 1e5)).split())


def logits_of(made: Made, text: str) -> np.ndarray:
    """The logits of transformers for the ids that headscope reads."""
    trace = hs.open(made.folder).trace(text)
    with torch.inference_mode():
        return made.module(torch.tensor([trace.ids])).logits[0].double().numpy()


@pytest.mark.parametrize(
    ("config", "kind", "formula"),
    [
        ({"problem_type": "multi_label_classification"}, "several", torch.sigmoid),
        ({"num_labels": 1}, "score", torch.sigmoid),
        ({"num_labels": 1, "problem_type": "regression"}, "regression", None),
        ({"problem_type": "single_label_classification"}, "sequence", lambda x: torch.softmax(x, -1)),
        ({}, "sequence", lambda x: torch.softmax(x, -1)),
    ],
)
def test_the_config_says_what_logits_mean(tmp_path: Path, config: dict[str, Any], kind: str, formula: Any) -> None:
    made = readable(tmp_path, "Bert", "ForSequenceClassification", **config)
    prediction = hs.open(str(tmp_path)).predict(TEXT)
    logits = logits_of(made, TEXT)
    np.testing.assert_allclose(prediction.logits, logits, atol=1e-4)
    record = answer("predict", str(tmp_path), TEXT)
    assert (record["task"], prediction.kind, record["predictions"]) == ("sequence", kind, prediction.rows())
    if kind == "sequence":
        assert [row["label"] for row in prediction.rows()] == [NAMES[str(at)] for at in np.argsort(-logits)]
        assert prediction.label == NAMES[str(logits.argmax())] in repr(prediction)
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
    if kind == "score":  # files of older versions of transformers may say it
        change_json(tmp_path / "config.json", problem_type="single_label_classification")
        assert hs.open(str(tmp_path)).predict(TEXT).probabilities == pytest.approx(prediction.probabilities)


def test_a_tagger_predicts_a_label_for_each_token(tagger: Made) -> None:
    prediction = hs.open(tagger.folder).predict(TEXT)
    logits = logits_of(tagger, TEXT)
    shares = torch.softmax(torch.from_numpy(logits), -1).numpy()
    rows = prediction.rows()
    assert [row["label"] for row in rows] == [NAMES[str(at)] for at in logits.argmax(-1)]
    np.testing.assert_allclose([row["probability"] for row in rows], shares.max(-1), atol=1e-5)
    assert [row["token"] for row in rows] == list(hs.open(tagger.folder).trace(TEXT).tokens)
    lines = run("predict", tagger.folder, TEXT, "--csv").stdout.splitlines()
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
    made = readable(tmp_path, "Bert", "ForSequenceClassification", num_labels=2)
    assert "id2label" not in made.config
    assert AutoConfig.from_pretrained(tmp_path).id2label == {0: "LABEL_0", 1: "LABEL_1"}
    model = hs.open(tmp_path)
    for number, name in enumerate(("LABEL_0", "LABEL_1")):
        expected = model.effects(TEXT, ("class", number))
        for target in (("class", name), name):
            found = model.effects(TEXT, target)
            assert found.base == expected.base
            np.testing.assert_array_equal(found, expected)
    named, numbered = (answer("effects", tmp_path, TEXT, "--target", name) for name in ("LABEL_1", "1"))
    assert named == numbered
    with pytest.raises(InputError, match="there is no class 'LABEL_2'") as raised:
        model.effects(TEXT, ("class", "LABEL_2"))
    assert "LABEL_0, LABEL_1" in str(raised.value)

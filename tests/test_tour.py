"""The tour: one screen that holds whatever the model, and finds the head that was made to be found."""

from __future__ import annotations

import shlex

import numpy as np
import pytest

import headscope as hs
from commands import run
from headscope.errors import UnsupportedError
from headscope.screens.labels import width
from headscope.screens.terminal import Paper, plain_text
from headscope.screens.tour import SENTENCE, proof, take_tour, tour_drawings
from headscope.verify import Check, Report
from small_bert import small_bert


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    model = hs.open(small_bert(tmp_path_factory.mktemp("small")))
    model.checkpoint.name = "-"
    return take_tour(model)


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_tour_is_one_screen(tour, columns):
    lines = plain_text(tour_drawings(tour), Paper(columns)).splitlines()
    assert max(map(width, lines)) <= min(columns, 100)
    assert columns < 100 or len(lines) <= 40


def test_it_shows_what_it_promises(tour):
    text = plain_text(tour_drawings(tour), Paper(100))
    assert "2 layers of 2 heads" in text
    assert "»[MASK]«" in text
    assert "Verified: " in text
    assert text.count("\n  headscope ") == 5


def test_the_head_is_the_one_that_the_prediction_rests_on(tour):
    """The model runs with each head silenced, and the predicted token's probability is read from the logits."""
    token, place = tour.model.tokenizer.id(tour.word), tour.filled.position

    def probability(**options) -> float:
        logits = np.float64(tour.model.trace(tour.trace.text, **options).outputs["logits"].array[place])
        return float(np.exp(logits[token] - logits.max()) / np.exp(logits - logits.max()).sum())

    assert tour.head == min(np.ndindex(2, 2), key=lambda head: probability(ablate={head}))
    line = " ".join(plain_text(tour_drawings(tour), Paper(100)).split())
    assert f"rests most on head {tour.head[1]} of layer {tour.head[0]}" in line
    assert f"is {probability(ablate={tour.head}):.1%} instead of {probability():.1%}" in line
    row = np.array(tour.trace[tour.head].weights[place])
    row[[0, place, -1]] = 0  # [CLS], [MASK], [SEP]
    key = int(row.argmax())
    assert f"[MASK] looks at “{tour.trace.tokens[key]}” more than at any other word: {row[key]:.0%}" in line


def test_its_commands_work(tour, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tour.model.checkpoint.where
    lines = plain_text(tour_drawings(tour), Paper(100)).splitlines()
    commands = [shlex.split(line.split("   ")[0]) for line in lines if line.startswith("  headscope ")]
    assert [command[1] for command in commands] == ["effects", "attend", "view", "summary", "view"]
    for command in commands[:3]:
        arguments = [folder if part == "-" else part for part in command[1:]]
        run(*arguments)


def test_it_never_calls_a_difference_proven():
    wrong = Report("x", (Check("weights", "a against b", float("nan"), 2e-5, "fp32"),))
    assert proof(wrong).startswith("NOT verified: weights")


def test_a_model_that_fills_no_masks_has_no_tour(tmp_path):
    with pytest.raises(UnsupportedError, match="no masked-LM head"):
        take_tour(hs.open(small_bert(tmp_path, masked_lm=False)))


def test_the_sentence_has_one_mask():
    assert SENTENCE.count("{mask}") == 1

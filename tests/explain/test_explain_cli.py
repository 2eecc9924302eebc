"""`headscope effects` and `attribute`, findings in answers: what they print, and what the guide shows of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import headscope as hs
from commands import answer, run
from explain.tops import TEXT, readable
from headscope.results.explained import Attribution
from headscope.screens.explain_sheets import attribution_sheet, effects_sheet
from headscope.screens.inked import heat_map, inked_text, signed_style
from headscope.screens.labels import width
from headscope.screens.terminal import Paper, lines_of, plain_text
from naive_layers import MINILM
from small_bert import small_bert

MASKED = "she took off her [MASK] and sat down ."
DOCS = Path(__file__).parents[2] / "docs"
GUIDE, DETAIL = [(DOCS / name).read_text(encoding="utf-8") for name in ("explain.md", "reference/explaining.md")]
HAT = "She took off her hat and sat down, tired."


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tagger")
    readable(folder, "Bert", "ForTokenClassification")
    return str(folder)


def test_effects_in_json_and_csv(small: str) -> None:
    result = hs.open(small).effects(MASKED)
    record = answer("effects", small, MASKED)
    assert record["target"]["kind"] == "word"
    assert record["target"]["default"] is True
    assert record["target"]["position"] == 5
    assert record["base"] == pytest.approx(result.base)
    assert [(item["layer"], item["head"]) for item in record["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    np.testing.assert_allclose([item["change"] for item in record["heads"]], result.change.ravel())
    rows = list(csv.DictReader(io.StringIO(run("effects", small, MASKED, "--csv").stdout)))
    np.testing.assert_allclose([float(row["change"]) for row in rows], result.change.ravel())
    assert [float(row["probability"]) for row in rows] == [item["probability"] for item in record["heads"]]
    assert "(the default)" in run("effects", small, MASKED).stdout


def test_targets_by_options(small: str, tagger: str) -> None:
    assert answer("effects", small, MASKED, "--target", "hat")["target"]["label"] == "hat"
    assert answer("attribute", small, MASKED, "--target", "hat", "--at", "5")["target"]["position"] == 5
    assert answer("attribute", small, MASKED, "--set", "vector=true")["target"]["kind"] == "embedding"
    like = answer("attribute", small, MASKED, "--like", "her hat")
    assert like["total"] == pytest.approx(hs.match(small, MASKED, "her hat").scores[0], abs=1e-6)
    label = answer("attribute", tagger, TEXT, "--target", "good", "--at", "4")["target"]
    assert (label["kind"], label["label"], label["position"]) == ("token", "good", 4)
    assert answer("attribute", tagger, TEXT, "--target", "1", "--at", "4")["target"]["label"] == "fair"


def test_attributions_in_json_and_csv(small: str) -> None:
    result = hs.open(small).attribute(MASKED)
    record = answer("attribute", small, MASKED)
    np.testing.assert_allclose([item["score"] for item in record["tokens"]], result.scores, atol=1e-6)
    assert (record["method"], record["rest"]) == ("decompx", pytest.approx(result.rest))
    rows = list(csv.DictReader(io.StringIO(run("attribute", small, MASKED, "--csv").stdout)))
    assert [row["token"] for row in rows] == list(result.tokens)
    screen = run("attribute", small, MASKED).stdout
    assert "the biases" in screen
    assert "took" in screen


@pytest.mark.parametrize(
    ("args", "size"),
    [
        (["effects", MASKED], lambda row: abs(float(row["change"]))),
        (["attribute", MASKED], lambda row: abs(float(row["score"]))),
    ],
)
def test_tables_of_the_top_few(small: str, args: list[str], size: Callable[[dict[str, str]], float]) -> None:
    """The strongest rows of the whole table, the strongest first, in CSV and in Markdown; JSON has all."""
    command, *texts = args

    def rows(*more: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(run(command, small, *texts, "--csv", *more).stdout)))

    assert rows("--top", "2") == sorted(rows(), key=size, reverse=True)[:2]
    assert len(run(command, small, *texts, "--markdown", "--top", "2").stdout.splitlines()) == 2 + 2
    assert answer(command, small, *texts, "--top", "2") == answer(command, small, *texts)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["effects", "{small}"], "TEXT is missing"),
        (["effects", "{small}", MASKED, "--target", "hat", "--set", "vector=true"], "exclude each other"),
        (["effects", "{small}", MASKED, "--at", "5"], "--at requires --target"),
        (["effects", "{small}", MASKED, "--top", "0"], "leaves nothing"),
    ],
)
def test_refusals(small: str, args: list[str], message: str) -> None:
    result = run(*(arg.format(small=small) for arg in args), code=2)
    assert message in result.stderr


@pytest.mark.parametrize("paper", [Paper(40), Paper(80, unicode=False), Paper(60, colour=True)])
def test_screens_fit(small: str, paper: Paper) -> None:
    model = hs.open(small)
    sheets = (
        effects_sheet("x", model.effects(MASKED)),
        attribution_sheet("x", model.attribute(MASKED)),
    )
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
    axis = replace(
        result.axis, tokens=("[CLS]", "\x1b[31m", "[red]", *result.tokens[3:]), spans=(None,) * len(result.axis)
    )
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

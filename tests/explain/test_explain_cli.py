"""`headscope effects`, `attribute` and `similarity`: what they print for people, for JSON and for CSV."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headscope as hs
from explain.tops import TEXT, readable
from headscope.cli import app
from headscope.view.explain_sheets import attribution_sheet, effects_sheet, similarity_sheet
from headscope.view.inked import heat_map, inked_text, signed_style
from headscope.view.labels import width
from headscope.view.screen_html import screen_html
from headscope.view.terminal import Paper, lines_of, plain_text
from small_bert import small_bert

MASKED = "she took off her [MASK] and sat down ."


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_bert(tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tagger")
    readable(folder, "Bert", "ForTokenClassification")
    return str(folder)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def answer(*args: str) -> Any:
    return json.loads(run(*args, "--json").stdout)


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
    assert answer("attribute", small, MASKED, "--vector")["target"]["kind"] == "embedding"
    like = answer("attribute", small, MASKED, "--like", "her hat")
    assert like["total"] == pytest.approx(hs.open(small).token_similarity(MASKED, "her hat").cosine, abs=1e-6)
    label = answer("attribute", tagger, TEXT, "--target", "good", "--at", "4")["target"]
    assert (label["kind"], label["label"], label["position"]) == ("token", "good", 4)
    assert answer("attribute", tagger, TEXT, "--target", "1", "--at", "4")["target"]["label"] == "fair"


def test_attributions_in_json_and_csv(small: str) -> None:
    for method in ("decompx", "alti", "attention_gradient", "integrated_gradients"):
        result = hs.open(small).attribute(MASKED, method=method)
        record = answer("attribute", small, MASKED, "--method", method)
        np.testing.assert_allclose([item["score"] for item in record["tokens"]], result.scores, atol=1e-6)
        assert record["method"] == method
        assert (record["rest"] is None) == (result.rest is None)
        rows = list(csv.DictReader(io.StringIO(run("attribute", small, MASKED, "--method", method, "--csv").stdout)))
        assert [row["token"] for row in rows] == list(result.tokens)
    screen = run("attribute", small, MASKED).stdout
    assert "the biases" in screen
    assert "took" in screen


def test_similarity_in_json_and_csv(small: str) -> None:
    result = hs.open(small).token_similarity("the cat sat", "her hat", rerun=True)
    record = answer("similarity", small, "the cat sat", "her hat", "--rerun")
    np.testing.assert_allclose(record["cells"], result.cells)
    np.testing.assert_allclose(record["rerun_a"], result.rerun_a)
    assert record["pooling"]["stated"] is False
    rows = list(csv.DictReader(io.StringIO(run("similarity", small, "the cat sat", "her hat", "--csv").stdout)))
    assert len(rows) == result.cells.size
    assert sum(float(row["part"]) for row in rows) == pytest.approx(result.cosine)
    assert "rerun_a" not in answer("similarity", small, "the cat sat", "her hat")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["effects", "{small}"], "TEXT is missing"),
        (["effects", "{small}", "the", "--target", "hat"], "the text has no [MASK]"),
        (["effects", "{small}", MASKED, "--target", "hat", "--vector"], "exclude each other"),
        (["effects", "{small}", MASKED, "--at", "5"], "--at requires --target"),
        (["effects", "{small}", MASKED, "--top", "0"], "leaves nothing"),
        (["effects", "{small}", MASKED, "--method", "x"], "can't be changed by 'x'"),
        (["effects", "{small}", MASKED, "--patch-from", "the cat"], "one to patch from 4"),
        (["attribute", "{small}", MASKED, "--method", "x"], "no method 'x'"),
        (["attribute", "{small}", "cat " * 40], "42 tokens, the model takes 24"),
        (["similarity", "{small}", "", "the"], "empty"),
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
        similarity_sheet("x", model.token_similarity("the cat sat on the mat", "she took off her hat")),
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
    result = hs.open(small).token_similarity("the cat", "the mat")
    axis = replace(result.axis_a, tokens=("[CLS]", "\x1b[31m", "[red]", "[SEP]"), spans=(None,) * 4)
    sheet = similarity_sheet("x", replace(result, axis_a=axis))
    assert "\x1b" not in plain_text(sheet.drawings, Paper())
    assert sheet.table is not None
    assert "\x1b" not in sheet.table().csv()
    assert list(sheet.record()["tokens_a"]) == list(axis.tokens)


@pytest.mark.parametrize("command", ["effects", "attribute", "similarity"])
def test_a_screen_as_an_offline_page(command: str, tmp_path: Path) -> None:
    """One file that loads nothing, with token text as text."""
    texts = ("the <b>cat</b> [MASK]", "a cat") if command == "similarity" else ("the <img src=x> [MASK] sat",)
    path = tmp_path / "answer.html"
    result = CliRunner().invoke(app, [command, "-", *texts, "--html", str(path)])
    assert result.exit_code == 0, result.output
    assert str(path) in result.stderr
    page = path.read_text(encoding="utf-8")
    assert "default-src 'none'; style-src 'sha256-" in page
    assert not re.search(r"<(img|b|script|link)\b|https?:|url\(", page)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in page
    assert page.count("<span") > 10


def test_text_on_such_a_page_is_never_markup() -> None:
    hostile = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>&lt;"
    page = screen_html([inked_text([hostile, "a"], np.array([1.0, -1.0]))], title=hostile).decode()
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") == 2

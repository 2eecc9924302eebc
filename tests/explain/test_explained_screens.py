"""Findings and expansion rates in the commands' answers; and the guide's examples are what the models give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import headscope as hs
from commands import answer, run
from headscope.results.explained import Attribution
from headscope.screens.explain_sheets import attribution_sheet
from headscope.screens.terminal import Paper, plain_text
from naive_layers import MINILM
from small_bert import small_bert

DOCS = Path(__file__).parents[2] / "docs"
GUIDE, DETAIL = [(DOCS / name).read_text(encoding="utf-8") for name in ("explain.md", "reference/explaining.md")]
TEXT = "She took off her hat and sat down, tired."


@pytest.mark.parametrize("chosen", [(), (1,), ("1.0",), ("1.0", "--query", 3)])
def test_attend_opens_with_findings(tmp_path: Path, chosen: tuple[object, ...]) -> None:
    folder = small_bert(tmp_path)
    every = hs.open(folder).trace(TEXT).findings(layers=[1] if chosen else None, most=None)
    expected = [one.as_dict() for one in every if len(chosen) < 3 or any(cell.head == 0 for cell in one.cells)][:5]
    assert expected
    options = ("--heads", *chosen) if chosen else ()
    assert answer("attend", folder, TEXT, *options)["findings"] == json.loads(json.dumps(expected))
    screen = run("attend", folder, TEXT, *map(str, options), env={"COLUMNS": "200"}).stdout
    opening = [line[2:] for line in screen.splitlines() if line.startswith("• ")]
    assert opening == [one["sentence"] for one in expected[:3]]
    assert screen.splitlines()[1].startswith("• ")


def test_summary_and_head_have_expansion_rates() -> None:
    rates = [layer.expansion_rate for layer in hs.open(MINILM).layers]
    assert answer("summary", MINILM)["expansion_rates"] == pytest.approx(rates)
    assert answer("head", MINILM, "3.5")["expansion_rate"] == pytest.approx(rates[3])
    screen = run("head", MINILM, "3.5", env={"COLUMNS": "200"}).stdout
    assert "The expansion rate of layer 3 is 1.392" in screen


def test_the_guide_shows_what_the_models_give() -> None:
    for finding in hs.open(MINILM).trace(TEXT).findings():
        assert finding.sentence in GUIDE
        assert finding.sentence in DETAIL
    promotion = hs.open().trace("She took off her [MASK] and sat down by the fire.")[3].promotes(5, top=5)
    for line in repr(promotion).splitlines():
        assert line in DETAIL


def test_amounts_that_cancel_are_shown_as_ranks() -> None:
    """And a share that masking contradicts is marked."""
    result = hs.open(MINILM).attribute(TEXT)
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

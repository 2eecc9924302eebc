"""Findings and expansion rates in the commands' answers; and docs/explain.md's examples are what the models give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headscope as hs
from headscope.cli import app
from naive_layers import MINILM
from small_bert import small_bert

GUIDE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
TEXT = "She took off her hat and sat down, tired."


def answer(*given: object) -> dict[str, object]:
    result = CliRunner().invoke(app, [str(one) for one in (*given, "--json")])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("chosen", [(), ("-L", 1), ("-L", 1, "-H", 0), ("-L", 1, "-H", 0, "--query", 3)])
def test_attend_opens_with_findings(tmp_path: Path, chosen: tuple[object, ...]) -> None:
    folder = small_bert(tmp_path)
    every = hs.open(folder).trace(TEXT).findings(layers=chosen[1:2] or None)
    expected = [one.as_dict() for one in every if len(chosen) < 4 or any(cell.head == 0 for cell in one.cells)]
    assert expected
    assert answer("attend", folder, TEXT, *chosen)["findings"] == json.loads(json.dumps(expected))
    screen = CliRunner().invoke(app, ["attend", str(folder), TEXT, *map(str, chosen)], env={"COLUMNS": "200"}).stdout
    opening = [line[2:] for line in screen.splitlines() if line.startswith("• ")]
    assert opening == [one["sentence"] for one in expected[:3]]
    assert screen.splitlines()[1].startswith("• ")


def test_summary_and_head_have_expansion_rates() -> None:
    rates = [layer.expansion_rate for layer in hs.open(MINILM).layers]
    assert answer("summary", MINILM)["expansion_rates"] == pytest.approx(rates)
    assert answer("head", MINILM, 3, 5)["expansion_rate"] == pytest.approx(rates[3])
    screen = CliRunner().invoke(app, ["head", str(MINILM), "3", "5"], env={"COLUMNS": "200"}).stdout
    assert "The expansion rate of layer 3 is 1.392" in screen


def test_the_guide_shows_what_the_models_give() -> None:
    for finding in hs.open(MINILM).trace(TEXT).findings()[:3]:
        assert finding.sentence in GUIDE
    promotion = hs.open().trace("She took off her [MASK] and sat down by the fire.")[3].promotes(5, top=5)
    for line in repr(promotion).splitlines():
        assert line in GUIDE

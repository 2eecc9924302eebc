"""The scoreboard's table from made-up figures: ratios, 'no' with its reason, what is said where headscope is behind."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from scoreboard_pages import BEGIN, END, LINES, PICTURE, ROOT, RUN, SUMMARIES, TABLE, lines, publish, put
from scoreboard_picture import draw, picture
from scoreboard_table import figures, table, verdict


def row(*cells: dict[str, Any], unit: str = "s", more: bool = False) -> dict[str, Any]:
    return {"task": "a task", "unit": unit, "more_is_better": more, "cells": list(cells)}


def cell(tool: str, *raw: float, way: str = "") -> dict[str, Any]:
    return {"tool": tool, "way": way, "raw": list(raw)}


def report(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": {"cpu": "a CPU", "cores": 2, "memory_gb": 8, "python": "3.11.2", "torch": "2.13.0"},
        "versions": {
            "headscope": {"headscope": "0.1", "numpy": "2.0"},
            "TransformerLens": {"transformer-lens": "4.3.0"},
        },
        "quick": False,
        "rows": {str(at): one for at, one in enumerate(rows)},
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "median", "low", "high"),
    [
        ((1, 2, 4), (30, 20, 120), 30, 10, 30),  # 30/1, 20/2, 120/4; 30 / 2 of medians is 15
        ((1, 2, 100), (5, 20), 7.5, 5, 10),
    ],
    ids=["round by round", "the first rounds"],
)
def test_ratios(ours: tuple[float, ...], theirs: tuple[float, ...], median: float, low: float, high: float) -> None:
    own, other = figures(row(cell("headscope", *ours), cell("transformers", *theirs)))["cells"]
    assert (own["median"], own["low"], own["high"], own.get("ratio")) == (2, ours[0], ours[2], None)
    assert other["ratio"] == {"median": median, "low": low, "high": high}


def test_like_is_held_against_like() -> None:
    ours = (cell("headscope", 8, way="everything"), cell("headscope", 4, way="weights alone"))
    theirs = (cell("torchlens", 2, way="weights alone"), cell("torchlens", 24, way="everything"), cell("bertviz", 16))
    made = figures(row(*ours, *theirs))["cells"]
    assert [one["ratio"]["median"] for one in made[2:]] == [0.5, 3, 2]


def test_more_is_better_turns_the_ratio() -> None:
    made = figures(row(cell("headscope", 300), cell("transformers", 100), unit="tokens/s", more=True))
    assert made["cells"][1]["ratio"]["median"] == 3
    assert verdict(made) == "ahead"


def test_verdicts() -> None:
    assert verdict(figures(row(cell("headscope", 1, 1), cell("bertviz", 2, 3)))) == "ahead"
    assert verdict(figures(row(cell("headscope", 1, 1), cell("bertviz", 0.9, 1.1)))) == "even with bertviz"
    assert verdict(figures(row(cell("headscope", 1000), cell("bertviz", 998)))) == "even with bertviz"
    behind = figures(
        row(cell("headscope", 2, 2), cell("bertviz", 0.5, 0.5, way="head view"), cell("transformers", 3, 4))
    )
    assert verdict(behind) == "**behind** bertviz (head view): 4.00 times as much; ahead of transformers"
    assert verdict(figures(row(cell("headscope", 2), cell("yardstick", 1, way="one SDPA call")))) == "alone"
    lost = figures(row({"tool": "headscope", "way": "", "no": "killed"}, cell("bertviz", 1)))
    assert verdict(lost) == "**not measured**"


@pytest.mark.parametrize("wrong", ["", BEGIN, END + BEGIN, BEGIN + END + END])
def test_a_page_without_a_place(wrong: str) -> None:
    with pytest.raises(ValueError, match="no place for the scoreboard"):
        put("", wrong)


def test_all_figures_are_of_one_run() -> None:
    """The table of the docs and the lines of the READMEs are what the kept run says."""
    run = json.loads((ROOT / RUN).read_text(encoding="utf-8"))
    texts = {str(TABLE): table(run), **{page: lines(run, page) for page in LINES}}
    for page, text in texts.items():
        whole = (ROOT / page).read_text(encoding="utf-8")
        assert f"{BEGIN}\n{text}{END}" in whole, f"{page}: benchmarks/scoreboard_pages.py writes it anew"
    assert set(LINES) == {"README.md", "README.ja.md", "README.zh.md"}
    assert not run["quick"]
    assert not run["sections_left"]


def a_run() -> dict[str, Any]:
    """Made-up figures of the rows that the READMEs show."""
    rows = {
        key: row(cell("headscope", 2, way=way), cell(peer, 5, way=its_way)) for key, way, peer, its_way in SUMMARIES
    }
    return {**report(), "rows": rows, "sections_left": []}


def test_a_run_is_published_whole(tmp_path: Path) -> None:
    for folder in ("benchmarks", "docs/images"):
        (tmp_path / folder).mkdir(parents=True)
    for page in (str(TABLE), *LINES):
        (tmp_path / page).write_text(f"before {BEGIN} old {END} after", encoding="utf-8")
    publish(a_run(), tmp_path)
    publish(a_run(), tmp_path)
    assert json.loads((tmp_path / RUN).read_text(encoding="utf-8")) == a_run()
    assert (tmp_path / PICTURE).stat().st_size > 1000
    for page in (str(TABLE), *LINES):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert text.startswith(f"before {BEGIN}\n")
        assert text.endswith(f"{END} after")
        assert "old" not in text
    for unfinished, said in (({"quick": True}, "smoke run"), ({"sections_left": ["pages"]}, "pages not measured yet")):
        assert said in table({**a_run(), **unfinished})
        with pytest.raises(ValueError, match="not finished"):
            publish({**a_run(), **unfinished}, tmp_path)


def test_the_picture_has_a_mark_for_each_ratio(tmp_path: Path) -> None:
    made = report(
        row(cell("headscope", 1, 2), cell("transformers", 30, 20), cell("bertviz", 4, 4, way="head view")),
        row(cell("headscope", 1), {"tool": "torchlens", "way": "", "no": "it can't"}),
    )
    (axes,) = picture(made).axes
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() in "o^sDvPX"]
    assert marks == [20, 3]  # 30/1 and 20/2; 4/1 and 4/2
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a task  (1.50 s)"]
    draw(made, tmp_path / "one.svg")
    draw(made, tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.slow
def test_the_benchmark_of_captures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, found = ROOT / "benchmarks" / "capture.py", tmp_path / "found.json"
    sizes = ["--tokens", "16", "--rounds", "1", "--count", "64", "--json", str(found)]
    monkeypatch.setattr(sys, "argv", [str(script), *sizes])
    with torch.no_grad():  # the script, too, switches gradients off
        runpy.run_path(str(script), run_name="__main__")
    times = {row["way"]: row for row in json.loads(found.read_text())["times"]}
    assert times["headscope"]["ratio"] > 0
    assert not any("no" in row for row in times.values())

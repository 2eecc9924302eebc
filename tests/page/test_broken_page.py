"""The page of a model with NaN in it says so, and draws NaN as nothing else; its CSV guards cells."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from looking import Watch, saved, until

import headscope as hs
from broken_models import broken_bert
from headscope.screens.tables import FORMULA, guarded
from small_bert import VOCABULARY, small_bert

TEXT = "The cat sat on the mat."
ROOT = Path(__file__).parents[2]


COUNT_REDS = """
[...document.querySelectorAll("canvas")].reduce((sum, canvas) => {
  if (!canvas.width || !canvas.height) return sum;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let reds = 0;
  for (let n = 0; n < data.length; n += 4) if (data[n] === 214 && data[n + 1] === 0 && data[n + 2] === 60) reds++;
  return sum + reds;
}, 0)
"""
"""Script that counts the pixels of the page's canvases with the colour of NaN."""


@pytest.mark.parametrize(("place", "broken"), [("query", 3), ("overflowing query", 3), ("value", 2)])
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_nan_is_said_and_drawn_as_nothing_else(watch: Watch, tmp_path: Path, place: str, broken: int) -> None:
    trace = hs.open(broken_bert(tmp_path / "model", place)).trace(TEXT)
    page = watch().open(trace.to_html(tmp_path / "page.html").as_uri() + "#l=1&h=1")
    assert page.locator("[data-test=broken]").inner_text().startswith(f"The weights of {broken} heads are not numbers")
    assert "not numbers" in page.locator(".inspector").inner_text()
    rows = list(csv.reader(saved(page, "CSV").decode().splitlines()))
    assert {cell for row in rows[1:] for cell in row[1:]} == {"NaN"}
    svg = saved(page, "SVG").decode()
    assert svg.count('fill="rgb(214 0 60)"') == len(trace) ** 2
    assert "undefined" not in svg
    until(page, f"{COUNT_REDS.strip()} > 1000")


def test_a_sound_head_beside_it_is_as_ever(watch: Watch, tmp_path: Path) -> None:
    trace = hs.open(broken_bert(tmp_path / "model", "query")).trace(TEXT)
    page = watch().open(trace.to_html(tmp_path / "page.html").as_uri() + "#h=1")
    assert "not numbers" not in page.locator(".inspector").inner_text()
    rows = list(csv.reader(saved(page, "CSV").decode().splitlines()))
    assert page.evaluate(COUNT_REDS) == 0
    assert float(rows[1][1]) == pytest.approx(trace[0, 1].weights[0, 0], abs=1e-3)


def test_cells_are_guarded_alike_by_the_page_and_the_command_line(watch: Watch, tmp_path: Path) -> None:
    odd = ("=1+1", "+1", "-1", "@x", "'x", '"=x', "\uff1dx", "\uff0bx", "\uff0dx", "\uff20x", "1-1", "x=1")
    vocabulary = (*VOCABULARY[: -len(odd)], *odd)
    model = hs.open(small_bert(tmp_path, vocabulary=vocabulary))
    trace = model.trace(ids=[2, *range(len(vocabulary) - len(odd), len(vocabulary)), 3])
    page = watch().open(trace.to_html(tmp_path / "page.html").as_uri())
    header, *_ = csv.reader(saved(page, "CSV").decode().splitlines())
    assert header[2:-1] == [guarded(token) for token in odd]


def test_the_page_has_the_rule_of_the_command_line() -> None:
    source = (ROOT / "web" / "src" / "files.ts").read_text(encoding="utf-8")
    (rule,) = re.findall(r"\(/\^(\[.*?\])/\.test\(value\) \? `'\$\{value\}`", source)
    for code in (*range(0xD800), *range(0xE000, 0x11000)):
        assert bool(re.match(rule, chr(code))) == (chr(code) in FORMULA) == (guarded(chr(code)) != chr(code))

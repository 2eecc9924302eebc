"""Two texts in one input: each in its line under its name, and what goes from one to the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from looking import Watch, cells_of, number, patiently, until

import headscope as hs

LINE = """([x, y]) => {
  const canvas = document.querySelector(".matrix canvas");
  const ratio = canvas.width / canvas.clientWidth;
  return [...canvas.getContext("2d").getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data.slice(0, 3)];
}"""
"""Script that reads the matrix's colour at a place."""


def test_two_texts_stand_apart(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    page = watch(viewport={"width": 1440, "height": 900}).open(cat_file.as_uri() + "#l=1&h=1&q=4&k=12")
    until(page, "document.querySelector('.ribbon .seen')")
    second = cat.segments.index(1)
    parts = page.locator(".ribbon .part")
    assert parts.locator(".which").all_inner_texts() == ["first text", "second text"]
    places = [parts.nth(n).locator(".said-word").evaluate_all("(all) => all.map((one) => Number(one.dataset.at))") for n in (0, 1)]
    assert places == [list(range(second)), list(range(second, len(cat)))]
    boxes = [parts.nth(n).bounding_box() for n in (0, 1)]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    # from a word of the first to the pinned one of the second: below the one, above the other
    assert page.locator(".arcs path.here").count() == 1
    left, top, cell = cells_of(page)
    ink = page.evaluate(LINE, [left + second * cell, top + 2.5 * cell])
    assert ink == pytest.approx([90, 99, 112], abs=2)  # a line between the two, in the matrix
    assert ink == page.evaluate(LINE, [left + 2.5 * cell, top + second * cell])


def test_where_the_weight_of_two_texts_goes(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    """The mean over a text's words of what they put on its words, on those of the other and on special tokens."""
    page = watch(viewport={"width": 1440, "height": 1200}).open(cat_file.as_uri() + "#l=1&h=1&q=4&k=12")
    page.wait_for_selector("[data-test=blocks]")
    weights = np.asarray(cat[1, 1].weights)
    groups = [
        [n for n in range(len(cat)) if not cat.special[n] and cat.segments[n] == 0],
        [n for n in range(len(cat)) if not cat.special[n] and cat.segments[n] == 1],
        [n for n in range(len(cat)) if cat.special[n]],
    ]
    expected = [weights[np.ix_(rows, keys)].sum(1).mean() for rows in groups[:2] for keys in groups]

    def same() -> None:
        shown = [number(text) for text in page.locator("[data-test=blocks] td").all_inner_texts()]
        assert shown == pytest.approx(expected, abs=6e-3)

    patiently(page, same)
    page = watch(viewport={"width": 1440, "height": 900}).open(cat_file.as_uri() + "#filter=ab")
    assert page.locator("[data-test=blocks]").count() == 0

"""Two texts in one input: each in its line under its name, and what goes from one to the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from looking import Watch, cells_of, number, patiently, until

import headscope as hs

LINE = """(places) => {
  const canvas = document.querySelector(".matrix canvas");
  const ratio = canvas.width / canvas.clientWidth;
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return places.map(([x, y]) => {
    const at = 4 * (Math.floor(y * ratio) * width + Math.floor(x * ratio));
    return [...data.slice(at, at + 3)];
  });
}"""
"""Script that reads the matrix's colours at some places."""


def test_two_texts_stand_apart(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    second = list(cat.segments).index(1)
    weights = np.asarray(cat[1, 1].weights)[:, second:]
    query, key = np.unravel_index(weights[:second].argmax(), weights[:second].shape)
    page = watch(viewport={"width": 1440, "height": 900}).open(
        f"{cat_file.as_uri()}#l=1&h=1&q={query}&k={second + key}"
    )
    until(page, "document.querySelector('.ribbon .seen')")
    parts = page.locator(".ribbon .part")
    assert parts.locator(".which").all_inner_texts() == ["first text", "second text"]
    at = "(all) => all.map((one) => Number(one.dataset.at))"
    places = [parts.nth(n).locator(".said-word").evaluate_all(at) for n in (0, 1)]
    assert places == [list(range(second)), list(range(second, len(cat)))]
    boxes = [parts.nth(n).bounding_box() for n in (0, 1)]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    # from a word of the first to the pinned one of the second: below the one, above the other
    assert page.locator(".arcs path.here").count() == 1
    left, top, cell = cells_of(page)
    seams = page.evaluate(LINE, [[left + second * cell, top + 1.5 * cell], [left + 2.5 * cell, top + second * cell]])
    for ink in seams:
        assert ink == pytest.approx([90, 99, 112], abs=80)  # a line between the two, which may lie on two pixels


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
    page = watch(viewport={"width": 1440, "height": 900}).open(cat_file.as_uri() + "#of=ab")
    assert page.locator("[data-test=blocks]").count() == 0

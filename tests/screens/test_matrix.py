"""Weights as shades and bars: every number is where it belongs, at any width, in colour and without."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.screens.labels import width
from headscope.screens.matrix import (
    SHADES,
    colour_of,
    inked,
    matrix,
    shade_of,
    strongest,
    style_of,
)
from headscope.screens.terminal import Paper, plain_text

WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.25, 0.75, 0.0], [0.01, 0.0, 0.99]], np.float32)
NAMES = ("[CLS]", "cat", "猫")


def rows(text):
    """The lines that draw a query: its number, its label, its cells."""
    return [line for line in text.splitlines() if re.match(r"\s*\d+ (\[CLS\]|cat|猫|t\d*)( |$)", line)]


def test_ascii_and_grey_keep_the_order_of_shades():
    for paper in (Paper(), Paper(unicode=False)):
        shades = [shade_of(inked(weight / 100, "sqrt"), paper) for weight in range(101)]
        assert shades[0] == " "
        assert shades[1] != " "
        assert [shade for at, shade in enumerate(shades) if at == 0 or shade != shades[at - 1]] == list(
            SHADES if paper.unicode else " .:-=+*#%@"
        )


def test_colours_grow_lighter_and_text_can_be_read():
    def lightness(red, green, blue):
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light = [lightness(*colour_of(ink / 20)) for ink in range(21)]
    assert light == sorted(light)
    for ink in range(21):
        before, behind = (
            lightness(*bytes.fromhex(part.strip().removeprefix("#"))) for part in style_of(ink / 20).split(" on ")
        )
        assert abs(before - behind) > 80


@pytest.mark.parametrize(("columns", "count"), [(80, 9), (80, 30), (80, 60), (120, 60), (40, 500)])
def test_a_window_says_what_it_leaves_out(columns, count):
    weights = np.eye(count, dtype=np.float32)
    names = [f"t{at}" for at in range(count)]
    text = plain_text([matrix(weights, names, names, start=3)], Paper(columns))
    assert max(map(width, text.splitlines())) <= columns
    left_out = "don't fit" in text
    assert left_out == (len(rows(text)) < count)
    if left_out:
        first, last = map(int, re.search(r"queries (\d+) to (\d+) and", text.replace("\n", " ")).groups())
        assert first == 3
        assert len(rows(text)) == last - first + 1


def test_the_rest_column_adds_up():
    count = 100
    weights = np.full((count, count), 1 / count, np.float32)
    text = plain_text([matrix(weights, ["t"] * count, ["t"] * count)], Paper(80))
    drawn = int(re.search(r"keys 0 to (\d+)", text.replace("\n", " ")).group(1)) + 1
    assert f"{100 - drawn:>3} %" in rows(text)[-1]


def test_the_window_stays_inside():
    weights = np.eye(100, dtype=np.float32)
    text = plain_text([matrix(weights, ["t"] * 100, ["t"] * 100, start=99)], Paper(80))
    assert "to 99 and keys" in text.replace("\n", " ")


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20), st.floats(0.01, 1))
def test_the_fewest_keys_that_hold_a_share(numbers, threshold):
    row = np.array(numbers, np.float32)
    chosen = strongest(row, None, threshold)
    contents = float(row[chosen].astype(np.float64).sum())
    total = float(row.astype(np.float64).sum())
    assert contents >= threshold * total - 1e-5
    assert contents - float(row[chosen[-1]]) < threshold * total + 1e-5
    assert [float(row[key]) for key in chosen] == sorted((float(row[key]) for key in chosen), reverse=True)


def test_top_and_threshold_together():
    assert strongest(WEIGHTS[1], 1, 0.99) == [1]
    assert strongest(WEIGHTS[1], None, 0.7) == [1]
    assert strongest(WEIGHTS[1], None, 0.8) == [1, 0]
    assert strongest(WEIGHTS[1], None, None) == [1, 0, 2]

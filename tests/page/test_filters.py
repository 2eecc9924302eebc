"""Filters reach every panel: the grid's numbers and pictures are of what they leave, computed naively here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import Watched, number, until
from test_asking import table

import headscope as hs

if TYPE_CHECKING:
    from jaxtyping import Float
    from playwright.sync_api import Page

Watch = Callable[..., Watched]
CLOSE = 2e-3
Rows = Sequence[Sequence[int]]


def left(trace: hs.Trace, state: str) -> tuple[Rows, Rows]:
    """The tokens of each row and column that a filter leaves."""
    everyone = [[place] for place in range(len(trace))]
    if state == "special=0":
        kept = [[place] for place in range(len(trace)) if not trace.special[place]]
        return kept, kept
    if state == "of=ab":
        return [[n] for n, segment in enumerate(trace.segments) if segment == 0], [
            [n] for n, segment in enumerate(trace.segments) if segment == 1
        ]
    if state == "words=1":
        words: list[list[int]] = []
        for place, word in enumerate(trace.words):
            same = place and word is not None and trace.words[place - 1] == word
            if same and trace.segments[place] == trace.segments[place - 1]:
                words[-1].append(place)
            else:
                words.append([place])
        return words, words
    return everyone, everyone


def picture(trace: hs.Trace, layer: int, head: int, state: str) -> Float[np.ndarray, "rows columns"]:
    """What the page draws: means over a row's tokens, sums over a column's, times norms where they count."""
    weights = np.asarray(trace[layer, head].weights, dtype=np.float64)
    if state == "normed=1":
        assert isinstance(trace.source, hs.Model)
        value = trace.layers[layer].v
        assert value is not None
        weights = weights * np.linalg.norm(value[head] @ np.asarray(trace.source.W_O(layer, head)), axis=-1)
    rows, columns = left(trace, state)
    if state == "special=0":
        kept = [place for column in columns for place in column]
        weights = weights / weights[:, kept].sum(-1, keepdims=True)
    return np.array([[weights[np.ix_(row, column)].sum(-1).mean() for column in columns] for row in rows])


def statistics(trace: hs.Trace, layer: int, head: int, state: str) -> dict[str, float]:
    drawn = picture(trace, layer, head, state)
    shares = drawn / drawn.sum(-1, keepdims=True)
    rows, columns = left(trace, state)
    previous = [shares[r, c] for r, row in enumerate(rows) for c, column in enumerate(columns) if row[0] - 1 in column]
    places = np.array([[column[0] - row[0] for column in columns] for row in rows])
    return {
        "entropy": float(-(shares * np.log(np.maximum(shares, 1e-300))).sum(-1).mean()),
        "strongest": float(shares.max(-1).mean()),
        "previous": float(np.mean(previous)) if previous else float("nan"),
        "distance": float((shares * abs(places)).sum(-1).mean()),
    }


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (state, name)
        for state in ("special=0", "words=1", "of=ab", "normed=1")
        for name in ("entropy", "strongest", "previous", "distance")
        if (state, name) != ("of=ab", "previous")  # no token of the first text follows one of the second
    ],
)
def test_the_grid_s_statistics_are_of_what_is_left(
    watch: Watch, cat: hs.Trace, cat_file: Path, state: str, name: str
) -> None:
    page = watch().open(f"{cat_file.as_uri()}#h=1&by={name}&{state}")
    expected = [statistics(cat, layer, head, state)[name] for layer in cat.numbers for head in cat.head_numbers(layer)]
    until(page, "document.querySelector('[data-test=grid-table] tbody td').textContent !== '–'")
    assert table(page) == pytest.approx(expected, rel=CLOSE, abs=CLOSE)
    facts = page.locator(".facts tr.chosen td").last.inner_text()
    assert number(facts) == pytest.approx(expected[1], rel=CLOSE, abs=CLOSE)


def pictures(page: Page) -> str:
    """The thumbnails, as drawn."""
    drawn: str = page.evaluate("document.querySelector('.heads canvas').toDataURL()")
    return drawn


def test_hiding_special_tokens_hides_them_in_the_thumbnails(watch: Watch, tmp_path: Path) -> None:
    """A head that rests on [CLS] has a dark column; without special tokens it has none, and the note says so."""
    trace = hs.open("-").trace("The animal did not cross the street because it was too tired.")
    page = watch().open(f"{trace.to_html(tmp_path / 'animal.html').as_uri()}#h=1&by=entropy")
    note = page.locator(".grid")
    before = pictures(page)
    assert "filters" not in note.inner_text()
    page.locator("[data-test=special]").check()
    until(page, "document.querySelector('[data-test=grid-table]').getAttribute('aria-busy') === 'false'")
    assert "what the filters leave" in note.inner_text()
    assert pictures(page) != before
    page.locator("[data-test=special]").uncheck()
    until(page, "!document.querySelector('.grid').textContent.includes('what the filters leave')")
    assert pictures(page) == before


def test_rankings_follow_the_filters(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    page = watch().open(f"{cat_file.as_uri()}#h=1&by=entropy&order=low&special=0")
    until(page, "document.querySelector('[data-test=grid-table] tbody td').textContent !== '–'")
    table(page)
    expected = {
        f"{layer}.{head}": statistics(cat, layer, head, "special=0")["entropy"]
        for layer in cat.numbers
        for head in cat.head_numbers(layer)
    }
    buttons = page.locator("[data-test=ranks] [data-head]").all()
    numbers = [float(one.get_attribute("data-number") or "nan") for one in buttons]
    assert numbers == pytest.approx(sorted(expected.values())[: len(numbers)], abs=CLOSE)
    for button, one in zip(buttons, numbers, strict=True):
        assert expected[str(button.get_attribute("data-head"))] == pytest.approx(one, abs=CLOSE)

"""Filters reach every panel: the grid's numbers and pictures are of what they leave, computed naively here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import Watch, number, patiently, until
from test_asking import table

import headscope as hs

if TYPE_CHECKING:
    from jaxtyping import Float
    from playwright.sync_api import Page

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
    text = np.where(trace.special, -1, trace.segments)
    signs = np.array([trace.tokens[column[0]] == "." for column in columns])
    across = text[[column[0] for column in columns]]
    other = [shares[r, across == 1 - text[row[0]]].sum() for r, row in enumerate(rows) if text[row[0]] >= 0]
    return {
        "punctuation": float(shares[:, signs].sum(-1).mean()) if signs.any() else float("nan"),
        "other_sentence": float(np.mean(other)),
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
        for name in ("entropy", "strongest", "previous", "distance", "punctuation", "other_sentence")
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


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> tuple[hs.Trace, Path]:
    trace = hs.open("-").trace("Alice loved antiquotations in Paris, and Paris loved Alice.")
    return trace, trace.to_html(tmp_path_factory.mktemp("alice") / "alice.html")


@pytest.mark.parametrize("state", ["", "words=1", "special=0", "normed=1"])
def test_the_chain_s_number_is_the_picture_s(watch: Watch, alice: tuple[hs.Trace, Path], state: str) -> None:
    """Its heading has the picture's number; where that is no token's weight, it names the steps' tokens."""
    trace, file = alice
    query, key = 5, 18  # "##qu", "##ice"
    rows, columns = left(trace, state)
    r, c = (next(n for n, tokens in enumerate(side) if at in tokens) for side, at in ((rows, query), (columns, key)))
    drawn, weight = picture(trace, 3, 0, state)[r, c], float(trace[3, 0].weights[query, key])
    page = watch().open(f"{file.as_uri()}#l=3&h=0&q={query}&k={key}&{state}")
    page.wait_for_selector("[data-test=open-chain]")
    patiently(page, lambda: status(page, drawn))
    chain = page.locator(".cell")
    assert number(chain.locator("h2").inner_text().split()[1]) == pytest.approx(drawn, abs=0.0051)
    assert number(chain.locator("[data-test=weight]").inner_text()) == pytest.approx(weight, abs=CLOSE)
    note = chain.locator("p").inner_text()
    if state:
        numbers = [number(one) for one in re.findall(r"\d\S*\d", note.replace("×", " "))]
        assert numbers[0] == pytest.approx(drawn, abs=CLOSE)
        assert numbers[-1] == pytest.approx(weight, abs=CLOSE)
        assert "qu” → “ice" in re.sub("[\u2068\u2069]", "", note)
    else:
        assert note == ""
    page.keyboard.press("Enter")
    page.wait_for_selector(".step math")
    assert number(chain.locator("h1 b").inner_text()) == pytest.approx(drawn, abs=CLOSE)
    assert chain.locator(".step h2").first.inner_text() == "Query of “\u2068qu\u2069”"


def status(page: Page, drawn: float) -> None:
    assert number(page.locator("[data-test=value]").inner_text()) == pytest.approx(drawn, abs=CLOSE)


def test_names_keep_their_capitals(watch: Watch, alice: tuple[hs.Trace, Path]) -> None:
    """The model has no capitals; matrix, lists, lines and chain spell its tokens as the writer did."""
    trace, file = alice
    assert "par" in trace.tokens
    page = watch().open(f"{file.as_uri()}#l=3&h=0&q=10&k=17")
    page.wait_for_selector("[data-test=open-chain]")
    assert page.locator(".cell h2 bdi").all_inner_texts() == ["Par", "Al"]
    assert page.locator(".looks").first.inner_text().startswith("“\u2068Par\u2069” looks at")
    assert {"Al1", "·ice2", "Par10"} <= set(page.locator(".left .token bdi").all_inner_texts())
    page.keyboard.press("w")
    until(page, "document.querySelector('.cell h2 bdi')?.textContent === 'Paris'")
    assert page.locator(".cell h2 bdi").all_inner_texts() == ["Paris", "Alice"]

"""Slots A and B, aligned texts, several heads at once: every number against the traces' weights in NumPy."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import (
    SETTLED,
    Watch,
    box_of,
    canvas,
    cells_of,
    eventually,
    go,
    head_of,
    inaccessible,
    lists,
    number,
    patiently,
    table,
    unreadable,
    until,
)
from test_text import weights

import headscope as hs
from headscope.page.html import to_html

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CLOSE = 1e-3
TIRED = "The animal did not cross the street because it was too tired."
WIDE = "The animal did not cross the street because it was too wide."
VERY = "The animal did not cross the very old street because it was too tired."


@pytest.fixture(scope="module")
def one(bundled: hs.Model) -> hs.Trace:
    return bundled.trace(TIRED)


@pytest.fixture(scope="module")
def alone(one: hs.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one.to_html(tmp_path_factory.mktemp("page") / "alone.html", dtype="fp32", runs=False)


@pytest.fixture(scope="module")
def two(one: hs.Trace, bundled: hs.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_html([one, bundled.trace(WIDE)], tmp_path_factory.mktemp("page") / "two.html", dtype="fp32", runs=False)


@pytest.fixture(scope="module")
def very(bundled: hs.Model) -> hs.Trace:
    return bundled.trace(VERY)


@pytest.fixture(scope="module")
def unequal(one: hs.Trace, very: hs.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_html([one, very], tmp_path_factory.mktemp("page") / "unequal.html", dtype="fp32", runs=False)


CHOSEN = "document.querySelector('[data-test=head-{}]').selectedOptions[0].textContent"
"""The head that a side of the comparison has."""


def three(page: Page) -> list[float]:
    """A, B and B - A of the cell that is looked at."""
    until(page, "document.querySelector('[data-test=three] b') !== null")
    text = page.locator("[data-test=three]").inner_text().replace("− A", "").replace("−", "-")
    found = [float(one) for one in re.findall(r"-?[\d.]+(?:e-\d+)?", text)]
    assert len(found) == 3
    return [found[1], found[0], found[2]]


def numbers(lines: Locator) -> list[float]:
    return [float(line.get_attribute("data-number") or "nan") for line in lines.all()]


def triple(page: Page, expected: list[float]) -> None:
    """Wait for A, B and B - A to be these."""
    patiently(page, lambda: np.testing.assert_allclose(three(page), expected, atol=CLOSE))


RIBBONS = """[...document.querySelectorAll(".duel-words .sentence .couple")]
  .map((one) => [...one.children].map((word) => [
  word.querySelector("bdi").textContent.trim().toLowerCase(),
  word.dataset.weight === undefined ? null : Number(word.dataset.weight),
]))"""


def ribbons(
    page: Page, a: hs.Trace, b: hs.Trace, pairs: list[tuple[int | None, int | None]], *rows: np.ndarray
) -> None:
    """Wait for both texts word over word, each with its weight in its row; an empty frame where a side has no word."""
    expected = [
        [
            ("", None) if n is None else (text.tokens[n].lower(), pytest.approx(row[n], abs=CLOSE))
            for n, text, row in sides
        ]
        for sides in ([(i, a, rows[0]), (j, b, rows[1])] for i, j in pairs)
    ]

    def same() -> None:
        assert [[tuple(word) for word in both] for both in page.evaluate(RIBBONS)] == expected

    patiently(page, same)


def aligned(a: hs.Trace, b: hs.Trace) -> list[tuple[int | None, int | None]]:
    """Pairs of tokens by Python's own matcher; for these texts the longest common subsequence is the only one."""
    pairs: list[tuple[int | None, int | None]] = []
    for kind, i, to_i, j, to_j in SequenceMatcher(None, a.tokens, b.tokens, autojunk=False).get_opcodes():
        if kind == "equal" or to_i - i == to_j - j == 1:
            pairs += zip(range(i, to_i), range(j, to_j), strict=True)
        else:
            pairs += [(place, None) for place in range(i, to_i)]
            pairs += [(None, place) for place in range(j, to_j)]
    return pairs


def changes(one: hs.Trace, other: hs.Trace) -> dict[str, float]:
    """By head: half the summed difference of a row, mean over the aligned rows; a key without a partner has changed."""
    pairs = aligned(one, other)
    found = {}
    for layer in one.numbers:
        for head in one.head_numbers(layer):
            a, b = weights(one, layer, head), weights(other, layer, head)
            rows = [
                sum(abs((0 if i is None else a[p, i]) - (0 if j is None else b[q, j])) for i, j in pairs) / 2
                for p, q in pairs
                if p is not None and q is not None
            ]
            found[f"{layer}.{head}"] = float(np.mean(rows))
    return found


def test_head_a_against_b_of_one_text(watch: Watch, one: hs.Trace, alone: Path) -> None:
    """Two clicks: a head, and with Shift another. There is no second trace."""
    page = watch().open(alone.as_uri() + "#q=9&k=2&by=weight")
    until(page, SETTLED)
    first, second = (
        [
            int(n)
            for n in str(page.locator("[data-test=ranks] [data-head]").nth(n).get_attribute("data-head")).split(".")
        ]
        for n in (0, 1)
    )
    page.locator("[data-test=ranks] [data-head]").nth(0).click()
    page.locator("[data-test=ranks] [data-head]").nth(1).click(modifiers=["Shift"])
    a, b = weights(one, *first), weights(one, *second)
    triple(page, [a[9, 2], b[9, 2], b[9, 2] - a[9, 2]])
    names = [f"{layer}.{head}" for layer, head in (first, second)]
    cells = [f"{weight:.2f}".removeprefix("0") for weight in (a[9, 2], b[9, 2])]
    said = f"A → B: in head {names[0]} → {names[1]} “it” looks at “animal” {cells[0]} → {cells[1]}"
    until(page, f"document.querySelector('.duel h1').textContent === '{said}'")
    ribbons(page, one, one, [(n, n) for n in range(len(one))], a[9], b[9])
    # a figure of the matrix has this line alone
    assert page.locator(".moved h2").inner_text().startswith(f"Head {names[0]} → Head {names[1]}, B − A")
    page.reload()
    page.wait_for_selector("html[data-painted]")
    triple(page, [a[9, 2], b[9, 2], b[9, 2] - a[9, 2]])
    page.locator("[data-test=swap]").click()
    until(page, f"document.querySelector('.duel h1').textContent.includes('{names[1]} → {names[0]}')")
    triple(page, [b[9, 2], a[9, 2], a[9, 2] - b[9, 2]])
    page.select_option("[data-test=head-B]", label="0.0")
    until(page, f"document.querySelector('.duel h1').textContent.includes('{names[1]} → 0.0')")
    zero = weights(one, 0, 0)[9, 2]
    triple(page, [b[9, 2], zero, zero - b[9, 2]])


def test_shift_click_on_a_tile_sets_b(watch: Watch, bert: hs.Model, tmp_path: Path) -> None:
    file = bert.trace("the cat sat").to_html(tmp_path / "small.html")
    page = watch(viewport={"width": 1280, "height": 800}).open(file.as_uri() + "#l=1&h=0")
    page.locator(".heads").click(position={"x": 22 + 92 + 40, "y": 40}, modifiers=["Shift"])
    until(
        page,
        "location.hash.includes('lb=0') && location.hash.includes('hb=1') && location.hash.includes('pane=compare')",
    )
    assert [page.evaluate(CHOSEN.format(side)) for side in "AB"] == ["1.0", "0.1"]


PROPOSED = {
    "en": "Of all heads, {} differs most from this one in the {}.",
    "ja": "すべてのヘッドのうち、{1}の差が最も大きいのは {0} です。",
    "zh": "在所有头中，{} 与此头在“{}”上相差最大。",
}
WEIGHT = {"en": "weight of the pinned cell", "ja": "固定したセルの重み", "zh": "已固定单元格的权重"}
ENTROPY = {"en": "entropy", "ja": "エントロピー", "zh": "熵"}


def test_until_a_head_is_chosen_b_is_the_one_that_differs_most(watch: Watch, one: hs.Trace, alone: Path) -> None:
    """In the pinned cell, else in entropy; said in words, and no part of the address. Then B keeps its head."""
    of = {f"{layer}.{head}": weights(one, layer, head) for layer in one.numbers for head in one.head_numbers(layer)}
    cells = {name: rows[9, 2] for name, rows in of.items()}
    entropies = {name: -(rows * np.log(rows)).sum(-1).mean() for name, rows in of.items()}
    page = watch().open(alone.as_uri() + "#pane=compare&l=3&h=1&q=9&k=2")
    for pinned, numbers, what in (("&q=9&k=2", cells, WEIGHT), ("", entropies, ENTROPY)):
        most = max(numbers, key=lambda name: abs(numbers[name] - numbers["3.1"]))
        for language, sentence in PROPOSED.items():
            go(page, f"pane=compare&l=3&h=1{pinned}&lang={language}")
            said = sentence.format(most, what[language])
            until(page, f"document.querySelector('[data-test=proposed]')?.textContent === '{said}'")
        assert page.evaluate(CHOSEN.format("B")) == most
        if pinned:
            triple(page, [cells["3.1"], cells[most], cells[most] - cells["3.1"]])
    assert not {"vs", "lb", "hb"} & {part.split("=")[0] for part in page.url.split("#")[1].split("&")}
    other = next(name for name in of if name not in ("3.1", most))
    page.select_option("[data-test=head-B]", label=other)
    until(page, "location.hash.includes('hb=') && !document.querySelector('[data-test=proposed]')")
    page.keyboard.press("ArrowRight")
    until(page, f"{CHOSEN.format('A')} !== '3.1'")
    assert page.evaluate(CHOSEN.format("B")) == other
    go(page, "pane=compare&l=1&h=0&vs=0&lb=2&hb=3&q=4&k=3")
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('l=2') || location.hash.includes('h=1')")
    layer, head = (int(n) for n in page.evaluate(CHOSEN.format("A")).split("."))
    a, b = weights(one, layer, head)[4, 3], weights(one, 2, 3)[4, 3]
    triple(page, [a, b, b - a])


def test_how_two_sentences_differ(watch: Watch, one: hs.Trace, very: hs.Trace, bundled: hs.Model, two: Path) -> None:
    """One click: the only other text is B, headline and tabs say what differs, the grid has what moves in each head.
    Another text in B has A's head again.
    """
    other = bundled.trace(WIDE)
    page = watch().open(two.as_uri() + "#l=3&h=1&q=9&k=2")
    page.locator("[data-test=pane-compare]").click()
    a, b = weights(one, 3, 1), weights(other, 3, 1)
    triple(page, [a[9, 2], b[9, 2], b[9, 2] - a[9, 2]])
    short = [f"{weights(trace, 3, 1)[9, 7]:.2f}".removeprefix("0") for trace in (one, other)]
    cells = [f"{weights(trace, 3, 1)[9, 2]:.3f}" for trace in (one, other)]
    assert len({round(w[9, 2], 2) for w in (a, b)}) == 1  # they differ beyond the two digits of a picture
    for key, word, says in ((7, "street", short), (2, "animal", cells)):
        go(page, f"l=3&h=1&q=9&k={key}&pane=compare")
        said = f"tired → wide: in head 3.1 “it” looks at “{word}” {says[0]} → {says[1]}"
        until(page, f"document.querySelector('.duel h1').innerText === '{said}'")
    tabs = page.locator("[data-test=tab]")
    assert [tabs.nth(n).inner_text() for n in (0, 1)] == ["… was too tired.", "… was too wide."]
    assert str(tabs.nth(0).get_attribute("title")).split("\n") == ["… was too tired.", TIRED]
    page.locator("[data-test=order-high]").click()
    patiently(page, lambda: np.testing.assert_allclose(table(page), [*changes(one, other).values()], atol=CLOSE))
    go(page, "pane=compare&l=1&h=0&vs=0&lb=2&hb=3&q=4&k=3")
    a, b = weights(one, 1, 0)[4, 3], weights(one, 2, 3)[4, 3]
    triple(page, [a, b, b - a])
    page.set_input_files(".file input", very.save(two.with_name("very.safetensors")))
    until(page, "location.hash.includes('vs=2') && !location.hash.includes('lb=')")
    until(page, "document.querySelectorAll('[data-test=tab]').length === 3")
    until(page, f"{CHOSEN.format('B')} === '1.0'")
    b = weights(very, 1, 0)[4, 3]
    until(page, f"Math.abs(Number(document.querySelector('[data-test=three] b').textContent) - {a - b}) < {CLOSE}")
    page.evaluate("history.back()")  # to the text that was in B, and its head
    until(page, "location.hash.includes('vs=0&lb=2&hb=3')")
    until(page, f"{CHOSEN.format('B')} === '2.3'")
    go(page, "pane=compare&l=1&h=0&vs=1&lb=2&hb=3&q=4&k=3")
    tabs.nth(1).click()  # the two are swapped, and the head was chosen in the text that was in B
    until(page, "location.hash.includes('d=1') && !location.hash.includes('lb=')")
    until(page, f"{CHOSEN.format('B')} === '1.0'")


def test_unequal_texts_are_aligned_and_gaps_stay_gaps(
    watch: Watch, one: hs.Trace, very: hs.Trace, unequal: Path
) -> None:
    """The grid has the pinned cell's change in every head; sorted, the weight that moves, along which `e` goes."""
    pairs = aligned(one, very)
    both = [(i, j) for i, j in pairs if i is not None and j is not None]
    assert len(both) == len(one)
    assert len(pairs) > len(one)
    query, partner = both[-3]
    page = watch().open(f"{unequal.as_uri()}#pane=compare&l=2&h=3&q={query}&k=2")
    a, b = weights(one, 2, 3), weights(very, 2, 3)
    cell = [a[query, 2], b[partner, dict(both)[2]]]
    triple(page, [*cell, cell[1] - cell[0]])
    message = f"{len(both)} words in both, 0 only in A, {len(pairs) - len(both)} only in B."
    assert page.locator("[data-test=aligned]").inner_text() == message
    ribbons(page, one, very, pairs, a[query], b[partner])
    go(page, "pane=compare&l=3&h=1&q=9&k=2")
    partners = dict(both)
    heads = [(layer, head) for layer in one.numbers for head in one.head_numbers(layer)]
    cells = [weights(very, *at)[partners[9], partners[2]] - weights(one, *at)[9, 2] for at in heads]
    patiently(page, lambda: np.testing.assert_allclose(table(page), cells, atol=CLOSE))
    assert page.locator("[data-test=asked]").inner_text() == "Where does it → animal change?"
    page.locator("[data-test=order-high]").click()
    moved = changes(one, very)
    patiently(page, lambda: np.testing.assert_allclose(table(page), [*moved.values()], atol=CLOSE))
    ranks = [str(one.get_attribute("data-head")) for one in page.locator("[data-test=ranks] [data-head]").all()]
    assert ranks == sorted(moved, key=lambda name: -moved[name])[: len(ranks)]
    page.keyboard.press("e")
    until(page, f"{CHOSEN.format('B')} === '{ranks[0]}'")


def test_zooming_keeps_the_pinned_cell(watch: Watch, one: hs.Trace, bundled: hs.Model, tmp_path: Path) -> None:
    """It stands earlier among the words of both than in A, which has more."""
    longer = bundled.trace(f"Once, long ago, on a cold night in a far town by the sea: {TIRED}")
    file = to_html([longer, one], tmp_path / "longer.html", runs=False)
    query, key = len(longer) - 3, len(longer) - 5
    both = [i for i, j in aligned(longer, one) if i is not None and j is not None]
    page = watch().open(f"{file.as_uri()}#pane=compare&q={query}&k={key}&by=weight")
    cells_of(page)
    for _ in range(3):
        page.keyboard.press("+")
    until(page, "location.hash.includes('box=')")
    top, left, span = (int(part) for part in page.evaluate("location.hash").split("box=")[1].split("."))
    assert top <= both.index(query) < top + span <= query
    assert left <= both.index(key)


def test_both_texts_stand_word_over_word(watch: Watch, one: hs.Trace, bundled: hs.Model, tmp_path: Path) -> None:
    """An empty frame where a word stands for none; “did” is not held against “refused”, so these have no row."""
    other = bundled.trace(TIRED.replace("did not", "refused to"))
    pairs = aligned(one, other)
    assert len(pairs) == len(one) + 2
    file = to_html([one, other], tmp_path / "refused.html", dtype="fp32", runs=False)
    page = watch(viewport={"width": 1440, "height": 900}).open(file.as_uri() + "#pane=compare&l=3&h=1&q=9&k=2")
    a, b = weights(one, 3, 1), weights(other, 3, 1)
    ribbons(page, one, other, pairs, a[9], b[9])
    size = len([pair for pair in pairs if None not in pair])
    left, top, cell = cells_of(page, ".moved .matrix")
    page.locator(".moved .matrix").click(position={"x": left + 5.5 * cell, "y": top + 3.5 * cell})
    until(page, "location.hash.includes('q=5') && location.hash.includes('k=7')")
    assert page.locator(".duel h1").inner_text().startswith("A → B: in head 3.1 “cross” looks at “street”")
    page.locator(".moved .matrix").click(position={"x": left + (size + 1.5) * cell, "y": top + 3.5 * cell})
    assert "k=7" in page.url
    page.locator(".duel-words .sentence .couple").nth(3).click()
    until(page, "document.querySelector('.duel h1').textContent === '“\\u2068did\\u2069” stands only in A'")
    found = []
    for state in ("q=9&k=2", "q=9&k=2&order=high", "q=9&k=2&theme=dark"):
        page.evaluate(f"location.hash = '#pane=compare&l=3&h=1&{state}'")
        until(page, SETTLED)
        found += unreadable(page) + inaccessible(page)
    assert found == []


def test_of_a_long_text_the_words_that_are_looked_at_most_stand_in_both(
    watch: Watch, bundled: hs.Model, tmp_path: Path
) -> None:
    one, other = (bundled.trace(" ".join([VERY, WIDE, TIRED, WIDE, text])) for text in (TIRED, WIDE))
    assert len(one) == len(other) > 64
    file = to_html([one, other], tmp_path / "long.html", dtype="fp32", runs=False)
    page = watch().open(file.as_uri() + "#pane=compare&vs=1&l=2&h=3&q=9&k=2")
    a, b = weights(one, 2, 3)[9], weights(other, 2, 3)[9]
    most = sorted(np.argsort(-np.maximum(a, b), kind="stable")[:16])
    ribbons(page, one, other, [(n, n) for n in most], a, b)


def test_the_difference_is_green_where_b_is_larger_and_purple_where_a_is(
    watch: Watch, one: hs.Trace, very: hs.Trace, unequal: Path
) -> None:
    """The picture itself: the sign of B - A at each cell; words of B alone are one column, so that rows add up to 0.

    Beside it, both weights of each key, a dash for a word that a text lacks; a click pins a key, or looks at a head.
    """
    both = [(i, j) for i, j in aligned(one, very) if i is not None and j is not None]
    only = [n for n in range(len(very)) if n not in dict(both).values()]
    page = watch(viewport={"width": 1440, "height": 900}).open(unequal.as_uri() + "#pane=compare&l=2&h=3&scale=linear")
    page.wait_for_selector(".moved .ramp")
    box = box_of(page, ".moved .matrix")
    left, top, cell = cells_of(page, ".moved .matrix")
    a, b = weights(one, 2, 3), weights(very, 2, 3)
    difference = np.array([[*(b[q, j] - a[p, i] for i, j in both), b[q, only].sum()] for p, q in both])
    np.testing.assert_allclose(difference.sum(-1), 0, atol=1e-5)
    # a cell that is pointed at shows its numbers
    page.mouse.move(box["x"] + left + 2.5 * cell, box["y"] + top + 3.5 * cell)
    triple(page, [a[both[3][0], both[2][0]], b[both[3][1], both[2][1]], difference[3, 2]])
    picture = canvas(page, ".moved .matrix canvas")
    for (r, c), value in np.ndenumerate(difference):  # the corner of a cell is free of its number
        red, green, blue, _ = picture[round(top + (r + 0.2) * cell), round(left + (c + 0.2) * cell)]
        if value > 0.5 / 8:
            assert green > red
            assert green > blue
        elif value < -0.5 / 8:
            assert red > green
            assert blue > green
    page.mouse.move(2, 2)
    go(page, "pane=compare&l=3&h=1&q=9&k=2")
    pairs = aligned(one, very)
    place = dict(pairs)[9]
    assert place is not None
    a, b = weights(one, 3, 1)[9], weights(very, 3, 1)[place]

    def short(value: float) -> str:
        return f"{value:.2f}".removeprefix("0") if value >= 0.005 else "0"

    sides = [(i, j, 0.0 if i is None else a[i], 0.0 if j is None else b[j]) for i, j in pairs]
    sides = [side for side in sides if short(side[2]) != short(side[3])]
    expected = [
        [-1 if i is None else i, f"{'–' if i is None else short(before)} → {'–' if j is None else short(after)}"]
        for i, j, before, after in sorted(sides, key=lambda side: -abs(side[3] - side[2]))[:8]
    ]
    assert any(i == -1 for i, _ in expected)
    lines = """[...document.querySelectorAll("[data-test=moves] li")]
      .map((one) => [Number(one.dataset.column), one.querySelector("b").textContent])"""
    eventually(page, lambda: page.evaluate(lines) == expected, "each key's weights")
    moved = changes(one, very)
    order = sorted(moved, key=lambda name: -moved[name])
    heads = page.locator("[data-test=most-moved] [data-head]")
    here = "3.1"
    named = order[:6] + [here] * (here not in order[:6])
    until(page, f"document.querySelectorAll('[data-test=most-moved] [data-head]').length === {len(named)}")
    patiently(page, lambda: np.testing.assert_allclose([moved[name] for name in named], numbers(heads), atol=CLOSE))
    assert [line.get_attribute("data-head") for line in heads.all()] == named
    column = next(i for i, _ in expected if i not in (-1, 2))
    page.locator(f"[data-test=moves] [data-column='{column}']").click()
    until(page, f"location.hash.includes('k={column}')")
    heads.first.locator("button").press("Enter")
    until(page, f"{CHOSEN.format('A')} === '{order[0]}'")


def test_several_heads_lie_over_each_other(watch: Watch, one: hs.Trace, alone: Path) -> None:
    """Ctrl-click adds a head: each has its hue and its weight; one click averages them, or a layer; another lets go."""
    page = watch().open(alone.as_uri() + "#q=9&k=2&by=weight&mode=lines")
    until(page, SETTLED)
    ranks = page.locator("[data-test=ranks] [data-head]")
    names = [str(ranks.nth(n).get_attribute("data-head")) for n in range(3)]
    ranks.nth(0).click()
    for n in (1, 2):
        ranks.nth(n).click(modifiers=["Control"])
    until(page, "document.querySelectorAll('.member[data-weight]').length === 3")
    members = page.locator(".member").all()
    found = {str(chip.get_attribute("data-head")): float(chip.get_attribute("data-weight") or 0) for chip in members}
    cells = {name: weights(one, *map(int, name.split(".")))[9, 2] for name in names}
    assert found == pytest.approx(cells, abs=CLOSE)
    hues = page.locator(".member i").evaluate_all("(all) => all.map((one) => one.style.background)")
    assert len(set(hues)) == 3

    def tones() -> set[int]:
        red, green, blue, opaque = np.moveaxis(canvas(page, ".lines canvas"), -1, 0)
        hue = np.arctan2(np.sqrt(3) * (green - blue), 2 * red - green - blue)
        return {*np.round(3 * hue[opaque > 40]).astype(int).tolist()}

    eventually(page, lambda: len(tones()) >= 3, "lines of three hues")
    page.locator("[data-test=blend-mean]").click()
    mean = np.mean([weights(one, *map(int, name.split("."))) for name in names], axis=0)
    until(page, "document.querySelector('[data-test=head]').textContent.startsWith('Mean of')")
    shown = page.locator("[data-test=value]")
    eventually(page, lambda: abs(number(shown.inner_text()) - mean[9, 2]) < CLOSE, "the mean's weight")
    lists(page, mean[9], CLOSE)
    ranks.nth(1).click(modifiers=["Control"])
    rest = [name for name in names if name != names[1]]
    until(page, "document.querySelectorAll('.member').length === 2")
    pair = np.mean([weights(one, *map(int, name.split(".")))[9, 2] for name in rest])
    until(page, f"Math.abs(Number(document.querySelector('[data-test=value]').textContent) - {pair}) < {CLOSE}")
    ranks.nth(1).click()
    until(page, "document.querySelectorAll('.member').length === 0")
    assert ".".join(re.findall(r"\d+", head_of(page))) == names[1]
    go(page, "l=3&h=1&q=9&k=2")
    page.locator("[data-test=mean-layer]").click()
    assert head_of(page) == "Mean of layer 3"
    mean = np.mean([weights(one, 3, head) for head in one.head_numbers(3)], axis=0)
    until(page, f"Math.abs(Number(document.querySelector('[data-test=value]').textContent) - {mean[9, 2]}) < {CLOSE}")
    lists(page, mean[9], CLOSE)
    page.reload()
    page.wait_for_selector("html[data-painted]")
    assert head_of(page) == "Mean of layer 3"
    page.locator(".together .plain").click()
    assert head_of(page) == "Head 3.1"


def test_stacks_of_attention_are_named(watch: Watch, one: hs.Trace, tmp_path: Path) -> None:
    traces = [replace(one, stack=stack, source=None) for stack in ("encoder", "decoder", "cross")]
    page = watch().open(to_html(traces, tmp_path / "stacks.html").as_uri())
    tabs = page.locator("[data-test=tab]")
    until(page, "document.querySelectorAll('[data-test=tab]').length === 3")
    titles = [str(tabs.nth(n).get_attribute("title")).split("\n")[1] for n in range(3)]
    assert titles == [f"{name} · {TIRED}" for name in ("encoder", "decoder", "cross-attention")]
    assert [tabs.nth(n).inner_text().split(" ")[0] for n in range(3)] == ["encoder", "decoder", "cross-attention"]

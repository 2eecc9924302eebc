"""Slots A and B, aligned texts, several heads at once: every number against the traces' weights in NumPy."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import SETTLED, Watch, box_of, cells_of, eventually, head_of, lists, number, patiently, until

import headscope as hs
from headscope.page.html import to_html

if TYPE_CHECKING:
    from jaxtyping import Float
    from playwright.sync_api import Page

CLOSE = 1e-3
TIRED = "The animal did not cross the street because it was too tired."
WIDE = "The animal did not cross the street because it was too wide."
VERY = "The animal did not cross the very old street because it was too tired."


@pytest.fixture(scope="module")
def one(bundled: hs.Model) -> hs.Trace:
    return bundled.trace(TIRED)


@pytest.fixture(scope="module")
def alone(one: hs.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one.to_html(tmp_path_factory.mktemp("page") / "alone.html", dtype="fp32")


@pytest.fixture(scope="module")
def two(one: hs.Trace, bundled: hs.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_html([one, bundled.trace(WIDE)], tmp_path_factory.mktemp("page") / "two.html", dtype="fp32")


@pytest.fixture(scope="module")
def unequal(one: hs.Trace, bundled: hs.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_html([one, bundled.trace(VERY)], tmp_path_factory.mktemp("page") / "unequal.html", dtype="fp32")


def weights(trace: hs.Trace, layer: int, head: int) -> Float[np.ndarray, "queries keys"]:
    return np.asarray(trace[layer, head].weights)


def three(page: Page) -> list[float]:
    """A, B and B - A of the cell that is looked at."""
    until(page, "document.querySelector('[data-test=three] b') !== null")
    text = page.locator("[data-test=three]").inner_text().replace("− A", "").replace("−", "-")
    b, a, difference = map(float, re.findall(r"-?[\d.]+(?:e-\d+)?", text))
    return [a, b, difference]


def triple(page: Page, expected: list[float]) -> None:
    """Wait for A, B and B - A to be these."""
    patiently(page, lambda: np.testing.assert_allclose(three(page), expected, atol=CLOSE))


def bars(page: Page) -> list[tuple[float | None, float | None]]:
    """By aligned key, in the order of the text: A's weight and B's, None where a side has no such token."""
    until(page, "document.querySelector('[data-test=pairs] li') !== null")
    found = [
        tuple(bar.get_attribute(f"data-{side}") for side in "ab") for bar in page.locator("[data-test=pairs] li").all()
    ]
    return [(None if a is None else float(a), None if b is None else float(b)) for a, b in found]


def aligned(a: hs.Trace, b: hs.Trace) -> list[tuple[int | None, int | None]]:
    """Pairs of tokens by Python's own matcher; for these texts the longest common subsequence is the only one."""
    pairs: list[tuple[int | None, int | None]] = []
    for kind, i, to_i, j, to_j in SequenceMatcher(None, a.tokens, b.tokens, autojunk=False).get_opcodes():
        if kind == "equal" or to_i - i == to_j - j:
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
    assert f"Head {second[0]}.{second[1]}" in page.locator("[data-test=second] h2").inner_text()
    assert page.locator("[data-test=changed]").count() == 0
    for (x, y), key in zip(bars(page), sorted(np.argsort(-np.maximum(a[9], b[9]), kind="stable")[:14]), strict=True):
        assert (x, y) == (pytest.approx(a[9, key], abs=CLOSE), pytest.approx(b[9, key], abs=CLOSE))
    page.reload()
    page.wait_for_selector("html[data-painted]")
    triple(page, [a[9, 2], b[9, 2], b[9, 2] - a[9, 2]])
    page.locator("[data-test=swap]").click()
    until(page, f"document.querySelector('[data-test=second] h2').textContent.includes('Head {first[0]}.{first[1]}')")
    triple(page, [b[9, 2], a[9, 2], a[9, 2] - b[9, 2]])
    page.select_option("[data-test=head-B]", label="0.0")
    until(page, "document.querySelector('[data-test=second] h2').textContent.includes('Head 0.0')")
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
    assert "Head 0.1" in page.locator("[data-test=second] h2").inner_text()
    assert "Head 1.0" in page.locator("[data-test=first] h2").inner_text()


def test_how_two_sentences_differ(watch: Watch, one: hs.Trace, bundled: hs.Model, two: Path) -> None:
    """One click: the only other text is B, the titles say what differs, the heads are ranked."""
    other = bundled.trace(WIDE)
    page = watch().open(two.as_uri() + "#l=3&h=1&q=9&k=2")
    page.locator("[data-test=pane-compare]").click()
    a, b = weights(one, 3, 1), weights(other, 3, 1)
    triple(page, [a[9, 2], b[9, 2], b[9, 2] - a[9, 2]])
    first, second = (page.locator(f"[data-test={name}] h2 bdi").inner_text() for name in ("first", "second"))
    assert (first, second) == ("… was too tired.", "… was too wide.")
    tabs = page.locator("[data-test=tab]")
    assert [tabs.nth(n).inner_text() for n in (0, 1)] == [first, second]
    assert str(tabs.nth(0).get_attribute("title")).split("\n") == [first, TIRED]
    until(page, "document.querySelector('[data-test=changed]').getAttribute('aria-busy') === 'false'")
    button = page.locator("[data-test=changed] button").first
    expected = changes(one, other)
    name = button.inner_text().split()[0]
    assert expected[name] == pytest.approx(max(expected.values()), abs=CLOSE)
    assert float(button.get_attribute("data-change") or 0) == pytest.approx(expected[name], abs=CLOSE)


def test_unequal_texts_are_aligned_and_gaps_stay_gaps(
    watch: Watch, one: hs.Trace, bundled: hs.Model, unequal: Path
) -> None:
    other = bundled.trace(VERY)
    pairs = aligned(one, other)
    both = [(i, j) for i, j in pairs if i is not None and j is not None]
    assert len(both) == len(one)
    assert len(pairs) > len(one)
    query, partner = both[-3]
    page = watch().open(f"{unequal.as_uri()}#pane=compare&l=2&h=3&q={query}&k=2")
    a, b = weights(one, 2, 3), weights(other, 2, 3)
    cell = [a[query, 2], b[partner, dict(both)[2]]]
    triple(page, [*cell, cell[1] - cell[0]])
    assert f"{len(both)} of {len(pairs)} aligned, 0 different" in page.locator("[data-test=aligned]").inner_text()
    largest = [max(0 if i is None else a[query, i], 0 if j is None else b[partner, j]) for i, j in pairs]
    expected = [pairs[n] for n in sorted(np.argsort(-np.array(largest), kind="stable")[:14])]
    for (x, y), (i, j) in zip(bars(page), expected, strict=True):
        assert x == (None if i is None else pytest.approx(a[query, i], abs=CLOSE))
        assert y == (None if j is None else pytest.approx(b[partner, j], abs=CLOSE))
    until(page, "document.querySelector('[data-test=changed]').getAttribute('aria-busy') === 'false'")
    change = changes(one, other)
    best = dict(sorted(change.items(), key=lambda pair: -pair[1])[:12])
    shown = {
        button.inner_text().split()[0]: float(button.get_attribute("data-change") or 0)
        for button in page.locator("[data-test=changed] button").all()
    }
    assert shown == pytest.approx(best, abs=CLOSE)


COLOURS = """(([name, cells]) => {
  const canvas = document.querySelector(`[data-test=${name}] .matrix canvas`);
  const context = canvas.getContext("2d");
  const ratio = canvas.width / canvas.clientWidth;
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const at = (x, y) => 4 * (Math.round(y * ratio) * canvas.width + Math.round(x * ratio));
  return cells.map(([x, y]) => [...data.subarray(at(x, y), at(x, y) + 3)]);
})"""


def test_the_difference_is_green_where_b_is_larger_and_purple_where_a_is(
    watch: Watch, one: hs.Trace, bundled: hs.Model, unequal: Path
) -> None:
    """The picture itself: the sign of B - A at each aligned cell, and grey across a gap."""
    other = bundled.trace(VERY)
    pairs = aligned(one, other)
    page = watch(viewport={"width": 1440, "height": 900}).open(unequal.as_uri() + "#pane=compare&l=2&h=3&scale=linear")
    page.wait_for_selector("[data-test=difference] .ramp")
    box = box_of(page, "[data-test=difference] .matrix")
    size = len(pairs)
    left, top, cell = cells_of(page, "[data-test=difference] .matrix")
    a, b = weights(one, 2, 3), weights(other, 2, 3)
    difference = np.array(
        [[np.nan if None in (p, q, i, j) else b[q, j] - a[p, i] for i, j in pairs] for p, q in pairs], dtype=float
    )
    most = np.nanmax(np.abs(difference))
    # a cell that is pointed at shows its numbers
    page.mouse.move(box["x"] + left + 2.5 * cell, box["y"] + top + 3.5 * cell)
    triple(page, [a[pairs[3][0], pairs[2][0]], b[pairs[3][1], pairs[2][1]], difference[3, 2]])
    # the corner of a cell is free of its number
    corner = [[left + (c + 0.2) * cell, top + (r + 0.2) * cell] for r in range(size) for c in range(size)]
    colours = np.array(page.evaluate(COLOURS + f"(['difference', {corner}])"), dtype=int).reshape(size, size, 3)
    for value, (red, green, blue) in zip(difference.ravel(), colours.reshape(-1, 3), strict=True):
        if np.isnan(value):
            assert max(red, green, blue) - min(red, green, blue) < 20
        elif value > most / 8:
            assert green > red
            assert green > blue
        elif value < -most / 8:
            assert red > green
            assert blue > green


def test_another_text_in_b_has_a_s_head_again(watch: Watch, one: hs.Trace, bundled: hs.Model, two: Path) -> None:
    page = watch().open(two.as_uri() + "#pane=compare&l=1&h=0&vs=0&lb=2&hb=3&q=4&k=3")
    a, b = weights(one, 1, 0)[4, 3], weights(one, 2, 3)[4, 3]
    triple(page, [a, b, b - a])
    page.set_input_files("[data-test=compare-file]", bundled.trace(VERY).save(two.with_name("very.safetensors")))
    until(page, "location.hash.includes('vs=2') && !location.hash.includes('lb=')")
    until(page, "document.querySelectorAll('[data-test=tab]').length === 3")
    until(page, "document.querySelector('[data-test=second] h2').textContent.includes('Head 1.0')")
    b = weights(bundled.trace(VERY), 1, 0)[4, 3]
    until(page, f"Math.abs(Number(document.querySelector('[data-test=three] b').textContent) - {a - b}) < {CLOSE}")


def test_b_keeps_its_head_as_a_moves_on(watch: Watch, one: hs.Trace, alone: Path) -> None:
    page = watch().open(alone.as_uri() + "#pane=compare&l=1&h=0&vs=0&lb=2&hb=3&q=4&k=3")
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('l=2') || location.hash.includes('h=1')")
    layer, head = (int(n) for n in re.findall(r"\d+", page.locator("[data-test=first] h2 .quiet").inner_text()))
    a, b = weights(one, layer, head)[4, 3], weights(one, 2, 3)[4, 3]
    triple(page, [a, b, b - a])


def test_several_heads_lie_over_each_other(watch: Watch, one: hs.Trace, alone: Path) -> None:
    """Ctrl-click adds a head: each has its hue and its weight; one click averages them; a plain click lets go."""
    page = watch(quiet=False).open(alone.as_uri() + "#q=9&k=2&by=weight&mode=lines")
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
    drawn = """(() => {
      const canvas = document.querySelector(".lines canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const found = new Set();
      for (let n = 0; n < data.length; n += 4) if (data[n + 3] > 40) found.add(Math.round(Math.atan2(
        Math.sqrt(3) * (data[n + 1] - data[n + 2]), 2 * data[n] - data[n + 1] - data[n + 2]) * 3));
      return found.size;
    })()"""
    until(page, f"{drawn} >= 3")
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


def test_the_mean_of_a_layer_is_one_click(watch: Watch, one: hs.Trace, alone: Path) -> None:
    page = watch().open(alone.as_uri() + "#l=3&h=1&q=9&k=2")
    page.locator("[data-test=mean-layer]").click()
    assert head_of(page) == "Mean of layer 3"
    mean = np.mean([weights(one, 3, head) for head in one.head_numbers(3)], axis=0)
    until(page, f"Math.abs(Number(document.querySelector('[data-test=value]').textContent) - {mean[9, 2]}) < {CLOSE}")
    lists(page, mean[9], CLOSE)
    page.reload()
    page.wait_for_selector("html[data-painted]")
    assert head_of(page) == "Mean of layer 3"
    page.locator("[data-test=together-clear]").click()
    assert head_of(page) == "Head 3.1"


def test_stacks_of_attention_are_named(watch: Watch, one: hs.Trace, tmp_path: Path) -> None:
    traces = [replace(one, stack=stack, source=None) for stack in ("encoder", "decoder", "cross")]
    page = watch().open(to_html(traces, tmp_path / "stacks.html").as_uri())
    tabs = page.locator("[data-test=tab]")
    until(page, "document.querySelectorAll('[data-test=tab]').length === 3")
    titles = [str(tabs.nth(n).get_attribute("title")).split("\n")[1] for n in range(3)]
    assert titles == [f"{name} · {TIRED}" for name in ("encoder", "decoder", "cross-attention")]
    assert [tabs.nth(n).inner_text().split(" ")[0] for n in range(3)] == ["encoder", "decoder", "cross-attention"]

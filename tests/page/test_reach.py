"""What a mouse does with Shift or Ctrl is reached by keyboard alone, and by touch alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import Watch, box_of, patiently, table, until

import headscope as hs

if TYPE_CHECKING:
    from playwright.sync_api import Page

AT = "#l=0&h=0&q=4&k=2"


def asked(page: Page, trace: hs.Trace, queries: list[int], keys: list[int]) -> None:
    """The grid has each head's weight from these queries to these keys, as the trace has it."""
    weights = [np.asarray(trace[layer, head].weights)[np.ix_(queries, keys)] for layer in range(2) for head in range(2)]

    def same() -> None:
        assert table(page) == pytest.approx([one.sum(1).mean() for one in weights], abs=6e-3)

    patiently(page, same)


def together(page: Page) -> list[str]:
    return page.locator("[data-test=together] .member b").all_inner_texts()


def test_by_keyboard_alone(watch: Watch, cat_file: Path, cat: hs.Trace) -> None:
    """Sets of words, heads over each other, a head of B: arrows and letters move, Enter adds, Escape ends it."""
    page = watch().open(cat_file.as_uri() + AT)

    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    press("a", "J", "Enter", "J", "J", "Enter", "j", "Enter")
    until(page, "location.hash.includes('set=4.5') && location.hash.includes('on=2.3.5')")
    asked(page, cat, [4, 5], [2, 3, 5])
    assert page.evaluate("location.hash").startswith("#q=4&k=2")
    press("k", "Enter")
    until(page, "location.hash.includes('set=5')")
    press("Escape", "Escape")
    until(page, "!/set=|on=/.test(location.hash)")
    press("a", "ArrowDown", "Enter", "ArrowRight", "Enter")
    until(page, "location.hash.includes('heads=0.2.3')")
    assert together(page) == ["0.0", "1.0", "1.1"]
    press("3", "ArrowUp", "Enter")
    until(page, "location.hash.includes('hb=1')")
    assert page.locator(".duel h1").is_visible()
    press("a", "1", "ArrowDown")
    until(page, "location.hash.includes('l=1')")


def test_by_touch_alone(watch: Watch, cat_file: Path, cat: hs.Trace) -> None:
    """The same by taps on a phone."""
    page = watch(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True).open(cat_file.as_uri() + AT)

    def tap_head(n: int) -> None:
        """Of four, which a phone has in two rows, 126 pixels each."""
        page.evaluate("document.querySelector('.heads').scrollIntoView()")
        box = box_of(page, ".heads")
        page.touchscreen.tap(box["x"] + 20 + 96 * (n % 2) + 40, box["y"] + 16 + 126 * (n // 2) + 40)

    page.locator(".ribbon .adding").tap()
    for word in (5, 7):
        page.locator("[data-test=sentence-both] .said-word").nth(word).tap()
    until(page, "location.hash.includes('set=4.5.7')")
    page.locator("[data-test=screen-heads]").tap()
    asked(page, cat, [4, 5, 7], [2])
    for n in (2, 3):
        tap_head(n)
    until(page, "location.hash.includes('heads=0.2.3')")
    page.locator("[data-test=unfold]").tap()
    page.locator("[data-test=pane-compare]").tap()
    page.locator("[data-test=compare-with]").select_option("0")
    page.locator("[data-test=head-B]").select_option("1")
    until(page, "location.hash.includes('hb=1')")
    page.locator(".adding:visible").first.tap()
    assert page.locator(".adding").first.get_attribute("aria-pressed") == "false"

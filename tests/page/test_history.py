"""Back undoes what the reader did, Forward does it again; what an address asks for in vain is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from looking import Watch, go, head_of, until

import headscope as hs
from headscope.page import html

if TYPE_CHECKING:
    from playwright.sync_api import Page


def at(page: Page, *parts: str) -> None:
    """Wait until the address has exactly these parts."""
    until(page, f"location.hash === '{'#' if parts else ''}{'&'.join(parts)}'")


def test_back_undoes_pins_heads_panes_and_filters(watch: Watch, cat_file: Path) -> None:
    page = watch().open(f"{cat_file.as_uri()}#l=1&h=1")
    acts: list[tuple[Callable[[], object], tuple[str, ...]]] = [
        (lambda: page.locator(".left .token").nth(4).click(), ("l=1", "h=1", "q=4")),
        (lambda: page.locator(".right .token").nth(3).click(), ("l=1", "h=1", "q=4", "k=3")),
        (lambda: page.keyboard.press("ArrowLeft"), ("l=1", "q=4", "k=3")),
        (lambda: page.locator("[data-test=special]").click(), ("l=1", "q=4", "k=3", "special=0")),
        (
            lambda: page.select_option("[data-test=statistic]", "same"),
            ("l=1", "q=4", "k=3", "special=0", "by=same"),
        ),
        (
            lambda: page.locator("[data-test=pane-anatomy]").click(),
            ("l=1", "q=4", "k=3", "pane=anatomy", "special=0", "by=same"),
        ),
    ]
    states: list[tuple[str, ...]] = [("l=1", "h=1")]
    for act, parts in acts:
        act()
        at(page, *parts)
        states.append(parts)
    page.locator(".drawing").wait_for()
    for parts in reversed(states[:-1]):
        page.evaluate("history.back()")
        at(page, *parts)
    assert head_of(page) == "Head 1.1"
    until(page, "!document.querySelector('.token.pinned')")
    until(page, "!document.querySelector('[data-test=special]').checked")
    for parts in states[1:]:
        page.evaluate("history.forward()")
        at(page, *parts)
    page.locator("[data-test=pane-head]").click()
    until(page, "document.querySelectorAll('.token.pinned').length === 2")
    until(page, "document.querySelector('[data-test=special]').checked")
    assert page.locator("[data-test=statistic]").input_value() == "same"


def test_a_drag_and_a_held_key_are_one_step_and_sliders_are_none(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    page = watch(viewport={"width": 1680, "height": 800}).open(f"{cat_file.as_uri()}#l=1&h=1")
    at(page, "l=1", "h=1")
    start = page.evaluate("history.length")
    left = page.locator(".left .token")
    left.nth(2).hover()
    page.mouse.down()
    for place in (3, 4, 5, 6):
        left.nth(place).hover()
    page.mouse.up()
    at(page, "l=1", "h=1", "set=2.3.4.5.6", "by=mass")
    assert page.evaluate("history.length") == start + 1
    page.evaluate("document.body.focus()")
    page.keyboard.down("j")
    for _ in range(4):
        page.keyboard.down("j")  # a second time without going up: the key repeats
    page.keyboard.up("j")
    at(page, "l=1", "h=1", "q=4", "set=2.3.4.5.6", "by=mass")
    assert page.evaluate("history.length") == start + 2
    page.locator("[data-test=mass]").fill("0.4")
    page.keyboard.press("Home")
    page.locator("[data-test=theme]").click()
    page.select_option("[data-test=language]", "ja")
    until(page, "['mass=', 'theme=light', 'lang=ja'].every((part) => location.hash.includes(part))")
    assert page.evaluate("history.length") == start + 2
    page.evaluate("history.back()")
    until(page, "!location.hash.includes('q=')")
    assert page.locator(".left .token.chosen").count() == 5
    page.evaluate("history.back()")
    at(page, "l=1", "h=1")


def test_another_text_is_a_step_and_so_is_the_way_back(watch: Watch, bert: hs.Model, tmp_path: Path) -> None:
    file = html.to_html([bert.trace("The cat sat."), bert.trace("The dog sat down!")], tmp_path / "two.html")
    page = watch().open(f"{file.as_uri()}#h=1")
    page.locator("[data-test=tab]").nth(1).click()
    at(page, "d=1", "h=1")
    page.evaluate("history.back()")
    until(page, "document.querySelectorAll('.tab')[0].classList.contains('on')")


def test_the_opening_finding_is_no_step(watch: Watch, tmp_path: Path) -> None:
    file = (
        hs.open("-").trace("The animal did not cross the street because it was too tired.").to_html(tmp_path / "a.html")
    )
    watched = watch(viewport={"width": 1280, "height": 800})
    page = watched.open(file.as_uri())
    until(page, "location.hash.includes('q=')")
    assert page.evaluate("history.length") == 2  # about:blank, and the page


IN_VAIN: list[tuple[str, list[str], tuple[str, ...]]] = [
    ("l=99&h=1", ["layer 99; the last layer is 1"], ("l=1", "h=1")),
    ("l=99&h=1&q=400", ["layer 99", "token 400; the last token is 17"], ("l=1", "h=1")),
    ("h=7", ["head 7; the last head is 1"], ("h=1",)),
    ("q=400&k=3&h=1", ["token 400"], ("h=1", "k=3")),
    ("h=1&set=2.300&on=4", ["token 300"], ("h=1", "set=2", "on=4")),
    ("h=1&d=3&vs=2", ["text 3; the last one open here is 0", "text 2"], ("h=1",)),
    ("h=1&by=nonsense", ["by=nonsense"], ("h=1",)),
    ("h=1&mass=7&what=ever", ["mass=7", "what=ever"], ("h=1",)),
    ("h=1&step=9", ["step=9"], ("h=1",)),
]
"""An address, what is said of it, and the address as it is corrected."""


def test_what_an_address_asks_in_vain_is_said_until_the_reader_goes_on(watch: Watch, cat_file: Path) -> None:
    """Of the one that the page opens at, and of each that it is led to; in the reader's language, with a button."""
    page = watch().open(f"{cat_file.as_uri()}#{IN_VAIN[0][0]}")
    for n, (address, remarks, corrected) in enumerate(IN_VAIN):
        if n:
            go(page, address)
        at(page, *corrected)
        message = page.locator(".said").inner_text()
        assert all(remark in message for remark in remarks), message
        page.mouse.move(300, 300)
        if not n:
            page.locator("[data-test=theme]").click()
            assert page.locator(".said").inner_text() == message  # taste is not an answer
        page.locator(".left .token").nth(2).click()
        until(page, "document.querySelector('.said').textContent.trim() === ''")
    go(page, "l=99&h=1")
    page.select_option("[data-test=language]", "zh")
    assert "第 99 层" in page.locator(".said").inner_text()
    page.locator(".said button").click()
    until(page, "document.querySelector('.said').textContent.trim() === ''")


def test_a_page_in_another_s_frame_leaves_its_history_alone(watch: Watch, cat_file: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer.html"
    outer.write_text(f'<!doctype html><iframe src="{cat_file.as_uri()}#h=1" width=1200 height=700></iframe>')
    watched = watch(viewport={"width": 1280, "height": 800})
    watched.page.goto(outer.as_uri())
    frame = watched.page.frames[1]
    frame.wait_for_selector("html[data-painted]")
    before = watched.page.evaluate("history.length")
    for place in (2, 3):
        frame.locator(".said-word").nth(place).click()
    until(frame, "location.hash === '#h=1&q=3'")
    assert watched.page.evaluate("history.length") == before

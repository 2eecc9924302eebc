"""The page holds in every home, language and width, with any font: nothing sticks out, is cut off or overlaps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fonts import EVEN, FACTORS, ODD, brought
from looking import Watch, box_of, unreadable, until
from serving import serving

import headscope as hs
from headscope.page import html, notebook

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

WIDTHS = (1440, 1280, 1000, 828, 640, 400, 360, 320)
PHONE = 680
"""Up to here the page shows one thing at a time, behind a bar."""
SCREENS = ("heads", "chain", "head")
LOWEST = """Math.max(...[...document.querySelectorAll("#page > :not(.screens, .said), main > *")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }))
  .map((one) => one.getBoundingClientRect().bottom))"""
"""Where the last thing on the page ends."""
PANELS = {"heads": [".grid"], "chain": [".cell"], "head": [".picture", ".inspector"]}
LOOKED = "#q=4&k=3&h=1&vs=1&special=0&by=separator"


def settled(page: Page | Frame) -> None:
    """The font is there, and what is computed late is on screen."""
    until(page, "[...document.fonts].every((face) => face.status === 'loaded')")
    until(page, "document.querySelector('[data-test=ranked] li[data-weight]') !== null")


SHOW = """(name) => {
  document.querySelector(`[data-test=${name}]`).click();
  return new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}"""
"""Shows a pane in half of the time that a pointer takes, which first waits until nothing moves."""


def shows(displayed: Page | Frame, name: str, width: int) -> None:
    """Press a button; at the ends of the widths with a pointer."""
    if width in (WIDTHS[0], WIDTHS[-1]):
        displayed.locator(f"[data-test={name}]").click()
    else:
        displayed.evaluate(SHOW, name)


def complaints(page: Page, displayed: Page | Frame) -> list[str]:
    """Text that can't be read, in any pane at any width; at the ends of the widths a pointer clicks."""
    settled(displayed)
    result = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 720})
        for pane in ("head", "compare", "causes", "anatomy"):
            if width <= PHONE:
                shows(displayed, "unfold", width)
                result += [f"{width} px, unfolded: {one}" for one in unreadable(displayed)]
            shows(displayed, f"pane-{pane}", width)
            displayed.wait_for_selector(f"[data-test=pane-{pane}][aria-pressed=true]", state="attached")
            if pane == "head" and width > PHONE:
                displayed.wait_for_selector("[data-test=weight]")
            result += [f"{width} px, {pane}: {one}" for one in unreadable(displayed)]
        for screen in SCREENS if width <= PHONE else ():
            shows(displayed, f"screen-{screen}", width)
            result += [f"{width} px, {screen}: {one}" for one in unreadable(displayed)]
    return result


@pytest.fixture(scope="module")
def two(bert: hs.Model) -> list[hs.Trace]:
    texts = "The tired cat sat on the mat.", "The tired cat sat on the hat."
    return [bert.trace(text, "She took her hat off.") for text in texts]


@pytest.mark.parametrize(("kind", "language"), EVEN)
def test_a_file_holds(watch: Watch, two: list[hs.Trace], tmp_path: Path, kind: str, language: str) -> None:
    file = html.to_html(two, tmp_path / "two.html")
    watched = watch(locale=language)
    watched.page.add_init_script(brought(kind))
    page = watched.open(file.as_uri() + LOOKED)
    assert complaints(page, page) == []
    for key in ("?", "S"):
        page.keyboard.press(key)
        page.wait_for_selector("dialog[open]")
        assert unreadable(page) == []
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")


PROSE = ("dir=to&on=3.4.5.6.7.8", "of=ab", "heads=0.1.2.3&blend=mean")
"""What the running text shows: words that are looked at, both texts, heads mixed."""


@pytest.mark.parametrize("kind", FACTORS)
def test_prose_holds(watch: Watch, two: list[hs.Trace], tmp_path: Path, kind: str) -> None:
    watched = watch(locale="ja")
    watched.page.add_init_script(brought(kind))
    file = html.to_html(two, tmp_path / "two.html").as_uri()
    found = []
    for state in PROSE:
        page = watched.open(f"{file}?{PROSE.index(state)}{LOOKED}&mode=text&{state}")
        settled(page)
        page.wait_for_selector(".word.inked")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 720})
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            found += [f"{state}, {width} px: {one}" for one in unreadable(page)]
    assert found == []


@pytest.mark.parametrize("kind", ["wide", pytest.param("narrow", marks=pytest.mark.slow)])
def test_a_notebook_s_frame_holds(watch: Watch, two: list[hs.Trace], tmp_path: Path, kind: str) -> None:
    book = tmp_path / "book.html"
    book.write_text(
        f"<!doctype html><meta charset=utf-8><body style='margin:0'>{notebook.frame(two)}", encoding="utf-8"
    )
    watched = watch(locale="en")
    watched.page.add_init_script(brought(kind))
    watched.page.goto(book.as_uri())
    frame = watched.page.frames[1]
    frame.wait_for_selector("html[data-painted]")
    frame.locator(".left .token").nth(4).click()
    frame.locator(".right .token").nth(3).click()
    assert complaints(watched.page, frame) == []


@pytest.mark.parametrize(("kind", "language"), ODD)
def test_the_served_page_holds(watch: Watch, bert: hs.Model, kind: str, language: str) -> None:
    with serving(bert.trace("The cat took off her [MASK].")) as session:
        watched = watch(locale=language)
        watched.page.add_init_script(brought(kind))
        page = watched.open(f"{session.address()}#q=2&k=3")
        for key in ("x", "M"):
            page.keyboard.press(key)
        page.locator("[data-test=run]").click()
        page.wait_for_selector("[data-test=changed] li")
        assert complaints(page, page) == []


BOXES = """Object.fromEntries(
  [".grid", ".picture", ".cell", ".inspector", ".matrix"].map((name) => [
    name,
    document.querySelector(name).getBoundingClientRect().toJSON(),
  ]),
)"""
BESIDE = f"(({{'.grid': grid, '.picture': head}}) => grid.right <= head.x && Math.abs(grid.y - head.y) < 2)({BOXES})"


@pytest.mark.parametrize("kind", FACTORS)
def test_all_panels_are_there_at_every_width(watch: Watch, two: list[hs.Trace], tmp_path: Path, kind: str) -> None:
    """Grid and head stand side by side where there is room, else a bar goes to each; no panel is squeezed away."""
    watched = watch(locale="en")
    watched.page.add_init_script(brought(kind))
    page = watched.open(html.to_html(two, tmp_path / "two.html").as_uri() + LOOKED)
    settled(page)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 720})
        if width <= PHONE:
            for screen, names in PANELS.items():
                page.locator(f"[data-test=screen-{screen}]").click()
                bar = page.locator(".screens").bounding_box()
                assert bar == {"x": 0, "y": 660, "width": width, "height": 60}
                shown = [
                    name for name in (".grid", ".picture", ".cell", ".inspector") if page.locator(name).is_visible()
                ]
                assert shown == names
                for name in names:
                    box = box_of(page, name)
                    assert min(box["width"], box["height"]) > 150, (width, name)
                page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
                assert page.evaluate(LOWEST) <= bar["y"] + 0.5, (width, screen)
            continue
        until(page, BESIDE)
        boxes = page.evaluate(BOXES)
        assert all(box["width"] > 150 for name, box in boxes.items() if name != ".matrix"), width
        assert all(boxes[name]["height"] > 150 for name in (".grid", ".picture", ".inspector")), width
        assert min(boxes[".matrix"]["width"], boxes[".matrix"]["height"]) > 120, width


def test_the_fonts_are_as_wide_as_they_say(watch: Watch, two: list[hs.Trace], tmp_path: Path) -> None:
    """The page is really shown in them: the same line is 3.2 times as wide in one as in the other."""
    lengths = []
    for kind in FACTORS:
        watched = watch(locale="ja")
        watched.page.add_init_script(brought(kind))
        page = watched.open(html.to_html(two, tmp_path / "two.html").as_uri() + LOOKED)
        settled(page)
        measured = page.evaluate(
            """[..."a8√", "層"].map((one) => {
              const line = document.createElement("span");
              line.textContent = one.repeat(20);
              document.body.append(line);
              return line.getBoundingClientRect().width;
            })"""
        )
        lengths.append(measured)
    ratios = np.divide(*lengths)
    np.testing.assert_allclose(ratios, [*[FACTORS["wide"] / FACTORS["narrow"]] * 3, 1], rtol=0.02)

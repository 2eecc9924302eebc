"""The page holds in every home, language and width, with any font: nothing sticks out, is cut off or overlaps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fonts import FACTORS, brought
from looking import Watched, unreadable, until
from serving import serving

import headscope as hs
from headscope.page import html, notebook

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

Watch = Callable[..., Watched]

WIDTHS = (1440, 1280, 1000, 828, 640, 400, 360, 320)
PHONE = 680
"""Up to here the page shows one thing at a time, behind a bar."""
SCREENS = ("heads", "chain", "head")
LANGUAGES = ("en", "ja", "zh")
FULL = [(kind, language) for kind in FACTORS for language in LANGUAGES]
ODD, EVEN = (
    [pytest.param(*one, marks=() if at % 2 == rest else pytest.mark.slow) for at, one in enumerate(FULL)]
    for rest in (1, 0)
)
"""Fonts and languages: together, a file and a served page have each pair of a font and a language once."""
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


def complaints(page: Page, displayed: Page | Frame) -> list[str]:
    """Text that can't be read, in any pane at any width."""
    settled(displayed)
    result = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 720})
        for pane in ("head", "compare", "causes", "anatomy"):
            if width <= PHONE:
                displayed.locator("[data-test=unfold]").click()
                result += [f"{width} px, unfolded: {one}" for one in unreadable(displayed)]
            displayed.locator(f"[data-test=pane-{pane}]").click()
            if pane == "head" and width > PHONE:
                displayed.wait_for_selector("[data-test=weight]")
            result += [f"{width} px, {pane}: {one}" for one in unreadable(displayed)]
        for screen in SCREENS if width <= PHONE else ():
            displayed.locator(f"[data-test=screen-{screen}]").click()
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


@pytest.mark.parametrize("state", ["dir=to&on=3.4.5.6.7.8", "of=ab", "heads=0.1.2.3&blend=mean"])
@pytest.mark.parametrize("kind", FACTORS)
def test_prose_holds(watch: Watch, two: list[hs.Trace], tmp_path: Path, kind: str, state: str) -> None:
    watched = watch(locale="ja")
    watched.page.add_init_script(brought(kind))
    page = watched.open(f"{html.to_html(two, tmp_path / 'two.html').as_uri()}{LOOKED}&mode=text&{state}")
    settled(page)
    page.wait_for_selector(".word.inked")
    found = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 720})
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found += [f"{width} px: {one}" for one in unreadable(page)]
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
                    box = page.locator(name).bounding_box()
                    assert box is not None
                    assert min(box["width"], box["height"]) > 150, (width, name)
                page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
                assert page.evaluate(LOWEST) <= bar["y"] + 0.5, (width, screen)
            continue
        boxes = {name: page.locator(name).bounding_box() for name in (".grid", ".picture", ".cell", ".inspector")}
        grid, head = boxes[".grid"], boxes[".picture"]
        assert grid is not None
        assert head is not None
        assert all(box is not None and box["width"] > 150 for box in boxes.values()), width
        assert all(boxes[name]["height"] > 150 for name in (".grid", ".picture", ".inspector")), width  # type: ignore[index]
        assert grid["x"] + grid["width"] <= head["x"]
        assert abs(grid["y"] - head["y"]) < 2
        matrix = page.locator(".matrix").bounding_box()
        assert matrix is not None
        assert min(matrix["width"], matrix["height"]) > 120, width


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

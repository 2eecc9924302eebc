"""A real browser, and the small BERT whose heads are known."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from looking import HOSTILE, Watched

import headscope as hs
from patience import PATIENCE
from small_bert import VOCABULARY, small_bert

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking "
    "--disable-component-update --disable-sync --no-first-run --font-render-hinting=none"
)
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one that is there is taken: without windows and what belongs to them, pages take two thirds of the time."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    result = next(filter(None, map(shutil.which, BROWSERS)), None)
    if result is None:
        message = "Chromium is not installed: the page is not tested (Debian: apt-get install chromium)"
        if os.environ.get("HEADSCOPE_REQUIRE_CHROMIUM"):
            pytest.fail(message)
        pytest.skip(message)
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=result, args=FLAGS.split(), timeout=PATIENCE * 1000)
        yield started
        started.close()


WIDE = {"width": 1680, "height": 900}
"""A page in which the lines have both of their sides."""


def opened(browser: Browser, *, first: bool = False, tools: bool = True, **options: object) -> Watched:
    """A page of a reader who knows it, or of one who opens it for the first time; with its options unfolded or not."""
    context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})
    if not first:
        context.add_init_script("try { localStorage.setItem('headscope.lessons', 'true') } catch {}")
    return Watched(context, tools=tools)


@pytest.fixture(scope="session")
def usual(browser: Browser) -> Callable[[bool], Watched]:
    """A page with its options unfolded or not, for all that ask for nothing special: another takes long to start."""
    return cache(lambda tools: opened(browser, tools=tools))


def left(watched: Watched) -> None:
    """Leave what is open, and what it has stored."""
    watched.page.evaluate("try { localStorage.clear() } catch {}")
    watched.page.goto("about:blank")


@pytest.fixture
def watch(browser: Browser, usual: Callable[[bool], Watched]) -> Iterator[Callable[..., Watched]]:
    """A page, the one from before if the test asks again; whatever it complained of fails the test, unless it says that
    it will. A page with scripts of its own, beside another, or whose history counts is asked for as `own`.
    """
    complains: dict[Watched, bool] = {}
    shared: set[Watched] = set()

    def start(
        *,
        quiet: bool = True,
        own: bool = False,
        tools: bool = True,
        viewport: Any = WIDE,
        color_scheme: Any = None,
        **options: object,
    ) -> Watched:
        if options or own:
            watched = opened(browser, tools=tools, viewport=viewport, color_scheme=color_scheme, **options)
        else:
            watched = usual(tools)
            if watched in shared:
                left(watched)
            else:
                shared.add(watched)
                watched.said.clear()
            watched.asked.clear()
            watched.page.set_viewport_size(viewport)
            watched.page.emulate_media(media="null", forced_colors="null", color_scheme=color_scheme or "null")
        complains[watched] = complains.get(watched, False) or not quiet
        return watched

    yield start
    said = [line for watched, may in complains.items() if not may for line in watched.said]
    for watched in complains:
        if watched in shared:
            left(watched)
        else:
            watched.page.context.close()
    assert said == []


@pytest.fixture(scope="session")
def cat(bert: hs.Model) -> hs.Trace:
    return bert.trace("The tired cat sat on the mat.", "She took her hat off.")


@pytest.fixture(scope="session")
def cat_file(cat: hs.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cat.to_html(tmp_path_factory.mktemp("page") / "cat.html")


@pytest.fixture(scope="session")
def tired(minilm: hs.Model, made_once: Callable[..., Path]) -> tuple[hs.Trace, Path]:
    """A sentence in MiniLM, and its page with runs, which take seconds."""
    trace = minilm.trace("The animal did not cross the street because it was too tired.")
    folder = made_once("tired", lambda folder: trace.to_html(folder / "tired.html", dtype="fp32", runs=True))
    return trace, folder / "tired.html"


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> hs.Trace:
    """A text whose tokens would act, if anything took them for markup."""
    vocabulary = (*VOCABULARY[: -len(HOSTILE)], *HOSTILE)
    model = hs.open(small_bert(tmp_path_factory.mktemp("hostile"), vocabulary=vocabulary))
    first = len(vocabulary) - len(HOSTILE)
    return model.trace(ids=[2, *range(first, len(vocabulary)), 3])

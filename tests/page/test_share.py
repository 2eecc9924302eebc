"""Sharing: one file in which the page has written itself again, and a link that says who can open it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import HOSTILE, Watch, Watched, head_of, lists, number, retype, until
from serving import serving
from test_page_bytes import view_of

import headscope as hs
from headscope.page import html, notebook
from headscope.page.trace import page_bytes

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

CLOSE = 1e-3


def shared(watched: Watched, folder: Path, place: Page | Frame | None = None) -> Path:
    """The file that the page saves, under its suggested name."""
    here = place or watched.page
    here.locator("[data-test=share]").click()
    with watched.page.expect_download() as download:
        here.locator("[data-test=share-save]").click()
    until(here, "document.querySelector('[data-test=share-done]').textContent.includes('saved')")
    here.locator("dialog[open] button").first.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def embedded(file: Path) -> list[bytes]:
    import base64

    return [
        base64.b64decode("".join(re.findall(rf'id="hs-trace-{n}(?:-\d+)?">([^<]*)<', text)))
        for text in [file.read_text(encoding="utf-8")]
        for n in range(len(set(re.findall(r'id="hs-trace-(\d+)', text))))
    ]


def test_a_file_saves_itself_with_what_is_seen(watch: Watch, cat: hs.Trace, cat_file: Path, tmp_path: Path) -> None:
    watched = watch()
    page = watched.open(f"{cat_file.as_uri()}#l=1&h=1&theme=dark&lang=ja")
    page.locator(".left .token").nth(4).click()
    page.locator(".right .token").nth(3).click()
    page.locator("[data-test=special]").check()
    page.select_option("[data-test=language]", "en")
    file = shared(watched, tmp_path)
    assert file.name.endswith("layer1-head1.html")
    assert embedded(file) == embedded(cat_file)

    page = watch(color_scheme="light", locale="en").open(file.as_uri())
    assert head_of(page) == "Head 1.1"
    until(page, "location.hash === '#l=1&h=1&q=4&k=3&special=0'")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"  # the reader's, not the sender's
    kept = ~np.array(cat.special)
    weights = np.asarray(cat[1, 1].weights)[4]
    page.wait_for_selector("[data-test=value]")
    assert number(page.locator("[data-test=value]").inner_text()) == pytest.approx(
        weights[3] / weights[kept].sum(), abs=CLOSE
    )
    assert page.title().startswith("The tired cat sat on the mat.")


def test_the_saved_file_has_the_page_s_own_script_and_asks_for_nothing(
    watch: Watch, cat_file: Path, tmp_path: Path
) -> None:
    watched = watch()
    watched.open(f"{cat_file.as_uri()}#h=1")
    file = shared(watched, tmp_path)
    before, after = (path.read_text(encoding="utf-8") for path in (cat_file, file))
    for pattern in (r"<script type=\"module\">.*?</script>", r"<style>.*?</style>", r"<noscript>.*?</noscript>"):
        (one,), (two,) = (re.findall(pattern, text, re.DOTALL) for text in (before, after))
        assert one == two
    policies = [re.findall(r'Content-Security-Policy" content="([^"]+)"', text) for text in (before, after)]
    assert policies[0] == policies[1]
    again = watch(viewport={"width": 1280, "height": 800})
    page = again.open(file.as_uri())
    page.locator(".said-word").nth(2).click()
    third = shared(again, tmp_path)
    assert [url for url in again.asked if not url.startswith(("file:", "blob:"))] == []
    page = watch(viewport={"width": 1280, "height": 800}).open(third.as_uri())
    until(page, "location.hash === '#h=1&q=2'")


def test_an_address_wins_over_the_saved_state(watch: Watch, cat_file: Path, tmp_path: Path) -> None:
    watched = watch()
    watched.open(f"{cat_file.as_uri()}#h=1&q=4")
    file = shared(watched, tmp_path)
    page = watch(viewport={"width": 1280, "height": 800}).open(f"{file.as_uri()}#l=1")
    until(page, "location.hash === '#l=1'")
    page = watch(viewport={"width": 1280, "height": 800}).open(f"{file.as_uri()}#theme=dark")
    until(page, "location.hash === '#h=1&q=4&theme=dark'")


def test_hostile_tokens_and_two_texts_go_into_a_file(
    watch: Watch, hostile: hs.Trace, cat: hs.Trace, tmp_path: Path
) -> None:
    text = "</title></script><img src=x onerror=alert(3)><!--<script>"
    traces = [hostile.replaced(text=text), cat]
    watched = watch()
    page = watched.open(html.to_html(traces, tmp_path / "two.html", title="two").as_uri() + "#h=1&q=1&vs=1")
    page.locator("[data-test=share]").click()
    assert "What is open (2)" in page.locator("dialog[open]").inner_text()
    page.keyboard.press("Escape")
    file = shared(watched, tmp_path)
    assert [view_of(raw)["labels"] for raw in embedded(file)] == [view_of(page_bytes(one))["labels"] for one in traces]
    page = watch(viewport={"width": 1280, "height": 800}).open(file.as_uri())
    assert page.locator(".left .token bdi").all_inner_texts()[1:4] == list(HOSTILE[:3])
    page.wait_for_selector("[data-test=tab] >> nth=1")
    until(page, "location.hash === '#vs=1&h=1&q=1'")
    assert page.locator("#page img, #page script").count() == 0
    assert page.title().startswith(text[:40])


def test_a_served_page_is_saved_without_its_token_and_its_link_says_who_can_open_it(
    watch: Watch, bert: hs.Model, tmp_path: Path
) -> None:
    with serving(bert.trace("The cat took off her [MASK].")) as session:
        watched = watch()
        page = watched.open(f"{session.address()}#h=1")
        retype(page, "The dog sat down!")
        page.keyboard.press("Enter")
        until(page, "document.querySelector('.tab.on')?.textContent.includes('dog')")
        page.evaluate("location.hash = '#d=1&h=1'")
        until(page, "document.querySelector('[data-test=head]').textContent === 'Head 0.1'")
        page.locator(".left .token").nth(2).click()
        page.locator("[data-test=share]").click()
        link = page.locator("[data-test=share-link]").input_value()
        who = page.locator("[data-test=share-who]").inner_text()
        assert "on this machine only" in who
        assert "whoever has it can run texts" in who
        page.keyboard.press("Escape")
        file = shared(watched, tmp_path)
        assert session.token not in file.read_text(encoding="utf-8")
        assert re.fullmatch(re.escape(session.address()) + r"#d=1(&\w+=\w+)*&q=2(&\w+=\w+)*", link)
    expected = bert.trace("The dog sat down!")
    page = watch(viewport={"width": 1280, "height": 800}).open(file.as_uri())
    until(page, "document.querySelector('.tab.on')?.textContent.includes('dog')")
    weights = expected[0, 1].weights[2]
    lists(page, weights, CLOSE)
    assert page.locator("[data-test=text]").count() == 0


def test_the_link_is_copied_and_of_a_file_it_says_so(watch: Watch, cat_file: Path) -> None:
    watched = watch(viewport={"width": 1280, "height": 800}, permissions=["clipboard-read", "clipboard-write"])
    page = watched.open(f"{cat_file.as_uri()}#h=1&q=4&lang=en")
    page.keyboard.press("S")
    assert "a file on this machine" in page.locator("[data-test=share-who]").inner_text()
    page.locator("[data-test=share-copy]").click()
    until(page, "document.querySelector('[data-test=share-done]').textContent.includes('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == f"{cat_file.as_uri()}#h=1&q=4"


def test_a_notebook_s_frame_has_no_link_but_a_file(watch: Watch, cat: hs.Trace, tmp_path: Path) -> None:
    book = tmp_path / "book.html"
    book.write_text(f"<!doctype html><meta charset=utf-8><body>{notebook.frame([cat])}", encoding="utf-8")
    watched = watch(locale="en")
    watched.page.goto(book.as_uri())
    frame = watched.page.frames[1]
    frame.wait_for_selector("html[data-painted]")
    frame.locator(".left .token").nth(4).click()
    frame.locator("[data-test=share]").click()
    assert "no address" in frame.locator("[data-test=share-who]").inner_text()
    assert frame.locator("[data-test=share-link]").count() == 0
    frame.locator("dialog[open] button").first.click()
    file = shared(watched, tmp_path, frame)
    page = watch(viewport={"width": 1280, "height": 800}).open(file.as_uri())
    until(page, "location.hash.includes('q=4')")


def test_a_large_trace_is_saved_in_pieces(watch: Watch, cat: hs.Trace, cat_file: Path, tmp_path: Path) -> None:
    """The size of a piece is web/src/share.ts's and headscope/page/html.py's alike, a multiple of three."""
    source = (Path(__file__).parents[2] / "web" / "src" / "share.ts").read_text(encoding="utf-8")
    (shift,) = re.findall(r"const CHUNK = (\d+ << \d+);", source)
    number, by = map(int, shift.split(" << "))
    assert number << by == html.CHUNK
    assert html.CHUNK % 3 == 0

"""Room, hidden keys, errors, other ways to see and to press: each where somebody has stumbled."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import (
    DRAWN,
    SIZES,
    Watch,
    box_of,
    canvas,
    eventually,
    go,
    inaccessible,
    made,
    number,
    patiently,
    ranked,
    table,
    unreadable,
    until,
)
from test_asking import everywhere

import headscope as hs
from headscope.attention.scores import Mask
from headscope.page import notebook
from naive_layers import MINILM

if TYPE_CHECKING:
    from playwright.sync_api import Page


CLOSE = 1e-3
LAPTOPS = [(1440, 900), (1280, 720)]


def test_keys_that_come_later_are_muted_not_listed_and_get_no_line(watch: Watch, tmp_path: Path) -> None:
    """And it is said beside the sentence. A segment that a text lacks is not asked for."""
    trace = made(8, Mask(causal=True))
    page = watch().open(f"{trace.to_html(tmp_path / 'causal.html').as_uri()}#q=3&k=6&h=1")
    listed = ranked(page)
    weights = np.asarray(trace[0, 1].weights)
    assert sorted(listed) == [0, 1, 2, 3]
    assert listed == pytest.approx({key: weights[3, key] for key in range(4)}, abs=CLOSE)

    def orange() -> int:
        picture = canvas(page, ".lines canvas")
        return int(((picture[..., 3] > 20) & (picture[..., 0] > picture[..., 2] + 40)).sum())

    assert orange() == 0
    page.locator(".right .token").nth(2).click()
    eventually(page, lambda: orange() > 20, "a line")
    assert page.locator(".model").inner_text() == "ner/model"
    assert page.locator(".said-word.ahead bdi").all_inner_texts() == [f"t{n}" for n in range(4, 8)]
    colour = "getComputedStyle(document.querySelector('{} bdi')).color"
    assert page.evaluate(colour.format(".said-word.ahead")) != page.evaluate(colour.format(".said-word:not(.ahead)"))
    until(
        page,
        "[...document.querySelectorAll('.note p')].some((one) => one.style.visibility === '' && "
        "one.textContent.endsWith('cannot look ahead'))",
    )
    go(page, "h=1&of=ab")
    assert "of=ab" in page.locator(".said").inner_text()
    until(page, "location.hash === '#h=1'")
    assert page.locator(".said-word").count() == 8


def test_a_mean_hides_what_all_of_its_layers_hide(watch: Watch, tmp_path: Path) -> None:
    """Of a layer that looks at neighbours alone and of one that sees all."""
    near, far = (made(8, mask) for mask in (Mask(window=(1, 1)), Mask()))
    trace = near.replaced(layers=[near.layers[0], replace(far.layers[0], number=1)])
    weights = np.asarray(far[0, 0].weights)[2]
    key = 4 + int(weights[4:].argmax())
    mean = weights[key] / 2
    assert mean > 0.01 > np.asarray(near[0, 0].weights)[2, key] == 0
    page = watch().open(f"{trace.to_html(tmp_path / 'two.html').as_uri()}#heads=0.2&blend=mean&q=2&k={key}")
    until(page, f"Math.abs(Number(document.querySelector('[data-test=value]')?.textContent) - {mean}) < {CLOSE}")
    assert page.locator(".said-word.ahead").count() == 0
    assert page.locator(".said-word small").nth(key).inner_text() == f"{mean:.2f}"[1:]
    go(page, f"q=2&k={key}")
    until(page, "document.querySelector('[data-test=value]')?.textContent.includes('may not look')")
    assert page.locator(".said-word.ahead").count() == 5


def test_a_line_that_ends_out_of_sight_is_named_at_the_edge(watch: Watch, tmp_path: Path) -> None:
    """Of a long text, which opens as prose."""
    trace = made(80, Mask())
    page = watch().open(trace.to_html(tmp_path / "long.html").as_uri())
    assert page.locator(".lines, .matrix").count() == 0
    assert page.locator(".word").count() == 80
    go(page, "q=2&mode=lines&mass=0.9")
    page.wait_for_selector(".edge button")
    weights = np.asarray(trace[0, 0].weights)[2]
    edges = page.locator(".edge button").all()
    shown = {int(one.get_attribute("data-column") or 0): float(one.get_attribute("data-weight") or 0) for one in edges}
    seen = page.evaluate("document.querySelector('.lines').clientHeight / 22")
    below = [int(n) for n in np.argsort(-weights) if n + 0.5 > seen][:3]
    assert shown == pytest.approx({key: weights[key] for key in below}, abs=CLOSE)
    assert f"t{below[0]}" in edges[0].inner_text()
    edges[0].click()
    until(page, f"[...document.querySelectorAll('.right .token')].some((one) => one.dataset.at === '{below[0]}')")


def test_repeated_words_carry_their_place_and_the_cut_is_marked(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    page = watch().open(f"{cat_file.as_uri()}#l=1&h=0&q=4")
    tokens = page.locator(".left .token")
    the = [n for n, token in enumerate(cat.tokens) if token == "the"]
    assert len(the) == 2
    assert [tokens.nth(n).locator("sub").inner_text() for n in the] == [str(n) for n in the]
    assert tokens.nth(4).locator("sub").count() == 0
    ranked(page)
    weights = np.sort(np.asarray(cat[1, 0].weights)[4])[::-1]
    keys = int(np.searchsorted(np.cumsum(weights), 0.7)) + 1
    assert (
        page.locator(".cutline").inner_text()
        == f"{keys} key{'' if keys == 1 else 's'} hold{'s' if keys == 1 else ''} 70%"
    )
    assert (
        page.evaluate("[...document.querySelectorAll('.inspector .ranked li')].findIndex((one) => one.matches('.cut'))")
        == keys - 1
    )
    page.set_viewport_size({"width": 1280, "height": 800})
    go(page, "l=1&h=1&q=4")
    page.emulate_media(forced_colors="active")  # which keep what is chosen
    look = "(one) => [getComputedStyle(one).backgroundColor, getComputedStyle(one).color]"
    chosen, other = (page.locator(f"[data-test=mode-{name}]").evaluate(look) for name in ("both", "lines"))
    assert chosen != other
    assert (
        page.locator(".status .legend .ramp")
        .evaluate("(one) => getComputedStyle(one).backgroundImage")
        .startswith("linear")
    )
    assert page.locator(".status .legend .ramp").evaluate("(one) => getComputedStyle(one).forcedColorAdjust") == "none"
    # the marks above a picture don't hide it
    overlays = page.locator("canvas.over")
    assert overlays.count() == 2
    for overlay in overlays.all():
        assert overlay.evaluate("(one) => getComputedStyle(one).backgroundColor") == "rgba(0, 0, 0, 0)"
    page.emulate_media(forced_colors="none")
    go(page, "h=1&of=ab")
    until(page, "location.hash === '#h=1&of=ab'")
    # a browser that keeps that the lessons are read is told none
    assert page.evaluate("localStorage.getItem('headscope.lessons')") == "true"
    assert page.locator(".lessons").count() == 0


def test_dividers_move_by_hand_and_by_keys_and_stay(watch: Watch, cat_file: Path) -> None:
    page = watch(own=True, viewport={"width": 1280, "height": 800}).open(cat_file.as_uri())
    before = box_of(page, ".grid")["width"]
    page.locator("[data-test=divider-left]").focus()
    page.keyboard.press("ArrowRight")
    until(page, f"document.querySelector('.grid').offsetWidth === {round(before) + 16}")
    line = box_of(page, "[data-test=divider-left]")
    page.mouse.move(line["x"] + 4, line["y"] + 100)
    page.mouse.down()
    page.mouse.move(line["x"] + 54, line["y"] + 100)
    page.mouse.up()
    until(page, f"document.querySelector('.grid').offsetWidth === {round(before) + 66}")
    kept = page.evaluate("JSON.stringify({...localStorage})")  # what a browser under load may not have stored yet
    page.add_init_script(f"Object.assign(localStorage, {kept})")
    page.reload()
    page.wait_for_selector("html[data-painted]")
    assert box_of(page, ".grid")["width"] == pytest.approx(before + 66)
    page.locator("[data-test=divider-left]").focus()
    page.keyboard.press("Home")
    until(page, f"document.querySelector('.grid').offsetWidth === {round(before)}")


def test_a_page_without_storage_works(watch: Watch, cat_file: Path) -> None:
    watched = watch(own=True)
    watched.page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    page = watched.open(cat_file.as_uri())
    page.locator("[data-test=divider-right]").focus()
    page.keyboard.press("ArrowLeft")
    assert box_of(page, ".inspector")["width"] > 230


def test_an_error_moves_nothing_and_goes_with_its_cause(watch: Watch, cat_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 64)
    page = watch().open(f"{cat_file.as_uri()}#pane=compare")
    before = box_of(page, ".columns")
    page.set_input_files(".file input", broken)
    alert = page.locator("[role=alert]:visible")
    alert.wait_for()
    assert alert.inner_text().startswith("This file was not opened: broken.safetensors")
    assert box_of(page, ".columns") == before
    header, message = page.locator(".top").bounding_box(), alert.bounding_box()
    assert message["y"] >= header["y"] + header["height"]
    page.keyboard.press("1")
    alert.wait_for(state="hidden")


def test_the_statistics_table_is_whole(watch: Watch, tmp_path: Path) -> None:
    trace = made(6, Mask(), heads=16)
    page = watch(viewport={"width": 1280, "height": 800}).open(trace.to_html(tmp_path / "wide.html").as_uri() + "#h=1")
    page.keyboard.press("T")
    table = page.locator("[data-test=grid-table]")
    assert re.match(r".+ of every head", table.locator("caption").inner_text())
    assert table.evaluate("(one) => one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight + 1")
    last = table.locator("tbody td").last.bounding_box()
    assert last["x"] + last["width"] < 1280
    page.keyboard.press("Escape")
    assert table.get_attribute("class") == "unseen"


def test_controls_are_large_enough_for_a_finger(watch: Watch, cat_file: Path) -> None:
    page = watch(viewport={"width": 360, "height": 800}, has_touch=True).open(f"{cat_file.as_uri()}#l=9&h=1&q=4&k=3")
    page.wait_for_selector(".said-word.looking")
    assert page.locator(".said button").is_visible()  # the address asks for a layer that is missing
    small = []
    for width in (360, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for place in (*(f"[data-test=screen-{name}]" for name in ("heads", "chain", "causes", "head")), ".fold"):
            page.locator(place).click()
            small += page.evaluate(
                """[...document.querySelectorAll("#page button, #page select, #page input:not([type=checkbox])")]
                  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest("dialog, .unseen"))
                  .map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect().height])
                  .filter(([, height]) => height < 43.5)"""
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(".fold").click()
    assert small == []


def on_paper(page: Page) -> None:
    """The page as it is printed."""
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.evaluate(DRAWN)


def on_screen(page: Page) -> None:
    """After it has been printed."""
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.evaluate(DRAWN)


def test_print_is_one_lettered_page(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    """Sentence, head, what the word looks at, all heads, the cell: from a wide window onto one A4 page. It keeps every
    token, the picture above its legend, and the legend's value.
    """
    page = watch().open(f"{cat_file.as_uri()}#l=1&h=1&q=4&k=3&theme=light")
    page.wait_for_selector("[data-test=weight]")
    for theme in ("light", "dark"):
        go(page, f"l=1&h=1&q=4&k=3&theme={theme}")
        assert re.findall(rb"/Count (\d+)", page.pdf(format="A4")) == [b"1"]
        until(page, "!document.documentElement.matches('.paper')")
        assert page.locator(".drawn").count() == 0
        on_paper(page)
        letters = page.evaluate(
            """[...document.querySelectorAll(".ribbon, .centre, .inspector, .grid, .cell")].map((one) =>
              [getComputedStyle(one, "::before").content, one.getBoundingClientRect()]).sort(([, a], [, b]) =>
              a.top - b.top || a.left - b.left).map(([letter]) => letter.replaceAll('"', "")).join("")"""
        )
        assert letters == "abcde"
        assert not page.locator("button:visible:not(.legend *, .headlist *)").count()
        caption = page.locator(".caption").inner_text()
        assert all(part in caption for part in (str(cat.text), "layer 1, head 1", "square root"))
        assert "Lines" not in caption
        on_screen(page)
    go(page, "l=1&h=1&q=4&k=3&mode=both")
    on_paper(page)
    for width in (1280, 794):
        page.set_viewport_size({"width": width, "height": 1123})
        picture, status = box_of(page, ".matrix"), box_of(page, ".under")
        assert picture["y"] + picture["height"] <= status["y"] + 1
        cut = page.evaluate(
            """[...document.querySelectorAll(".lines .token")].filter((one) => one.checkVisibility()).filter((one) =>
              one.getBoundingClientRect().bottom > one.closest(".lines").getBoundingClientRect().bottom + 1).length"""
        )
        assert cut == 0
    page.set_viewport_size({"width": 1280, "height": 800})
    on_screen(page)
    go(page, "l=1&h=1&q=4")
    on_paper(page)
    assert page.locator("[data-test=reach]").is_visible()
    assert not page.locator("[data-test=table]").is_visible()
    assert page.locator(".inspector").evaluate("(one) => getComputedStyle(one).breakInside") == "avoid"
    page.set_viewport_size({"width": 794, "height": 1100})
    on_screen(page)
    go(page, "l=1&h=1&q=4&k=3")
    page.wait_for_selector("[data-test=weight]")
    page.keyboard.press("Enter")
    on_paper(page)
    page.wait_for_selector(".cell .step")
    until(  # one moment: fonts and pictures that come later move both
        page,
        """(() => {
          const end = document.querySelector(".cell").getBoundingClientRect().bottom;
          return [...document.querySelectorAll(".step")].every(
            (one) => one.getBoundingClientRect().bottom <= end && one.scrollHeight <= one.clientHeight);
        })()""",
    )


PRINTED = """[...document.querySelectorAll("#page *")]
  .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".unseen"))
  .map((one) => {
    const svg = one.closest("svg");
    const drawn = svg?.viewBox.baseVal?.width;
    const scale = drawn ? svg.getBoundingClientRect().width / drawn : one.currentCSSZoom;
    return [0.75 * scale * parseFloat(getComputedStyle(one).fontSize), one.textContent];
  })"""
"""Each printed text with the size of its letters in points."""


def test_52_tokens_are_one_printed_page_with_a_caption(watch: Watch, tmp_path: Path) -> None:
    """Letters of at least 6 points, also in pictures; the caption says thresholds, counting, and the command."""
    text = (
        "Emma Woodhouse, handsome, clever, and rich, with a comfortable home and happy disposition, seemed to unite "
        "some of the best blessings of existence; and had lived nearly twenty-one years in the world with very little "
        "to distress or vex her."
    )
    (far := tmp_path / "of-a-project-with-a-long-name" / "checkpoints-of-its-second-year").mkdir(parents=True)
    (far / "model").symlink_to(MINILM)
    trace = hs.open(str(far / "model")).trace(text)
    assert len(trace) >= 52
    page = watch(viewport={"width": 1440, "height": 844}, color_scheme="dark").open(
        trace.to_html(tmp_path / "emma.html", values=True).as_uri() + "#l=3&h=1&q=10&k=20"
    )
    page.wait_for_selector("[data-test=weight]", state="attached")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert re.findall(rb"/Count (\d+)", page.pdf(format="A4")) == [b"1"]
    page.set_viewport_size({"width": 703, "height": 1032})
    on_paper(page)
    sizes = page.evaluate(PRINTED)
    assert [one for one in sizes if one[0] < 6] == []
    assert {"[SEP]", "3.1", "11", "comfortable"} <= {text for _, text in sizes}
    boxes = {name: box_of(page, name) for name in (".matrix .drawn", ".heads .drawn", ".cell")}
    assert boxes[".matrix .drawn"]["height"] > 300
    assert boxes[".heads .drawn"]["width"] > 450
    assert 900 < boxes[".cell"]["y"] + boxes[".cell"]["height"] < 1032
    caption = page.locator(".caption").inner_text()
    assert all(part in caption for part in ("rcs from .04", "count from 0", f"headscope view {trace.model} 'Emma"))
    assert caption.endswith("--open 'l=3&h=1&q=10&k=20'")
    assert page.locator("html").get_attribute("data-theme") == "light"


def test_a_text_that_would_be_an_option_is_in_no_command(watch: Watch, bundled: hs.Model, tmp_path: Path) -> None:
    """Nor is an empty one: the caption has the text."""
    for text, printed in (("the cat", True), ("- the cat", False), ("--help", False), ("-", False), ("", False)):
        page = watch().open(bundled.trace("the cat").replaced(text=text).to_html(tmp_path / "page.html").as_uri())
        on_paper(page)
        caption = page.locator(".caption").inner_text()
        assert ("headscope view" in caption) is printed
        assert "count from 0" in caption


def test_a_phone_shows_the_last_token_of_a_sentence(watch: Watch, tmp_path: Path) -> None:
    trace = hs.open("-").trace("The animal did not cross the street because it was too tired.")
    watched = watch(viewport={"width": 390, "height": 844}, has_touch=True)
    page = watched.open(trace.to_html(tmp_path / "animal.html").as_uri() + "#h=1")
    assert len(trace) >= 15
    said = page.locator(".said-word")
    assert said.count() == len(trace)
    last = said.last.bounding_box()
    assert last["x"] + last["width"] <= 390
    assert last["y"] + last["height"] <= 844


TALL = [(12, 12), (24, 16)]
"""Layers and heads of BERT-base and BERT-large."""
SEEN = """(() => {
  const [grid, under] = [".heads", innerWidth > 680 ? ".cell" : ".screens"]
    .map((one) => document.querySelector(one).getBoundingClientRect());
  const box = document.querySelector(".scroller");
  const fits = grid.top >= 0 && grid.bottom <= Math.min(innerHeight, under.top) + 1;
  return fits && box.scrollHeight <= box.clientHeight + 1;
})()"""
"""The grid lies whole between what is above and below it, and does not scroll."""


def framed(page: Page) -> None:
    """Wait for the orange frame around the head in view to be on the screen."""

    def on_screen() -> None:
        over, grid, box = canvas(page, ".heads .over"), box_of(page, ".heads .over"), box_of(page, ".scroller")
        rows, _ = np.nonzero((over[..., 3] > 200) & (over[..., 0] > over[..., 2] + 80))
        assert len(rows)
        assert grid["y"] + rows.min() >= max(0, box["y"]) - 2
        assert grid["y"] + rows.max() <= min(page.evaluate("innerHeight"), box["y"] + box["height"]) + 2

    patiently(page, on_screen)


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Pages of models of 12, 24 and 60 layers, a cell pinned, by layers."""
    folder = tmp_path_factory.mktemp("tall")
    made_of = [*TALL, (60, 4)]
    pages = {n: made(15, Mask(), heads=heads, layers=n).to_html(folder / f"{n}.html") for n, heads in made_of}
    return {layers: f"{path.as_uri()}#l=7&h=3&q=4&k=9&by=weight" for layers, path in pages.items()}


FORMS = {12: ("beside", "beside", "under"), 24: ("beside", "value", "value")}
"""How the pictures of a model of so many layers are drawn, in three sizes."""


@pytest.mark.parametrize("layers", FORMS)
def test_every_layer_is_seen(watch: Watch, tall: dict[int, str], layers: int) -> None:
    """As many pictures as there is room for; then `e` has nothing to select that can't be seen."""
    page = watch(tools=False).open(f"{tall[layers]}&all=1")
    heads = page.locator(".heads")
    for (width, height), form in zip((*LAPTOPS, (390, 844)), FORMS[layers], strict=True):
        page.set_viewport_size({"width": width, "height": height})
        go(page, f"{tall[layers].split('#')[1]}&all=1")
        until(page, SEEN)
        if width > 680:  # one header line
            top = box_of(page, "[data-test=share]")["y"]
            assert box_of(page, "[data-test=pane-head]")["y"] == pytest.approx(top, abs=3)
        assert heads.get_attribute("data-form") == form
        side = int(heads.get_attribute("data-side") or 0)
        assert side >= {"under": 21, "beside": 21 if layers == 12 else 15, "value": 0}[form]
        for _ in range(3):
            page.keyboard.press("e")
            assert page.evaluate(SEEN)
            framed(page)
    page.set_viewport_size({"width": 1280, "height": 720})
    for state in ("order=high", "face=values", "by=entropy", "order=low&face=values") if layers == 24 else ():
        go(page, f"{tall[24].split('#')[1]}&{state}")
        until(page, SEEN)


def test_sixty_layers_scroll_to_the_head_in_view(watch: Watch, tall: dict[int, str]) -> None:
    page = watch(viewport={"width": 1280, "height": 720}).open(tall[60])
    assert page.locator(".scroller").evaluate("(one) => one.scrollHeight > one.clientHeight")
    assert page.locator(".scroller").evaluate("(one) => one.getBoundingClientRect().bottom <= innerHeight")
    for _ in range(8):
        page.keyboard.press("e")
        framed(page)
    for layer in (59, 0):
        go(page, tall[60].split("#")[1].replace("l=7", f"l={layer}"))
        until(page, "document.querySelector('.scroller').scrollTop " + ("> 0" if layer else "=== 0"))
        framed(page)


def test_a_notebook_s_frame_shows_every_layer(watch: Watch, tmp_path: Path) -> None:
    book = tmp_path / "book.html"
    frames = [notebook.frame([made(15, Mask(), heads=heads, layers=layers)]) for layers, heads in TALL]
    book.write_text(f"<!doctype html><meta charset=utf-8><body>{''.join(frames)}", encoding="utf-8")
    watched = watch(viewport={"width": 1100, "height": 900})
    watched.page.goto(book.as_uri())
    for frame in watched.page.frames[1:]:
        frame.frame_element().scroll_into_view_if_needed()
        frame.wait_for_selector("html[data-painted]")
        until(frame, SEEN)


AT = "#l=0&h=0&q=4&k=2"


def asked(page: Page, trace: hs.Trace, queries: list[int], keys: list[int]) -> None:
    """The grid has each head's weight from these queries to these keys, as the trace has it."""
    expected = [*everywhere(trace, queries, keys).values()]
    patiently(page, lambda: np.testing.assert_allclose(table(page), expected, atol=6e-3))


def together(page: Page) -> list[str]:
    return page.locator(".together .member b").all_inner_texts()


def test_what_takes_shift_or_ctrl_is_reached_by_keyboard_alone(watch: Watch, cat_file: Path, cat: hs.Trace) -> None:
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


def test_what_takes_shift_or_ctrl_is_reached_by_touch_alone(watch: Watch, cat_file: Path, cat: hs.Trace) -> None:
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
    page.locator(".fold").tap()
    page.locator("[data-test=pane-compare]").tap()
    page.locator("[data-test=compare-with]").select_option("0")
    page.locator("[data-test=head-B]").select_option("1")
    until(page, "location.hash.includes('hb=1')")
    page.locator(".adding:visible").first.tap()
    assert page.locator(".adding").first.get_attribute("aria-pressed") == "false"


# What fits a laptop's screen: large letters and arcs, whole readouts and lists, and one notation for one number.


def paged(model: hs.Model, text: str, folder: Path) -> tuple[hs.Trace, Path]:
    """A text's trace and its page."""
    trace = model.trace(text)
    return trace, trace.to_html(folder / f"{len(text)}.html", dtype="fp32", runs=False)


def laptop(watch: Watch, size: tuple[int, int], file: Path, state: str) -> Page:
    """A page without its options, as a laptop shows it."""
    viewport = dict(zip(("width", "height"), size, strict=True))
    page = watch(tools=False, viewport=viewport).open(f"{file.as_uri()}#{state}")
    ranked(page)
    return page


def has_large_letters(page: Page, trace: hs.Trace, lines: int) -> None:
    """And an arc to each word that is looked at, in so many lines."""
    assert len(trace) <= 20
    until(page, "document.querySelectorAll('.arcs path').length > 0")
    sizes = page.evaluate(
        "[...document.querySelectorAll('.said-word:not(.special) > bdi')].map((one) => getComputedStyle(one).fontSize)"
    )
    assert min(float(size.removesuffix("px")) for size in sizes) >= 24
    tops = page.evaluate("[...document.querySelectorAll('.said-word')].map((one) => one.offsetTop)")
    assert len(set(tops)) == lines
    weights = np.delete(np.asarray(trace[3, 1].weights[9]), 9)
    assert page.locator(".arcs path").count() == int((weights >= 0.04).sum())
    ribbon = box_of(page, ".ribbon")
    arcs = page.locator(".arcs path").all()
    boxes = [one.bounding_box() for one in arcs]
    assert all(
        box and box["y"] >= ribbon["y"] - 6 and box["y"] + box["height"] <= ribbon["y"] + ribbon["height"]
        for box in boxes
    )
    assert unreadable(page) == []
    assert page.locator(".scroller").evaluate("(one) => one.scrollHeight <= one.clientHeight")


def test_a_sentence_of_twenty_tokens_has_large_letters_and_arcs(watch: Watch, minilm: hs.Model, tmp_path: Path) -> None:
    longer = "The animal did not cross the street because it was too tired to walk that far today."
    longest = (
        "Unfortunately mathematicians misunderstood his extraordinary philosophical considerations about "
        "electromagnetic consciousness throughout numerous international investigations."
    )
    for text, lines in ((longer, 1), (longest, 2)):
        trace, file = paged(minilm, text, tmp_path)
        has_large_letters(laptop(watch, (1280, 720), file, "l=3&h=1&q=9&k=2&by=weight"), trace, lines)


def test_pieces_of_a_word_stand_close(watch: Watch, minilm: hs.Model, tmp_path: Path) -> None:
    trace, file = paged(minilm, "The tortoise was unhurried.", tmp_path)
    page = laptop(watch, LAPTOPS[0], file, "q=2")
    words = page.locator(".said-word > bdi")
    boxes = [one.bounding_box() for one in words.all()]
    gaps = [b["x"] - a["x"] - a["width"] for a, b in pairwise(boxes) if a and b]
    inside = [trace.words[n + 1] is not None and trace.words[n] == trace.words[n + 1] for n in range(len(gaps))]
    assert any(inside)
    assert max(gap for gap, one in zip(gaps, inside, strict=True) if one) <= 0.5
    assert min(gap for gap, one in zip(gaps, inside, strict=True) if not one) >= 0


def test_the_readout_has_both_words_in_full(watch: Watch, minilm: hs.Model, tmp_path: Path) -> None:
    words = "Counterrevolutionaries", "uncharacteristically"
    trace, file = paged(minilm, f"{words[0]} {words[1]} mistrusted it.", tmp_path)
    last = max(n for n, word in enumerate(trace.words) if word == 1)
    page = laptop(watch, LAPTOPS[0], file, f"q=1&k={last}&words=1")
    for width, height in LAPTOPS:
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate(DRAWN)
        status = page.locator(".under")
        assert all(word in status.inner_text() for word in words)
        outer = box_of(page, ".picture")
        for one in status.locator("> *").all():
            box = one.bounding_box()
            assert outer["x"] <= box["x"]
            assert box["x"] + box["width"] <= outer["x"] + outer["width"]
            assert one.evaluate(
                "(it) => it.scrollWidth <= it.clientWidth + 1 || getComputedStyle(it).overflowX === 'visible'"
            )


def is_whole(page: Page, trace: hs.Trace) -> None:
    """The list beside the grid; what has no room leaves whole: no line is cut, and the last line counts the rest."""
    until(
        page,
        "(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight + 1)(document.querySelector('.inspector'))",
    )
    lines = page.locator(".ranked li[data-weight]:visible")
    assert lines.count() >= 3
    rest = page.locator(".ranked .rest")
    assert int(rest.inner_text().split()[0]) == len(trace) - lines.count()
    shown = [float(one.get_attribute("data-weight") or 0) for one in lines.all()]
    assert number(rest.locator("b").inner_text()) == pytest.approx(1 - sum(shown), abs=1e-3)
    end = box_of(page, ".inspector")
    assert all(box["y"] + box["height"] <= end["y"] + end["height"] for box in [box_of(page, ".ranked .rest")])
    until(page, "document.querySelector('[data-test=ranks] [aria-pressed=true]') !== null")
    # in texts three decimals, in pictures two digits without the nought; never a power of ten
    weight = float(trace[3, 1].weights[9, 2])
    told = [page.locator(f"[data-test={name}]").inner_text() for name in ("value", "weight")]
    told += [page.locator(".ranked .chosen b").inner_text(), page.locator("[data-test=cell]").inner_text().split()[1]]
    assert told == [f"{weight:.3f}"] * 4
    drawn = [
        page.locator(".said-word.seen small").inner_text(),
        page.locator("[data-test=ranks] [aria-pressed=true]").inner_text().split()[1],
    ]
    drawn += [page.locator(".finding[aria-pressed=true] small").inner_text().split("weight ")[1].split(",")[0]]
    assert drawn == [f"{weight:.2f}".lstrip("0")] * 3
    ends = [one.inner_text() for one in page.locator(".legend > :is(span, button):not([title=scale])").all()]
    assert [one for one in ends if one[:1].isdigit()] == ["0", "1", "0", "1"]
    assert not any("e−" in page.locator(one).inner_text() for one in (".inspector", ".cell", ".picture", ".findings"))


def test_the_list_beside_the_grid_is_whole_in_one_notation(watch: Watch, tired: tuple[hs.Trace, Path]) -> None:
    """Also of runs, which add a line to it."""
    trace, file = tired
    page = laptop(watch, (1280, 720), file, "l=3&h=1&q=9&k=2&by=weight")
    has_large_letters(page, trace, 1)
    for width, height in reversed(LAPTOPS):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate(DRAWN)
        is_whole(page, trace)


# The first minute: what a reader is told once.


def test_three_sentences_until_they_are_read(watch: Watch, cat: hs.Trace, cat_file: Path, tmp_path: Path) -> None:
    """A notebook does not tell them with each cell."""
    watched = watch(first=True)
    book = tmp_path / "book.html"
    book.write_text(f"<!doctype html><meta charset=utf-8><body>{notebook.frame([cat])}", encoding="utf-8")
    watched.page.goto(book.as_uri())
    frame = watched.page.frames[1]
    frame.wait_for_selector("html[data-painted]")
    assert frame.locator(".lessons").count() == 0
    page = watched.open(cat_file.as_uri())
    lessons = page.locator(".lessons li:visible")
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate(DRAWN)
        assert lessons.count() == (1 if width < 680 else 3)
        if width >= 680:
            assert "Every head has its habit." in lessons.nth(2).inner_text()
        assert unreadable(page) == []
        assert (width, height) not in (SIZES[0], SIZES[-1]) or inaccessible(page) == []
    page.locator(".lessons button").click()
    assert lessons.count() == 0
    # the browser keeps it; a page that finds it there tells nothing
    assert page.evaluate("localStorage.getItem('headscope.lessons')") == "true"

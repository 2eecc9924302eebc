"""The offline file, in a real browser: every panel, the keyboard, the URL, export, hostile tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import Watch, box_of, cells_of, go, head_of, lists, made, number, patiently, ranked, table, until

import headscope as hs
from by_hand import axis_of
from headscope.attention.scores import Mask
from headscope.heads import CATALOG
from headscope.page import html

if TYPE_CHECKING:
    from playwright.sync_api import Page


CLOSE = 1e-3


def cell_at(page: Page, query: int, key: int) -> tuple[float, float]:
    """The middle of a cell on the screen."""
    box, (left, top, side) = box_of(page, ".matrix"), cells_of(page)
    return box["x"] + left + (key + 0.5) * side, box["y"] + top + (query + 0.5) * side


def test_numbers_on_screen_are_the_trace_s(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    """Filters say what they do; colours end at one or at the strongest weight."""
    page = watch().open(f"{cat_file.as_uri()}#q=4&k=3&h=1")
    for layer, head in np.ndindex(2, 2):
        go(page, f"l={layer}&h={head}&q=4&k=3")
        until(page, f"document.querySelector('[data-test=head]').textContent === 'Head {layer}.{head}'")
        weights = np.asarray(cat[layer, head].weights)
        lists(page, weights[4], CLOSE)
        displayed = ranked(page)
        assert len(displayed) == 8
        assert max(displayed, key=lambda key: displayed[key]) == int(weights[4].argmax())
        patiently(page, partial(told, page, weights[4, 3], cat[layer, head].scores[4, 3]))
    go(page, "h=1&q=2")
    badges = page.locator(".badges")
    assert badges.inner_text() == ""
    page.locator("[data-test=special]").check()
    assert "renormalised" in badges.inner_text()
    weights = cat[0, 1].weights[2]
    kept = ~np.array(cat.special)
    expected = weights / weights[kept].sum()
    lists(page, expected[kept], CLOSE)
    page.locator("[data-test=special]").uncheck()
    page.locator("[data-test=words]").check()
    assert "summed over a word" in badges.inner_text()
    assert "tired" in page.locator(".left .token bdi").all_inner_texts()
    page.locator("[data-test=words]").uncheck()
    page.select_option("[data-test=filter]", "ab")
    assert "rows show only" in badges.inner_text()
    assert page.locator(".left .token").count() == (cat.segments == 0).sum()
    assert page.locator(".right .token").count() == (cat.segments == 1).sum()
    go(page, "l=1&h=0")
    reach = page.locator("[data-test=reach]")
    assert reach.inner_text() == "1"
    reach.click()
    assert float(reach.inner_text()) == pytest.approx(np.asarray(cat[1, 0].weights).max(), abs=6e-3)
    until(page, "location.hash.includes('to=head')")
    reach.click()
    assert reach.inner_text() == "1"


def told(page: Page, weight: float, score: float) -> None:
    shown = [number(page.locator(f"[data-test={name}]").inner_text()) for name in ("value", "weight", "score")]
    assert shown[:2] == pytest.approx([weight, weight], abs=CLOSE)
    assert shown[2] == pytest.approx(score, abs=2e-2)


def test_a_file_opens_on_the_state_that_it_was_given(watch: Watch, cat: hs.Trace, tmp_path: Path) -> None:
    content, line = html.offline_page(cat, notify=pytest.fail, state="l=1&h=1&q=4")
    (tmp_path / "cat.html").write_bytes(content)
    page = watch().open((tmp_path / "cat.html").as_uri())
    until(page, "location.hash === '#l=1&h=1&q=4'")
    assert head_of(page) == "Head 1.1"
    assert "opens at #l=1&h=1&q=4" in line


def test_hover_previews_and_click_pins(watch: Watch, bert: hs.Model, cat: hs.Trace, cat_file: Path) -> None:
    """The grid chooses, sorts and finds the extreme; anatomy draws the model."""
    page = watch().open(f"{cat_file.as_uri()}#h=1")
    panels = ".picture", ".cell", ".grid", ".inspector"
    before = [box_of(page, name) for name in panels]
    page.mouse.move(*cell_at(page, 5, 2))
    status = page.locator(".under")
    assert status.locator("bdi").all_inner_texts() == ["sat", "tir"]
    expected = cat[0, 1].weights[5, 2]
    page.wait_for_selector("[data-test=value]")
    assert number(page.locator("[data-test=value]").inner_text()) == pytest.approx(expected, abs=CLOSE)
    assert "q=" not in page.url
    assert [box_of(page, name) for name in panels] == before, "hovering moves nothing"
    page.mouse.click(*cell_at(page, 5, 2))
    page.mouse.move(2, 2)
    until(page, "location.hash.includes('q=5') && location.hash.includes('k=2')")
    assert status.locator("bdi").all_inner_texts() == ["sat", "tir"]
    page.locator(".left .token").nth(1).hover()
    assert status.locator("bdi").first.inner_text() == "The"
    page.mouse.move(2, 2)
    assert status.locator("bdi").first.inner_text() == "sat"
    go(page, "l=1&h=1")
    page.select_option("[data-test=statistic]", "previous")
    page.keyboard.press("Escape")
    page.locator("[data-test=head]").click()
    page.keyboard.press("e")
    assert head_of(page) == "Head 0.0"
    page.select_option("[data-test=statistic]", "next")
    page.locator("[data-test=head]").click()
    page.keyboard.press("e")
    assert head_of(page) == "Head 1.0"
    page.select_option("[data-test=order]", "high")
    grid = box_of(page, ".heads")
    page.mouse.move(grid["x"] + 40, grid["y"] + 30)
    reading = page.locator(".reading").inner_text().split("\n")
    assert reading[0] == "1.0"
    page.mouse.click(grid["x"] + 160, grid["y"] + 30)
    assert head_of(page) != "Head 1.0"
    go(page, "pane=anatomy&h=1")
    text = page.locator(".anatomy").inner_text()
    assert f"BertModel: {bert.parameters.total:,} parameters" in text
    for part in bert.components:
        assert part.name in text
        assert f"{part.count:,}" in text
    assert "coloured: head 1, 24 of 48" in text
    arrows = page.locator(".drawing .arrow").count()
    shapes = page.locator(".drawing .flow .shape").all_text_contents()
    assert len(shapes) == arrows
    assert set(shapes) == {f"({len(cat)}, {n})" for n in (48, 24, len(cat))}
    page.select_option("[data-test=language]", "ja")
    assert "各トークンの出発点" in page.locator(".anatomy").inner_text()


def test_keyboard_alone_and_nothing_is_asked_for(watch: Watch, cat_file: Path) -> None:
    """Also after a tick. The state is in the address, and survives a reload."""
    watched = watch()
    page = watched.open(f"{cat_file.as_uri()}#l=0&h=0")
    assert page.title() == "The tired cat sat on the mat. · " + page.title().split(" · ", 1)[1]
    press = page.keyboard.press
    press("ArrowRight")
    press("ArrowDown")
    assert head_of(page) == "Head 1.1"
    press("ArrowLeft")
    assert head_of(page) == "Head 1.0"
    press("/")
    page.keyboard.type("cat")
    press("Enter")
    press("Escape")
    status = page.locator(".under bdi")
    assert status.first.inner_text() == "cat"
    press("j")
    assert status.first.inner_text() == "sat"
    key = page.evaluate("Number(/k=(\\d+)/.exec(location.hash)[1])")
    press("K")
    until(page, f"location.hash.includes('k={key - 1}')")
    press("J")
    assert status.count() == 2
    page.wait_for_selector("[data-test=cell]")
    opened = page.locator(".step:not(.shut)")
    assert opened.count() == 0
    press("Enter")
    assert opened.count() == 7
    for wanted in (1, 2, 3):
        press("Enter")
        assert opened.count() == wanted
    press("Escape")
    assert opened.count() == 7
    press("Escape")
    assert opened.count() == 0
    press("Escape")
    press("Escape")
    assert status.count() == 0
    press("m")
    assert page.locator(".lines").count() == 0
    press("t")
    assert page.locator(".numbers td").count() > 100
    press("Escape")
    press("?")
    page.wait_for_selector("dialog[open]")
    press("Escape")
    press("5")
    assert page.locator(".drawing").is_visible()
    go(page, "")
    page.locator("[data-test=special]").click()
    page.keyboard.press("w")
    until(page, "['special=0', 'words=1'].every((part) => location.hash.includes(part))")
    page.keyboard.press(" ")
    until(page, "!location.hash.includes('special=0')")
    go(page, "l=0&h=0")
    for key in ("ArrowDown", "l", "s", "w", "j", "J"):
        page.keyboard.press(key)
    page.select_option("[data-test=statistic]", "same")
    until(page, "location.hash.includes('by=same')")
    before = page.url
    for part in ("l=1", "mode=lines", "special=0", "words=1", "q=1", "k=1"):
        assert part in before
    page.wait_for_selector("[data-test=value]")
    status = page.locator(".under").inner_text()
    page.reload()
    page.wait_for_selector("html[data-painted]")
    page.wait_for_selector("[data-test=value]")
    assert (page.url, head_of(page)) == (before, "Head 1.0")
    assert page.locator(".under").inner_text() == status
    page.evaluate("location.hash = 'l=0&h=1&mode=matrix&mass=x&theme=%3Cb%3E'")
    until(page, "document.querySelector('[data-test=head]').textContent === 'Head 0.1'")
    assert [url for url in watched.asked if not url.startswith(("file:", "blob:"))] == []


def test_a_key_is_for_what_is_in_front(watch: Watch, cat_file: Path) -> None:
    """Enter presses what it stands on, a menu or a link, and opens steps only where they are seen; nothing changes
    behind a dialog.
    """
    page = watch().open(f"{cat_file.as_uri()}#q=4&k=3")
    page.evaluate("document.querySelector('.skip').onclick = () => { window.skipped = true; }")
    for selector, pressed in ((".save summary", "document.querySelector('.save').open"), (".skip", "window.skipped")):
        page.locator(selector).focus()
        page.keyboard.press("Enter")
        until(page, pressed)
    page.evaluate("document.activeElement.blur()")
    for key in ("4", "Enter", "1", "?", "ArrowDown", "l", "S"):
        page.keyboard.press(key)
    at(page, "q=4", "k=3")
    until(page, "document.querySelectorAll('dialog[open]').length === 1")
    for key in ("?", "S", "?", "Escape", "Enter"):
        page.keyboard.press(key)
    at(page, "q=4", "k=3", "chain=1")
    until(page, "document.querySelectorAll('dialog[open]').length === 0")


def test_the_menu_of_figures_is_shut_by_escape_and_by_what_is_beside_it(watch: Watch, cat_file: Path) -> None:
    """The pinned cell stays; a press on the menu's own ground leaves it open. It moves no tab by going."""
    page = watch().open(f"{cat_file.as_uri()}#q=4&k=3")
    menu, shut = page.locator(".save"), "!document.querySelector('.save').open"
    menu.locator("summary").click()
    menu.locator("pre").click()
    menu.locator(".panel").click(position={"x": 3, "y": 3})
    assert page.evaluate(f"!({shut})")
    page.keyboard.press("Escape")
    until(page, shut)
    at(page, "q=4", "k=3")
    menu.locator("summary").click()
    page.locator("h2.looks").click()
    until(page, shut)
    tab = page.locator("[data-test=pane-anatomy]")
    before = tab.bounding_box()
    tab.click()
    page.wait_for_selector(".anatomy")
    assert tab.bounding_box()["x"] == pytest.approx(before["x"], abs=8)  # its own letters are bold now


def test_three_languages_and_both_themes(watch: Watch, cat_file: Path) -> None:
    page = watch(locale="ja-JP", color_scheme="dark").open(cat_file.as_uri())
    assert head_of(page) == "ヘッド 0.0"
    assert page.evaluate("[document.documentElement.lang, document.documentElement.dataset.theme]") == ["ja", "dark"]
    page.select_option("[data-test=language]", "zh")
    assert head_of(page) == "头 0.0"
    page.locator("[data-test=theme]").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    until(page, "location.hash.includes('lang=zh')")


def test_the_help_names_every_key(watch: Watch, cat_file: Path) -> None:
    """It holds the focus and gives it back. A pressed button can be read under the pointer."""
    source = (Path(__file__).parents[2] / "web" / "src" / "keyboard.ts").read_text(encoding="utf-8")
    table = source.partition("KEYS: Record")[2].partition("\n};")[0]
    keys = {*re.findall(r'^  "?([^\s"]+?)"?: ', table, re.MULTILINE)} - {
        "=",
        "?",
    }  # the first is +, the second is the help itself
    assert "state.PANES.map" in table  # these two lists have keys, too
    keys |= {*str(re.search(r'state\.MODES\.map.*"(\w+)"\[n\]', table)[1]), *"12345"}  # type: ignore[index]
    signs = {"ArrowLeft": "←", "ArrowRight": "→", "ArrowUp": "↑", "ArrowDown": "↓", "Escape": "Esc", "-": "−"}
    assert len(keys) == 39
    page = watch().open(cat_file.as_uri())
    page.locator("[data-test=help]").focus()
    page.keyboard.press("?")
    until(page, "document.querySelector('dialog').open")
    named = {part for text in page.locator("dialog kbd").all_inner_texts() for part in text.split()}
    assert {signs.get(key, key) for key in keys} <= named
    lines = """[...document.querySelectorAll("dialog kbd")].map((one) => {
      const range = document.createRange();
      range.selectNodeContents(one);
      return new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size;
    })"""
    assert {*page.evaluate(lines)} == {1}  # no key is broken
    for _ in range(4):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement.closest('dialog') !== null || document.activeElement === document.body"
        )
    page.keyboard.press("Escape")
    until(page, "document.activeElement.dataset.test === 'help'")
    for chosen in ("[data-test=mode-both]", "[data-test=mode-lines]"):
        page.locator(chosen).hover()
        look = f"getComputedStyle(document.querySelector('{chosen}'))"
        assert page.evaluate(f"{look}.color !== {look}.backgroundColor")
        backgrounds = page.evaluate(f"[{look}.backgroundColor, getComputedStyle(document.body).color]")
        assert (backgrounds[0] == backgrounds[1]) is (chosen == "[data-test=mode-both]")


def test_more_keys_than_queries_are_all_there(watch: Watch, tmp_path: Path) -> None:
    """Cross-attention: two queries, 30 keys, in lines with names; no neighbours, no number where there is none."""
    from headscope.attention.scores import attend
    from headscope.traces import LayerRecord, Trace

    generator = np.random.default_rng(5)
    q, k, v = (generator.normal(size=(1, size, 4)).astype(np.float32) for size in (2, 30, 30))
    _, lse = attend(q, k, v, scale=0.5)
    record = LayerRecord(q, k, v, lse=lse, scale=0.5)
    trace = Trace(
        model="cross",
        queries=axis_of(["q0", "q1"]),
        keys=axis_of([f"k{at}" for at in range(30)]),
        layers=[record],
        outputs={},
    )
    page = watch(viewport={"width": 1280, "height": 1200}).open(
        f"{trace.to_html(tmp_path / 'cross.html').as_uri()}#q=1"
    )
    assert page.locator(".ribbon .which").all_inner_texts() == ["queries", "keys"]
    assert page.locator(".left .token").all_inner_texts() == ["q0", "q1"]
    assert page.locator(".right .token").all_inner_texts() == [f"k{at}" for at in range(30)]
    names, numbers = (page.locator(f".facts {cell}").all_inner_texts() for cell in ("th", "td:last-child"))
    measured = ("entropy", "normalised_entropy", "effective_tokens", "strongest", "first")
    assert names == [CATALOG[name].names[0] for name in measured]
    assert "–" not in numbers


def test_change_and_distance_come_from_real_rows(watch: Watch, bert: hs.Model, tmp_path: Path) -> None:
    """And another text is a step, of which there is a way back."""
    one, other = bert.trace("The cat sat on the mat."), bert.trace("The cat sat on the hat.", ablate=[(0, 1)])
    file = html.to_html([one, other], tmp_path / "two.html", dtype="fp32")
    page = watch().open(f"{file.as_uri()}#vs=1&by=change&l=1&h=0")
    until(page, "document.querySelector('[data-test=grid-table] tbody td').textContent.length > 2")
    expected = [
        [np.abs(one[layer, head].weights[:] - other[layer, head].weights[:]).sum(-1).mean() / 2 for head in range(2)]
        for layer in range(2)
    ]
    np.testing.assert_allclose(table(page), np.ravel(expected), atol=CLOSE)
    page.select_option("[data-test=statistic]", "similarity")
    until(page, "document.querySelectorAll('[data-test=grid-table] tbody td')[2].textContent === '0.000'")
    np.testing.assert_allclose(table(page), one.head_distances().array[2], atol=CLOSE)
    go(page, "h=1")
    page.locator("[data-test=tab]").nth(1).click()
    at(page, "d=1", "h=1")
    page.evaluate("history.back()")
    until(page, "document.querySelectorAll('.tab')[0].classList.contains('on')")
    # without the other text the menu says what was asked, and the grid has no numbers
    page.select_option("[data-test=statistic]", "change")
    page.locator(".tab .plain").nth(1).click()
    until(page, "document.querySelectorAll('.tab').length === 0")
    asked = page.locator("[data-test=statistic]")
    assert asked.input_value() == "change"
    assert set(page.locator("[data-test=grid-table] tbody td").all_inner_texts()) == {"–"}
    page.locator(".heads").hover(position={"x": 60, "y": 60})
    until(page, "document.querySelector('.reading span')?.textContent === 'change from A to B'")


def test_a_text_closed_while_it_is_measured_is_not_asked_for(watch: Watch, cat_file: Path, tmp_path: Path) -> None:
    file = made(600, Mask(), heads=12, layers=12).save(tmp_path / "saved.safetensors")
    page = watch().open(f"{cat_file.as_uri()}#pane=compare")
    page.set_input_files(".file input", file)
    until(page, "document.querySelectorAll('.tab').length === 2")
    page.keyboard.press("]")
    page.wait_for_selector("[data-test=awaited]")
    page.locator(".tab .plain").nth(1).click()
    until(page, "document.querySelectorAll('.tab').length === 0")
    page.keyboard.press("1")
    page.keyboard.press("ArrowDown")  # what the worker answers next
    page.wait_for_selector("[data-test=value]", state="detached")
    until(page, "document.querySelector('[data-test=head]').textContent === 'Head 1.0'")


def test_a_part_of_a_model_keeps_its_numbers(watch: Watch, cat: hs.Trace, tmp_path: Path) -> None:
    part = cat.to_html(tmp_path / "part.html", layers=np.array([1]), heads=[1])
    page = watch().open(f"{part.as_uri()}#q=4")
    assert head_of(page) == "Head 1.1"
    assert "layers 1 and heads 1" in page.locator("[data-test=part]").inner_text()
    for key, weight in ranked(page).items():
        assert weight == pytest.approx(cat[1, 1].weights[4, key], abs=CLOSE)
    page.keyboard.press("5")
    assert "coloured: head 1, 24 of 48" in page.locator(".anatomy").inner_text()
    whole = cat.save(tmp_path / "whole.safetensors")
    page.keyboard.press("3")
    page.set_input_files(".file input", whole)
    page.wait_for_selector(".moved .ramp")
    assert "B has other layers or heads" in page.locator("[data-test=apart]").inner_text()
    assert page.locator(".moved .matrix").is_visible()


def test_unknown_words_and_right_to_left_text(watch: Watch, bert: hs.Model, tmp_path: Path) -> None:
    """Unknown words have their text in the tooltip; a right-to-left word stays on its own line."""
    trace = bert.trace("The قطة sat.")
    page = watch().open(trace.to_html(tmp_path / "rtl.html").as_uri())
    at = trace.tokens.index("[UNK]")
    token = page.locator(".left .token").nth(at)
    assert token.get_attribute("title") == f"\u2066{at}: \u2068[UNK]\u2069 ({trace.ids[at]}) \u2068قطة\u2069\u2069"
    assert page.locator(".said-word bdi").all_inner_texts()[1:-1] == ["The", "قطة", "sat", "."]
    order = page.locator(".left .token bdi").all_inner_texts()
    assert order.index("The") < order.index("sat")
    tops = [box["y"] for box in (one.bounding_box() for one in page.locator(".left .token").all()) if box]
    assert tops == sorted(tops)


def test_without_values_the_page_says_how_to_have_them(watch: Watch, cat: hs.Trace, tmp_path: Path) -> None:
    file = cat.to_html(tmp_path / "small.html", values=False)
    page = watch().open(f"{file.as_uri()}#q=4&k=3")
    page.wait_for_selector("[data-test=open-chain]")
    page.keyboard.press("Enter")
    text = page.locator(".step").nth(5).inner_text()
    assert "--set values=true" in text
    norm = page.locator("[data-test=norm]").text_content()
    assert float(str(norm)) > 0


REFUSED = "window.Worker = class { constructor() { throw new DOMException('no', 'SecurityError') } }"


def test_without_workers_the_page_computes_by_itself(
    watch: Watch, cat: hs.Trace, cat_file: Path, tmp_path: Path
) -> None:
    """Be they forbidden by the page's policy, missing, or refused at once."""
    watched, strict = watch(quiet=False, own=True), tmp_path / "strict.html"
    strict.write_text(cat_file.read_text(encoding="utf-8").replace("worker-src blob:", "worker-src 'none'"), "utf-8")
    for how in ("", "delete window.Worker", REFUSED):
        watched.page.add_init_script(how)
        watched.page.goto("about:blank")
        page = watched.open(f"{(cat_file if how else strict).as_uri()}#h=1&q=4")
        for key, weight in ranked(page).items():
            assert weight == pytest.approx(cat[0, 1].weights[4, key], abs=CLOSE)
        assert page.locator("[role=alert]:visible").count() == 0


def test_a_file_that_was_cut_is_refused_in_words(watch: Watch, cat_file: Path, tmp_path: Path) -> None:
    text = cat_file.read_text(encoding="utf-8")
    cut = tmp_path / "cut.html"
    cut.write_text(re.sub(r'(id="hs-trace-0">.{4000})[^<]*', r"\1", text), encoding="utf-8")
    page = watch().page
    page.goto(cut.as_uri())
    page.wait_for_selector("[role=alert]:visible")
    assert "truncated" in page.locator("[role=alert]:visible").inner_text()


def test_a_long_text_is_computed_where_it_is_looked_at(watch: Watch, tmp_path: Path) -> None:
    """1,500 tokens: more cells than the page ever holds at once, and more bytes than one element does."""
    trace = made(1500, Mask())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "CHUNK", 30_000)
        file = trace.to_html(tmp_path / "long.html")
    page = watch().open(f"{file.as_uri()}#h=1&q=700&k=3&box=690.690.20")
    displayed = ranked(page)
    weights = trace[0, 1].weights[700]
    for key, weight in displayed.items():
        assert weight == pytest.approx(weights[key], abs=CLOSE)
    assert page.locator(".token").count() < 100
    assert page.evaluate("document.querySelector('.lines').scrollTop") == pytest.approx(690 * 22, abs=22)
    page.evaluate("document.querySelector('.lines').scrollTop = 500 * 22")
    until(page, "location.hash.includes('box=500.690.20')")
    until(page, "document.querySelector('.left .token').textContent === 't496'")
    size_of_page: Any = page.evaluate("document.getElementsByTagName('*').length")
    assert size_of_page < 1500
    page.keyboard.press("t")
    until(page, "document.querySelector('.numbers td:last-child')?.textContent.length > 2")
    assert "1,500 × 1,500" in page.locator(".numbers caption").inner_text()


# Back undoes what the reader did, Forward does it again; what an address asks for in vain is said.


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
        (lambda: page.select_option("[data-test=statistic]", "same"), ("l=1", "q=4", "k=3", "special=0", "by=same")),
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


def test_a_drag_and_a_held_key_are_one_step_and_sliders_are_none(watch: Watch, cat_file: Path, tmp_path: Path) -> None:
    """Nor is the finding that a page opens on; and a page in another's frame leaves its history alone."""
    watched = watch(own=True)
    text = "The animal did not cross the street because it was too tired."
    page = watched.open(hs.open("-").trace(text).to_html(tmp_path / "a.html").as_uri())
    until(page, "location.hash.includes('q=')")
    assert page.evaluate("history.length") == 2  # about:blank, and the page
    watched.open(f"{cat_file.as_uri()}#l=1&h=1")
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
    outer = tmp_path / "outer.html"
    outer.write_text(f'<!doctype html><iframe src="{cat_file.as_uri()}#h=1" width=1200 height=700></iframe>')
    page.goto(outer.as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("html[data-painted]")
    before = page.evaluate("history.length")
    for place in (2, 3):
        frame.locator(".said-word").nth(place).click()
    until(frame, "location.hash === '#h=1&q=3'")
    assert page.evaluate("history.length") == before


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

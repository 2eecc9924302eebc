"""The head as ink on the text, every number above a word; two texts, other scripts, names as they were spelled."""

from __future__ import annotations

import itertools
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import (
    ARABIC,
    CHINESE,
    DRAWN,
    HEBREW,
    HINDI,
    JAPANESE,
    Watch,
    cells_of,
    eventually,
    go,
    lists,
    number,
    patiently,
    spelled,
    until,
)
from test_asking import left, picture

import headscope as hs
from by_hand import axis_of, ends
from headscope.attention.scores import Mask, attend
from headscope.results.tokens import names
from headscope.traces import LayerRecord, Trace
from small_bert import VOCABULARY, small_bert

if TYPE_CHECKING:
    from jaxtyping import Float
    from playwright.sync_api import Page


CLOSE = 1e-3
TEXT = "The animal did not cross the street, because the animal was too tired."
INK = """[...document.querySelectorAll(".word")].map(
  (one) => [one.getAttribute("aria-description"), one.style.background, one.className]
)"""


@pytest.fixture(scope="module")
def trace() -> hs.Trace:
    return hs.open("-").trace(TEXT)


@pytest.fixture(scope="module")
def file(trace: hs.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace.to_html(tmp_path_factory.mktemp("page") / "text.html", dtype="fp32", runs=False)


def weights(trace: Trace, layer: int, head: int) -> Float[np.ndarray, "queries keys"]:
    return np.asarray(trace[layer, head].weights)


def carries(page: Page, expected: Float[np.ndarray, " words"], least: float) -> None:
    """The words' numbers are these, where they are large enough; of two that would overlap, the larger is there."""
    patiently(page, lambda: carry(page.evaluate(INK), expected, least))


def carry(words: list[tuple[str | None, bool, str]], expected: Float[np.ndarray, " words"], least: float) -> None:
    assert len(words) == len(expected)
    shown = {n: float(number) for n, (number, _, _) in enumerate(words) if number is not None}
    assert shown == pytest.approx({n: expected[n] for n in shown}, abs=0.005 + CLOSE)
    for n in np.flatnonzero(expected >= least + 0.005):
        near = [expected[m] for m in range(max(0, n - 6), min(len(words), n + 7)) if m in shown]
        assert n in shown or any(value >= expected[n] - CLOSE for value in near), n
    assert all(expected[n] > least - CLOSE for n in shown)
    inked = {n for n, (_, colour, _) in enumerate(words) if colour}
    assert set(np.flatnonzero(expected > 0.003)) <= inked <= set(np.flatnonzero(expected > 0.0005))


def marked(page: Page, name: str) -> list[int]:
    return [n for n, (_, _, classes) in enumerate(page.evaluate(INK)) if name in classes.split()]


def test_a_word_s_ink_is_what_it_looks_at(watch: Watch, trace: hs.Trace, file: Path) -> None:
    """Words: three clicks from a fresh page to the words that look at a word; to point at one moves nothing."""
    page = watch().open(file.as_uri() + "#l=3&h=1")
    rows = weights(trace, 3, 1)
    page.locator("[data-test=mode-text]").click()
    carries(page, rows.mean(0), 0.03)
    assert "all queries" in page.locator("[data-test=ink]").inner_text()
    page.locator(".word").nth(10).click()
    page.mouse.move(0, 0)
    until(page, "location.hash.includes('q=10')")
    carries(page, rows[10], 0.03)
    assert marked(page, "chosen") == [10]
    page.locator("[data-test=direction-to]").click()
    page.locator(".word").nth(2).click()
    page.mouse.move(0, 0)
    carries(page, rows[:, 2], 0.1)
    assert "don't add up to 1" in page.locator("[data-test=ink]").inner_text()
    assert marked(page, "other") == [10]
    lists(page, rows[10], CLOSE)
    go(page, "mode=text&l=3&h=1&q=10")
    carries(page, rows[10], 0.03)
    assert page.locator(".flow + div b").all_inner_texts() == [
        number for number, _, _ in page.evaluate(INK) if number is not None
    ]
    page.locator("[data-test=special]").check()
    until(page, f"document.querySelector('.flow').innerText === '{TEXT}'")  # as it was written
    page.locator("[data-test=special]").uncheck()
    carries(page, rows[10], 0.03)
    where = "[...document.querySelectorAll('.word, .panel')].map((one) => JSON.stringify(one.getBoundingClientRect()))"
    before = page.evaluate(where)
    page.locator(".word").nth(4).hover()
    carries(page, rows[4], 0.03)
    assert page.evaluate(where) == before
    page.mouse.move(0, 0)
    carries(page, rows[10], 0.03)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate(DRAWN)
    assert not page.locator(".margin").is_visible()


def test_several_words_are_averaged_or_added_up(watch: Watch, trace: hs.Trace, file: Path) -> None:
    """Shift-click adds, dragging takes a passage, a double click all equal words; Esc lets go; so do keys."""
    page = watch().open(file.as_uri() + "#mode=text&l=3&h=1&q=4")
    rows = weights(trace, 3, 1)
    words = page.locator(".word")
    words.nth(8).click(modifiers=["Shift"])
    words.nth(11).click(modifiers=["Shift"])
    page.mouse.move(0, 0)
    carries(page, rows[[4, 8, 11]].mean(0), 0.03)
    assert page.locator("[data-test=chosen] .chip").count() == 3
    assert "3 chosen" in page.locator("[data-test=ink]").inner_text()
    words.nth(5).hover()
    page.mouse.down()
    words.nth(7).hover()
    page.mouse.up()
    page.mouse.move(0, 0)
    until(page, "location.hash.includes('set=5.6.7')")
    carries(page, rows[[5, 6, 7]].mean(0), 0.03)
    page.locator("[data-test=direction-to]").click()
    animals = [n for n, token in enumerate(trace.tokens) if token == trace.tokens[2]]
    assert len(animals) == 2
    words.nth(2).dblclick()
    page.mouse.move(0, 0)
    until(page, f"location.hash.includes('on={animals[0]}.{animals[1]}')")
    carries(page, rows[:, animals].sum(1), 0.1)
    assert "added up" in page.locator("[data-test=ink]").inner_text()
    page.keyboard.press("Escape")
    until(page, "!location.hash.includes('on=')")
    go(page, "l=3&h=1&q=4")
    page.keyboard.press("p")
    page.locator(".flow").focus()
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('q=5')")
    assert page.locator(".flow").get_attribute("aria-activedescendant") == "row-5"
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    until(page, "location.hash.includes('set=5.6.7')")
    carries(page, rows[[5, 6, 7]].mean(0), 0.03)
    assert page.locator(".flow [role=option][aria-selected=true]").count() == 3
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowLeft")
    until(page, "location.hash.includes('q=4')")


def test_filters_apply_to_the_ink(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    """Joined words, special tokens hidden, their weight distributed, as NumPy has it; other words are another text."""
    state = "special=0&words=1"
    page, joined = watch().open(cat_file.as_uri()), picture(cat, 1, 0, state)
    chosen = [n for n, group in enumerate(left(cat, state)[0]) if {2, 3} & set(group)]
    go(page, f"mode=text&l=1&h=0&{state}&dir=from&set=2.3")
    carries(page, joined[chosen].mean(0), 0.03)
    go(page, f"mode=text&l=1&h=0&{state}&dir=to&on=2.3")
    carries(page, joined[:, chosen].sum(1), 0.1)
    # first text to second: queries with what they look at among the keys of the other
    go(page, "mode=text&l=1&h=0&of=ab&q=4")
    first, second = ([n for n, segment in enumerate(cat.segments) if segment == side] for side in (0, 1))
    assert page.locator("[data-test=prose-row] .word").count() == len(first)
    assert page.locator("[data-test=prose-column] .word").count() == len(second)
    until(page, "document.querySelector('[data-test=prose-row] .chosen') !== null")
    expected = weights(cat, 1, 0)[4, second]
    shown = page.evaluate(
        """[...document.querySelectorAll('[data-test=prose-column] .word')]
          .map((one) => one.getAttribute("aria-description"))"""
    )
    assert {n: float(one) for n, one in enumerate(shown) if one} == pytest.approx(
        {n: value for n, value in enumerate(expected) if value >= 0.03}, abs=0.006
    )
    go(page, "mode=text&l=1&h=1")
    until(page, "parseFloat(document.querySelector('.flow').style.fontSize) === 28")
    assert page.evaluate("getComputedStyle(document.querySelector('.sentence')).direction") == "ltr"
    assert JOINER not in page.locator("#page").inner_text()


def long_trace(size: int, mask: Mask) -> Trace:
    """A trace of random heads that look at few words each."""
    generator = np.random.default_rng(3)
    q, k = (generator.normal(size=(2, size, 8), scale=2.5).astype(np.float16).astype(np.float32) for _ in range(2))
    _, lse = attend(q, k, q, scale=1.0, mask=mask)
    words = tuple(f"w{n}" for n in range(size))
    axis = axis_of(words, special=ends(size), words=tuple(range(size)))
    return Trace(
        model="long", queries=axis, layers=[LayerRecord(q, k, None, lse=lse, scale=1.0, mask=mask)], outputs={}
    )


def test_a_long_text_is_scrolled_and_its_ink_comes_from_the_worker(watch: Watch, tmp_path: Path) -> None:
    trace = long_trace(1400, Mask(causal=True))
    page = watch().open(trace.to_html(tmp_path / "long.html").as_uri() + "#mode=text&h=1&set=1201.1300&on=1.2.3")
    rows = weights(trace, 0, 1)

    def visible(expected: Float[np.ndarray, " words"], least: float) -> None:
        def holds() -> bool:
            shown = {n: float(number) for n, (number, _, _) in enumerate(page.evaluate(INK)) if number is not None}
            right = shown == pytest.approx({n: expected[n] for n in shown}, abs=0.005 + CLOSE)
            return bool(shown) and right and min(expected[n] for n in shown) > least - CLOSE

        eventually(page, holds, "the ink's numbers are those of the worker")

    visible(rows[[1201, 1300]].mean(0), 0.03)
    page.locator("[data-test=direction-to]").click()
    until(page, "document.querySelector('[data-test=ink]').textContent.includes(' .10')")
    visible(rows[:, [1, 2, 3]].sum(1), 0.1)
    page.locator("[data-test=special]").click()
    kept = rows[:, 1:-1] / np.maximum(rows[:, 1:-1].sum(1, keepdims=True), 1e-30)
    until(page, "document.querySelectorAll('.word').length === 1398")
    until(page, "document.querySelector('.badges').textContent.includes('renormalised')")
    visible(kept[1:-1, [0, 1, 2]].sum(1), 0.1)
    page.locator(".word").nth(1390).scroll_into_view_if_needed()
    assert page.evaluate("document.querySelectorAll('.word')[1390].getBoundingClientRect().top < innerHeight")


MAP = """() => {
  const { width, height } = document.querySelector(".margin");
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(document.querySelector(".margin"), 0, 0);
  const { data } = pen.getImageData(0, 0, width, height);
  const rows = [];
  for (let n = 0; n < data.length; n += 4) {
    if (data[n] === 194 && data[n + 1] === 65) rows.push(Math.floor(n / 4 / width));
  }
  return rows.reduce((sum, y) => sum + y, 0) / rows.length / height;
}"""
"""Script that finds the pinned word in the map of a text, from 0 at its top to 1."""


def test_a_text_that_scrolls_has_a_map_beside_it(watch: Watch, tmp_path: Path) -> None:
    """The pinned word stands where it is in the text; a click goes there."""
    page = watch(viewport={"width": 1440, "height": 900}).open(
        long_trace(900, Mask()).to_html(tmp_path / "map.html").as_uri() + "#mode=text&h=1&q=450"
    )
    until(page, "document.querySelector('.margin')?.checkVisibility()")
    eventually(page, lambda: 0.4 < page.evaluate(MAP) < 0.6, "the pinned word in the middle of the map")
    box = page.locator(".margin").bounding_box()
    assert box
    page.mouse.click(box["x"] + 20, box["y"] + box["height"] - 3)
    until(page, "(([p]) => p.scrollTop + p.clientHeight > p.scrollHeight - 40)(document.querySelectorAll('.prose'))")


LINE = """(places) => {
  const canvas = document.querySelector(".matrix canvas");
  const ratio = canvas.width / canvas.clientWidth;
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return places.map(([x, y]) => {
    const at = 4 * (Math.floor(y * ratio) * width + Math.floor(x * ratio));
    return [...data.slice(at, at + 3)];
  });
}"""
"""Script that reads the matrix's colours at some places."""


def test_two_texts_stand_apart(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    """Beside them, the mean over a text's words of what they put on its words, the other's and special tokens."""
    second = list(cat.segments).index(1)
    weights = np.asarray(cat[1, 1].weights)[:, second:]
    query, key = np.unravel_index(weights[:second].argmax(), weights[:second].shape)
    page = watch(viewport={"width": 1440, "height": 900}).open(
        f"{cat_file.as_uri()}#l=1&h=1&q={query}&k={second + key}"
    )
    until(page, "document.querySelector('.ribbon .seen')")
    parts = page.locator(".ribbon .part")
    assert parts.locator(".which").all_inner_texts() == ["first text", "second text"]
    at = "(all) => all.map((one) => Number(one.dataset.at))"
    places = [parts.nth(n).locator(".said-word").evaluate_all(at) for n in (0, 1)]
    assert places == [list(range(second)), list(range(second, len(cat)))]
    boxes = [parts.nth(n).bounding_box() for n in (0, 1)]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    # from a word of the first to the pinned one of the second: below the one, above the other
    assert page.locator(".arcs path.here").count() == 1
    left, top, cell = cells_of(page)
    seams = page.evaluate(LINE, [[left + second * cell, top + 1.5 * cell], [left + 2.5 * cell, top + second * cell]])
    for ink in seams:
        assert ink == pytest.approx([90, 99, 112], abs=80)  # a line between the two, which may lie on two pixels
    page.set_viewport_size({"width": 1440, "height": 1200})
    go(page, "l=1&h=1&q=4&k=12")
    page.wait_for_selector(".blocks")
    weights = np.asarray(cat[1, 1].weights)
    groups = [
        [n for n in range(len(cat)) if not cat.special[n] and cat.segments[n] == 0],
        [n for n in range(len(cat)) if not cat.special[n] and cat.segments[n] == 1],
        [n for n in range(len(cat)) if cat.special[n]],
    ]
    expected = [weights[np.ix_(rows, keys)].sum(1).mean() for rows in groups[:2] for keys in groups]

    def same() -> None:
        shown = [number(text) for text in page.locator(".blocks td").all_inner_texts()]
        assert shown == pytest.approx(expected, abs=6e-3)

    patiently(page, same)
    go(page, "of=ab")
    assert page.locator(".blocks").count() == 0


def test_letters_shrink_so_that_a_page_of_text_is_seen(watch: Watch, tmp_path: Path) -> None:
    page = watch().open(long_trace(300, Mask()).to_html(tmp_path / "page.html").as_uri() + "#mode=text&q=4")
    until(page, "parseFloat(document.querySelector('.flow').style.fontSize) < 20")


JOINER = "\u200d"
PLACES = """(selector) => [...document.querySelectorAll(selector)]
  .map((one) => [one.textContent, one.getBoundingClientRect().x]).sort(([, a], [, b]) => a - b).map(([text]) => text)"""
"""Texts of elements from left to right, as they stand on the screen."""


def test_an_arabic_text_runs_in_its_direction_in_an_english_page(watch: Watch, tmp_path: Path) -> None:
    """Findings from left to right: the word that looks stands left of the word that it looks at."""
    file = spelled(*ARABIC, [(11, 1), (7, 5)]).to_html(tmp_path / "arabic.html")
    page = watch(viewport={"width": 1440, "height": 900}).open(file.as_uri())
    finding = page.locator(".finding").first
    assert finding.inner_text().split("\n")[0] == "“متعبا” looks at “لم”"
    assert page.evaluate(PLACES, ".finding:first-child bdi") == ["متعبا", "لم"]
    assert page.evaluate("getComputedStyle(document.querySelector('.finding b')).direction") == "ltr"
    assert page.evaluate(PLACES, "[data-test=asked] bdi") == ["متعبا", "لم"]
    # the ribbon keeps letters joined
    words = page.evaluate(PLACES, ".ribbon .said-word bdi")
    _, pieces = ARABIC
    assert [word.replace(JOINER, "") for word in reversed(words)] == [piece.lstrip("▁") or "▁" for piece in pieces]
    assert {f"متع{JOINER}", f"{JOINER}با", f"يع{JOINER}", f"{JOINER}بر"} <= set(words)
    assert page.locator(".ribbon .said-word", has_text="▁").first.get_attribute("class") == "said-word special"
    # a number is one, from left to right: .98 and not 98.
    assert page.evaluate("getComputedStyle(document.querySelector('.said-word small')).direction") == "ltr"
    page.locator(".ribbon .said-word", has_text="لم").click()
    page.mouse.move(700, 880)
    for key, start in (("ArrowLeft", "يع"), ("ArrowRight", "لم")):
        page.locator("[data-test=sentence-both]").press(key)
        until(page, f"document.querySelector('.said-word.looking').textContent.startsWith('{start}')")
    page.evaluate("location.hash += '&mode=text'")
    page.wait_for_selector("[data-test=prose-row]")
    assert page.evaluate("getComputedStyle(document.querySelector('.flow')).direction") == "rtl"
    words = page.evaluate(PLACES, ".flow .word")
    assert (words[0], words[-1]) == ("</s>", "<s>")


SAID_IN_ORDER = """[...document.querySelectorAll("[title]")].map((one) => {
  const line = document.createElement("div");
  line.textContent = one.title;
  line.style = `direction: ${getComputedStyle(one).direction}; position: fixed; font-size: 20px; white-space: pre`;
  document.body.append(line);
  const range = document.createRange();
  const letters = [...one.title].map((letter, at) => {
    range.setStart(line.firstChild, at);
    range.setEnd(line.firstChild, at + 1);
    return [letter, range.getBoundingClientRect().x];
  }).filter(([letter]) => !/[\\p{Cf}\\s\\p{Script=Arabic}]/u.test(letter));
  line.remove();
  const text = (list) => list.map(([letter]) => letter).join("");
  return [one.title, text(letters), text([...letters].sort(([, a], [, b]) => a - b))];
})"""
"""Each tooltip; its letters that are not Arabic, as written, and from left to right in its element's direction."""
ORDER = """(node) => {
  const range = document.createRange();
  return Array.from(node.data, (_, at) => {
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    return range.getBoundingClientRect().left;
  });
}"""
NUMBERS = f"""[...document.querySelectorAll(".ways [data-share], .ways .figure bdi")].flatMap((one) => {{
  const walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) if (/^\\.\\d/.test(walker.currentNode.data)) found.push(({ORDER})(walker.currentNode));
  return found;
}})"""
"""Where each letter of the numbers in Follow begins that begin with a point."""


def test_tooltips_of_an_arabic_text_are_read_from_left_to_right(watch: Watch, tmp_path: Path) -> None:
    """As are its numbers: their point stands before their digits."""
    text = "القط جلس على السجادة"
    model = hs.open(small_bert(tmp_path, vocabulary=(*VOCABULARY[:-4], *text.split())))
    file = model.trace(text).to_html(tmp_path / "page.html", runs=False)
    page = watch(viewport={"width": 1440, "height": 900}).open(f"{file.as_uri()}#q=1")
    for state in ("", "words=1", "mode=text", "pane=follow"):
        go(page, f"q=1&{state}")
        page.wait_for_selector("[data-share]" if "follow" in state else ".token, .word")
        told = [one for one in page.evaluate(SAID_IN_ORDER) if any("\u0600" <= sign <= "\u06ff" for sign in one[0])]
        assert len(told) >= len(text.split())
        for title, letters, shown in told:
            assert shown == letters, title
    until(page, "document.querySelector('.ways').dir === 'rtl'")
    numbers = page.evaluate(NUMBERS)
    assert len(numbers) >= 4
    assert all(lefts == sorted(lefts) for lefts in numbers)


def test_without_spaces_a_piece_is_named_and_not_a_clause(watch: Watch, tmp_path: Path) -> None:
    """In Python, in the terminal and on the page: what the ribbon marks."""
    trace = spelled(*JAPANESE, [(11, 4)])
    (finding,) = [finding for finding in trace.findings() if finding.kind == "link"]
    assert finding.sentence.startswith("“らなかった” looks at “疲れ”: head 0.0")
    page = watch().open(trace.to_html(tmp_path / "ja.html").as_uri())
    assert page.locator(".finding").first.inner_text().startswith("“らなかった” looks at “疲れ”")
    assert page.evaluate(PLACES, "[data-test=asked] bdi") == ["らなかった", "疲れ"]
    assert page.locator(".said-word.looking bdi").inner_text() == "らなかった"
    # what is searched may go over pieces
    page.locator("[data-test=find]").fill("渡らなかった")
    until(page, "document.querySelector('.finder').textContent.includes('of 4')")


SCRIPTS = {"arabic": ARABIC, "hebrew": HEBREW, "japanese": JAPANESE, "chinese": CHINESE, "hindi": HINDI}
WORDS = """[...document.querySelectorAll(".ribbon .said-word > bdi")].map((one) => {
  const { left, right, top } = one.getBoundingClientRect();
  return [one.textContent, left, right, top];
})"""
INKED = """([left, right, height]) => {
  const canvas = document.querySelector(".matrix canvas");
  const ratio = canvas.width / canvas.clientWidth;
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, Math.floor(height * ratio));
  const columns = new Set();
  for (let n = 3; n < data.length; n += 4) if (data[n] > 60) columns.add(Math.floor(((n - 3) / 4) % width / ratio));
  return [...columns].filter((x) => left <= x && x < right);
}"""
"""Where there is ink above the cells of a matrix, between two places."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_set_as_it_is_written(watch: Watch, tmp_path: Path, script: str) -> None:
    """From its side, with or without spaces, its letters whole; beside the matrix from above where it can be."""
    text, pieces = SCRIPTS[script]
    page = watch(viewport={"width": 1440, "height": 900}).open(
        spelled(text, pieces, [(4, 2)]).to_html(tmp_path / "script.html").as_uri() + "#q=4&k=2"
    )
    until(page, "document.querySelector('.said-word.looking')")
    page.locator(".ribbon").screenshot(path=tmp_path / f"{script}.png")
    words = page.evaluate(WORDS)
    sign = -1 if script in ("arabic", "hebrew") else 1
    assert len({top for *_, top in words}) == 1
    places = [sign * (left + right) for _, left, right, _ in words]
    assert places == sorted(places)
    assert "".join(word for word, *_ in words[1:-1]).replace(JOINER, "").replace("▁", "") == text.replace(" ", "")
    assert not [word for word, *_ in words if unicodedata.category(word[0]).startswith("M")]
    gaps = [max(before[1], after[1]) - min(before[2], after[2]) for before, after in itertools.pairwise(words[1:-1])]
    unspaced = script in ("japanese", "chinese")
    assert max(gaps) <= 4 if unspaced else max(gaps) >= 8
    assert ("·" in page.locator(".lines").inner_text()) is (not unspaced)
    left, top, cell = cells_of(page)
    column = max(range(1, len(pieces) - 1), key=lambda n: len(pieces[n]))
    beyond = left + (column + 1) * cell - 3
    inked = page.evaluate(INKED, [beyond, beyond + 6, top - 20])
    assert not unspaced or not inked
    first = page.locator(".heading").inner_text()
    assert ("first word at the left" in first) is (sign < 0)


def test_words_are_named_whole_where_there_are_words() -> None:
    thai = spelled("แมวกินปลา cats", ["<s>", "▁แมว", "กิน", "ปลา", "▁cat", "s", "</s>"], [])
    assert names(thai.queries, thai.text)[1:-1] == ["แมว", "กิน", "ปลา", "cats", "cats"]
    uncased = spelled("Then Alice left Paris.", ["<s>", "▁then", "▁alice", "▁left", "▁paris", ".", "</s>"], [])
    assert names(uncased.queries, uncased.text)[1:-1] == ["Then", "Alice", "left", "Paris", "."]
    arabic = spelled(*ARABIC, [])
    assert names(arabic.queries, arabic.text)[9:12] == ["متعبا", "متعبا", "متعبا"]
    # WordPiece's texts are split into words first, by MeCab say
    mixed = spelled("渡らなかった", ["<s>", "▁渡ら", "なかった", "</s>"], [])
    split = hs.Trace(
        model="mecab",
        queries=mixed.queries.__class__(**{**vars(mixed.queries), "tokens": ("[CLS]", "渡ら", "##なかった", "[SEP]")}),
        layers=mixed.layers,
        outputs={},
        text=mixed.text,
    )
    assert names(split.queries, split.text)[1:3] == ["渡らなかった", "渡らなかった"]

"""Texts in other scripts: from right to left, without spaces between words, and names as the writer spelled them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from looking import ARABIC, JAPANESE, Watch, spelled, until

import headscope as hs
from headscope.results.tokens import names

if TYPE_CHECKING:
    from playwright.sync_api import Page

JOINER = "\u200d"
PLACES = """(selector) => [...document.querySelectorAll(selector)]
  .map((one) => [one.textContent, one.getBoundingClientRect().x]).sort(([, a], [, b]) => a - b).map(([text]) => text)"""
"""Texts of elements from left to right, as they stand on the screen."""


@pytest.fixture(scope="module")
def arabic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelled(*ARABIC, [(11, 1), (7, 5)]).to_html(tmp_path_factory.mktemp("scripts") / "arabic.html")


@pytest.fixture
def page(watch: Watch, arabic: Path) -> Page:
    return watch(viewport={"width": 1440, "height": 900}).open(arabic.as_uri())


def test_a_finding_says_who_looks_at_whom_from_left_to_right(page: Page) -> None:
    """In an English sentence the word that looks stands left of the word that it looks at."""
    finding = page.locator("[data-test=finding]").first
    assert finding.inner_text().split("\n")[0] == "“متعبا” looks at “لم”"
    assert page.evaluate(PLACES, "[data-test=finding]:first-child bdi") == ["متعبا", "لم"]
    assert page.evaluate("getComputedStyle(document.querySelector('[data-test=finding] b')).direction") == "ltr"
    assert page.evaluate(PLACES, "[data-test=asked] bdi") == ["متعبا", "لم"]


def test_the_ribbon_runs_in_the_text_s_direction_and_keeps_letters_joined(page: Page) -> None:
    words = page.evaluate(PLACES, ".ribbon .said-word bdi")
    _, pieces = ARABIC
    assert [word.replace(JOINER, "") for word in reversed(words)] == [piece.lstrip("▁") or "▁" for piece in pieces]
    assert {f"متع{JOINER}", f"{JOINER}با", f"يع{JOINER}", f"{JOINER}بر"} <= set(words)
    assert page.locator(".ribbon .said-word", has_text="▁").first.get_attribute("class") == "said-word special"
    # a number is one, from left to right: .98 and not 98.
    assert page.evaluate("getComputedStyle(document.querySelector('.said-word small')).direction") == "ltr"
    page.locator(".ribbon .said-word", has_text="لم").click()
    page.mouse.move(700, 880)
    page.locator("[data-test=sentence-both]").press("ArrowLeft")
    until(page, "document.querySelector('.said-word.looking').textContent.startsWith('يع')")
    page.locator("[data-test=sentence-both]").press("ArrowRight")
    until(page, "document.querySelector('.said-word.looking').textContent.startsWith('لم')")


def test_prose_runs_in_the_text_s_direction(page: Page) -> None:
    page.evaluate("location.hash += '&mode=text'")
    page.wait_for_selector("[data-test=prose-row]")
    assert page.evaluate("getComputedStyle(document.querySelector('.flow')).direction") == "rtl"
    words = page.evaluate(PLACES, ".flow .word")
    assert (words[0], words[-1]) == ("</s>", "<s>")


def test_a_latin_text_stays_as_it_was(watch: Watch, cat_file: Path) -> None:
    page = watch(viewport={"width": 1440, "height": 900}).open(cat_file.as_uri())
    assert page.evaluate("getComputedStyle(document.querySelector('.sentence')).direction") == "ltr"
    assert JOINER not in page.locator("#page").inner_text()


def test_without_spaces_a_piece_is_named_and_not_a_clause(watch: Watch, tmp_path: Path) -> None:
    """In Python, in the terminal and on the page: what the ribbon marks."""
    trace = spelled(*JAPANESE, [(11, 4)])
    (finding,) = [finding for finding in trace.findings() if finding.kind == "link"]
    assert finding.sentence.startswith("“らなかった” looks at “疲れ”: head 0.0")
    page = watch().open(trace.to_html(tmp_path / "ja.html").as_uri())
    assert page.locator("[data-test=finding]").first.inner_text().startswith("“らなかった” looks at “疲れ”")
    assert page.evaluate(PLACES, "[data-test=asked] bdi") == ["らなかった", "疲れ"]
    assert page.locator(".said-word.looking bdi").inner_text() == "らなかった"
    # what is searched may go over pieces
    page.locator("[data-test=find]").fill("渡らなかった")
    until(page, "document.querySelector('.finder').textContent.includes('of 4')")


def test_words_are_named_whole_where_there_are_words() -> None:
    thai = spelled("แมวกินปลา cats", ["<s>", "▁แมว", "กิน", "ปลา", "▁cat", "s", "</s>"], [])
    assert names(thai.queries, thai.text)[1:-1] == ["แมว", "กิน", "ปลา", "cats", "cats"]
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


def test_names_keep_their_capitals(watch: Watch, tmp_path: Path) -> None:
    """An uncased vocabulary has paris; the writer wrote Paris."""
    trace = spelled("Then Alice left Paris.", ["<s>", "▁then", "▁alice", "▁left", "▁paris", ".", "</s>"], [(4, 2)])
    page = watch().open(trace.to_html(tmp_path / "paris.html").as_uri())
    assert page.locator("[data-test=finding]").first.inner_text().startswith("“Paris” looks at “Alice”")
    assert page.evaluate(PLACES, "[data-test=asked] bdi") == ["Paris", "Alice"]

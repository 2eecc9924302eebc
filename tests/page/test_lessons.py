"""The first minute: what a reader is told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from looking import SIZES, Watch, inaccessible, unreadable

import headscope as hs
from headscope.page import notebook


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}")
def test_three_sentences_until_they_are_read(watch: Watch, cat_file: Path, size: tuple[int, int]) -> None:
    watched = watch(first=True, viewport={"width": size[0], "height": size[1]})
    page = watched.open(cat_file.as_uri())
    lessons = page.locator(".lessons li:visible")
    assert lessons.count() == (1 if size[0] < 680 else 3)
    if size[0] >= 680:
        assert "Every head has its habit." in lessons.nth(2).inner_text()
    assert unreadable(page) == []
    assert inaccessible(page) == []
    page.locator("[data-test=lessons-read]").click()
    assert lessons.count() == 0
    # the browser keeps it; a page that finds it there tells nothing
    assert page.evaluate("localStorage.getItem('headscope.lessons')") == "true"
    again = watch(viewport={"width": size[0], "height": size[1]}).open(cat_file.as_uri())
    assert again.evaluate("localStorage.getItem('headscope.lessons')") == "true"
    assert again.locator(".lessons").count() == 0


def test_a_notebook_does_not_tell_it_with_each_cell(watch: Watch, cat: hs.Trace, tmp_path: Path) -> None:
    book = tmp_path / "book.html"
    book.write_text(f"<!doctype html><meta charset=utf-8><body>{notebook.frame([cat])}", encoding="utf-8")
    watched = watch(first=True)
    watched.page.goto(book.as_uri())
    frame = watched.page.frames[1]
    frame.wait_for_selector("html[data-painted]")
    assert frame.locator(".lessons").count() == 0

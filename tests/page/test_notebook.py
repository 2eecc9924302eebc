"""In a notebook: isolated frames, several on a page, nothing left in the notebook itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from looking import HOSTILE, Watched

import headscope as hs
from headscope.errors import InputError
from headscope.page import notebook

Watch = Callable[..., Watched]


def test_two_traces_on_one_page_keep_to_themselves(
    watch: Watch, bert: hs.Model, hostile: hs.Trace, tmp_path: Path
) -> None:
    cells = [bert.trace("The cat sat."), hostile]
    outputs = [one._repr_mimebundle_()["text/html"] for one in cells]
    book = tmp_path / "book.html"
    book.write_text("<!doctype html><meta charset=utf-8><body>" + "".join(outputs), encoding="utf-8")
    page = watch(viewport={"width": 1280, "height": 1500}).page
    page.goto(book.as_uri())
    before = set(page.evaluate("Object.keys(window)"))
    frames = page.frames[1:]
    assert len(frames) == 2
    for frame in frames:
        frame.wait_for_selector("html[data-painted]")
        assert frame.evaluate("self.origin") == "null"
    assert frames[1].locator(".left .token bdi").all_inner_texts()[1:4] == list(HOSTILE[:3])
    frames[0].locator("[data-test=head]").click()
    page.keyboard.press("ArrowRight")
    assert [frame.locator("[data-test=head]").inner_text() for frame in frames] == [
        "Head 0.1",
        "Head 0.0",
    ]
    frames[0].locator(".said-word").nth(2).click()
    frames[0].wait_for_selector("[data-test=ranked] li[data-weight]")
    first = frames[0].locator("[data-test=ranked] li[data-weight]").first
    weights = cells[0][0, 1].weights[2]
    assert float(first.get_attribute("data-weight") or 0) == pytest.approx(float(np.max(weights)), abs=1e-3)
    assert set(page.evaluate("Object.keys(window)")) - before <= {"0", "1"}


def test_the_frame_may_run_scripts_and_nothing_else(bert: hs.Model) -> None:
    text = notebook.frame(bert.trace("The cat sat."), height=300)
    opening = text[: text.index("srcdoc=")]
    assert 'sandbox="allow-scripts allow-downloads"' in opening
    assert "same-origin" not in opening
    assert "height:300px" in opening
    assert "<script" not in text
    assert "require" not in opening


def test_view_shows_the_frame_in_a_marimo_cell_without_anywidget(
    bert: hs.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    displayed: list[str] = []
    marimo = SimpleNamespace(
        running_in_notebook=lambda: True, Html=lambda text: text, output=SimpleNamespace(append=displayed.append)
    )
    monkeypatch.setitem(sys.modules, "marimo", marimo)
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    assert bert.trace("The cat sat.").view(height=300) is None
    assert len(displayed) == 1
    assert "height:300px" in displayed[0][: displayed[0].index("srcdoc=")]


def test_view_inside_an_event_loop_says_what_to_do(bert: hs.Model) -> None:
    async def cell() -> None:
        bert.trace("The cat sat.").view(open_browser=False)

    with ThreadPoolExecutor(1) as thread, pytest.raises(InputError, match="event loop"):
        thread.submit(lambda: asyncio.run(cell())).result()


def test_a_large_trace_shows_words(bert: hs.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "SHOWN_UP_TO", 10)
    bundle = bert.trace("The cat sat.")._repr_mimebundle_()
    assert set(bundle) == {"text/plain"}
    assert "trace.view()" in bundle["text/plain"]

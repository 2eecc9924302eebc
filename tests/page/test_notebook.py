"""In a notebook: isolated frames, several on a page, nothing left in the notebook itself."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from looking import HOSTILE, Watch

import headscope as hs
from headscope.errors import InputError
from headscope.page import notebook
from headscope.screens.labels import printable
from patience import PATIENCE


def in_cell(value: object, **wanted: object) -> dict[str, str]:
    """What IPython makes of the last line of a cell."""
    shown, _ = DisplayFormatter().format(value, **wanted)
    return shown


class Cells(HTMLParser):
    """The rows of a table as a browser reads them, the heading first."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.caption = ""
        self.tags: set[str] = set()
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self.inside = tag
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.inside == "caption":
            self.caption += data
        elif self.inside in ("th", "td"):
            self.rows[-1][-1] += data


def test_two_traces_on_one_page_keep_to_themselves(
    watch: Watch, bert: hs.Model, hostile: hs.Trace, tmp_path: Path
) -> None:
    cells = [bert.trace("The cat sat."), hostile]
    outputs = [in_cell(one)["text/html"] for one in cells]
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
    bundle = in_cell(bert.trace("The cat sat."))
    assert set(bundle) == {"text/plain"}
    assert "trace.view()" in bundle["text/plain"]


def test_a_cell_shows_the_types_that_ipython_asks_for(bert: hs.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = bert.trace("The cat sat.")
    assert set(in_cell(trace)) == {"text/plain", "text/html"}
    monkeypatch.setattr(notebook, "frame", lambda trace: pytest.fail("nobody asked for the page"))
    assert set(in_cell(trace, include=["text/plain"])) == {"text/plain"}
    assert set(in_cell(trace, exclude=["text/html"])) == {"text/plain"}


def test_everything_that_a_trace_gives_can_be_a_cells_last_line(bert: hs.Model) -> None:
    trace = bert.trace("The cat sat.")
    for value in (
        *(bert, bert.config, bert.layers[0].heads[0], bert.components, trace[0], trace[0, 1], trace[0, 1].weights),
        *(trace[0, 1].q, trace.outputs, trace.findings(), trace.verify()),
    ):
        assert in_cell(value)["text/plain"]


def test_statistics_and_effects_are_tables(bert: hs.Model) -> None:
    trace = bert.trace("The cat sat.")
    statistics = trace.statistics()
    table = Cells(in_cell(statistics)["text/html"])
    assert [row[0] for row in table.rows] == ["measure", *statistics]
    means = {name: values.array.mean() for name, values in statistics.items()}
    assert [float(row[1]) for row in table.rows[1:] if row[1]] == pytest.approx(
        [mean for mean in means.values() if np.isfinite(mean)], rel=1e-3
    )
    effects = bert.effects("The cat sat.")
    table = Cells(in_cell(effects)["text/html"])
    assert table.caption == repr(effects)
    assert np.array(table.rows[1:], float)[:, 1:] == pytest.approx(effects.array, rel=1e-2)
    assert "text/html" not in in_cell(trace.statistics(per_query=True)["entropy"])


def test_parameters_and_attributions_are_tables(bert: hs.Model) -> None:
    table = Cells(in_cell(bert.parameters)["text/html"])
    assert [row[0] for row in table.rows[1:]] == [row.name for row in bert.parameters]
    assert sum(int(row[3].replace(",", "")) for row in table.rows[1:]) == bert.parameters.total
    assert list(bert.parameters.to_pandas()["count"]) == [row.count for row in bert.parameters]
    attribution = bert.attribute("The cat sat.")
    assert len(Cells(in_cell(attribution)["text/html"]).rows) == 1 + len(attribution.tokens)


def test_text_in_a_cell_is_never_markup(bert: hs.Model, hostile: hs.Trace) -> None:
    made = bert.attribute("The cat sat.")
    scores = np.arange(len(hostile.tokens), dtype=float)
    table = Cells(in_cell(replace(made, axis=hostile.queries, scores=scores))["text/html"])
    assert table.tags == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert [row[1] for row in table.rows[1:]] == [printable(token) for token in hostile.tokens]


def test_a_notebook_that_is_run_holds_the_page(bert: hs.Model, tmp_path: Path) -> None:
    """nbconvert runs the cells as Jupyter does, in a kernel of their own."""
    import nbformat
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import ExecutePreprocessor

    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_code_cell(source)
        for source in ("import headscope as hs\ntrace = hs.open().trace('The cat sat.')", "trace", "trace.statistics()")
    ]
    ExecutePreprocessor(timeout=PATIENCE, kernel_name="python3").preprocess(book, {"metadata": {"path": tmp_path}})
    body, _ = HTMLExporter().from_notebook_node(book)
    assert "<iframe" in book.cells[1].outputs[0]["data"]["text/html"]
    assert 'srcdoc="' in body
    assert "entropy" in Cells(book.cells[2].outputs[0]["data"]["text/html"]).rows[1]

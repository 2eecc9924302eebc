"""Notebooks: a live widget; frames that keep to themselves and leave nothing in the notebook; names to complete."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from IPython.core.completer import provisionalcompleter
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from looking import HOSTILE, Watch, eventually, until
from traitlets.config import Config
from transformers import BertConfig, BertModel

import headscope as hs
from finished_survey import finished
from headscope.errors import HeadscopeError, InputError
from headscope.page import notebook
from headscope.screens.attention_sheets import attend_sheet
from headscope.screens.html_tables import write_screen
from headscope.screens.labels import printable
from patience import PATIENCE
from patience import until as wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

    from headscope.page.widget import TraceWidget


@pytest.fixture
def anywidget() -> None:
    if importlib.util.find_spec("anywidget") is None and not os.environ.get("HEADSCOPE_REQUIRE_CHROMIUM"):
        pytest.skip("anywidget is not installed: pip install -e '.[dev]'")


@pytest.fixture
def in_jupyter(anywidget: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.page.notebook.in_notebook", lambda: True)


@pytest.fixture
def widget(cat: hs.Trace, in_jupyter: None) -> TraceWidget:
    made: TraceWidget = cat.view(height=640)
    return made


def test_its_selection_is_checked_and_observed(widget: TraceWidget) -> None:
    """It takes NumPy's integers and negative heads."""
    assert widget.selection[:2] == (0, 0)  # and the cell that a fresh page has pinned
    seen: list[Any] = []
    widget.observe(lambda change: seen.append(change.new), names="selection")
    widget.selection = (1, 0, 3, None)
    widget.selection = [0, 1, None, None]  # as a front end sends it
    assert seen == [(1, 0, 3, None), (0, 1, None, None)]
    for bad in ((9, 0, None, None), (0, 9, None, None), (0, 0, 99, None), (0, 0, 1, -1), (0, 0), (0, None, 1, 1)):
        with pytest.raises(HeadscopeError):
            widget.selection = bad
    assert widget.selection == (0, 1, None, None)
    widget.selection = (-1, np.int32(-2), *np.unravel_index(13, (4, 4)))
    assert repr(widget.selection) == "(1, 0, 3, 1)"


def test_its_height_is_a_number_of_pixels(cat: hs.Trace, in_jupyter: None) -> None:
    assert cat.view().height == 720
    for height in (0, -5, "tall", 1.5):
        with pytest.raises(HeadscopeError, match="whole number of at least 1"):
            cat.view(height=height)  # type: ignore[arg-type]


def test_it_begins_on_the_finding_that_a_fresh_page_has_pinned(in_jupyter: None) -> None:
    trace = hs.open().trace("The cat sat on the mat because it was tired.")
    layer, head, query, key = trace.view().selection
    assert float(trace[layer, head].weights[query, key]) > 0.1
    assert {query, key}.isdisjoint(np.flatnonzero(trace.queries.special))


MODEL = """async ([source, traits]) => {
  const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })));
  const heard = {};
  const model = {
    traits, saved: 0,
    get: (name) => model.traits[name],
    set: (name, value) => {
      const same = JSON.stringify(model.traits[name]) === JSON.stringify(value);
      model.traits[name] = value;
      if (!same) model.fire(`change:${name}`);
    },
    save_changes: () => { model.saved++; },
    on: (name, listener) => { (heard[name] ??= []).push(listener); },
    off: (name, listener) => { heard[name] = heard[name].filter((other) => other !== listener); },
    fire: (name, ...more) => (heard[name] ?? []).forEach((listener) => listener(...more)),
    send: async (content) => {
      const { reply, bytes } = await answer(JSON.stringify(content));
      model.fire('msg:custom', reply, bytes ? [new DataView(Uint8Array.from(bytes).buffer)] : []);
    },
  };
  const el = document.createElement('div');
  document.body.replaceChildren(el);
  self.leave = widget.render({ model, el });
  self.model = model;
}"""


def shown(page: Page, widget: TraceWidget) -> Any:
    """The widget on an empty page, whose model is only in the page."""
    page.set_content("<!doctype html><body style='background:#111'></body>")
    traits = {name: getattr(widget, name) for name in ("_page", "_title", "height", "state", "selection")}
    page.evaluate(MODEL, [widget._esm, traits])
    return frame_of(page)


def test_the_page_and_the_model_follow_each_other(watch: Watch, cat: hs.Trace, widget: TraceWidget) -> None:
    page = watch(viewport={"width": 1280, "height": 800}).page
    frame = shown(page, widget)
    assert frame.evaluate("self.origin") == "null"
    until(frame, "document.documentElement.dataset.theme === 'dark'")
    until(page, f"JSON.stringify(model.traits.selection) === '{json.dumps(widget.selection, separators=(',', ':'))}'")
    page.evaluate("model.set('selection', [1, 1, 2, 0])")
    until(frame, "document.querySelector('[data-test=head]').textContent === 'Head 1.1'")
    frame.wait_for_selector("[data-test=weight]")
    weight = float(frame.locator("[data-test=weight]").inner_text())
    assert weight == pytest.approx(float(cat[1, 1].weights[2, 0]), abs=1e-3)
    frame.locator("[data-test=head]").click()
    page.keyboard.press("ArrowLeft")
    until(page, "model.traits.selection.join() === '1,0,2,0'")
    frame.locator("[data-test=tools]").click()
    frame.locator("[data-test=special]").check()
    until(page, "model.traits.state.includes('special=0')")
    # the notebook is loaded again: the model has kept everything
    state, selection = page.evaluate("[model.traits.state, model.traits.selection]")
    widget.state, widget.selection = state, selection
    frame = shown(page, widget)
    assert frame.locator("[data-test=head]").inner_text() == "Head 1.0"
    frame.locator("[data-test=tools]").click()
    assert frame.locator("[data-test=special]").is_checked()
    page.evaluate("model.set('state', 'l=0&h=1')")
    until(frame, "document.querySelector('[data-test=head]').textContent === 'Head 0.1'")
    until(page, "model.traits.selection.slice(0, 2).join() === '0,1'")
    # and follows the notebook's theme
    page.evaluate("document.body.style.background = '#fff'")
    until(frame, "document.documentElement.dataset.theme === 'light'")


def test_messages_that_are_not_the_page_s_change_nothing(watch: Watch, widget: TraceWidget) -> None:
    page = watch(viewport={"width": 1280, "height": 800}).page
    frame = shown(page, widget)
    until(page, "model.saved > 0")
    before = page.evaluate("JSON.stringify(model.traits)")
    page.evaluate("postMessage({ headscope: { state: 'l=1', selection: [1, 1, 1, 1] } }, '*')")
    for bad in ("null", "'x'", "{}", "{ headscope: null }", "{ headscope: { selection: [0, 0, '<b>', 1] } }"):
        frame.evaluate(f"() => parent.postMessage({bad}, '*')")
    frame.evaluate("() => parent.postMessage({ headscope: { state: 'x'.repeat(30000) } }, '*')")
    # messages are handled in the order in which they come
    page.evaluate("new Promise((done) => { addEventListener('message', done, { once: true }); postMessage(1, '*'); })")
    assert page.evaluate("JSON.stringify(model.traits)") == before
    page.evaluate(
        "document.querySelector('iframe').contentWindow.postMessage({ headscope: { selection: [7, 7, 7, 7] } }, '*')"
    )
    page.evaluate("document.querySelector('iframe').contentWindow.postMessage({ headscope: { state: 'l=99' } }, '*')")
    until(frame, "document.querySelector('[data-test=head]').textContent === 'Head 1.0'")  # there is no 99


def test_a_large_trace_is_looked_at_in_parts(
    watch: Watch, bert: hs.Model, in_jupyter: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = bert.trace("The cat sat on the mat.")
    whole = len(trace.view()._page)
    monkeypatch.setattr("headscope.page.widget.EMBEDDED_UP_TO", 10)
    widget = trace.view()
    assert len(widget._page) < whole
    wants: list[str] = []

    def answer(text: str) -> dict[str, Any]:
        content = json.loads(text)
        sent: list[dict[str, Any]] = []
        monkeypatch.setattr(
            widget,
            "send",
            lambda reply, buffers=(): sent.append({"reply": reply, "bytes": [*b"".join(buffers)] or None}),
        )
        widget._answer(widget, content, [])
        wants.append(str((content["request"] or {}).get("want")))
        return sent[0]

    page = watch(own=True).page
    page.expose_function("answer", answer)
    frame = shown(page, widget)
    frame.wait_for_selector("[data-test=awaited]", state="detached")
    frame.locator(".left .token").nth(2).click()
    frame.wait_for_selector(".inspector .ranked li[data-weight]")
    first = frame.locator(".inspector .ranked li[data-weight]").first
    weights = trace[0, 0].weights[2]
    assert float(first.get_attribute("data-weight") or 0) == pytest.approx(float(np.max(weights)), abs=1e-5)
    assert {"head", "measures"} <= set(wants)
    request = {"want": "head", "trace": "0", "layer": 1, "head": 0}
    for bad in ({**request, "trace": "1"}, {**request, "head": 9}, None, {}):
        assert "what to do" in answer(json.dumps({"id": 6, "request": bad}))["reply"]["error"]


BOOK = [
    f"""import headscope as hs
trace = hs.open().trace({HOSTILE[0]!r})
w = trace.view()
seen = []
w.observe(lambda change: seen.append(change.new), names="selection")
w""",
    "print('seen', seen[-1], w.selection)",
    "w.selection = (2, 1, 3, 4)\nprint('set', float(trace[2, 1].weights[3, 4]))",
]


RUN = """async (number) => {
  const book = jupyterapp.shell.currentWidget;
  await book.sessionContext.ready;
  book.content.activeCellIndex = number;
  await jupyterapp.commands.execute("notebook:run-cell");
}"""


def run_cell(page: Page, number: int) -> str:
    """Run a cell of a JupyterLab notebook once its kernel is there, and return what it printed."""
    page.evaluate(RUN, number)
    return page.locator(".jp-Notebook .jp-CodeCell").nth(number).locator(".jp-OutputArea-output").first.inner_text()


@pytest.mark.slow  # starts a whole JupyterLab; marimo and the page of the widget are tested without it
def test_in_jupyterlab(anywidget: None, watch: Watch, tmp_path: Path) -> None:
    with lab(tmp_path, BOOK, dark=True) as address:
        watched = watch(quiet=False, own=True, viewport={"width": 1440, "height": 1100})
        page = watched.page
        page.goto(address)
        page.wait_for_selector(".jp-Notebook .jp-CodeCell >> nth=2")
        until(page, "jupyterapp.shell.currentWidget?.sessionContext !== undefined")
        until(page, "document.body.dataset.jpThemeName === 'JupyterLab Dark'")
        run_cell(page, 0)
        frame = frame_of(page)
        assert frame.evaluate("self.origin") == "null"
        until(frame, "document.documentElement.dataset.theme === 'dark'")
        assert page.locator("img[src=x]").count() == 0, "a token is not markup"
        assert not [line for line in watched.said if line.startswith("dialog")]
        page.evaluate("addEventListener('message', ({ data }) => { self.heard = data?.headscope ?? self.heard; })")
        layer, number = head_at(frame)
        key, number = ("ArrowLeft", 0) if number else ("ArrowRight", 3)

        def moves() -> bool:  # again and again, since the notebook takes the focus when a cell is done, however late
            frame.locator("[data-test=head]").click()
            page.keyboard.press(key)
            return head_at(frame) == (layer, number)

        eventually(page, moves, "the last head that its key reaches")
        until(page, f"self.heard?.selection?.slice(0, 2).join() === '{layer},{number}'")  # and the kernel, next
        printed = run_cell(page, 1)
        assert printed.startswith(f"seen ({layer}, {number}, ")
        assert printed.count(f"({layer}, {number}, ") == 2
        weight = float(run_cell(page, 2).split()[1])
        until(frame, "document.querySelector('[data-test=head]').textContent === 'Head 2.1'")
        frame.wait_for_selector("[data-test=weight]")
        assert float(frame.locator("[data-test=weight]").inner_text()) == pytest.approx(weight, abs=1e-3)
        frame.locator("[data-test=tools]").click()  # a frame without an origin remembers nothing
        frame.locator("[data-test=special]").check()
        until(page, "self.heard?.state?.includes('special=0')")
        page.locator(".jp-Notebook .jp-CodeCell").nth(1).locator(".jp-InputArea-editor").click()
        page.keyboard.press("Control+s")
        book = tmp_path / "book.ipynb"
        eventually(page, lambda: "widget-view" in book.read_text(encoding="utf-8"), "the notebook is saved")
        page.wait_for_selector(".lm-DockPanel-tabBar .lm-TabBar-tab:not(.jp-mod-dirty)")
        page.reload()
        again = frame_of(page)
        assert again.locator("[data-test=head]").inner_text() == "Head 2.1"
        again.locator("[data-test=tools]").click()
        assert again.locator("[data-test=special]").is_checked()


APP = [
    f"""def _():
    import marimo as mo
    import headscope as hs
    trace = hs.open().trace({HOSTILE[0]!r})
    return mo, trace""",
    """def _(mo, trace):
    view = mo.ui.anywidget(trace.view())
    view
    return (view,)""",
    """def _(mo, view):
    mo.md(f"selected {list(view.selection)} end")
    return""",
    """def _(mo, view):
    mo.ui.button(label="choose", on_click=lambda _: setattr(view.widget, "selection", (2, 1, 3, 4)))
    return""",
]


def test_in_marimo(anywidget: None, watch: Watch, tmp_path: Path) -> None:
    with marimo(tmp_path, APP) as address:
        page = watch(quiet=False, own=True, viewport={"width": 1440, "height": 1100}).page
        page.goto(address)
        frame = frame_of(page)
        assert frame.evaluate("self.origin") == "null"
        assert page.locator("img[src=x]").count() == 0
        layer, head = (min(number + 1, 3) for number in head_at(frame))
        frame.locator("[data-test=head]").click()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        eventually(page, lambda: head_at(frame) == (layer, head), f"head {layer}.{head}, where the keys lead")
        page.wait_for_selector(f"text=selected [{layer}, {head}")
        page.get_by_text("choose").click()
        until(frame, "document.querySelector('[data-test=head]').textContent === 'Head 2.1'")


TOKEN = "test"
THEMES = Path("lab", "user-settings", "@jupyterlab", "apputils-extension")


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int, folder: Path, **more: str) -> Iterator[str]:
    log = folder / "log.txt"
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env={**os.environ, **more})
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{address}/api/status?token={TOKEN}", timeout=PATIENCE).close()
        except OSError as error:
            return isinstance(error, urllib.error.HTTPError)
        return True

    try:
        wait_for(answers)
        yield address
    finally:
        server.kill()  # one that is asked to end may wait for its kernel for ever; without it, the kernel ends itself
        server.wait()


@contextmanager
def lab(folder: Path, cells: list[str], *, dark: bool = False) -> Iterator[str]:
    """The address of a notebook with these cells, in a JupyterLab with nothing of this machine's settings."""
    book = {
        "cells": [
            {"cell_type": "code", "id": f"c{n}", "metadata": {}, "execution_count": None, "outputs": [], "source": cell}
            for n, cell in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "book.ipynb").write_text(json.dumps(book), encoding="utf-8")
    settings = folder / "config" / THEMES
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    options = {"ServerApp": {"tornado_settings": {"ws_ping_interval": 0}}, "LabApp": {"expose_app_in_browser": True}}
    options["MappingKernelManager"] = {"kernel_info_timeout": PATIENCE}
    (folder / "config" / "jupyter_server_config.json").write_text(json.dumps(options))
    if dark:
        (settings / "themes.jupyterlab-settings").write_text('{"theme": "JupyterLab Dark"}')
    port = _free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", f"--IdentityProvider.token={TOKEN}"]
    homes = {f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("config", "data", "runtime")}
    homes["JUPYTERLAB_SETTINGS_DIR"] = str(folder / "config" / "lab" / "user-settings")
    with _running(command, port, folder, **homes) as address:
        yield f"{address}/lab/tree/book.ipynb?token={TOKEN}&reset"


@contextmanager
def marimo(folder: Path, cells: list[str]) -> Iterator[str]:
    """The address of a marimo app with these cells."""
    book = folder / "book.py"
    defined = "\n\n".join(f"@app.cell\n{cell}" for cell in cells)
    book.write_text(
        f"import marimo\n\napp = marimo.App()\n\n\n{defined}\n\n\nif __name__ == '__main__':\n    app.run()\n"
    )
    port = _free_port()
    command = [sys.executable, "-m", "marimo", "run", str(book), "--headless", "--no-token", "--host", "127.0.0.1"]
    with _running([*command, "--port", str(port)], port, folder, XDG_CONFIG_HOME=str(folder)) as address:
        yield address


def frame_of(page: Page) -> Frame:
    """The widget's page, once its grid is painted."""

    def frames() -> list[Frame]:
        return [frame for frame in page.frames if frame.name.startswith("headscope:")]

    eventually(page, frames, "a widget")
    frame = frames()[0]
    frame.wait_for_selector("html[data-painted]")
    return frame


def head_at(frame: Frame) -> tuple[int, int]:
    """Layer and number of the head in view."""
    layer, head = frame.locator("[data-test=head]").inner_text().removeprefix("Head ").split(".")
    return int(layer), int(head)


def in_cell(value: object, **wanted: object) -> dict[str, str]:
    """What IPython makes of the last line of a cell."""
    shown, _ = DisplayFormatter().format(value, **wanted)
    return shown


def cells(table: str) -> list[list[str]]:
    """The rows of a table, the heading first."""
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    return [[unescape(one) for one in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


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
    eventually(page, lambda: head_at(frames[0]) == (0, 1), "the next head by its key")
    assert head_at(frames[1]) == (0, 0)
    frames[0].locator(".said-word").nth(2).click()
    frames[0].wait_for_selector(".inspector .ranked li[data-weight]")
    first = frames[0].locator(".inspector .ranked li[data-weight]").first
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
    assert "\n" not in text, "Markdown, as of `nbconvert --to markdown`, ends markup at an empty line"


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


def test_whatever_people_make_can_be_a_cells_last_line(bert: hs.Model) -> None:
    """It and all that hangs on it say in words what they are; some were `<… object at 0x7f…>`, or 34 KB of tables."""
    live = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)).eval()
    with hs.capture(live) as captured:
        live(torch.arange(3, 8)[None])
    survey = hs.survey("-", ["The cat sat on the mat.", "A dog ran to the house."] * 6, examples=2, report=False)
    trace, masked = bert.trace("The cat sat."), "She took off her [MASK]."
    made = [bert, bert.layers[0], bert.layers[0].heads[0], trace, trace[0], trace[0, 1], trace.findings(), survey]
    made += [trace.verify(), captured, captured.trace, hs.ablate(live, {(0, 1)}), hs.describe(live)]
    made += [bert.effects(masked), bert.attribute(masked), *bert.fill(masked), trace.follow(2), trace[0, 1].why(2, 1)]
    made += [bert.tree(), bert.tokenizer.encode(masked), trace.statistics(), bert.fit("BertModel"), trace.rollout(to=2)]
    for one in [*made, hs.compare("-", "-"), hs.match("-", "her hat", ["a coat", "his hat"])]:
        for name in ("", *(name for name in dir(one) if not name.startswith("_"))):
            with suppress(HeadscopeError):  # what this one doesn't have
                face = getattr(one, name) if name else one
                shown = "a method" if name and callable(face) else in_cell(face)["text/plain"]
                assert " at 0x" not in shown, f"{type(one).__name__}.{name}"
                assert 0 < len(shown) < 10_000 or isinstance(face, dict), f"{type(one).__name__}.{name}"


def test_numbers_are_tables(bert: hs.Model) -> None:
    trace = bert.trace("The cat sat.")
    statistics = trace.statistics()
    table = cells(in_cell(statistics)["text/html"])
    assert [row[0] for row in table] == ["measure", *statistics]
    means = {name: values.array.mean() for name, values in statistics.items()}
    assert [float(row[1]) for row in table[1:] if row[1]] == pytest.approx(
        [mean for mean in means.values() if np.isfinite(mean)], rel=1e-3
    )
    effects = bert.effects("The cat sat.")
    text = in_cell(effects)["text/html"]
    assert re.findall("<caption>(.*?)</caption>", text) == [escape(repr(effects))]
    assert np.array(cells(text)[1:], float)[:, 1:] == pytest.approx(effects.array, rel=1e-2)
    assert "text/html" not in in_cell(trace.statistics(per_query=True)["entropy"])
    table = cells(in_cell(bert.parameters)["text/html"])
    assert [row[0] for row in table[1:]] == [row.name for row in bert.parameters]
    assert sum(int(row[3].replace(",", "")) for row in table[1:]) == bert.parameters.total
    assert list(bert.parameters.to_pandas()["count"]) == [row.count for row in bert.parameters]
    components = bert.components
    assert [(row[0], row[1]) for row in cells(in_cell(components)["text/html"])[1:]] == [
        (part.name, f"{part.count:,}") for part in components
    ]
    assert components.to_pandas()["share"].sum() == pytest.approx(1)
    assert [row[0] for row in cells(in_cell(bert.config)["text/html"])[1:]] == [*bert.config]
    values = bert.config.arrow()["value"].to_pylist()
    assert [*map(json.loads, values)] == [*bert.config.values()]
    loaded, random = repr(bert.fit("BertForPreTraining")).splitlines()
    assert loaded == f"BertForPreTraining: {len(bert.all_parameters)} parameters are loaded"
    assert random == "2 initialised at random: cls.seq_relationship.weight, cls.seq_relationship.bias"
    attribution = bert.attribute("The cat sat.")
    assert len(cells(in_cell(attribution)["text/html"])) == 1 + len(attribution.tokens)


def test_text_in_a_cell_is_never_markup(bert: hs.Model, hostile: hs.Trace) -> None:
    made = bert.attribute("The cat sat.")
    scores = np.arange(len(hostile.tokens), dtype=float)
    text = in_cell(replace(made, axis=hostile.queries, scores=scores))["text/html"]
    assert {*re.findall(r"<([^\s/>]+)", text)} == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert [row[1] for row in cells(text)[1:]] == [printable(token) for token in hostile.tokens]
    assert {*re.findall(r"<([^\s/>]+)", in_cell(hostile[0, 0])["text/html"])} == {"pre", "span"}


STARTS = """() => {
  const starts = {};
  for (const span of document.querySelectorAll("pre span")) {
    const { left, bottom } = span.getBoundingClientRect();
    if (getComputedStyle(span).backgroundColor !== "rgba(0, 0, 0, 0)") starts[Math.round(bottom)] ??= Math.round(left);
  }
  return Object.values(starts).slice(0, -1);
}"""
"""Where the cells of each row begin; the last row is the legend."""


def test_rows_of_a_head_begin_below_each_other_in_any_script(watch: Watch, bundled: hs.Model, tmp_path: Path) -> None:
    trace = bundled.trace("The cat sat.")
    axis = replace(trace.queries, tokens=("[CLS]", "猫", "שלום", "नमस्ते", ".", "[SEP]"))
    trace = trace.replaced(queries=axis, keys=axis, text=None)
    write_screen(attend_sheet(trace, layer=0, head=0).drawings, tmp_path / "screen.html")
    (tmp_path / "cell.html").write_text(f"<meta charset=utf-8>{in_cell(trace[0, 0])['text/html']}", encoding="utf-8")
    for name in ("screen.html", "cell.html"):
        page = watch().page
        page.goto((tmp_path / name).as_uri())
        starts = page.evaluate(STARTS)
        assert len(starts) == 6
        assert max(starts) - min(starts) <= 1, name


BAR = """
import headscope.progress_bar as bar
bar.PATIENCE = 0
with bar.progress_bar("layers") as work:
    work(1, 4)
"""


def test_a_notebook_that_is_run_holds_the_page(tmp_path: Path) -> None:
    """nbconvert runs the cells as Jupyter does, in a kernel of their own; long work draws a bar there."""
    import nbformat
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import ExecutePreprocessor

    book = nbformat.v4.new_notebook()
    first = "import headscope as hs\ntrace = hs.open().trace('The cat sat.')"
    book.cells = list(
        map(nbformat.v4.new_code_cell, (first, "trace", "trace.statistics()", BAR, "trace.view()", "trace[3, 1]"))
    )
    ExecutePreprocessor(timeout=PATIENCE, kernel_name="python3").preprocess(book, {"metadata": {"path": tmp_path}})
    body, _ = HTMLExporter().from_notebook_node(book)
    assert "<iframe" in book.cells[1].outputs[0]["data"]["text/html"]
    assert 'srcdoc="' in body
    assert "entropy" in cells(book.cells[2].outputs[0]["data"]["text/html"])[1]
    assert book.cells[4].outputs[0]["data"]["text/plain"].startswith("widget: trace of the bundled model: 6 tokens")
    (drawn,) = book.cells[5].outputs  # rich displays what it prints in a kernel, unless it is told not to
    assert re.search(r"layer 3, head 1 \(counted from 0\).*\[CLS\] ", drawn["data"]["text/html"], re.DOTALL)
    assert "layers:\\u20071/4" in str(book.metadata["widgets"])  # a space as wide as a digit


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = Config()
    settings.HistoryManager.enabled = False
    settings.Completer.use_jedi = False
    settings.InteractiveShell.ipython_dir = str(tmp_path_factory.mktemp("ipython"))
    shell = InteractiveShell(config=settings)
    yield shell
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()


def offered(shell: Any, thing: Any) -> list[str]:
    """What IPython offers after `thing["`."""
    shell.push({"thing": thing})
    with provisionalcompleter():
        return [one.text.strip("\"']") for one in shell.Completer.completions('thing["', len('thing["'))]


def test_what_is_asked_by_name_offers_its_names(shell: Any, tmp_path: Path) -> None:
    bert = hs.open()
    trace = bert.trace("a cat sat")
    survey = hs.Survey(finished(tmp_path))
    for thing in (trace.statistics(), trace.outputs, survey):
        assert sorted(offered(shell, thing)) == sorted(thing)
    assert "hidden_size" in offered(shell, bert.config)
    assert sorted(offered(shell, bert.parameters)) == sorted(row.name for row in bert.parameters)

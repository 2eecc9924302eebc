"""A served text too long to be sent whole: the header first, then what is looked at; and a server that goes away."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from looking import Watch, box_of, eventually, head_of, lists, number, ranked, retype, until
from serving import Served, ask, start

import headscope as hs
from by_hand import Projection, axis_of, ends
from headscope.heads import grid
from headscope.page import server, trace_parts
from headscope.traces import LayerRecord
from patience import PATIENCE

TOKENS, LAYERS, HEADS, WIDTH = 1600, 2, 3, 8
EVERY = 2  # 1600 x 1600 cells, of which 2^21 are drawn at once


@pytest.fixture(scope="module")
def long() -> hs.Trace:
    generator = np.random.default_rng(5)
    records = [
        LayerRecord(
            *(2 * generator.normal(size=(HEADS, TOKENS, WIDTH)).astype(np.float32) for _ in range(3)),
            lse=None,
            scale=WIDTH**-0.5,
        )
        for _ in range(LAYERS)
    ]
    axis = axis_of(TOKENS, special=ends(TOKENS), words=tuple(range(TOKENS)))
    trace = hs.Trace(model="random", queries=axis, layers=records, outputs={}, text=None)
    return trace.replaced(source=Projection(HEADS, WIDTH, 16))


class Desk:
    """What the page requested; exact pictures and statistics wait until they are let through."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int]] = []
        self.exact = threading.Event()
        self.measures = threading.Event()

    def part(self, trace: hs.Trace, request: dict[str, object]) -> bytes:
        want = str(request.get("want"))
        if want == "measures":
            assert self.measures.wait(PATIENCE)
        whole = want == "tile" and request.get("every") == 1
        if whole:
            assert self.exact.wait(PATIENCE)
        content = trace_parts.part(trace, request)
        self.answers.append(("whole" if whole else want, len(content)))
        return content

    def wants(self) -> set[str]:
        return {want for want, _ in self.answers}


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk()
    monkeypatch.setattr(server, "part", desk.part)
    yield desk
    desk.exact.set()
    desk.measures.set()


@pytest.fixture
def served(long: hs.Trace, desk: Desk) -> Iterator[Served]:
    running = start(long)
    running.session.model = None  # its source has weights, and runs nothing
    yield running
    if running.thread.is_alive():
        running.stop()


def rows_of(trace: hs.Trace, layer: int, head: int) -> np.ndarray:
    """The head's weights, in fp64."""
    record = trace.layers[layer]
    scores = record.scale * record.q[head].astype(float) @ record.k[head].astype(float).T
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def test_it_opens_with_the_header_and_is_exact_soon(watch: Watch, long: hs.Trace, desk: Desk, served: Served) -> None:
    watched = watch()
    sizes: list[int] = []
    watched.page.on(
        "response", lambda response: sizes.append(len(response.body())) if "token=" in response.url else None
    )
    page = watched.open(served.session.address())
    page.wait_for_selector("[data-test=sampled]")
    assert f"one row in {EVERY}" in page.locator("[data-test=sampled]").inner_text()
    arrays = sum(record.nbytes for record in long.layers)
    assert desk.wants() == {"tile"}
    assert sum(size for _, size in desk.answers) < arrays
    (opening,) = sizes
    assert opening < 400_000 + 200 * TOKENS, "the page and what it needs to name the tokens"
    assert "of 6 heads" in page.locator("[data-test=awaited]").inner_text()
    assert page.locator("[data-test=statistic] option").count() > 5
    desk.exact.set()
    page.wait_for_selector("[data-test=sampled]", state="detached")
    assert page.locator("[data-test=lost]").count() == 0


def test_a_cell_s_number_is_numpy_s(watch: Watch, long: hs.Trace, desk: Desk, served: Served) -> None:
    desk.exact.set()
    page = watch().open(f"{served.session.address()}#l=1&h=2&q=900&k=31")
    weights = rows_of(long, 1, 2)
    page.wait_for_selector("[data-test=weight]")
    assert number(page.locator("[data-test=weight]").inner_text()) == pytest.approx(weights[900, 31], abs=1e-4)
    for column, weight in ranked(page).items():
        assert weight == pytest.approx(weights[900, column], abs=1e-6)
    # what the head writes, from the values, which only this cell needs
    v = long.layers[1].v
    assert v is not None
    written = np.stack(
        [rows_of(long, 1, head)[900] @ v[head] @ Projection(HEADS, WIDTH, 16).W_O(1, head) for head in range(HEADS)]
    )
    share = written[2] @ written.sum(0) / (written.sum(0) @ written.sum(0))
    page.wait_for_selector("[data-test=open-chain]")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.cell .step').length === 7")
    text = page.locator(".cell .step").nth(6).inner_text()
    assert f"{np.linalg.norm(written[2]):.2f}" in text
    assert f"{share:.0%}" in text.replace("\u2212", "-")
    # and in which heads the cell is strongest
    page.keyboard.press("Escape")
    best = max(rows_of(long, layer, head)[900, 31] for layer in range(LAYERS) for head in range(HEADS))
    until(
        page, f"Math.abs(document.querySelector('[data-test=strongest] [data-number]')?.dataset.number - {best}) < 1e-5"
    )
    # with special tokens hidden, the rows are shared out anew
    page.locator("[data-test=special]").check()
    kept = weights[900] / weights[900, 1:-1].sum()
    until(page, f"Math.abs(document.querySelector('[data-test=ranked] li').dataset.weight - {kept[1:-1].max()}) < 1e-5")


def test_statistics_and_thumbnails_stream_in(watch: Watch, long: hs.Trace, desk: Desk, served: Served) -> None:
    desk.exact.set()
    page = watch().open(f"{served.session.address()}#l=1&h=1")
    reading = page.locator("[data-test=reading]")
    assert "–" in reading.inner_text()
    desk.measures.set()
    page.wait_for_selector("[data-test=awaited]", state="detached")
    rows = [row for row in range(TOKENS) if row // grid.RUN % 2 == 0]
    weights = rows_of(long, 1, 1)[rows]
    expected = -(weights * np.log(weights)).sum(-1).mean()
    box = box_of(page, ".heads")
    across, down = min(96.0, (box["width"] - 20) / HEADS), (box["height"] - 16) / LAYERS
    page.locator(".heads").hover(position={"x": 20 + 1.5 * across, "y": 16 + 1.5 * down})
    match = re.search(r"\d+\.\d+(?!.*\d\.\d)", reading.inner_text().replace("1.1", "", 1))
    assert match is not None
    assert float(match[0]) == pytest.approx(expected, abs=6e-3)
    assert "one query in 2" in page.locator(".grid").inner_text()


def test_a_lost_server_is_said_where_the_picture_would_be_until_it_is_back(
    watch: Watch, long: hs.Trace, desk: Desk, served: Served
) -> None:
    desk.exact.set()
    desk.measures.set()
    page = watch(quiet=False).open(served.session.address())
    page.wait_for_selector("[data-test=awaited]", state="detached")
    eventually(page, lambda: "whole" in desk.wants(), "every row is requested")
    page.wait_for_selector("[data-test=sampled]", state="detached")
    page.route("**/api/part", lambda route: route.abort())
    page.locator("[data-test=head]").click()
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("[data-test=lost]")
    assert head_of(page) == "Head 1.0"
    page.unroute("**/api/part")
    before = len(desk.answers)
    page.locator("[data-test=lost] button").click()
    page.wait_for_selector("[data-test=lost]", state="detached")
    eventually(page, lambda: "whole" in {want for want, _ in desk.answers[before:]}, "every row is requested")
    served.stop()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-test=lost]")
    assert head_of(page) == "Head 1.1"
    assert "headscope view" in page.locator("[data-test=lost]").inner_text()
    assert page.locator(".views [data-test=lost]").count() == 1
    page.keyboard.press("ArrowLeft")
    until(page, "!document.querySelector('[data-test=lost].nothing')")
    assert page.locator("[data-test=sampled]").count() == 0


def test_parts_need_the_token_and_an_id_of_this_run(served: Served) -> None:
    def answer(body: object, **other: str) -> tuple[int, str]:
        return ask(served.session, body, "/api/part", **other)[:2]

    head = {"trace": next(iter(served.session.traces)), "want": "head", "layer": 0, "head": 0}
    assert answer(head)[0] == 200
    assert answer(head, x_headscope_token="wrong")[0] == 403
    assert answer(head, host="evil.example")[0] == 421
    assert "no longer" in answer({**head, "trace": "0"})[1]
    status, text = answer({**head, "head": 99})
    assert (status, "there is no head 99" in text) == (422, True)
    assert answer([])[0] == 400


def test_a_changed_run_of_a_long_text_comes_in_parts_too(
    watch: Watch, bert: hs.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "MEASURED_CELLS", 60)
    running = start(bert.trace("The cat sat on the mat."))
    try:
        page = watch().open(running.session.address())
        retype(page, "The dog sat down and took her hat off!")
        page.keyboard.press("Enter")
        until(page, "document.querySelector('.tab.on')?.textContent.includes('dog') ?? false")
        page.evaluate("location.hash = '#d=1&q=3'")
        until(page, "document.querySelector('[data-test=head]').textContent === 'Head 0.0'")
        weights = bert.trace("The dog sat down and took her hat off!")[0, 0].weights[3]
        until(
            page, f"document.querySelectorAll('[data-test=ranked] li[data-weight]').length === {min(8, len(weights))}"
        )
        lists(page, weights, 1e-5)
        page.wait_for_selector("[data-test=awaited]", state="detached")
    finally:
        running.stop()

"""The served page: other texts, changed heads, long studies, refusals; and who is turned away."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import uvicorn
from looking import (
    SETTLED,
    Watch,
    box_of,
    eventually,
    go,
    head_of,
    lists,
    number,
    patiently,
    ranked,
    retype,
    table,
    until,
)
from safetensors.numpy import load as read
from serving import Served, ask, serving, start

import headscope as hs
from by_hand import Projection, axis_of, ends
from headscope.errors import InputError
from headscope.heads import grid
from headscope.page import server, trace_parts
from headscope.page import session as answers
from headscope.page.html import offline_page, to_html
from headscope.page.questions import Question
from headscope.page.runs import KEPT_RUNS, Runs, cost_of_effects, is_cheap, rerun
from headscope.page.session import HOST
from headscope.traces import LayerRecord
from patience import PATIENCE
from patience import until as wait_for

TEXT = "The cat took off her [MASK]."
ZERO = {"kind": "heads", "method": "zero"}


@pytest.fixture
def served(bert: hs.Model) -> Iterator[Served]:
    running = start(bert.trace(TEXT))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def refusing(bert: hs.Model) -> Iterator[Served]:
    """A server for requests that leave nothing behind."""
    with serving(bert.trace(TEXT)) as running:
        yield running


def test_another_text_is_run_and_kept_as_a_tab(watch: Watch, bert: hs.Model, served: Served) -> None:
    page = watch().open(served.session.address())
    retype(page, "The dog sat down!")
    page.wait_for_selector("[data-test=tab] >> nth=1")
    until(page, "document.querySelector('.tab.on').textContent.includes('dog')")
    page.evaluate("location.hash = '#d=1&l=1&q=1'")
    until(page, "document.querySelector('[data-test=head]').textContent === 'Head 1.0'")
    weights = bert.trace("The dog sat down!")[1, 0].weights[1]
    lists(page, weights, 1e-3)
    retype(page, "   ")
    assert "empty" in page.locator("[role=alert]").inner_text()
    retype(page, "the " * 100)
    until(page, "document.querySelector('[role=alert]').textContent.includes('at most')")
    assert "what to do: shorten the text" in page.locator("[role=alert]").inner_text()
    assert "max" not in page.locator("[role=alert]").inner_text().split("what to do:")[1]


def test_a_changed_run_is_that_of_its_ids(bert: hs.Model, served: Served) -> None:
    """With the words of the text that was changed."""
    text = served.session.traces[base(served)]
    again = rerun(bert, text, Question("change", ablate=((0, 0),), mask=(2,)))
    same = bert.trace(ids=list(again.ids), ablate=[(0, 0)])
    np.testing.assert_array_equal(same.outputs["last_hidden_state"].array, again.outputs["last_hidden_state"].array)
    assert again.tokens[2] == "[MASK]"
    assert again.words == text.words


def test_before_and_after_stay_apart_whichever_is_looked_at(watch: Watch, served: Served) -> None:
    """Changes belong to the text that they were chosen for; a changed run stays after its original."""
    page = watch().open(f"{served.session.address()}#pane=causes&way=these")
    tokens = page.locator("[data-test=tokens] button")
    tokens.nth(2).click()
    assert tokens.nth(2).get_attribute("aria-pressed") == "true"
    page.locator("[data-test=silence]").click()
    page.locator("[data-test=run]").click()
    page.wait_for_selector("[data-test=compare]")
    message = page.locator(".outcomes").inner_text()
    assert all(part in message for part in ("before", "after", "[MASK] at 6", "[MASK] at 2"))
    assert page.locator("[data-test=tab]").count() == 2
    assert "not masked" in message
    assert "originally “\u2068cat\u2069”" in message
    page.select_option("[data-test=statistic]", "change")
    until(page, SETTLED)
    moved = table(page)
    page.keyboard.press("]")
    until(page, "document.querySelectorAll('.tab')[1].classList.contains('on')")
    assert page.locator(".outcomes").inner_text() == message
    patiently(page, lambda: np.testing.assert_allclose(table(page), moved))
    assert tokens.nth(2).inner_text() == "cat"
    retype(page, "The dog!")
    until(page, "document.querySelectorAll('[data-test=tokens] button').length === 5")
    assert page.locator("[data-test=tokens] [aria-pressed=true]").count() == 0
    assert "mask a token to see" in page.locator(".causes").inner_text()
    assert page.locator("[data-test=run]").is_disabled()


def test_page_and_answers_carry_a_strict_policy(refusing: Served) -> None:
    status, _, headers = ask(refusing.session, path=f"/?token={refusing.session.token}")
    policy = headers["content-security-policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in scripts
    assert "sha256-" in scripts
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_another_name_for_this_address_and_another_site_s_page_are_refused(refusing: Served) -> None:
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example"):
        status, text, _ = ask(refusing.session, path=f"/?token={refusing.session.token}", host=host)
        assert (status, refusing.session.token in text) == (421, False)
    assert ask(refusing.session, {"text": "cat"}, "/api/trace", origin="http://evil.example")[0] == 403


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"[]", b"[" * 100_000, {"base": "no"}, {"text": " "}),
        *({"text": "cat", "ablate": ablate} for ablate in ([[9, 9]], "x")),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(refusing: Served, body: object) -> None:
    status, text, _ = ask(refusing.session, body, "/api/trace")
    assert status == 400 or json.loads(text.splitlines()[-1])["refused"]


def test_a_cut_connection_is_said_and_the_picture_stays(watch: Watch, bert: hs.Model) -> None:
    running = start(bert.trace("The cat sat."))
    watched = watch(quiet=False)
    page = watched.open(running.session.address())
    running.stop()
    retype(page, "The dog sat.")
    until(page, "document.querySelector('[role=alert]').textContent.includes('Start `headscope view` again')")
    page.locator("[data-test=head]").click()
    page.keyboard.press("ArrowRight")
    assert head_of(page) == "Head 0.1"


def base(served: Served) -> str:
    return next(iter(served.session.traces))


def study(served: Served, body: object, path: str = "/api/study") -> list[Any]:
    """The lines of an answer."""
    status, text, _ = ask(served.session, body, path)
    assert status == 200
    return [json.loads(line) for line in text.splitlines()]


def test_layers_are_streamed_and_the_run_is_listed(served: Served, bert: hs.Model) -> None:
    lines = study(served, {"base": base(served), **ZERO})
    layers = [line for line in lines if "layer" in line]
    assert [line["layer"] for line in layers] == [1, 0]
    record = lines[-1]["run"]
    assert record["result"]["change"] == [layers[1]["change"], layers[0]["change"]]
    effects = bert.effects(TEXT)
    np.testing.assert_allclose(record["result"]["change"], effects.change, atol=1e-6)
    assert (record["target"]["label"], record["target"]["row"]) == (effects.target.label, effects.target.row)
    assert study(served, None, "/api/runs") == [[record]]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"kind": "x"}, "no question 'x'"),
        ({"kind": "heads", "method": "gradient"}, "no question 'heads', 'gradient'"),
        ({"kind": "heads", "method": "edge", "edge": [1]}, "[1] names no heads or tokens"),
        ({"kind": "heads", "method": "edge", "edge": [0, 99]}, "no token 99"),
        ({"kind": "edge", "edge": [0, 9, 1, 1]}, "9"),
        ({"kind": "edge", "edge": [0, -1, 1, 1]}, "[0, -1, 1, 1] names no heads or tokens"),
        ({"kind": "change", "mask": [True]}, "[True] names no heads or tokens"),
        ({"kind": "heads", "method": "patch", "patch_from": "The cat."}, "tokens"),
        ({**ZERO, "target": ["class", 0]}, "no sequence classifier"),
        ({**ZERO, "base": "gone"}, "no longer has this trace"),
    ],
)
def test_refusals(refusing: Served, body: dict[str, Any], message: str) -> None:
    assert message in study(refusing, {"base": base(refusing), **body})[-1]["refused"]
    assert not refusing.session.runs.records


@pytest.mark.parametrize(
    ("path", "body", "header"),
    [
        *(("/?token=", None, ""), ("/?token=wrong", None, ""), ("/?token=%C3%A9", None, "")),
        *(("/api/study", ZERO, "wrong"), ("/api/trace", {"text": "cat"}, "wrong"), ("/api/runs", None, "wrong")),
    ],
)
def test_the_token_is_required(refusing: Served, path: str, body: object, header: str) -> None:
    status, text, _ = ask(refusing.session, body, path, x_headscope_token=header)
    assert (status, "wrong token" in text) == (403, True)


def test_one_study_at_a_time_and_one_that_nobody_awaits_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Semaphore(0), threading.Semaphore(0)
    running: list[int] = []
    most: list[int] = []

    def endless(*given: Any) -> None:
        running.append(1)
        most.append(len(running))
        began.release()
        try:
            while True:
                given[4](0, 2)
                time.sleep(0.005)
        finally:
            running.pop()
            ended.release()

    monkeypatch.setattr(answers, "answer", endless)
    unread = served.request({"base": base(served), **ZERO}, "/api/study")
    first, second = (served.connect(unread) for _ in range(2))
    assert began.acquire(timeout=PATIENCE)
    first.close()
    assert ended.acquire(timeout=PATIENCE)
    assert began.acquire(timeout=PATIENCE)
    third = served.connect(unread)
    wait_for(lambda: served.session.studies._work_queue.qsize() == 1)
    third.close()
    second.close()
    assert ended.acquire(timeout=PATIENCE)
    monkeypatch.undo()
    assert study(served, {"base": base(served), **ZERO})[-1]["run"]
    assert set(most) == {1}


def test_a_kept_trace_is_sent_again(served: Served) -> None:
    connection = http.client.HTTPConnection(HOST, served.session.port, timeout=PATIENCE)

    def sent(body: object) -> tuple[dict[str, Any], bytes]:
        """The line with the id, and the trace file after it."""
        connection.request("POST", "/api/trace", json.dumps(body), {"X-Headscope-Token": served.session.token})
        content = connection.getresponse().read()
        line = b""
        while b'"id"' not in line:
            line, _, content = content.partition(b"\n")
        return json.loads(line), content

    first, content = sent({"base": base(served), "kind": "change", "ablate": [[0, 1]]})
    second, again = sent({"kept": first["run"]["trace"]})
    connection.close()
    assert first["id"] == second["id"]
    assert second["run"] is None
    same, other = read(content), read(again)
    assert same.keys() == other.keys()
    assert all(np.array_equal(same[name], other[name], equal_nan=True) for name in same)
    assert first["run"]["ask"]["ablate"] == [[0, 1]]


def test_the_list_is_bounded_and_forgets_traces_that_are_gone(cat: hs.Trace) -> None:
    runs = Runs()
    for at in range(KEPT_RUNS + 6):
        runs.add({"base": "b", "ask": at, "trace": f"t{at}"})
    listed = runs.listed({f"t{KEPT_RUNS + 5}": cat})
    assert len(listed) == KEPT_RUNS
    assert [record["trace"] for record in listed][-2:] == [None, f"t{KEPT_RUNS + 5}"]
    runs.add({"base": "b", "ask": 40, "trace": "again"})
    assert len(runs.records) == KEPT_RUNS
    assert [record["ask"] for record in runs.records.values()].count(40) == 1


def test_a_file_has_runs_where_they_are_cheap(bert: hs.Model, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = bert.trace(TEXT)
    cost = cost_of_effects(bert, len(trace.queries))
    # 4 heads in 2 layers: one pass to keep, half a layer's pass for each of layer 1, less for layer 0's attention
    encoder = sum(parameter.count for parameter in bert.parameters if "encoder.layer" in parameter.name)
    assert cost == pytest.approx(2 * encoder * len(trace.queries) * (1 + 1 + 4 / 3))
    _, line = offline_page(trace, notify=pytest.fail)
    assert "the effect of silencing each of its 4 heads" in line
    monkeypatch.setattr("headscope.page.runs.CHEAP", cost - 1)
    assert not is_cheap(bert, trace)
    _, line = offline_page(trace, notify=pytest.fail)
    assert "silencing" not in line
    _, line = offline_page(trace, notify=pytest.fail, runs=True)
    assert "silencing" in line
    trace.save(tmp_path / "trace.safetensors")
    with pytest.raises(InputError, match="need the model"):
        to_html(hs.load(tmp_path / "trace.safetensors"), tmp_path / "no.html", runs=True)


def test_a_changed_run_gets_no_effects_by_default(bert: hs.Model) -> None:
    assert is_cheap(bert, bert.trace(TEXT))
    assert not is_cheap(bert, bert.trace(TEXT, ablate={(0, 0)}))


# A text too long to be sent whole: the header first, then what is looked at; and a server that goes away.


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
def sent(long: hs.Trace, desk: Desk) -> Iterator[Served]:
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


def test_it_opens_with_the_header_and_is_exact_soon(watch: Watch, long: hs.Trace, desk: Desk, sent: Served) -> None:
    watched = watch()
    sizes: list[int] = []
    watched.page.on(
        "response", lambda response: sizes.append(len(response.body())) if "token=" in response.url else None
    )
    page = watched.open(sent.session.address())
    page.wait_for_selector(".sampled")
    assert f"one row in {EVERY}" in page.locator(".sampled").inner_text()
    arrays = sum(record.nbytes for record in long.layers)
    assert desk.wants() == {"tile"}
    assert sum(size for _, size in desk.answers) < arrays
    (opening,) = sizes
    assert opening < 400_000 + 200 * TOKENS, "the page and what it needs to name the tokens"
    assert "of 6 heads" in page.locator("[data-test=awaited]").inner_text()
    assert page.locator("[data-test=statistic] option").count() > 5
    desk.exact.set()
    page.wait_for_selector(".sampled", state="detached")
    assert page.locator(".lost").count() == 0


def test_a_cell_s_number_is_numpy_s(watch: Watch, long: hs.Trace, desk: Desk, sent: Served) -> None:
    """Statistics and thumbnails stream in."""
    desk.exact.set()
    page = watch().open(f"{sent.session.address()}#l=1&h=2&q=900&k=31")
    weights = rows_of(long, 1, 2)
    page.wait_for_selector("[data-test=weight]")
    assert number(page.locator("[data-test=weight]").inner_text()) == pytest.approx(weights[900, 31], abs=1e-4)
    for column, weight in ranked(page).items():
        assert weight == pytest.approx(weights[900, column], abs=1e-6)
    # what the head writes, from the values, which only this cell needs
    v = long.layers[1].v
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
    until(page, f"Math.abs(document.querySelector('.inspector .ranked li').dataset.weight - {kept[1:-1].max()}) < 1e-5")
    page.evaluate("location.hash = '#l=1&h=1'")
    until(page, "document.querySelector('[data-test=head]').textContent === 'Head 1.1'")
    reading = page.locator(".reading")
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
    assert float(match[0]) == pytest.approx(expected, abs=6e-3)
    assert "one query in 2" in page.locator(".grid").inner_text()


def test_a_lost_server_is_said_where_the_picture_would_be_until_it_is_back(
    watch: Watch, desk: Desk, sent: Served
) -> None:
    desk.exact.set()
    desk.measures.set()
    page = watch(quiet=False).open(sent.session.address())
    page.wait_for_selector("[data-test=awaited]", state="detached")
    eventually(page, lambda: "whole" in desk.wants(), "every row is requested")
    page.wait_for_selector(".sampled", state="detached")
    page.route("**/api/part", lambda route: route.abort())
    page.locator("[data-test=head]").click()
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".lost")
    assert head_of(page) == "Head 1.0"
    page.unroute("**/api/part")
    before = len(desk.answers)
    page.locator(".lost button").click()
    page.wait_for_selector(".lost", state="detached")
    eventually(page, lambda: "whole" in {want for want, _ in desk.answers[before:]}, "every row is requested")
    go(page, "l=1&h=0&q=900&k=31")
    page.wait_for_selector(".cell h2")
    cell = page.locator(".cell h2").inner_text()
    assert "head 1.0" in cell
    sent.stop()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".lost")
    assert head_of(page) == "Head 1.1"
    assert "headscope view" in page.locator(".lost").inner_text()
    assert page.locator(".views .lost").count() == 1
    # nor are numbers of one cell said of another, or of another head
    assert page.locator(".cell h2").inner_text() == cell
    until(page, "!document.querySelector('.inspector .ranked li[data-weight]')")
    page.keyboard.press("ArrowLeft")
    until(page, "!document.querySelector('.lost.nothing')")
    assert page.locator(".sampled").count() == 0


def test_parts_need_the_token_and_an_id_of_this_run(sent: Served) -> None:
    answer = partial(ask, sent.session, path="/api/part")
    head = {"trace": next(iter(sent.session.traces)), "want": "head", "layer": 0, "head": 0}
    assert answer(head)[0] == 200
    assert answer(head, x_headscope_token="wrong")[0] == 403
    assert answer(head, host="evil.example")[0] == 421
    assert "no longer" in answer({**head, "trace": "0"})[1]
    status, text, _ = answer({**head, "head": 99})
    assert (status, "there is no head 99" in text) == (422, True)
    assert answer([])[0] == 400


def test_a_changed_run_of_a_long_text_comes_in_parts_too(
    watch: Watch, bert: hs.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "MEASURED_CELLS", 60)
    with serving(bert.trace("The cat sat on the mat.")) as running:
        page = watch().open(running.session.address())
        retype(page, "The dog sat down and took her hat off!")
        until(page, "document.querySelector('.tab.on')?.textContent.includes('dog') ?? false")
        page.evaluate("location.hash = '#d=1&q=3'")
        until(page, "document.querySelector('[data-test=head]').textContent === 'Head 0.0'")
        weights = bert.trace("The dog sat down and took her hat off!")[0, 0].weights[3]
        until(
            page, f"document.querySelectorAll('.inspector .ranked li[data-weight]').length === {min(8, len(weights))}"
        )
        lists(page, weights, 1e-5)
        page.wait_for_selector("[data-test=awaited]", state="detached")


# Connections that end early are no matter, and neither are open ones when the server ends, whatever is running.


SENT = {"text": "The cat."}


@pytest.fixture(scope="module")
def trace() -> hs.Trace:
    return hs.open("-").trace("The cat sat.")


def is_served(running: Served) -> bool:
    """Return True once the page is served: a client on a busy machine may itself be too slow for the server."""
    try:
        return ask(running.session, path=f"/?token={running.session.token}")[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def closed(connection: socket.socket) -> bool:
    """Wait until the server has closed a connection; what it sent before goes by."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    return True


def test_a_client_that_leaves_early_is_not_spoken_of(trace: hs.Trace, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(trace) as running:
        for cut in range(1, len(running.request(SENT)), 17):
            running.connect(running.request(SENT)[:cut]).close()
        for hard in (b"\0" * 8, b"\1\0\0\0" + b"\0" * 4):
            connection = running.connect(running.request(SENT))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, hard)
            connection.close()
        wait_for(partial(is_served, running))
        wait_for(lambda: not running.server.server_state.tasks)
    assert capfd.readouterr().err == ""


class Slow:
    """A model whose forward pass never ends by itself: layer after layer, until its progress is not wanted."""

    def __init__(self) -> None:
        self.tokenizer = hs.open("-").tokenizer
        self.anatomy = hs.open("-").anatomy
        self.tops = hs.open("-").tops
        self.begun, self.ended = threading.Event(), threading.Event()

    def trace(self, text: str, pair: str | None, *, progress: Callable[[int, int], None], **more: object) -> hs.Trace:
        self.begun.set()
        try:
            while True:
                progress(1, 2)
                time.sleep(0.001)
        finally:
            self.ended.set()


def test_a_forward_pass_that_nobody_waits_for_ends_at_its_next_layer(
    trace: hs.Trace, capfd: pytest.CaptureFixture[str]
) -> None:
    model = Slow()
    with serving(trace, model) as running:
        connection = running.connect(running.request(SENT))
        assert model.begun.wait(PATIENCE)
        connection.close()
        assert model.ended.wait(PATIENCE)
    assert capfd.readouterr().err == ""


def test_the_server_ends_whatever_is_running(trace: hs.Trace, capfd: pytest.CaptureFixture[str]) -> None:
    """A forward pass, half a request, a slow reader, an idle connection: none of them is waited for, nor spoken of."""
    model = Slow()
    running = start(trace, model)
    open_ones = [
        running.connect(sent) for sent in (running.request(SENT), running.request(SENT, size=1000), b"GET", b"")
    ]
    idle = running.connect(b"GET / HTTP/1.1\r\nHost: evil\r\n\r\n")
    assert idle.recv(12)
    assert model.begun.wait(PATIENCE)
    running.stop()
    assert model.ended.wait(PATIENCE)
    for connection in (*open_ones, idle):
        assert closed(connection)
    assert capfd.readouterr().err == ""


def test_it_listens_on_loopback_and_before_its_address_is_said(
    trace: hs.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    heard: list[str] = []

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        seen.extend(one.getsockname() for one in sockets)

    def said(line: str) -> None:
        port = int(line.split(f"{HOST}:")[1].split("/")[0])
        socket.create_connection((HOST, port), timeout=PATIENCE).close()
        heard.append(line)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    with ThreadPoolExecutor(1) as pool:  # a browser of other tests may run an event loop in this thread
        pool.submit(server.serve, trace, open_browser=False, announce=said).result()
    assert [address for address, _ in seen] == ["127.0.0.1"]
    assert len(heard) == 1

"""The served page: other texts, changed heads, long studies, refusals; and who is turned away."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from looking import SETTLED, Watch, head_of, lists, patiently, retype, table, until
from safetensors.numpy import load as read
from serving import Served, ask, start

import headscope as hs
from headscope.errors import InputError
from headscope.page import session as answers
from headscope.page.html import offline_page, to_html
from headscope.page.questions import Question
from headscope.page.runs import KEPT_RUNS, Runs, cost_of_effects, is_cheap, rerun
from headscope.page.session import HOST
from patience import PATIENCE
from patience import until as wait_for

TEXT = "The cat took off her [MASK]."
ZERO = {"kind": "heads", "method": "zero"}


@pytest.fixture
def served(bert: hs.Model) -> Iterator[Served]:
    running = start(bert.trace(TEXT))
    yield running
    running.stop()


def test_another_text_is_run_and_kept_as_a_tab(watch: Watch, bert: hs.Model, served: Served) -> None:
    page = watch().open(served.session.address())
    retype(page, "The dog sat down!")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-test=tab] >> nth=1")
    until(page, "document.querySelector('.tab.on').textContent.includes('dog')")
    page.evaluate("location.hash = '#d=1&l=1&q=1'")
    until(page, "document.querySelector('[data-test=head]').textContent === 'Head 1.0'")
    weights = bert.trace("The dog sat down!")[1, 0].weights[1]
    lists(page, weights, 1e-3)
    retype(page, "   ")
    page.locator("[data-test=text]").press("Enter")
    assert "empty" in page.locator("[role=alert]").inner_text()
    retype(page, "the " * 100)
    page.locator("[data-test=text]").press("Enter")
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
    message = page.locator("[data-test=outcomes]").inner_text()
    assert all(part in message for part in ("before", "after", "[MASK] at 6", "[MASK] at 2"))
    assert page.locator("[data-test=tab]").count() == 2
    assert "not masked" in message
    assert "originally “\u2068cat\u2069”" in message
    page.select_option("[data-test=statistic]", "change")
    until(page, SETTLED)
    moved = table(page)
    page.keyboard.press("]")
    until(page, "document.querySelectorAll('.tab')[1].classList.contains('on')")
    assert page.locator("[data-test=outcomes]").inner_text() == message
    patiently(page, lambda: np.testing.assert_allclose(table(page), moved))
    assert tokens.nth(2).inner_text() == "cat"
    retype(page, "The dog!")
    page.locator("[data-test=text]").press("Enter")
    until(page, "document.querySelectorAll('[data-test=tokens] button').length === 5")
    assert page.locator("[data-test=tokens] [aria-pressed=true]").count() == 0
    assert "mask a token to see" in page.locator(".causes").inner_text()
    assert page.locator("[data-test=run]").is_disabled()


def test_page_and_answers_carry_a_strict_policy(served: Served) -> None:
    status, _, headers = ask(served.session, path=f"/?token={served.session.token}")
    policy = headers["content-security-policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in scripts
    assert "sha256-" in scripts
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example"])
def test_another_name_for_this_address_is_refused(served: Served, host: str) -> None:
    status, text, _ = ask(served.session, path=f"/?token={served.session.token}", host=host)
    assert status == 421
    assert served.session.token not in text


def test_another_site_s_page_is_refused(served: Served) -> None:
    status, _, _ = ask(served.session, {"text": "cat"}, "/api/trace", origin="http://evil.example")
    assert status == 403


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        {"base": "no"},
        {"text": 3},
        {"text": "cat", "ablate": [[9, 9]]},
        {"text": "cat", "ablate": "x"},
    ],
)
def test_what_makes_no_sense_is_refused_in_words(served: Served, body: object) -> None:
    status, text, _ = ask(served.session, body, "/api/trace")
    assert status == 400 or json.loads(text.splitlines()[-1])["refused"]


def test_a_cut_connection_is_said_and_the_picture_stays(watch: Watch, bert: hs.Model) -> None:
    running = start(bert.trace("The cat sat."))
    watched = watch(quiet=False)
    page = watched.open(running.session.address())
    running.stop()
    retype(page, "The dog sat.")
    page.locator("[data-test=text]").press("Enter")
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
        ({"kind": "heads", "method": "gradient"}, "no method 'gradient'"),
        ({"kind": "heads", "method": "edge", "edge": [1]}, "2 whole numbers"),
        ({"kind": "heads", "method": "edge", "edge": [0, 99]}, "no token 99"),
        ({"kind": "edge", "edge": [0, 9, 1, 1]}, "9"),
        ({"kind": "edge", "edge": [0, 0, True, 1]}, "whole numbers"),
        ({"kind": "edge", "edge": [0, -1, 1, 1]}, "[0, -1, 1, 1]' is not a list of 4 whole numbers from 0"),
        ({"kind": "edge", "edge": [0, 0, 1, -1]}, "whole numbers from 0"),
        ({"kind": "edge", "edge": [2**70, 0, 1, 1]}, "whole numbers from 0"),
        ({"kind": "heads", "method": "edge", "edge": [-1, 1]}, "whole numbers from 0"),
        ({"kind": "heads", "method": "patch"}, "patch_from is not a text"),
        ({"kind": "heads", "method": "patch", "patch_from": "x" * 200_000}, "patch_from is not a text"),
        ({"kind": "heads", "method": "patch", "patch_from": "The cat."}, "tokens"),
        ({**ZERO, "target": "cat"}, "names no output"),
        ({**ZERO, "target": ["word", None]}, "target is not a text"),
        ({**ZERO, "target": ["class", 0]}, "no sequence classifier"),
        ({**ZERO, "base": "gone"}, "no longer has this trace"),
        ({"kind": "tokens", "method": "rollout"}, "no method 'rollout'"),
        ({"kind": "change", "replace": [[1, ""]]}, "replace is not a text"),
        ({"kind": "change", "mask": [True]}, "whole numbers"),
    ],
)
def test_refusals(served: Served, body: dict[str, Any], message: str) -> None:
    assert message in study(served, {"base": base(served), **body})[-1]["refused"]
    assert not served.session.runs.records


@pytest.mark.parametrize(
    ("path", "body", "header"),
    [
        *(("/?token=", None, ""), ("/?token=wrong", None, ""), ("/?token=%C3%A9", None, "")),
        *(("/api/study", ZERO, "wrong"), ("/api/trace", {"text": "cat"}, "wrong"), ("/api/runs", None, "wrong")),
    ],
)
def test_the_token_is_required(served: Served, path: str, body: object, header: str) -> None:
    status, text, _ = ask(served.session, body, path, x_headscope_token=header)
    assert (status, "wrong token" in text) == (403, True)


def leave(served: Served, body: object) -> socket.socket:
    """A connection whose request is sent, and which nobody reads."""
    connection = socket.create_connection((HOST, served.session.port), timeout=PATIENCE)
    raw = json.dumps(body).encode()
    head = (
        f"POST /api/study HTTP/1.1\r\nHost: {HOST}:{served.session.port}\r\n"
        f"X-Headscope-Token: {served.session.token}\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    connection.sendall(head.encode() + raw)
    return connection


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
    first, second = (leave(served, {"base": base(served), **ZERO}) for _ in range(2))
    assert began.acquire(timeout=PATIENCE)
    first.close()
    assert ended.acquire(timeout=PATIENCE)
    assert began.acquire(timeout=PATIENCE)
    third = leave(served, {"base": base(served), **ZERO})
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

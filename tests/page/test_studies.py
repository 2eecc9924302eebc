"""Runs that take long: one at a time, cancelled when the client leaves, listed afterwards; and refusals."""

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
from safetensors.numpy import load as read
from serving import Served, start

import headscope as hs
from headscope.errors import InputError
from headscope.page import session as answers
from headscope.page.html import offline_page, to_html
from headscope.page.runs import KEPT_RUNS, Runs, cost_of_effects, is_cheap
from headscope.page.session import HOST
from patience import PATIENCE, until

TEXT = "The cat took off her [MASK]."
ZERO = {"kind": "heads", "method": "zero"}


@pytest.fixture
def served(bert: hs.Model) -> Iterator[Served]:
    running = start(bert.trace(TEXT))
    yield running
    running.stop()


def base(served: Served) -> str:
    return next(iter(served.session.traces))


def ask(served: Served, body: object, path: str = "/api/study", token: str | None = None) -> tuple[int, list[Any]]:
    """The status, and the lines of the answer."""
    connection = http.client.HTTPConnection(HOST, served.session.port, timeout=PATIENCE)
    headers = {"X-Headscope-Token": served.session.token if token is None else token}
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    lines = answer.read().decode().splitlines()
    connection.close()
    return answer.status, [json.loads(line) for line in lines] if answer.status == 200 else lines


def test_layers_are_streamed_and_the_run_is_listed(served: Served, bert: hs.Model) -> None:
    _, lines = ask(served, {"base": base(served), **ZERO})
    layers = [line for line in lines if "layer" in line]
    assert [line["layer"] for line in layers] == [1, 0]
    record = lines[-1]["run"]
    assert record["result"]["change"] == [layers[1]["change"], layers[0]["change"]]
    effects = bert.effects(TEXT)
    np.testing.assert_allclose(record["result"]["change"], effects.change, atol=1e-6)
    assert (record["target"]["label"], record["target"]["row"]) == (effects.target.label, effects.target.row)
    _, listed = ask(served, None, "/api/runs")
    assert listed == [[record]]


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
    _, lines = ask(served, {"base": base(served), **body})
    assert message in lines[-1]["refused"]
    assert not served.session.runs.records


@pytest.mark.parametrize(("path", "body"), [("/api/study", ZERO), ("/api/runs", None)])
def test_the_token_is_required(served: Served, path: str, body: object) -> None:
    status, lines = ask(served, body, path, token="wrong")
    assert (status, "wrong token" in lines[0]) == (403, True)


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
    until(lambda: served.session.studies._work_queue.qsize() == 1)
    third.close()
    second.close()
    assert ended.acquire(timeout=PATIENCE)
    monkeypatch.undo()
    assert ask(served, {"base": base(served), **ZERO})[1][-1]["run"]
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

"""The served page's connections: half-open, slow and too many ones end, and so does the server, whatever is running."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from serving import Served, ask, serving, start

import headscope as hs
from headscope.page.connections import Server
from headscope.page.session import HOST
from patience import PATIENCE, until

TEXT = {"text": "The cat."}


@pytest.fixture(scope="module")
def trace() -> hs.Trace:
    return hs.open("-").trace("The cat sat.")


def answers(running: Served) -> bool:
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


def test_a_connection_that_stalls_is_closed(trace: hs.Trace, capfd: pytest.CaptureFixture[str]) -> None:
    """With nothing sent, a letter, half of the headers, or a body that never comes; and no other waits for it."""
    with serving(trace, patience=0.2) as running:
        for sent in (b"", b"G", b"GET / HTTP/1.1\r\nHost: a\r\n", running.request(TEXT, size=1000)):
            assert all(closed(connection) for connection in [running.connect(sent) for _ in range(5)]), sent
            until(partial(answers, running))

        def refused() -> bool:  # unless this client was too slow to ask
            connection = running.connect()
            try:
                connection.sendall(b"GET /?token=x HTTP/1.1\r\nHost: evil\r\n\r\n")
                return connection.recv(12) == b"HTTP/1.1 421"
            except ConnectionError:
                return False
            finally:
                assert closed(connection)

        until(refused)  # one that asks for nothing more is closed, too
    assert capfd.readouterr().err == ""


def test_a_second_request_has_time_of_its_own(trace: hs.Trace) -> None:
    """Time that a connection was idle is not taken from the next request on it."""
    with serving(trace) as running:
        connection = http.client.HTTPConnection(HOST, running.session.port, timeout=PATIENCE)
        for _ in range(3):
            connection.request("GET", f"/?token={running.session.token}")
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
        connection.close()


def test_a_client_that_does_not_read_is_cut_off(trace: hs.Trace) -> None:
    with serving(trace, patience=0.2) as running:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.connect((HOST, running.session.port))
        ask = f"GET /?token={running.session.token} HTTP/1.1\r\nHost: {HOST}:{running.session.port}\r\n\r\n"
        for _ in range(40):  # more than the system's buffers take, however large they are
            slow.sendall(ask.encode())
        until(lambda: bool(running.server.server_state.connections))
        until(lambda: not running.server.server_state.connections)
        slow.close()
        until(partial(answers, running))


def test_for_one_more_the_one_that_waited_longest_is_closed(trace: hs.Trace) -> None:
    with serving(trace, most_waiting=4) as running:
        waiting = [running.connect(b"GET") for _ in range(4)]
        until(lambda: len(running.server.server_state.connections) == 4)
        more = [running.connect(b"GET") for _ in range(3)]
        assert all(closed(connection) for connection in waiting[:3])
        until(partial(answers, running))
        for connection in (*waiting[3:], *more):
            connection.close()


def test_a_client_that_leaves_early_is_not_spoken_of(trace: hs.Trace, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(trace) as running:
        for cut in range(1, len(running.request(TEXT)), 17):
            running.connect(running.request(TEXT)[:cut]).close()
        for hard in (b"\0" * 8, b"\1\0\0\0" + b"\0" * 4):
            connection = running.connect(running.request(TEXT))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, hard)
            connection.close()
        until(partial(answers, running))
        until(lambda: not running.server.server_state.tasks)
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
        connection = running.connect(running.request(TEXT))
        assert model.begun.wait(PATIENCE)
        connection.close()
        assert model.ended.wait(PATIENCE)
    assert capfd.readouterr().err == ""


def test_the_server_ends_whatever_is_running(trace: hs.Trace, capfd: pytest.CaptureFixture[str]) -> None:
    """A forward pass, half a request, a slow reader, an idle connection: none of them is waited for, nor spoken of."""
    model = Slow()
    running = start(trace, model)
    open_ones = [
        running.connect(sent) for sent in (running.request(TEXT), running.request(TEXT, size=1000), b"GET", b"")
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
    from headscope.page import connections, server

    seen: list[tuple[str, int]] = []
    heard: list[str] = []

    def run(self: Server, sockets: list[socket.socket]) -> None:
        seen.extend(one.getsockname() for one in sockets)

    def said(line: str) -> None:
        port = int(line.split(f"{HOST}:")[1].split("/")[0])
        socket.create_connection((HOST, port), timeout=PATIENCE).close()
        heard.append(line)

    monkeypatch.setattr(connections.Server, "run", run)
    with ThreadPoolExecutor(1) as pool:  # a browser of other tests may run an event loop in this thread
        pool.submit(server.serve, trace, open_browser=False, announce=said).result()
    assert [address for address, _ in seen] == ["127.0.0.1"]
    assert len(heard) == 1

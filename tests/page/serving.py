"""A server in a thread, as `headscope view` starts one in a process, and what it answers a client."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import uvicorn

import headscope as hs
from headscope.page.server import application, server_of
from headscope.page.session import HOST, Session
from patience import PATIENCE


@dataclass
class Served:
    session: Session
    server: uvicorn.Server
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server doesn't stop"

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection((HOST, self.session.port), timeout=PATIENCE)
        connection.sendall(sent)
        return connection

    def request(self, body: object, path: str = "/api/trace", *, size: int | None = None) -> bytes:
        """A request with the token as it is sent, whose body is said to have this size."""
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {HOST}:{self.session.port}\r\n"
            f"X-Headscope-Token: {self.session.token}\r\nContent-Length: {size or len(raw)}\r\n\r\n"
        )
        return head.encode() + raw


def start(trace: hs.Trace, model: object = None) -> Served:
    """A server of this trace and its model, or of another that runs texts."""
    session = Session(model=model or trace.source)  # type: ignore[arg-type]
    session.keep(trace)
    listener = socket.socket()
    listener.bind((HOST, 0))
    listener.listen()
    session.port = listener.getsockname()[1]
    server = server_of(application(session), session.stop)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended before it began to listen"
        time.sleep(0.01)
    return Served(session, server, thread)


@contextmanager
def serving(trace: hs.Trace, model: object = None) -> Iterator[Served]:
    """A server that ends with the block."""
    running = start(trace, model)
    try:
        yield running
    finally:
        running.stop()


def ask(
    session: Session, body: object = None, path: str = "/api/study", *, host: str | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer; a request without a body is a GET; by default it has the token.

    Args:
        body: sent as it is if it is bytes, else as JSON.
        headers: with `_` for `-`.
    """
    sent = {"Host": host or f"{HOST}:{session.port}", "x-headscope-token": session.token}
    sent |= {name.replace("_", "-"): text for name, text in headers.items()}
    raw = body if isinstance(body, bytes | None) else json.dumps(body)
    with closing(http.client.HTTPConnection(HOST, session.port, timeout=PATIENCE)) as connection:
        connection.request("GET" if body is None else "POST", path, raw, sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace"), dict(answer.getheaders())

"""A server in a thread, as `headscope view` starts one in a process, and what it answers a client."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import headscope as hs
from headscope.page.server import application
from headscope.page.session import HOST, Session
from patience import PATIENCE

if TYPE_CHECKING:
    import uvicorn


@dataclass
class Served:
    session: Session
    server: uvicorn.Server
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server doesn't stop"


def start(trace: hs.Trace) -> Served:
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            for connection in self.server_state.connections:  # one that still sends: nobody would close its socket
                connection.transport.abort()
            await asyncio.sleep(0)

    session = Session(model=trace.source)  # type: ignore[arg-type]
    session.keep(trace)
    listener = socket.socket()
    listener.bind((HOST, 0))
    session.port = listener.getsockname()[1]
    server = Server(uvicorn.Config(application(session), log_level="error", lifespan="off"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended before it began to listen"
        time.sleep(0.01)
    return Served(session, server, thread)


@contextmanager
def serving(trace: hs.Trace) -> Iterator[Session]:
    """The session of a server that ends with the block."""
    running = start(trace)
    try:
        yield running.session
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
    connection = http.client.HTTPConnection(HOST, session.port, timeout=PATIENCE)
    sent = {"Host": host or f"{HOST}:{session.port}", "x-headscope-token": session.token}
    sent |= {name.replace("_", "-"): text for name, text in headers.items()}
    raw = body if isinstance(body, bytes | None) else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, raw, sent)
    answer = connection.getresponse()
    result = answer.status, answer.read().decode(errors="replace"), dict(answer.getheaders())
    connection.close()
    return result

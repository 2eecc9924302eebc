"""HTTP connections of the served page: half-open, slow and surplus ones are closed, and Ctrl-C ends all of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 10.0
"""Seconds for a client to send a request, to receive an answer, or to send another request on the same connection."""
MOST_WAITING = 64
"""Most connections waiting for their client; beyond that, the one that has waited longest is closed."""


def server_of(
    app: Any, *, stop: Callable[[], None], patience: float = PATIENCE, most_waiting: int = MOST_WAITING
) -> Server:
    """A server for this application that no client can block.

    Args:
        stop: called when the server stops, before it waits for the application.
    """
    config = uvicorn.Config(
        app,
        http=patient(patience, most_waiting),
        ws="none",
        log_level="error",
        access_log=False,
        lifespan="off",
        backlog=most_waiting,  # also the number accepted at once
        timeout_graceful_shutdown=1,
    )
    return Server(config, stop)


class Server(uvicorn.Server):
    """uvicorn's server, which disconnects all clients when it stops."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


def patient(patience: float, most_waiting: int) -> type[H11Protocol]:
    """Return a class of connections that share these limits."""
    waiting: dict[Patient, asyncio.TimerHandle] = {}

    class Patient(H11Protocol):
        """A connection that waits for its client for at most `patience` seconds; uvicorn's waits forever."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
                self._forget()  # a new request has its own time limit
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._forget()

        def _watch(self) -> None:
            """Start or stop the clock, which runs while the client has to send or receive something."""
            waiting_for_client = self.flow.write_paused or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            if not waiting_for_client or self.transport.is_closing():
                self._forget()
            elif self not in waiting:
                waiting[self] = self.loop.call_later(patience, self._cut)
                if len(waiting) > most_waiting:
                    next(iter(waiting))._cut()

        def _cut(self) -> None:
            self._forget()
            self.transport.abort()

        def _forget(self) -> None:
            clock = waiting.pop(self, None)
            if clock is not None:
                clock.cancel()

    return Patient

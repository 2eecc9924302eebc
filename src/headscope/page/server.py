"""The page, served on this machine: addresses, who may ask, and refusals. Starlette and uvicorn."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headscope.errors import HeadscopeError, InputError, require
from headscope.page.questions import in_the_page
from headscope.page.session import HOST, LeftError, Session, first_page, studied, traced
from headscope.page.trace_parts import part

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from headscope.atlas.head_notes import HeadNotes
    from headscope.model import Model
    from headscope.traces import Trace

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
META = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">')
SERVING = ("starlette", "uvicorn")
"""Packages without which no page is served."""
LONGEST_REQUEST = 1 << 20
"""Most bytes of a request's body: enough for a few hundred pages of text."""
BYTES = "application/octet-stream"
SITE_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
"""Ending of a file of a survey's site -> its type."""


def server_policy(page: bytes) -> str:
    """The page's Content-Security-Policy as a header, which also forbids framing the page."""
    meta = META.search(page[:4096].decode("utf-8", "replace"))
    if meta is None:
        raise HeadscopeError(
            "the built page has no Content-Security-Policy",
            where="page/static/page.html",
            advice="rebuild it: cd web && npm run build",
        )
    return f"{meta[1]}; frame-ancestors 'none'"


def can_serve() -> bool:
    """Return True if the extra `view` is installed."""
    return all(find_spec(name) is not None for name in SERVING)


def check_extra(where: str) -> None:
    """Raise MissingExtraError unless the page can be served.

    Args:
        where: the call or option that requires it.
    """
    file = "write a file, which needs neither: headscope view … --html FILE, in Python trace.to_html(…)"
    for package in SERVING:
        require(package, "view", where=where, otherwise=file)


def application(session: Session) -> Starlette:
    """Return the server: `/` is the page, `/api/trace` and `/api/study` run the model, `/api/runs` lists past runs.

    `/api/part` reads a large trace in parts. `/atlas/TOKEN/` has the pages of the survey beside the trace.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def index(request: Request) -> Response:
        _check(session, request, request.query_params.get("token", ""))
        first = next(iter(session.traces))
        content = await session.run(lambda: first_page(session, first))
        headers = {**HEADERS, "Content-Security-Policy": server_policy(content)}
        return Response(content, media_type="text/html; charset=utf-8", headers=headers)

    async def checked(request: Request) -> dict[str, Any]:
        _check(session, request, request.headers.get("x-headscope-token", ""))
        return await _query_of(request)

    async def trace(request: Request) -> Response:
        return StreamingResponse(traced(session, await checked(request)), media_type=BYTES, headers=HEADERS)

    async def study(request: Request) -> Response:
        return StreamingResponse(studied(session, await checked(request)), media_type=BYTES, headers=HEADERS)

    async def runs(request: Request) -> Response:
        _check(session, request, request.headers.get("x-headscope-token", ""))
        return JSONResponse(session.runs.listed(session.traces), headers=HEADERS)

    async def parts(request: Request) -> Response:
        query = await checked(request)
        content = await session.run(lambda: part(session.trace(query.get("trace")), query))
        return Response(content, media_type=BYTES, headers=HEADERS)

    async def atlas(request: Request) -> Response:
        _check(session, request, request.path_params["token"])
        name, beside = request.path_params["name"], session.atlas
        content = None if beside is None else await session.run(lambda: beside.page(name))
        if content is None:
            raise RefusedError("there is no such page", 404)
        kind = name.rpartition(".")[2]
        policy = {"Content-Security-Policy": server_policy(content)} if kind == "html" else {}
        return Response(content, media_type=f"{SITE_TYPES[kind]}; charset=utf-8", headers={**HEADERS, **policy})

    async def refused(_request: Request, error: Exception) -> Response:
        why, status = "the server is stopping", 503
        if isinstance(error, RefusedError):
            why, status = error.args
        elif isinstance(error, HeadscopeError):
            why, status = in_the_page(error), 422
        return PlainTextResponse(why, status, headers=HEADERS)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/api/trace", trace, methods=["POST"]),
            Route("/api/study", study, methods=["POST"]),
            Route("/api/runs", runs),
            Route("/api/part", parts, methods=["POST"]),
            Route("/atlas/{token}/{name}", atlas),
        ],
        exception_handlers=dict.fromkeys((RefusedError, LeftError, HeadscopeError), refused),
    )


class RefusedError(Exception):
    """A request is refused: why, and the status of the answer."""


def _check(session: Session, request: Request, token: str) -> None:
    """Refuse a request that another site's page, or DNS rebinding, may have sent.

    Raises:
        RefusedError: it may be one.
    """
    hosts = request.headers.getlist("host")
    if hosts not in ([f"{HOST}:{session.port}"], [f"localhost:{session.port}"]):
        raise RefusedError(f"this server only answers requests for {HOST}:{session.port}", 421)
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{hosts[0]}":
        raise RefusedError("requests from other sites are refused", 403)
    if not hmac.compare_digest(token.encode(), session.token.encode()):
        raise RefusedError(
            "wrong token: it changes with each run. Open the last address that `headscope view` printed.", 403
        )


async def _query_of(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        RefusedError: it is none, too long, or incomplete.
    """
    from starlette.requests import ClientDisconnect

    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_REQUEST:
                raise RefusedError(f"the request is longer than {LONGEST_REQUEST:,} bytes", 413)
    except ClientDisconnect:
        raise RefusedError("the request is incomplete", 400) from None
    try:
        query = json.loads(body)
    except (ValueError, RecursionError):
        query = None
    if not isinstance(query, dict):
        raise RefusedError("the request is not a JSON object", 400)
    return query


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def server_of(app: Starlette, stop: Callable[[], None]) -> uvicorn.Server:
    """A server for this application, which calls `stop` and disconnects all clients when it stops."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            stop()
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            await super().shutdown(sockets)

    options: dict[str, Any] = {"http": "h11", "ws": "none", "lifespan": "off", "timeout_graceful_shutdown": 1}
    return Server(uvicorn.Config(app, log_level="error", access_log=False, **options))


def serve(
    trace: Trace,
    model: Model | None = None,
    *,
    open_browser: bool = True,
    port: int = 0,
    at: str = "",
    announce: Callable[[str], None] = print,
    atlas: HeadNotes | None = None,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        trace: the first trace to show.
        model: runs other texts; by default the trace's model.
        open_browser: open the page in a browser.
        port: to listen on; 0 takes a free port.
        at: what the page shows first: the part of a page's address after `#`.
        announce: called with the address.
        atlas: stands beside the traces of its model.

    Raises:
        MissingExtraError: starlette or uvicorn is not installed.
        InputError: the port is taken, or an event loop is already running in this thread.
    """
    from headscope.model import Model

    check_extra("trace.view()")
    source = trace.source
    runs = model if model is not None else source if isinstance(source, Model) else None
    session = Session(model=runs, atlas=atlas)
    app = application(session)
    if _loop_runs():
        raise InputError(
            "an event loop is already running in this thread, so the page can't be served from it",
            where="view",
            advice='write a file with trace.to_html("page.html"), or run headscope view in a terminal',
        )
    session.keep(trace)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()  # so that a browser that connects at once is queued
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {port} can't be used: {error.strerror or error}",
            where="port",
            advice="omit it to use a free port",
        ) from error
    session.port = listener.getsockname()[1]
    address = f"{session.address()}#{at}" if at else session.address()
    announce(f"headscope is at {address}\nCtrl-C stops it")
    server = server_of(app, session.stop)
    if open_browser:  # beside the server, which some browsers wait for
        threading.Thread(target=open_in_browser, args=(address,), daemon=True).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return
    finally:
        listener.close()


def open_in_browser(address: str) -> bool:
    """Open an address in a browser with windows; return False if there is none.

    Browsers in a terminal would take it over, and the page requires JavaScript.
    """
    if sys.platform == "linux" and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return False
    try:
        return webbrowser.open(address)
    except (OSError, ValueError, webbrowser.Error):
        return False

"""The page, served on this machine, with reruns: other texts, silenced heads, masked tokens. Starlette and uvicorn."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from headscope._trace import Trace
from headscope.errors import HeadscopeError, InputError, MissingExtraError
from headscope.view.failure import in_the_page
from headscope.view.html import default_title, page
from headscope.view.outcomes import Outcome, moved, outcomes
from headscope.view.page_trace import page_bytes
from headscope.view.policy import HEADERS, server_policy

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from headscope.model import Model

HOST = "127.0.0.1"
LONGEST_REQUEST = 1 << 20
"""Most bytes of a request's body: enough for a few hundred pages of text."""
KEPT_TRACES = 64
THREADS = 4
T = TypeVar("T")


class LeftError(Exception):
    """The client has gone, or the server is stopping."""


@dataclass
class Session:
    """The state of one run of the server.

    Attributes:
        token: secret that every request must carry, new with each run.
        model: runs other texts; None if the page only shows a trace.
        traces: by the id that the page uses.
        port: the port the server listens on, which the Host header must name.
        stopping: set when the server stops.
        threads: run the model and make pages.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    model: Model | None = None
    traces: dict[str, Trace] = field(default_factory=dict)
    port: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "headscope-page"))

    def stop(self) -> None:
        """Cancel pending work: a running forward pass ends at its next layer."""
        self.stopping.set()
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread and return its result.

        Raises:
            LeftError: the server is stopping.
        """
        result = asyncio.get_running_loop().run_in_executor(self.threads, work)
        result.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # retrieves an error that nobody awaits
        end = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((result, end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            end.cancel()
        if not result.done():
            raise LeftError
        return result.result()

    def keep(self, trace: Trace) -> str:
        """Store a trace and return its id; the oldest are dropped beyond KEPT_TRACES."""
        name = secrets.token_hex(8)
        self.traces[name] = trace
        while len(self.traces) > KEPT_TRACES:
            del self.traces[next(iter(self.traces))]
        return name

    def address(self) -> str:
        """The page's URL."""
        return f"http://{HOST}:{self.port}/?token={self.token}"


def application(session: Session) -> Starlette:
    """Return the server: `/` is the page, `/api/trace` runs the model.

    Raises:
        MissingExtraError: starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import Response, StreamingResponse
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtraError(
            "starlette or uvicorn is not installed",
            where="headscope view",
            advice="install headscope[view], or write a file: headscope view … --html FILE",
        ) from error

    async def index(request: Request) -> Response:
        denied = _denied(session, request, request.query_params.get("token", ""))
        if denied is not None:
            return denied
        first = next(iter(session.traces))
        try:
            content = await session.run(lambda: _first_page(session, first))
        except LeftError:
            return _refusal("the server is stopping", 503)
        headers = {**HEADERS, "Content-Security-Policy": server_policy(content)}
        return Response(content, media_type="text/html; charset=utf-8", headers=headers)

    async def trace(request: Request) -> Response:
        denied = _denied(session, request, request.headers.get("x-headscope-token", ""))
        if denied is not None:
            return denied
        query = await _query_of(request)
        if isinstance(query, Response):
            return query
        return StreamingResponse(_answer(session, query), media_type="application/octet-stream", headers=HEADERS)

    return Starlette(routes=[Route("/", index), Route("/api/trace", trace, methods=["POST"])])


def _refusal(why: str, status: int) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(why, status, headers=HEADERS)


def _denied(session: Session, request: Request, token: str) -> Response | None:
    """A refusal of a request that another site's page, or DNS rebinding, may have sent; otherwise None."""
    hosts = request.headers.getlist("host")
    if hosts not in ([f"{HOST}:{session.port}"], [f"localhost:{session.port}"]):
        return _refusal(f"this server only answers requests for {HOST}:{session.port}", 421)
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{hosts[0]}":
        return _refusal("requests from other sites are refused", 403)
    if not hmac.compare_digest(token.encode(), session.token.encode()):
        return _refusal(
            "wrong token: it changes with each run. Open the last address that `headscope view` printed.", 403
        )
    return None


async def _query_of(request: Request) -> dict[str, Any] | Response:
    """The JSON object in a request's body, or a refusal."""
    from starlette.requests import ClientDisconnect

    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_REQUEST:
                return _refusal(f"the request is longer than {LONGEST_REQUEST:,} bytes", 413)
    except ClientDisconnect:
        return _refusal("the request is incomplete", 400)
    try:
        query = json.loads(body)
        if not isinstance(query, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError):
        return _refusal("the request is not a JSON object", 400)
    return query


def _first_page(session: Session, first: str) -> bytes:
    trace = session.traces[first]
    model = session.model
    return page(
        [page_bytes(trace, values=True)],
        home="server" if model is not None else "file",
        title=default_title(trace),
        token=session.token,
        remote=[first],
        mask=None if model is None else model.tokenizer.mask_token,
        fills=model is not None and "masked_lm" in model.anatomy.tasks,
        outcomes=[[] if model is None else [outcome.plain() for outcome in outcomes(model, trace)]],
    )


async def _answer(session: Session, query: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield lines of JSON with the progress, then one with the size, then the trace file."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()
    left = threading.Event()

    def progress(done: int, of: int) -> None:
        if left.is_set():
            raise LeftError
        loop.call_soon_threadsafe(queue.put_nowait, (done, of))

    def work() -> tuple[str, bytes, list[Outcome], float | None]:
        try:
            return _run(session, query, progress)
        finally:
            if not left.is_set():
                loop.call_soon_threadsafe(queue.put_nowait, None)

    running = asyncio.ensure_future(session.run(work))
    try:
        while (step := await queue.get()) is not None:
            yield json.dumps({"done": step[0], "all": step[1]}).encode() + b"\n"
        name, content, predictions, shift = await running
    except HeadscopeError as error:
        yield json.dumps({"refused": in_the_page(error)}).encode() + b"\n"
        return
    finally:
        left.set()
        running.cancel()
    head = {"id": name, "bytes": len(content), "outcomes": [outcome.plain() for outcome in predictions], "moved": shift}
    yield json.dumps(head).encode() + b"\n"
    step_size = 1 << 18
    for start in range(0, len(content), step_size):
        yield content[start : start + step_size]


def _run(
    session: Session, query: dict[str, Any], progress: Callable[[int, int], None]
) -> tuple[str, bytes, list[Outcome], float | None]:
    """Run the forward pass that the page requests.

    Raises:
        InputError: the request names no text or trace, or a head or token that doesn't exist.
    """
    model = session.model
    if model is None:
        raise InputError("this server has no model, only a trace", where="view", advice="run headscope view MODEL TEXT")
    ablate = [_whole_numbers(head, 2) for head in _list(query.get("ablate"), "ablate")]
    silenced = [(layer, head) for layer, head in ablate]
    if query.get("base") is not None:
        base = session.traces.get(str(query["base"]))
        if base is None:
            raise InputError("the server no longer has this trace", where="base", advice="run the text again")
        masked = _whole_numbers(_list(query.get("mask"), "mask"), None)
        trace = rerun(model, base, silenced, masked, progress)
        shift = moved(base, trace)
    else:
        text, pair = query.get("text"), query.get("pair")
        if not isinstance(text, str) or not text.strip():
            raise InputError("the text is empty", where="text", advice="type some words")
        if pair is not None and not isinstance(pair, str):
            raise InputError("the second text is not a string", where="pair", advice="send a string or null")
        trace = model.trace(text, pair, ablate=silenced, progress=progress)
        shift = None
    name = session.keep(trace)
    return name, page_bytes(trace, values=True), outcomes(model, trace), shift


def rerun(
    model: Model,
    base: Trace,
    ablate: list[tuple[int, int]],
    mask: list[int],
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Run the same tokens again with heads silenced and tokens masked; words and spans stay those of the text.

    Raises:
        InputError: a head or token doesn't exist, or the tokenizer has no mask token.
    """
    tokenizer = model.tokenizer
    ids, tokens = list(base.ids), list(base.tokens)
    for at in mask:
        if not 0 <= at < len(ids):
            raise InputError(f"there is no token {at}", where="mask", advice=f"tokens run from 0 to {len(ids) - 1}")
        if tokenizer.mask_id is None or tokenizer.mask_token is None:
            raise InputError("this tokenizer has no mask token", where="mask", advice="silence heads instead")
        ids[at], tokens[at] = tokenizer.mask_id, tokenizer.mask_token
    again = model.trace(ids=ids, segments=list(base.segments), ablate=ablate, progress=progress)
    axis = replace(base.queries, tokens=tuple(tokens), ids=tuple(ids))
    return again.replaced(queries=axis, text=base.text, pair=base.pair, source=model)


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > 100_000:
        raise InputError(f"{where} is not a list", where=where, advice=f"send {where} as a list")
    return value


def _whole_numbers(value: Any, size: int | None) -> list[int]:
    whole = isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    if not whole or (size is not None and len(value) != size):
        raise InputError(
            f"{value!r} is not a list of whole numbers", where="request", advice="send heads as [layer, head]"
        )
    return list(value)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def serve(
    trace: Trace,
    model: Model | None = None,
    *,
    open_browser: bool = True,
    port: int = 0,
    at: str = "",
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        trace: the first trace to show.
        model: runs other texts; by default the trace's model.
        open_browser: open the page in a browser.
        port: to listen on; 0 takes a free port.
        at: what the page shows first: the part of a page's address after `#`.
        announce: called with the address.

    Raises:
        MissingExtraError: starlette or uvicorn is not installed.
        InputError: the port is taken, or an event loop is already running in this thread.
    """
    from headscope.model import Model

    source = trace.source
    session = Session(model=model if model is not None else source if isinstance(source, Model) else None)
    app = application(session)
    if _loop_runs():
        raise InputError(
            "an event loop is already running in this thread, so the page can't be served from it",
            where="view",
            advice='write a file with trace.to_html("page.html"), or run headscope view in a terminal',
        )
    from headscope.view.connections import server_of

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
            where="--port",
            advice="omit it to use a free port",
        ) from error
    session.port = listener.getsockname()[1]
    address = f"{session.address()}#{at}" if at else session.address()
    announce(f"headscope is at {address}\nCtrl-C stops it")
    server = server_of(app, stop=session.stop)
    if open_browser:
        webbrowser.open(address)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return
    finally:
        listener.close()

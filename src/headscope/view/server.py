"""The page, served on this machine: other texts, silenced heads, masked tokens. Starlette behind uvicorn."""

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
"""Bytes of a request's body: a text of a few hundred pages."""
KEPT_TRACES = 64
THREADS = 4
T = TypeVar("T")


class LeftError(Exception):
    """Nobody waits for this answer any more."""


@dataclass
class Session:
    """What one run of the server holds.

    Attributes:
        token: what every request must carry, new with each run.
        model: what runs other texts; None where only a trace is shown.
        traces: by the name that the page calls them.
        port: where it listens; the Host header must name it.
        stopping: set when the server ends: nobody waits for an answer any more.
        threads: where the model runs and pages are made.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    model: Model | None = None
    traces: dict[str, Trace] = field(default_factory=dict)
    port: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "headscope-page"))

    def stop(self) -> None:
        """Let go of whatever is still computed: a forward pass ends at its next layer."""
        self.stopping.set()
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of work in a thread.

        Raises:
            LeftError: the server ends.
        """
        result = asyncio.get_running_loop().run_in_executor(self.threads, work)
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # an error that nobody waits for
        end = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((result, end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            end.cancel()
        if not result.done():
            raise LeftError
        return result.result()

    def keep(self, trace: Trace) -> str:
        """Hold a trace, and let the oldest go beyond KEPT_TRACES."""
        name = secrets.token_hex(8)
        self.traces[name] = trace
        while len(self.traces) > KEPT_TRACES:
            del self.traces[next(iter(self.traces))]
        return name

    def address(self) -> str:
        """Where the browser finds the page."""
        return f"http://{HOST}:{self.port}/?token={self.token}"


def application(session: Session) -> Starlette:
    """The server: `/` is the page, `/api/trace` runs the model."""
    try:
        from starlette.applications import Starlette
        from starlette.requests import ClientDisconnect
        from starlette.responses import PlainTextResponse, Response, StreamingResponse
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtraError(
            "the server needs starlette and uvicorn",
            where="headscope view",
            advice="install headscope[view], or write a file: headscope view … --html FILE",
        ) from error

    def refused(why: str, status: int) -> Response:
        return PlainTextResponse(why, status, headers=HEADERS)

    def stranger(request: Request, token: str) -> Response | None:
        """Refuse a request that another site's page, or DNS rebinding, may have sent."""
        hosts = request.headers.getlist("host")
        if hosts not in ([f"{HOST}:{session.port}"], [f"localhost:{session.port}"]):
            return refused(f"this server answers for {HOST}:{session.port} only", 421)
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{hosts[0]}":
            return refused("a page of another site asked: refused", 403)
        if not hmac.compare_digest(token.encode(), session.token.encode()):
            return refused(
                "the token is wrong: it is new with each run. Open the address that `headscope view` printed last.", 403
            )
        return None

    async def index(request: Request) -> Response:
        wrong = stranger(request, request.query_params.get("token", ""))
        if wrong is not None:
            return wrong
        first = next(iter(session.traces))
        try:
            whole = await session.run(lambda: _first_page(session, first))
        except LeftError:
            return refused("the server ends", 503)
        policy = server_policy(whole)
        return Response(
            whole, media_type="text/html; charset=utf-8", headers={**HEADERS, "Content-Security-Policy": policy}
        )

    async def trace(request: Request) -> Response:
        wrong = stranger(request, request.headers.get("x-headscope-token", ""))
        if wrong is not None:
            return wrong
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > LONGEST_REQUEST:
                    return refused(f"the request is longer than {LONGEST_REQUEST:,} bytes", 413)
        except ClientDisconnect:
            return refused("the request is not whole", 400)
        try:
            asked = json.loads(body)
            if not isinstance(asked, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            return refused("the request is no JSON object", 400)
        return StreamingResponse(_answer(session, asked), media_type="application/octet-stream", headers=HEADERS)

    return Starlette(routes=[Route("/", index), Route("/api/trace", trace, methods=["POST"])])


def _first_page(session: Session, first: str) -> bytes:
    shown = session.traces[first]
    model = session.model
    return page(
        [page_bytes(shown, values=True)],
        home="server" if model is not None else "file",
        title=default_title(shown),
        token=session.token,
        remote=[first],
        mask=None if model is None else model.tokenizer.mask_token,
        fills=model is not None and "masked_lm" in model.anatomy.tasks,
        outcomes=[[] if model is None else [one.plain() for one in outcomes(model, shown)]],
    )


async def _answer(session: Session, asked: dict[str, Any]) -> AsyncIterator[bytes]:
    """Lines of JSON about the progress, then one with the size, then the trace file."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()
    left = threading.Event()

    def progress(done: int, of: int) -> None:
        if left.is_set():
            raise LeftError
        loop.call_soon_threadsafe(queue.put_nowait, (done, of))

    def work() -> tuple[str, bytes, list[Outcome], float | None]:
        try:
            return _run(session, asked, progress)
        finally:
            if not left.is_set():
                loop.call_soon_threadsafe(queue.put_nowait, None)

    running = asyncio.ensure_future(session.run(work))
    try:
        while (step := await queue.get()) is not None:
            yield json.dumps({"done": step[0], "all": step[1]}).encode() + b"\n"
        name, content, found, shift = await running
    except HeadscopeError as error:
        yield json.dumps({"refused": in_the_page(error)}).encode() + b"\n"
        return
    finally:
        left.set()
        running.cancel()
    head = {"id": name, "bytes": len(content), "outcomes": [one.plain() for one in found], "moved": shift}
    yield json.dumps(head).encode() + b"\n"
    step_size = 1 << 18
    for start in range(0, len(content), step_size):
        yield content[start : start + step_size]


def _run(
    session: Session, asked: dict[str, Any], progress: Callable[[int, int], None]
) -> tuple[str, bytes, list[Outcome], float | None]:
    """One forward pass, as the page asked for it.

    Raises:
        InputError: the request names no text or trace, or a head or token that isn't there.
    """
    model = session.model
    if model is None:
        raise InputError("there is no model here, only a trace", where="view", advice="run headscope view MODEL TEXT")
    ablate = [_whole_numbers(one, 2) for one in _list(asked.get("ablate"), "ablate")]
    silenced = [(layer, head) for layer, head in ablate]
    if asked.get("base") is not None:
        base = session.traces.get(str(asked["base"]))
        if base is None:
            raise InputError("the trace is not held any more", where="base", advice="run the text again")
        masked = _whole_numbers(_list(asked.get("mask"), "mask"), None)
        made = rerun(model, base, silenced, masked, progress)
        shift = moved(base, made)
    else:
        text, pair = asked.get("text"), asked.get("pair")
        if not isinstance(text, str) or not text.strip():
            raise InputError("the text is empty", where="text", advice="type some words")
        if pair is not None and not isinstance(pair, str):
            raise InputError("the second text is no text", where="pair", advice="send a string or null")
        made = model.trace(text, pair, ablate=silenced, progress=progress)
        shift = None
    name = session.keep(made)
    return name, page_bytes(made, values=True), outcomes(model, made), shift


def rerun(
    model: Model,
    base: Trace,
    ablate: list[tuple[int, int]],
    mask: list[int],
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """The same tokens again, with heads silenced and tokens masked; words and spans stay those of the text.

    Raises:
        InputError: a head or token isn't there, or the tokenizer has no mask token.
    """
    tokenizer = model.tokenizer
    ids, tokens = list(base.ids), list(base.tokens)
    for at in mask:
        if not 0 <= at < len(ids):
            raise InputError(f"there is no token {at}", where="mask", advice=f"tokens run from 0 to {len(ids) - 1}")
        if tokenizer.mask_id is None or tokenizer.mask_token is None:
            raise InputError("this tokenizer has no mask token", where="mask", advice="silence heads instead")
        ids[at], tokens[at] = tokenizer.mask_id, tokenizer.mask_token
    made = model.trace(ids=ids, segments=list(base.segments), ablate=ablate, progress=progress)
    axis = replace(base.queries, tokens=tuple(tokens), ids=tuple(ids))
    return made.replaced(queries=axis, text=base.text, pair=base.pair, source=model)


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > 100_000:
        raise InputError(f"{where} is no list", where=where, advice=f"send {where} as a list")
    return value


def _whole_numbers(value: Any, size: int | None) -> list[int]:
    whole = isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    if not whole or (size is not None and len(value) != size):
        raise InputError(
            f"{value!r} is no list of whole numbers", where="request", advice="send heads as [layer, head]"
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
    said: Callable[[str], None] = print,
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        trace: what is shown first.
        model: what runs other texts; the trace's own unless told.
        open_browser: whether a browser is asked to open the page.
        port: where to listen; 0 takes a free port.
        said: where the address is written.

    Raises:
        MissingExtraError: starlette or uvicorn is not installed.
        InputError: the port is taken, or an event loop runs in this thread already.
    """
    from headscope.model import Model

    source = trace.source
    session = Session(model=model if model is not None else source if isinstance(source, Model) else None)
    app = application(session)
    if _loop_runs():
        raise InputError(
            "an event loop runs here already, so that nothing can be served from this thread",
            where="view",
            advice='write a file with trace.to_html("page.html"), or run headscope view in a terminal',
        )
    from headscope.view.connections import server_of

    session.keep(trace)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()  # a browser that is quick waits in the queue
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {port} can't be used: {error.strerror or error}",
            where="--port",
            advice="leave it out: a free one is taken",
        ) from error
    session.port = listener.getsockname()[1]
    said(f"headscope is at {session.address()}\nCtrl-C stops it")
    server = server_of(app, stop=session.stop)
    if open_browser:
        webbrowser.open(session.address())
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return
    finally:
        listener.close()

"""The page, served on this machine, with runs of the model on other texts and with changes. Starlette and uvicorn."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from headscope.errors import HeadscopeError, InputError, MissingExtraError, install
from headscope.page.failure import in_the_page
from headscope.page.html import default_title, page
from headscope.page.parts import header_bytes, is_large, part
from headscope.page.policy import HEADERS, server_policy
from headscope.page.questions import question_of
from headscope.page.runs import Runs, answer, compared, rerun
from headscope.page.trace import page_bytes
from headscope.runs.outcomes import classes_of, outcomes
from headscope.traces import Trace

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from headscope.atlas.head_notes import HeadNotes
    from headscope.model import Model

HOST = "127.0.0.1"
LONGEST_REQUEST = 1 << 20
"""Most bytes of a request's body: enough for a few hundred pages of text."""
KEPT_TRACES = 64
THREADS = 4
SITE_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
"""Ending of a file of a survey's site -> its type."""
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
        studies: the thread of runs that take long, one at a time.
        runs: the records of the runs that the page asked for.
        atlas: a survey of the model; its pages are made from its tables when they are requested.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    model: Model | None = None
    traces: dict[str, Trace] = field(default_factory=dict)
    port: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "headscope-page"))
    studies: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "headscope-study"))
    runs: Runs = field(default_factory=Runs)
    atlas: HeadNotes | None = None

    def stop(self) -> None:
        """Cancel pending work: a running forward pass ends at its next layer."""
        self.stopping.set()
        for threads in (self.threads, self.studies):
            threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T], *, study: bool = False) -> T:
        """Run work in a thread and return its result; a study waits until the one before it has ended.

        Raises:
            LeftError: the server is stopping.
        """
        result = asyncio.get_running_loop().run_in_executor(self.studies if study else self.threads, work)
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

    def trace(self, name: Any) -> Trace:
        """The trace with this id.

        Raises:
            InputError: it was dropped, or never existed.
        """
        trace = self.traces.get(str(name))
        if trace is None:
            raise InputError("the server no longer has this trace", where="trace", advice="run the text again")
        return trace

    def address(self) -> str:
        """The page's URL."""
        return f"http://{HOST}:{self.port}/?token={self.token}"


def can_serve() -> bool:
    """Return True if the extra `view` is installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn"))


def check_extra(where: str) -> None:
    """Raise MissingExtraError unless the page can be served.

    Args:
        where: the call or option that requires it.
    """
    if not can_serve():
        raise MissingExtraError(
            "starlette or uvicorn is not installed, so no page can be served",
            where=where,
            advice=f"{install('view')}, or write a file, which needs neither: headscope view … --html FILE, "
            "in Python trace.to_html(…)",
        )


def application(session: Session) -> Starlette:
    """Return the server: `/` is the page, `/api/trace` and `/api/study` run the model, `/api/runs` lists past runs.

    `/api/part` reads a large trace in parts. `/atlas/TOKEN/` has the pages of the survey beside the trace.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

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

    async def checked(request: Request) -> dict[str, Any] | Response:
        denied = _denied(session, request, request.headers.get("x-headscope-token", ""))
        return await _query_of(request) if denied is None else denied

    async def streamed(request: Request, answer: Callable[[Session, dict[str, Any]], AsyncIterator[bytes]]) -> Response:
        query = await checked(request)
        if isinstance(query, Response):
            return query
        return StreamingResponse(answer(session, query), media_type="application/octet-stream", headers=HEADERS)

    async def trace(request: Request) -> Response:
        return await streamed(request, _answer)

    async def study(request: Request) -> Response:
        return await streamed(request, _study)

    async def runs(request: Request) -> Response:
        denied = _denied(session, request, request.headers.get("x-headscope-token", ""))
        return denied or JSONResponse(session.runs.listed(session.traces), headers=HEADERS)

    async def parts(request: Request) -> Response:
        query = await checked(request)
        if isinstance(query, Response):
            return query
        try:
            content = await session.run(lambda: part(session.trace(query.get("trace")), query))
        except LeftError:
            return _refusal("the server is stopping", 503)
        except HeadscopeError as error:
            return _refusal(in_the_page(error), 422)
        return Response(content, media_type="application/octet-stream", headers=HEADERS)

    async def atlas(request: Request) -> Response:
        denied = _denied(session, request, request.path_params["token"])
        if denied is not None:
            return denied
        name, beside = request.path_params["name"], session.atlas
        try:
            content = None if beside is None else await session.run(lambda: beside.page(name))
        except LeftError:
            return _refusal("the server is stopping", 503)
        except HeadscopeError as error:
            return _refusal(in_the_page(error), 422)
        if content is None:
            return _refusal("there is no such page", 404)
        kind = name.rpartition(".")[2]
        policy = {"Content-Security-Policy": server_policy(content)} if kind == "html" else {}
        return Response(content, media_type=f"{SITE_TYPES[kind]}; charset=utf-8", headers={**HEADERS, **policy})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/api/trace", trace, methods=["POST"]),
            Route("/api/study", study, methods=["POST"]),
            Route("/api/runs", runs),
            Route("/api/part", parts, methods=["POST"]),
            Route("/atlas/{token}/{name}", atlas),
        ]
    )


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
        [_file_of(trace)],
        home="server" if model is not None else "file",
        title=default_title(trace),
        token=session.token,
        remote=[first],
        mask=None if model is None else model.tokenizer.mask_token,
        fills=model is not None and "masked_lm" in model.anatomy.tasks,
        outcomes=[[] if model is None else [outcome.plain() for outcome in outcomes(model, trace)]],
        classes=[] if model is None else classes_of(model),
        atlas=None if session.atlas is None else session.atlas.data(f"atlas/{session.token}/"),
    )


@dataclass
class _Stream:
    """Progress lines of work in a thread, for a client that may leave, and then its result.

    Attributes:
        session: the server's state.
        work: called with a function that sends a line, and raises LeftError once the client has gone.
        study: True for work that takes long.
    """

    session: Session
    work: Callable[[Callable[[dict[str, Any]], None]], Any]
    study: bool = False
    result: Any = None

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield lines of JSON; the last one is the refusal if the work raises an error of ours."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        left = threading.Event()

        def send(line: dict[str, Any]) -> None:
            if left.is_set():
                raise LeftError
            loop.call_soon_threadsafe(queue.put_nowait, line)

        def run() -> Any:
            try:
                if left.is_set():
                    raise LeftError
                return self.work(send)
            finally:
                if not left.is_set():
                    loop.call_soon_threadsafe(queue.put_nowait, None)

        running = asyncio.ensure_future(self.session.run(run, study=self.study))
        try:
            while (line := await queue.get()) is not None:
                yield _line(line)
            self.result = await running
        except HeadscopeError as error:
            yield _line({"refused": in_the_page(error)})
        finally:
            left.set()
            running.cancel()


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


async def _answer(session: Session, query: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield lines of JSON with the progress, then one with the size, then the trace file."""
    stream = _Stream(session, lambda send: _run(session, query, lambda done, of: send({"done": done, "all": of})))
    async for line in stream.lines():
        yield line
    if stream.result is None:
        return
    head, content = stream.result
    yield _line(head)
    step_size = 1 << 18
    for start in range(0, len(content), step_size):
        yield content[start : start + step_size]


async def _study(session: Session, query: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield lines of JSON with the progress and the layers' numbers, then one with the run's record."""

    def work(send: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        model, question = _model(session), question_of(query)
        name = str(query.get("base"))
        record = answer(
            model,
            name,
            session.trace(name),
            question,
            lambda done, of: send({"done": done, "all": of}),
            lambda layer, change: send({"layer": layer, "change": change.tolist()}),
        )
        return session.runs.add(record)

    stream = _Stream(session, work, study=True)
    async for line in stream.lines():
        yield line
    if stream.result is not None:
        yield _line({"run": stream.result})


def _model(session: Session) -> Model:
    if session.model is None:
        raise InputError("this server has no model, only a trace", where="view", advice="run headscope view MODEL TEXT")
    return session.model


def _run(session: Session, query: dict[str, Any], progress: Callable[[int, int], None]) -> tuple[dict[str, Any], bytes]:
    """Run the forward pass that the page requests, or find one that was kept.

    Raises:
        InputError: the request names no text or trace, or a head or token that doesn't exist.
    """
    model = _model(session)
    question = question_of(query)
    if query.get("kept") is not None:
        name = str(query["kept"])
        trace, record = session.trace(name), None
    elif query.get("base") is not None:
        base = session.trace(query["base"])
        trace = rerun(model, base, question, progress)
        record = compared(model, str(query["base"]), base, trace, question)
        name = session.keep(trace)
        record = session.runs.add({**record, "trace": name})
    else:
        text, pair = query.get("text"), query.get("pair")
        if not isinstance(text, str) or not text.strip():
            raise InputError("the text is empty", where="text", advice="type some words")
        if pair is not None and not isinstance(pair, str):
            raise InputError("the second text is not a string", where="pair", advice="send a string or null")
        trace = model.trace(text, pair, ablate=question.ablate, progress=progress)
        name, record = session.keep(trace), None
    content = _file_of(trace)
    predictions = [outcome.plain() for outcome in outcomes(model, trace)]
    return {"id": name, "bytes": len(content), "outcomes": predictions, "run": record}, content


def _file_of(trace: Trace) -> bytes:
    """A trace for the page: whole, or of a large one the header."""
    return header_bytes(trace) if is_large(trace) else page_bytes(trace, values=True)


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
    from headscope.page.connections import server_of

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
    server = server_of(app, stop=session.stop)
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

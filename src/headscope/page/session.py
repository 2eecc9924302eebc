"""One run of the page's server: its traces, and its answers, with progress, to what the page asks of the model."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from headscope.errors import HeadscopeError, InputError
from headscope.page.html import default_title, page
from headscope.page.questions import in_the_page, question_of
from headscope.page.runs import Runs, answer, compared, groups_in, rerun
from headscope.page.trace import page_bytes
from headscope.page.trace_parts import header_bytes, is_large
from headscope.runs.predicting import classes_of, outcomes
from headscope.traces import Trace

if TYPE_CHECKING:
    from headscope.atlas.head_notes import HeadNotes
    from headscope.model import Model

HOST = "127.0.0.1"
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
        # The callback retrieves an error that nobody awaits.
        result.add_done_callback(lambda done: done.cancelled() or done.exception())
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


def first_page(session: Session, first: str) -> bytes:
    """The page with the first trace, as it is served."""
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


async def traced(session: Session, query: dict[str, Any]) -> AsyncIterator[bytes]:
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


async def studied(session: Session, query: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield lines of JSON with the progress and the layers' numbers, then one with the run's record."""

    def work(send: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        model, question = _model(session), question_of(query)
        name = str(query.get("base"))
        if question.kind == "groups":
            labels = [] if session.atlas is None else session.atlas.groups()
            trace = session.trace(name)
            record = groups_in(
                model, name, trace, question, labels, progress=lambda done, of: send({"runs": done, "all": of})
            )
            return session.runs.add(record)
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
        if not text or not text.strip():
            raise InputError("the text is empty", where="text", advice="type some words")
        trace = model.trace(text, pair, ablate=question.ablate, progress=progress)
        name, record = session.keep(trace), None
    content = _file_of(trace)
    predictions = [outcome.plain() for outcome in outcomes(model, trace)]
    return {"id": name, "bytes": len(content), "outcomes": predictions, "run": record}, content


def _file_of(trace: Trace) -> bytes:
    """A trace for the page: whole, or of a large one the header."""
    return header_bytes(trace) if is_large(trace) else page_bytes(trace, values=True)

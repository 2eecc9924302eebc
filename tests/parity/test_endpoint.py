"""Endpoints of embeddings on this machine: both forms, a padding fault, and everything that an answer can be."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import headscope as hs
from headscope.verify.hypotheses import Replay, Variant
from patience import PATIENCE

TEXTS = ["She took off her hat.", "No.", "The whale was white, and the sea was calm for a long time."]
Answer = Callable[[dict[str, Any]], Any]


@contextmanager
def served(answer: Answer, path: str = "/embed") -> Iterator[str]:
    """A server whose answers a function makes: an object, bytes, or (status, bytes)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = answer(question)
            status, body = given if isinstance(given, tuple) else (200, given)
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


def vectors(texts: list[str], **changes: Any) -> np.ndarray:
    replay = Replay(hs.open(), texts)
    return replay.vectors(Variant(**{**vars(replay.plain), **changes}))


def test_both_forms() -> None:
    asked = []

    def tei(question: dict[str, Any]) -> Any:
        asked.append(question)
        return vectors(question["inputs"]).tolist()

    with served(tei) as url:
        report = hs.parity("-", url, TEXTS)
    assert report.agrees
    assert [check.name for check in report.checks] == ["batch", "vector"]
    assert [len(question["inputs"]) for question in asked] == [3, 1, 1, 1]

    def openai(question: dict[str, Any]) -> Any:
        assert question["model"] == "mine"
        rows = vectors(question["input"]).tolist()
        return {"data": [{"index": at, "embedding": row} for at, row in enumerate(rows)][::-1]}

    with served(openai, "/v1/embeddings") as url:
        assert hs.parity("-", url, TEXTS, served="mine").agrees


def test_a_padding_fault_shows_between_one_text_and_a_batch() -> None:
    with served(lambda question: vectors(question["inputs"], padding="both").tolist()) as url:
        report = hs.parity("-", url, TEXTS)
    assert [check.agrees for check in report.checks] == [False, False]
    assert report.first is not None
    assert report.first.name == "batch"
    assert "ignores the attention mask and counts padding in the mean" in report.sentence()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"<html>", "the answer can't be read"),
        ({"error": 1}, "no vectors"),
        ([[1.0]], "3 texts were sent, and the answer has 1 vectors"),
        ([[1.0], [2.0], [3.0]], r"expected 3 vectors of 192 numbers, got float32 of shape \(3, 1\)"),
        ([[1.0], [2.0, 3.0], [3.0]], "not rows of numbers of one length"),
        ({"data": [{"index": "x", "embedding": 3}] * 3}, "no vectors"),
        ([["a"], ["b"], ["c"]], "not rows of numbers"),
        ([[None] * 192] * 3, "NaN or infinity"),
        ([[1e300] * 192] * 3, "NaN or infinity"),
        ((503, b"model is loading"), "answered 503: model is loading"),
    ],
)
def test_other_answers_are_refused(answer: Any, says: str) -> None:
    def give(question: dict[str, Any]) -> Any:
        return answer if not isinstance(answer, list) or len(question["inputs"]) == 3 else answer[:1]

    with served(give) as url, pytest.raises(hs.HeadscopeError, match=says):
        hs.parity("-", url, TEXTS)


ONE_SECOND: dict[str, Any] = {"timeout": 1}
"""It never answers, so any time will do."""


def test_an_endpoint_that_is_late_gone_or_of_another_form() -> None:
    free = threading.Event()

    def late(_question: dict[str, Any]) -> Any:
        free.wait(PATIENCE)
        return []

    with served(late) as url:
        with pytest.raises(hs.HeadscopeError, match="didn't answer within 1 seconds"):
            hs.parity("-", url, TEXTS, **ONE_SECOND)
        free.set()
    with pytest.raises(hs.HeadscopeError, match="can't be reached"):
        hs.parity("-", url, TEXTS)
    with pytest.raises(hs.HeadscopeError, match="ends neither in /embeddings"):
        hs.parity("-", "http://127.0.0.1/api", TEXTS)

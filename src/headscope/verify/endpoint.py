"""An HTTP endpoint of embeddings as a side that gives only vectors: OpenAI's form and text-embeddings-inference's.

Texts are sent one by one and in a batch: if the vectors differ, padding changes them, whatever else is right.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from headscope.checkpoint.json_text import JsonError, parse_object
from headscope.errors import InputError, UnsupportedError

MOST_BYTES, MOST_ITEMS = 1 << 26, 1 << 22
"""Of an answer."""
BATCH = 32
"""Texts in one request."""


class Endpoint:
    """An endpoint, by its whole address.

    Args:
        url: `…/embeddings` for OpenAI's form, `…/embed` for text-embeddings-inference's.
        served: the name of the model there; OpenAI's form needs it.
        timeout: seconds to wait for an answer.

    Raises:
        UnsupportedError: the address has another form.
    """

    def __init__(self, url: str, *, served: str, timeout: float) -> None:
        path = urlsplit(url).path.rstrip("/")
        self._form = "tei" if path.endswith("/embed") else "openai" if path.endswith("/embeddings") else ""
        if not self._form:
            raise UnsupportedError(
                "the address ends neither in /embeddings (OpenAI's form) nor in /embed (text-embeddings-inference's)",
                where=url,
                advice="pass the whole address, such as http://localhost:8080/v1/embeddings",
            )
        self._url, self._served, self._timeout = url, served, timeout

    def vectors(self, texts: Sequence[str], *, together: bool) -> np.ndarray:
        """(texts, d): the vectors of texts that are sent together, or one by one.

        Raises:
            InputError: the endpoint can't be reached, doesn't answer in time, or answers something else.
        """
        size = BATCH if together else 1
        parts = [self._asked(list(texts[start : start + size])) for start in range(0, len(texts), size)]
        try:
            with np.errstate(over="ignore"):  # to infinity, which is refused
                return np.array([row for part in parts for row in part], dtype=np.float32)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._error(f"the vectors are not rows of numbers of one length: {error}") from error

    def _asked(self, texts: list[str]) -> list[Any]:
        """The rows of one answer."""
        question = {"inputs": texts} if self._form == "tei" else {"input": texts, "model": self._served}
        request = urllib.request.Request(
            self._url, json.dumps(question).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                data = answer.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(200).decode("utf-8", "replace")
            raise self._error(f"the endpoint answered {error.code}: {said}") from error
        except TimeoutError as error:
            raise self._error(f"the endpoint didn't answer within {self._timeout:g} seconds") from error
        except (OSError, ValueError) as error:
            late = isinstance(getattr(error, "reason", None), TimeoutError)
            what = f"didn't answer within {self._timeout:g} seconds" if late else f"can't be reached: {error}"
            raise self._error(f"the endpoint {what}") from error
        if len(data) > MOST_BYTES:
            raise self._error(f"the answer has more than {MOST_BYTES:,} bytes")
        return self._rows(data, len(texts))

    def _rows(self, data: bytes, count: int) -> list[Any]:
        """The vectors of an answer, in the order of the texts."""
        try:
            whole = parse_object(
                data if self._form == "openai" else b'{"data": %s}' % data, unique=False, items=MOST_ITEMS
            )
        except JsonError as error:
            raise self._error(f"the answer can't be read: {error}") from error
        rows = whole.get("data")
        if self._form == "openai" and isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            order = [row.get("index") for row in rows]
            if sorted(at for at in order if isinstance(at, int)) == list(range(len(rows))):
                rows = [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]
            rows = [row.get("embedding") for row in rows]
        if not isinstance(rows, list) or len(rows) != count or not all(isinstance(row, list) for row in rows):
            found = f"{len(rows)} vectors" if isinstance(rows, list) else "no vectors"
            raise self._error(f"{count} texts were sent, and the answer has {found}")
        return rows

    def _error(self, found: str) -> InputError:
        advice = "start the server, check the address, or set timeout= and served= (--set timeout=N, --set served=NAME)"
        return InputError(found[:500], where=self._url, advice=advice)

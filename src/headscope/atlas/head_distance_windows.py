"""Jensen-Shannon distances between all pairs of heads, over a sample of a corpus's windows.

The sample is the windows whose names have the smallest sha256: as good as random, and independent of the order of
work, the size of parts and the number of workers.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from headscope.atlas.documents import CorpusPart, Document
from headscope.atlas.store import array_and_record, columns_of
from headscope.errors import InputError
from headscope.files import parquet_bytes


@dataclass(frozen=True)
class ChosenWindow:
    """A window that heads are compared on.

    Attributes:
        rank: position in the order of sha256, from 0.
        document, window: as in the parts.
        number: the document's, in the order of the corpus.
    """

    rank: int
    document: str
    window: int
    number: int


def choose(paths: Sequence[Path], heads: int, count: int) -> list[ChosenWindow]:
    """Return the windows with the smallest sha256 of `document`, a zero byte and the window's number."""

    def keys() -> Iterator[tuple[bytes, str, int, int]]:
        number, last = -1, None
        for path in paths:
            table = columns_of(path, ["document", "window"])
            first = np.arange(0, table.num_rows, heads)  # each window has a row for every head
            documents = table.column("document").cast(pyarrow.string()).take(first)
            windows = table.column("window").take(first)
            for document, window in zip(documents.to_pylist(), windows.to_pylist(), strict=True):
                number, last = number + (document != last), document
                yield hashlib.sha256(f"{document}\0{window}".encode()).digest(), document, window, number

    smallest = heapq.nsmallest(count, keys())
    return [ChosenWindow(rank, document, window, number) for rank, (_, document, window, number) in enumerate(smallest)]


def tasks(
    chosen: Iterable[ChosenWindow], parts: Iterable[CorpusPart], texts: Sequence[str]
) -> Iterator[tuple[ChosenWindow, Document]]:
    """Yield each chosen window with its document, in the order of the corpus, which is read up to the last of them.

    Args:
        chosen: the windows.
        parts: of the corpus, read again.
        texts: `CorpusPart.texts` of each part when it was surveyed.

    Raises:
        InputError: the corpus has changed in between.
    """
    wanted: dict[str, list[ChosenWindow]] = {}
    for window in chosen:
        wanted.setdefault(window.document, []).append(window)
    if not wanted:
        return
    for part in parts:
        if part.index < len(texts) and part.texts != texts[part.index]:
            break
        for document in part.documents:
            for window in wanted.pop(document.name, ()):
                yield window, document
        if not wanted:
            return
    raise InputError(
        f"the corpus changed during the survey: {next(iter(wanted))} is different or missing",
        where="head_distances",
        advice="name another folder with --out",
    )


def by_document(
    todo: Iterable[tuple[ChosenWindow, Document]],
) -> Iterator[tuple[tuple[ChosenWindow, ...], Document]]:
    """Yield each document with all of its windows among tasks."""
    for _, group in groupby(todo, key=lambda task: task[0].document):
        some = list(group)
        yield tuple(window for window, _ in some), some[0][1]


def record_of(window: ChosenWindow, stamp: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that identify the window of a matrix."""
    return {"run": stamp["run"], "document": window.document, "window": window.window}


def similarity_parquet(paths: Sequence[Path], heads: Sequence[tuple[int, int]]) -> bytes:
    """The mean of the matrices as Parquet, one row per ordered pair of heads."""
    total = np.zeros((len(heads), len(heads)))
    for path in paths:
        total += array_and_record(path.read_bytes())[0]
    mean = total / max(len(paths), 1)
    places = np.array(heads, dtype=np.int16)
    count = len(heads)
    first, second = places.repeat(count, axis=0), np.tile(places, (count, 1))
    table = pyarrow.table(
        {
            "layer_a": first[:, 0],
            "head_a": first[:, 1],
            "layer_b": second[:, 0],
            "head_b": second[:, 1],
            "distance": mean.reshape(-1),
            "windows": np.full(count * count, len(paths), dtype=np.int32),
        }
    )
    return parquet_bytes(table)

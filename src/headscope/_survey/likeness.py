"""Jensen-Shannon distances between all pairs of heads, over a sample of a corpus's windows.

The sample is the windows whose names have the smallest sha256: as good as random, and independent of the order of
work, the size of parts and the number of workers.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from headscope._survey.documents import Document, Part
from headscope._survey.seal import BLANK, sealed
from headscope._survey.table import columns_of, parquet_bytes
from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class ChosenWindow:
    """A window that heads are compared on.

    Attributes:
        rank: position in the order of sha256, from 0.
        document, window: as in the parts.
    """

    rank: int
    document: str
    window: int


def choose(paths: Sequence[Path], heads: int, count: int) -> list[ChosenWindow]:
    """Return the windows with the smallest sha256 of `document`, a zero byte and the window's number."""

    def keys() -> Iterator[tuple[bytes, str, int]]:
        for path in paths:
            table = columns_of(path, ["document", "window"])
            documents = table.column("document").cast(pyarrow.string())
            for row in range(0, table.num_rows, heads):
                document, window = documents[row].as_py(), table.column("window")[row].as_py()
                yield hashlib.sha256(f"{document}\0{window}".encode()).digest(), document, window

    smallest = heapq.nsmallest(count, keys())
    return [ChosenWindow(rank, document, window) for rank, (_, document, window) in enumerate(smallest)]


def tasks(
    chosen: Iterable[ChosenWindow], parts: Iterable[Part], texts: Sequence[str]
) -> Iterator[tuple[ChosenWindow, Document]]:
    """Yield each chosen window with its document, in the order of the corpus, which is read up to the last of them.

    Args:
        chosen: the windows.
        parts: of the corpus, read again.
        texts: `Part.texts` of each part when it was surveyed.

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


def matrix_bytes(
    matrix: Float[np.ndarray, "heads_total heads_total"], window: ChosenWindow, stamp: Mapping[str, Any]
) -> bytes:
    """A matrix as .npy, in fp32. Its window and its seal come after the array, where readers of .npy ignore them."""
    sink = io.BytesIO()
    np.save(sink, matrix.astype(np.float32), allow_pickle=False)
    record = {"run": stamp["run"], "document": window.document, "window": window.window, "seal": BLANK.decode()}
    sink.write(json.dumps(record).encode())
    return sealed(sink.getvalue())


def matrix_is_of(data: bytes, window: ChosenWindow, stamp: Mapping[str, Any]) -> bool:
    """Return True if a matrix belongs to this window and this survey."""
    source = io.BytesIO(data)
    np.load(source, allow_pickle=False)
    record = json.loads(source.read())
    return bool((record["run"], record["document"], record["window"]) == (stamp["run"], window.document, window.window))


def similarity_parquet(paths: Sequence[Path], heads: Sequence[tuple[int, int]]) -> bytes:
    """The mean of the matrices as Parquet, one row per ordered pair of heads."""
    total = np.zeros((len(heads), len(heads)))
    for path in paths:
        total += np.load(path, allow_pickle=False)
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

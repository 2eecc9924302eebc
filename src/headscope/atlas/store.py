"""The tables and arrays of a survey's folder: their columns, their bytes, and the seal in each."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from pyarrow import parquet

from headscope.files import BLANK, sealed, sealed_parquet

if TYPE_CHECKING:
    from jaxtyping import Float

KEYS = (
    ("document", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
    ("window", pyarrow.int32()),
    ("tokens", pyarrow.int32()),
    ("layer", pyarrow.int16()),
    ("head", pyarrow.int16()),
)
"""Columns before the statistics."""

RECORD = b"headscope.part"
"""Key of the record in a part's metadata."""


def part_name(index: int) -> str:
    """The name of a part in the survey's folder."""
    return f"parts/part-{index:05}.parquet"


def schema(statistics: Sequence[str]) -> pyarrow.Schema:
    """The columns of a part: one row per window, layer and head."""
    fields = [pyarrow.field(name, kind, nullable=False) for name, kind in KEYS]
    return pyarrow.schema([*fields, *(pyarrow.field(name, pyarrow.float32()) for name in statistics)])


def part_bytes(
    *,
    documents: Sequence[str],
    windows: Sequence[tuple[int, int, int]],
    heads: Sequence[tuple[int, int]],
    values: Float[np.ndarray, "windows heads_total statistics"],
    statistics: Sequence[str],
    label: str,
    record: dict[str, Any],
) -> bytes:
    """A part as Parquet: the same bytes for the same numbers.

    Args:
        documents: names.
        windows: (document, number, tokens) of each window.
        heads: (layer, head) of every head, layer 0's first.
        values: NaN where a value is missing; null in the file.
        label: whose part it is, and which.
        record: what it was made from, counted; the documents that were refused.
    """
    count, cells = len(windows), len(heads)
    keys = np.array(windows, dtype=np.int32).reshape(count, 3).repeat(cells, axis=0)
    places = np.tile(np.array(heads, dtype=np.int16).reshape(cells, 2), (count, 1))
    columns = [
        pyarrow.DictionaryArray.from_arrays(pyarrow.array(keys[:, 0]), pyarrow.array(list(documents), pyarrow.string()))
    ]
    columns += [pyarrow.array(column) for column in (keys[:, 1], keys[:, 2], places[:, 0], places[:, 1])]
    columns += [
        pyarrow.array(np.ascontiguousarray(values[..., at].reshape(-1)), pyarrow.float32(), from_pandas=True)
        for at in range(len(statistics))
    ]
    table = pyarrow.Table.from_arrays(columns, schema=schema(statistics))
    return sealed_parquet(table, label, {RECORD: json.dumps(record, ensure_ascii=True, sort_keys=True)})


def part_record(data: bytes) -> dict[str, Any]:
    """The record in the bytes of a part."""
    with parquet.ParquetFile(pyarrow.BufferReader(data)) as file:
        record: dict[str, Any] = json.loads(file.metadata.metadata[RECORD])
    return record


def table_of_bytes(data: bytes) -> pyarrow.Table:
    """The table in the bytes of a Parquet file."""
    with parquet.ParquetFile(pyarrow.BufferReader(data)) as file:
        return file.read()


def array_bytes(array: Float[np.ndarray, "..."], label: str, record: Mapping[str, Any]) -> bytes:
    """An array as .npy. Its record and its seal come after the array, where readers of .npy ignore them."""
    sink = io.BytesIO()
    np.save(sink, array, allow_pickle=False)
    sink.write(json.dumps({**record, "seal": label + BLANK.decode()}).encode())
    return sealed(sink.getvalue())


def array_and_record(data: bytes) -> tuple[Float[np.ndarray, "..."], dict[str, Any]]:
    """The array that `array_bytes` wrote, and its record; the caller has checked the seal."""
    source = io.BytesIO(data)
    array: Float[np.ndarray, "..."] = np.load(source, allow_pickle=False)
    record: dict[str, Any] = json.loads(source.read())
    return array, record

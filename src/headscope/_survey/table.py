"""A part as a Parquet file: its columns, its bytes, and the record in its metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from pyarrow import parquet

from headscope._survey.seal import BLANK, sealed

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
"""Key of the record in a file's metadata."""

SEAL = b"headscope.seal"
"""Key of the hash in a file's metadata."""


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
    record: dict[str, Any],
) -> bytes:
    """A part as Parquet: the same bytes for the same numbers.

    Args:
        documents: names.
        windows: (document, number, tokens) of each window.
        heads: (layer, head) of every head, layer 0's first.
        values: NaN where a value is missing; null in the file.
        record: the model, settings and texts that the part was made from.
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
    return sealed_parquet(pyarrow.Table.from_arrays(columns, schema=schema(statistics)), record)


def parquet_bytes(table: pyarrow.Table) -> bytes:
    """A table as Parquet, the same bytes for the same rows."""
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def sealed_parquet(table: pyarrow.Table, record: dict[str, Any] | None = None) -> bytes:
    """A table as Parquet with its hash inside, and before it the record of the part that it is or belongs to."""
    before = {} if record is None else {RECORD: spelled_record(record)}
    # The seal comes after the record, so it is the last mark in the file even if a name contains one.
    return sealed(parquet_bytes(table.replace_schema_metadata({**before, SEAL: BLANK})))


def part_record(data: bytes) -> dict[str, Any]:
    """The record in the bytes of a part whose seal has been checked."""
    metadata = parquet.read_metadata(pyarrow.BufferReader(data)).metadata
    record: dict[str, Any] = json.loads(metadata[RECORD])
    return record


def columns_of(path: Path, names: Sequence[str]) -> pyarrow.Table:
    """Some columns of a part."""
    with parquet.ParquetFile(path) as file:
        return file.read(columns=list(names))


def spelled_record(record: dict[str, Any]) -> str:
    """A record as it stands in a file's metadata."""
    return json.dumps(record, ensure_ascii=True, sort_keys=True)

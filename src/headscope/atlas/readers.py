"""Readers of documents from files: text, JSON lines, CSV, Parquet, and the Arrow files of Hugging Face datasets.

A bad file or row becomes a `Refused` document and never stops a survey. Rows are named `file#number`, counted from 1;
in JSON lines the number is the line's.

In CSV, an unclosed quote makes one cell of all rows that follow. Python's csv module accepts that, except in its strict
mode, which is used here: unbalanced quotes are refused with their line, not guessed at.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from headscope.atlas.documents import Document, Refused, checked, in_record, no_field, not_utf8
from headscope.checkpoint.json_text import JsonError, parse_object
from headscope.errors import first_line

if TYPE_CHECKING:
    import pyarrow

Read = Iterator[Document | Refused]

LONGEST_CHARACTER = 4
"""Most bytes of a character in UTF-8."""

PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "a zip archive",
}
"""First bytes of a compressed file -> its format."""

STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""Last bytes of a complete stream of Arrow data."""

CHUNK = 1 << 20
"""Bytes that are read at a time."""

TABLE_ROWS = 256
"""Rows of a column in memory at once."""


def read_text(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Yield the whole file as one document."""
    with path.open("rb") as file:
        yield read_stream(file, name, path.stat().st_size, max_document)


def read_stream(file: BinaryIO, name: str, weight: float, max_document: int) -> Document | Refused:
    """A stream as one document, read until it is known to be too long; room is made only for what there is."""
    most, size = LONGEST_CHARACTER * max_document, 0
    chunks = []
    while size <= most and (chunk := file.read(CHUNK)):
        chunks.append(chunk)
        size += len(chunk)
    if size > most:
        found = f"{weight:,}" if weight else f"more than {most:,}"
        return Refused(name, "too long", f"it has {found} bytes; the limit is {max_document:,} characters", weight)
    return decoded(name, b"".join(chunks), weight, max_document)


def decoded(name: str, data: bytes, weight: float, max_document: int) -> Document | Refused:
    """Decode UTF-8 into a document, without a byte order mark at the beginning."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        packed = next((kind for sign, kind in PACKED.items() if data.startswith(sign)), None)
        if packed is not None:
            return Refused(
                name, "packed", f"it is compressed ({packed}): decompress it, or pipe it in as one document", weight
            )
        return not_utf8(name, data, error, weight)
    if "\0" in text:
        detail = f"character {text.index(chr(0))} is NUL: it is not text, or text in UTF-16 or UTF-32"
        return Refused(name, "not text", detail, weight)
    return checked(name, text, weight, max_document)


def read_json_lines(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Yield a field of each line's JSON object. Blank lines are skipped."""
    longest = 2 * LONGEST_CHARACTER * max_document
    with path.open("rb") as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            place, weight = f"{name}#{number}", float(len(line))
            if len(line) > longest:
                while line and not line.endswith(b"\n"):
                    line = file.readline(longest)
                    weight += len(line)
                yield Refused(place, "too long", f"the line has {weight:,.0f} bytes; the limit is {longest:,}", weight)
            elif line.strip():
                yield _json_document(place, line, weight, field, max_document)


def _json_document(name: str, line: bytes, weight: float, field: str, max_document: int) -> Document | Refused:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return not_utf8(name, line, error, weight)
    if text.lstrip().startswith("["):
        return Refused(name, "no field", "expected a JSON object, got a list", weight)
    try:
        record = parse_object(text.encode(), unique=False)
    except JsonError as error:
        return Refused(name, "not JSON", str(error), weight)
    return in_record(name, record, weight, field, max_document)


def read_parquet(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Yield each row of a column of texts."""
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        columns = file.schema_arrow.names
    except arrow_errors() as error:
        yield Refused(name, "not Parquet", _without(path, name, error), path.stat().st_size)
        return
    with file:
        share = path.stat().st_size / max(file.metadata.num_rows, 1)
        batches = partial(file.iter_batches, batch_size=TABLE_ROWS, columns=[field])
        yield from _columns(name, columns, batches, share, field, max_document)


def read_arrow(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Yield each row of a column of texts, in the stream format that `save_to_disk` writes."""
    import pyarrow

    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - len(STREAM_END), 0))
        ended = file.read() == STREAM_END
    rows = 0
    try:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
            rows = sum(batch.num_rows for batch in stream)
        share = size / max(rows, 1)
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
            yield from _columns(name, stream.schema.names, lambda: iter(stream), share, field, max_document)
    except arrow_errors() as error:
        yield Refused(name, "not Arrow", _without(path, name, error), size)
    else:
        if not ended:  # pyarrow takes the end of the file for the end of the rows
            yield Refused(f"{name}#{rows + 1}", "damaged", "the file is truncated: its end marker is missing")


def arrow_errors() -> tuple[type[Exception], ...]:
    """The exceptions that pyarrow raises on a damaged file."""
    import pyarrow

    return (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError)


def _without(path: Path, name: str, error: Exception) -> str:
    """An error's first line, with the file's path shortened to its name in the corpus."""
    return first_line(error).replace(str(path), name)


def _columns(
    name: str,
    columns: list[str],
    batches: Callable[[], Iterator[pyarrow.RecordBatch]],
    share: float,
    field: str,
    max_document: int,
) -> Read:
    """Yield the documents of one column, row by row."""
    if field not in columns:
        yield Refused(name, "no field", no_field(field, columns))
        return
    number = 0
    try:
        for batch in batches():
            column = batch.column(batch.schema.names.index(field))
            column.validate(full=True)  # otherwise pyarrow reads out of bounds on a damaged file
            for cell in column:
                text = cell.as_py()
                number += 1
                yield checked(f"{name}#{number}", text, share, max_document)
    except arrow_errors() as error:
        yield Refused(f"{name}#{number + 1}", "damaged", f"{first_line(error)}; the rest of the file is left out")


def read_csv(path: Path, name: str, *, field: str, max_document: int) -> Iterator[Document | Refused]:
    """Yield each row's cell in the column `field`. In a .tsv file tabs separate the columns.

    A row that is not CSV is the last: nobody knows where the next one begins.
    """
    size, longest = path.stat().st_size, LONGEST_CHARACTER * max_document
    # Bytes that aren't UTF-8 become surrogates, which `checked` refuses row by row.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        tabs = path.suffix.lower() == ".tsv"
        rows = csv.reader(_lines(file, 2 * longest), delimiter="\t" if tabs else ",", strict=True)
        column = number = 0
        header: list[str] | None = None
        while True:
            place, first = name if header is None else f"{name}#{number + 1}", rows.line_num + 1
            try:
                row = _next_row(rows, longest)
            except csv.Error as error:
                detail = f"the row that begins on line {first}: {error}; the rest of the file is left out"
                yield Refused(place, "not CSV", detail, 0.0)
                return
            if row is None:
                return
            if header is None:
                header = row
                if field not in header:
                    yield Refused(name, "no field", no_field(field, header), size)
                    return
                column = header.index(field)
            elif row:
                number += 1
                weight = float(sum(len(cell.encode("utf-8", "surrogateescape")) + 1 for cell in row))
                if column < len(row):
                    yield checked(place, row[column], weight, max_document)
                else:
                    yield Refused(place, "no field", f"the row has {len(row)} cells", weight)


def _lines(file: TextIO, longest: int) -> Iterator[str]:
    """The lines of a file.

    Raises:
        Error: one is longer than the limit.
    """
    while line := file.readline(longest + 1):
        if len(line) > longest:
            raise csv.Error(f"the line has more than {longest:,} characters")
        yield line


def _next_row(rows: Iterator[list[str]], longest: int) -> list[str] | None:
    """The next row. The csv module's limit on cells is global, so it is restored at once."""
    before = csv.field_size_limit(longest)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(before)

"""Files into documents, one after the other: text, JSON lines, CSV, Parquet, and the Arrow files of Hugging Face.

What can't be read is handed on as a `Refused` document: one bad file or row never stops a survey. Names of rows are
`file#number`, counted from 1; in JSON lines the number is the line's.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.survey.documents import Document, Refused, checked

if TYPE_CHECKING:
    import pyarrow

Read = Iterator[Document | Refused]

LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""

PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "a zip archive",
}
"""What a file of packed data begins with."""

TABLE_ROWS = 256
"""Rows of a column that are in memory together."""


def read_text(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """The whole file is one document."""
    weight = path.stat().st_size
    if weight > LONGEST_CHARACTER * max_document:
        yield Refused(name, "too long", f"it has {weight:,} bytes; {max_document:,} characters are the most", weight)
        return
    yield decoded(name, path.read_bytes(), weight, max_document)


def decoded(name: str, data: bytes, weight: float, max_document: int) -> Document | Refused:
    """UTF-8 into a document. A byte order mark at its beginning is none of its characters."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        packed = next((kind for sign, kind in PACKED.items() if data.startswith(sign)), None)
        if packed is not None:
            return Refused(name, "packed", f"it is packed ({packed}): unpack it, or pipe it in as one document", weight)
        return Refused(name, "not UTF-8", f"byte {error.start} is {data[error.start]:#04x}: {error.reason}", weight)
    return checked(name, text, weight, max_document)


def read_json_lines(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Each line is an object, one field of which is the document. Blank lines are passed over."""
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
                yield Refused(place, "too long", f"the line has {weight:,.0f} bytes; {longest:,} are the most", weight)
            elif line.strip():
                yield _json_document(place, line, weight, field, max_document)


def _json_document(name: str, line: bytes, weight: float, field: str, max_document: int) -> Document | Refused:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Refused(name, "not UTF-8", f"byte {error.start} is {line[error.start]:#04x}: {error.reason}", weight)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Refused(name, "not JSON", str(error), weight)
    if not isinstance(found, dict):
        return Refused(name, "no field", f"the line holds {type(found).__name__}, not an object", weight)
    if field not in found:
        return Refused(name, "no field", _no_field(field, found), weight)
    return checked(name, found[field], weight, max_document)


def read_csv(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Each row's cell in the column of that name. Tabs part the columns of a file that ends in .tsv."""
    weight = 0

    def lines(file: Iterable[str]) -> Iterator[str]:
        nonlocal weight
        for line in file:
            weight += len(line)
            yield line

    # Bytes that are no UTF-8 become surrogates, which `checked` refuses row by row.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.reader(lines(file), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        number = 0
        column = -1
        while True:
            try:
                row = _next_row(rows, LONGEST_CHARACTER * max_document)
            except (csv.Error, ValueError) as error:
                rest = path.stat().st_size - weight
                yield Refused(f"{name}#{number}", "not CSV", f"{error}; what follows is left out", max(rest, 0))
                return
            if row is None:
                return
            taken, weight = float(weight), 0
            if column < 0:
                if field not in row:
                    yield Refused(name, "no field", _no_field(field, row), path.stat().st_size)
                    return
                column = row.index(field)
            elif row:
                place = f"{name}#{number}"
                if column < len(row):
                    yield checked(place, row[column], taken, max_document)
                else:
                    yield Refused(place, "no field", f"the row has {len(row)} cells", taken)
            number += bool(row)


def _next_row(rows: Iterator[list[str]], longest: int) -> list[str] | None:
    """The next row. The csv module's limit is one for the whole process: it is put back at once."""
    before = csv.field_size_limit(longest)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(before)


def read_parquet(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Each row of a column of texts."""
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        yield Refused(name, "not Parquet", str(error), path.stat().st_size)
        return
    with file:
        columns = file.schema_arrow.names
        share = path.stat().st_size / max(file.metadata.num_rows, 1)

        def batches() -> Iterator[pyarrow.RecordBatch]:
            return file.iter_batches(batch_size=TABLE_ROWS, columns=[field])

        yield from _columns(name, columns, batches, share, field, max_document)


def read_arrow(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Each row of a column of texts, in the stream format that `save_to_disk` writes."""
    import pyarrow

    size = path.stat().st_size
    try:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
            rows = sum(batch.num_rows for batch in stream)
        share = size / max(rows, 1)
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
            yield from _columns(name, stream.schema.names, lambda: iter(stream), share, field, max_document)
    except (pyarrow.ArrowException, OSError) as error:
        yield Refused(name, "not Arrow", str(error), size)


def _columns(
    name: str,
    columns: list[str],
    batches: Callable[[], Iterator[pyarrow.RecordBatch]],
    share: float,
    field: str,
    max_document: int,
) -> Read:
    """The documents of one column, row by row."""
    import pyarrow

    if field not in columns:
        yield Refused(name, "no field", _no_field(field, columns))
        return
    number = 0
    try:
        for batch in batches():
            column = batch.column(batch.schema.names.index(field))
            for row in column:
                number += 1
                yield _cell(f"{name}#{number}", row, share, max_document)
    except (pyarrow.ArrowException, OSError) as error:
        yield Refused(f"{name}#{number + 1}", "damaged", f"{error}; what follows is left out")


def _cell(name: str, row: Any, share: float, max_document: int) -> Document | Refused:
    try:
        return checked(name, row.as_py(), share, max_document)
    except UnicodeDecodeError as error:
        return Refused(name, "not UTF-8", f"byte {error.start}: {error.reason}", share)


def _no_field(field: str, there: Iterable[str]) -> str:
    names = list(there)
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"there is no field {field!r}; there are {shown or 'none'}; --field names another"

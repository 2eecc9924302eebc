"""Files into documents, one after the other: text, JSON lines, Parquet, and the Arrow files of Hugging Face.

What can't be read is handed on as a `Refused` document: one bad file or row never stops a survey. Names of rows are
`file#number`, counted from 1; in JSON lines the number is the line's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope._survey.documents import Document, Refused, checked, no_field
from headscope.checkpoint.json_text import JsonError, parse_object
from headscope.errors import first_line

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

STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""What a stream of Arrow data ends with."""

TABLE_ROWS = 256
"""Rows of a column that are in memory together."""


def read_text(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """The whole file is one document."""
    weight = path.stat().st_size
    most = LONGEST_CHARACTER * max_document
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        yield Refused(name, "too long", f"it has {weight:,} bytes; {max_document:,} characters are the most", weight)
        return
    yield decoded(name, data, weight, max_document)


def decoded(name: str, data: bytes, weight: float, max_document: int) -> Document | Refused:
    """UTF-8 into a document. A byte order mark at its beginning is none of its characters."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        packed = next((kind for sign, kind in PACKED.items() if data.startswith(sign)), None)
        if packed is not None:
            return Refused(name, "packed", f"it is packed ({packed}): unpack it, or pipe it in as one document", weight)
        return Refused(name, "not UTF-8", f"byte {error.start} is {data[error.start]:#04x}: {error.reason}", weight)
    if "\0" in text:
        detail = f"character {text.index(chr(0))} is NUL: it is not text, or text in UTF-16 or UTF-32"
        return Refused(name, "not text", detail, weight)
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
    if text.lstrip().startswith("["):
        return Refused(name, "no field", "the line holds a list, not an object", weight)
    try:
        found = parse_object(text.encode(), unique=False)
    except JsonError as error:
        return Refused(name, "not JSON", str(error), weight)
    if field not in found:
        return Refused(name, "no field", no_field(field, found), weight)
    return checked(name, found[field], weight, max_document)


def read_parquet(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Each row of a column of texts."""
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        columns = file.schema_arrow.names
    except arrow_errors() as error:
        yield Refused(name, "not Parquet", _without(path, name, error), path.stat().st_size)
        return
    with file:
        share = path.stat().st_size / max(file.metadata.num_rows, 1)

        def batches() -> Iterator[pyarrow.RecordBatch]:
            return file.iter_batches(batch_size=TABLE_ROWS, columns=[field])

        yield from _columns(name, columns, batches, share, field, max_document)


def read_arrow(path: Path, name: str, *, field: str, max_document: int) -> Read:
    """Each row of a column of texts, in the stream format that `save_to_disk` writes."""
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
            yield Refused(f"{name}#{rows + 1}", "damaged", "the file ends without the mark that ends it: it is cut off")


def arrow_errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises over a damaged file."""
    import pyarrow

    return (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError)


def _without(path: Path, name: str, error: Exception) -> str:
    """An error's first line, without the folders of this machine."""
    return first_line(error).replace(str(path), name)


def _columns(
    name: str,
    columns: list[str],
    batches: Callable[[], Iterator[pyarrow.RecordBatch]],
    share: float,
    field: str,
    max_document: int,
) -> Read:
    """The documents of one column, row by row."""
    if field not in columns:
        yield Refused(name, "no field", no_field(field, columns))
        return
    number = 0
    try:
        for batch in batches():
            for cell in _cells(batch.column(batch.schema.names.index(field))):
                number += 1
                yield _cell(f"{name}#{number}", cell, share, max_document)
    except arrow_errors() as error:
        yield Refused(f"{name}#{number + 1}", "damaged", f"{first_line(error)}; what follows is left out")


def _cells(column: pyarrow.Array) -> Iterator[Any]:
    """The values of a column, each made when it is asked for; texts as bytes: nobody has checked that they are UTF-8.

    Raises:
        ArrowException: the column points out of its buffers.
    """
    import pyarrow

    kinds = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}
    values = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    texts = values in kinds
    if texts and values != column.type:
        column = pyarrow.DictionaryArray.from_arrays(column.indices, column.dictionary.view(kinds[values]), safe=False)
    elif texts:
        column = column.view(kinds[values])
    column.validate(full=True)  # or a damaged file makes pyarrow read beyond its memory
    for cell in column:
        value = cell.as_py()
        yield _Text(value) if texts and value is not None else value


class _Text(bytes):
    """The bytes of a text, apart from those of a column of bytes."""


def _cell(name: str, value: Any, share: float, max_document: int) -> Document | Refused:
    if isinstance(value, _Text):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            detail = f"byte {error.start} is {value[error.start]:#04x}: {error.reason}"
            return Refused(name, "not UTF-8", detail, share)
    return checked(name, value, share, max_document)

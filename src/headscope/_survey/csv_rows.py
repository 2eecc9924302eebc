"""CSV into documents, row by row, without guessing: where quotes don't match up, the line is named.

A quote that is opened and not closed takes in the rows that follow, as one cell. Python's csv module lets that pass; in
its strict mode it does not, and nor do we.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from headscope._survey.documents import Document, Refused, checked, no_field
from headscope._survey.readers import LONGEST_CHARACTER


class LongLineError(Exception):
    """A line of more characters than are read together."""


class Lines:
    """The lines of a file, one after the other, of bounded length.

    Attributes:
        number: of the line that was read last, from 1.
        size: characters read so far.
        quotes: quotes read so far.
    """

    def __init__(self, file: TextIO, longest: int) -> None:
        self._file = file
        self._longest = longest
        self.number = 0
        self.size = 0
        self.quotes = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = chunk = self._file.readline(self._longest + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self._count(line)
        if len(line) <= self._longest:
            return line
        while chunk and not chunk.endswith(("\n", "\r")):
            chunk = self._file.readline(self._longest)
            self._count(chunk)
        raise LongLineError(f"line {self.number} has more than {self._longest:,} characters")

    def _count(self, text: str) -> None:
        self.size += len(text)
        self.quotes += text.count('"')


def read_csv(path: Path, name: str, *, field: str, max_document: int) -> Iterator[Document | Refused]:
    """Each row's cell in the column of that name. Tabs separate the columns of a file that ends in .tsv."""
    size = path.stat().st_size
    # Bytes that aren't UTF-8 become surrogates, which `checked` refuses row by row.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = Lines(file, 2 * LONGEST_CHARACTER * max_document)
        rows = csv.reader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        number = 0
        column = -1
        while True:
            place = f"{name}#{number}" if column >= 0 else name
            first, before, quotes = lines.number + 1, lines.size, lines.quotes
            try:
                row = _next_row(rows, LONGEST_CHARACTER * max_document)
            except (csv.Error, LongLineError) as error:
                reason, detail = _problem(error, first, lines.number)
                # Quotes that are even within one line leave no doubt where the next row begins.
                if column >= 0 and lines.number == first and (lines.quotes - quotes) % 2 == 0:
                    yield Refused(place, reason, detail, lines.size - before)
                    number += 1
                    continue
                yield Refused(place, reason, f"{detail}; what follows is left out", max(size - before, 0))
                return
            if row is None:
                return
            weight = float(lines.size - before)
            if column < 0:
                if field not in row:
                    yield Refused(name, "no field", no_field(field, row), size)
                    return
                column = row.index(field)
            elif row:
                if column < len(row):
                    yield checked(place, row[column], weight, max_document)
                else:
                    yield Refused(place, "no field", f"the row has {len(row)} cells", weight)
            number += bool(row)


def _problem(error: Exception, first: int, last: int) -> tuple[str, str]:
    """Why a row that begins on one line and was given up on another can't be read: for counting, and in a sentence."""
    message = str(error)
    if "field larger" in message:
        if first == last:
            return "too long", f"line {first} has a cell that is too long: {message}"
        message = f"a quote may not be closed: {message}"
    elif message == "unexpected end of data":
        message = "its quote is never closed"
    elif isinstance(error, LongLineError):
        return "too long", message
    begun = f"the row that begins on line {first}"
    return "not CSV", f"{begun}: {message}" if first == last else f"{begun}, up to line {last}: {message}"


def _next_row(rows: Iterator[list[str]], longest: int) -> list[str] | None:
    """The next row. The csv module's limit is one for the whole process: it is restored at once."""
    before = csv.field_size_limit(longest)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(before)

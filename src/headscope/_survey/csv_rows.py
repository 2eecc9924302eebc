"""Reader of documents from CSV, row by row. Unbalanced quotes are refused with their line, not guessed at.

An unclosed quote makes one cell of all rows that follow. Python's csv module accepts that, except in its strict mode,
which is used here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from headscope._survey.documents import Document, Refused, checked, no_field
from headscope._survey.readers import LONGEST_CHARACTER


class LongLineError(Exception):
    """A line is longer than the limit."""


class Lines:
    """The lines of a file, of bounded length.

    Attributes:
        number: of the last line read, from 1.
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
    """Yield each row's cell in the column `field`. In a .tsv file tabs separate the columns."""
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
                # With balanced quotes on one line it is clear where the next row begins.
                if column >= 0 and lines.number == first and (lines.quotes - quotes) % 2 == 0:
                    yield Refused(place, reason, detail, lines.size - before)
                    number += 1
                    continue
                yield Refused(place, reason, f"{detail}; the rest of the file is left out", max(size - before, 0))
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
    """Reason and detail of a row that begins on line `first` and could not be read up to line `last`."""
    message = str(error)
    if "field larger" in message:
        if first == last:
            return "too long", f"line {first} has a cell that is too long: {message}"
        message = f"a quote may not be closed: {message}"
    elif message == "unexpected end of data":
        message = "a quote is never closed"
    elif isinstance(error, LongLineError):
        return "too long", message
    begun = f"the row that begins on line {first}"
    return "not CSV", f"{begun}: {message}" if first == last else f"{begun}, up to line {last}: {message}"


def _next_row(rows: Iterator[list[str]], longest: int) -> list[str] | None:
    """The next row. The csv module's limit on cells is global, so it is restored at once."""
    before = csv.field_size_limit(longest)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(before)

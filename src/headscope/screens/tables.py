"""Tables: the same columns and rows for the terminal, for JSON, for CSV and for Markdown.

Records and CSV have the values unchanged; the terminal and Markdown have them as each column formats them. Layout for a
window's width is in `screens/terminal.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headscope.results.row_tables import plain
from headscope.screens.labels import printable

PLAIN = str.maketrans({character: f"\\{character}" for character in "\\|*_<`[]~"})
"""Characters that Markdown gives a meaning -> escaped."""
FORMULA = "=+-@\t\r\n＝＋－＠"
"""First characters of a cell that a spreadsheet may run as a formula. web/src/drawing/files.ts has the same rule."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: the JSON key and the CSV header.
        title: the heading on screens; the key if empty.
        align: left or right.
        form: format() specification of floats and integers on screens.
        kind: text, code (a name from a file or a vocabulary), or prose (sentences, which may be wrapped).
        group: True if its values may become headings between the rows in a narrow window.
    """

    key: str
    title: str = ""
    align: Literal["left", "right"] = "left"
    form: str = ""
    kind: Literal["text", "code", "prose"] = "text"
    group: bool = False

    @property
    def heading(self) -> str:
        """The title, or the key if it is empty."""
        return self.title or self.key

    def show(self, value: object) -> str:
        """A value as text: (768, 768); 23,440,896; 0.612."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, tuple):
            return shape_text(value)
        if isinstance(value, int):
            return format(value, self.form or ",")
        if isinstance(value, float):
            return format(value, self.form or ".4g")
        return str(value)


PLACE = (Column("layer", align="right"), Column("head", align="right"))
"""The columns of a row of one head."""


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        columns: one for each value of a row.
        rows: text, integers, floats, shapes as tuples, None for an empty cell.
        title: a line above.
        notes: lines below.
        summed: the key of a column whose sum is shown beside each group's heading.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    summed: str | None = field(default=None)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} values under {len(self.columns)} columns: {row!r}")

    def records(self) -> list[dict[str, Any]]:
        """One mapping per row, for JSON."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, map(plain, row), strict=True)) for row in self.rows]

    def csv(self) -> str:
        """RFC 4180 with a header line and \\n at line ends; a shape is 768x768, None an empty field.

        Text is escaped for screens (see `printable`) and spreadsheets (see `guarded`); JSON has it unchanged.
        """
        import csv
        import io

        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        writer.writerows([printable(field_text(value)) for value in row] for row in self.rows)
        return out.getvalue()

    def markdown(self) -> str:
        """A table in GitHub's Markdown, with values formatted as on screens."""
        lines = [
            "| " + " | ".join(column.heading.translate(PLAIN) for column in self.columns) + " |",
            "|" + "|".join("---:" if column.align == "right" else "---" for column in self.columns) + "|",
        ]
        for row in self.rows:
            cells = [markdown_cell(column, value) for column, value in zip(self.columns, row, strict=True)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def shown(value: Any) -> Any:
    """A value that a column can show: a list is joined, NaN is an empty cell."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return None if value != value else value


def shape_text(shape: Iterable[object]) -> str:
    """A shape as NumPy and torch write it: (768, 768), (768,), ()."""
    sizes = [str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def answer(name: str, source: object = None, **given: Any) -> Callable[[], Mapping[str, Any]]:
    """The record of an answer by the name of its schema, made when it is asked for: see results/answers.py."""

    def record() -> Mapping[str, Any]:
        from headscope.results.answers import ANSWERS, filled

        return filled(ANSWERS[name], source, **given)

    return record


def json_text(record: Mapping[str, Any]) -> str:
    """A record as JSON in ASCII, so that any token's text passes unchanged through any terminal and pipe.

    For readability, a list of numbers takes one line, and so does each mapping in a list.
    """
    # DEL is the one control character that JSON doesn't escape.
    return _json(plain(record), "").replace("\x7f", "\\u007f") + "\n"


def _json(value: Any, indent: str) -> str:
    import json

    deeper = indent + "  "
    if isinstance(value, dict) and value and (not indent or _deep(value)):
        inner = [f"{deeper}{json.dumps(key)}: {_json(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "[\n" + ",\n".join(deeper + _json(item, deeper) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _deep(value: dict[str, Any]) -> bool:
    """Return True if a mapping is too deep for one line: it has a mapping, or a list of mappings or lists."""
    return any(
        (isinstance(item, list) and any(isinstance(part, (dict, list)) for part in item)) or isinstance(item, dict)
        for item in value.values()
    )


def guarded(text: str) -> str:
    """Text for a CSV cell, with an apostrophe before it if a spreadsheet might take it for a formula."""
    return f"'{text}" if text.startswith(tuple(FORMULA)) else text


def field_text(value: object) -> str:
    """A value as a CSV field."""
    if isinstance(value, str):
        return guarded(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "x".join(str(size) for size in value)
    return repr(value) if isinstance(value, float) else str(value)


def markdown_cell(column: Column, value: object) -> str:
    """A value as a cell of a Markdown table, escaped."""
    text = printable(column.show(value).replace("\n", " ") if column.kind == "prose" else column.show(value))
    if not text or column.kind != "code":
        return text.translate(PLAIN)
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")

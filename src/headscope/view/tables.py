"""Tables, once: the same columns and rows for the terminal, for JSON, for CSV and for Markdown.

What machines read (records, CSV) holds the values as they are; what people read (the terminal, Markdown) holds them
as each column says. Nothing here knows how wide a window is: `view/terminal.py` lays tables out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headscope.view.labels import printable

PLAIN = str.maketrans({character: f"\\{character}" for character in "\\|*_<`[]~"})
"""What Markdown would read as its own signs."""
FORMULA = "=+-@\t\r\n＝＋－＠"
"""How a cell begins that a spreadsheet may run. web/src/files.ts has the same rule."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: the name for machines: a JSON key, a CSV header.
        title: the name for people; the key where it is empty.
        align: left or right.
        form: how a float or an integer is written for people, in format()'s language.
        kind: text, code (a name from a file or a vocabulary), or prose (sentences, which may be wrapped).
        group: whether its values may become headings between the rows where a window is narrow.
    """

    key: str
    title: str = ""
    align: Literal["left", "right"] = "left"
    form: str = ""
    kind: Literal["text", "code", "prose"] = "text"
    group: bool = False

    @property
    def heading(self) -> str:
        """The title, or the key where there is none."""
        return self.title or self.key

    def show(self, value: object) -> str:
        """A value as people read it: (768, 768); 23,440,896; 0.612."""
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


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        columns: what each value of a row is.
        rows: values as they are: text, integers, floats, shapes as tuples, None where there is nothing.
        title: a line above.
        notes: lines below.
        summed: the key of a column whose sum stands beside each group's heading.
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
        """RFC 4180 with a header line and \\n at line ends; a shape is 768x768, nothing is an empty field.

        Text is made fit for a screen (see `printable`) and a spreadsheet (see `guarded`); JSON has it as it is.
        """
        import csv
        import io

        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        writer.writerows([printable(field_text(value)) for value in row] for row in self.rows)
        return out.getvalue()

    def markdown(self) -> str:
        """A table in GitHub's Markdown, values as people read them."""
        lines = [
            "| " + " | ".join(column.heading.translate(PLAIN) for column in self.columns) + " |",
            "|" + "|".join("---:" if column.align == "right" else "---" for column in self.columns) + "|",
        ]
        for row in self.rows:
            cells = [markdown_cell(column, value) for column, value in zip(self.columns, row, strict=True)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def shape_text(shape: Iterable[object]) -> str:
    """A shape as NumPy and torch write it: (768, 768), (768,), ()."""
    sizes = [str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def plain(value: Any) -> Any:
    """A value as JSON can hold it: shapes become lists; NaN and infinity, which JSON has no word for, null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    raise TypeError(f"JSON has no form for a {type(value).__name__}: {value!r}")


def json_text(record: Mapping[str, Any]) -> str:
    """A record as JSON in ASCII: any token's text passes through any terminal and pipe unharmed.

    Lists of numbers stay on one line, one mapping of a list takes one line, so that a person can read it too.
    """
    return _json(plain(record), "").replace("\x7f", "\\u007f") + "\n"  # the one control character that JSON leaves


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
    """Whether a mapping holds a list of mappings or lists, and so doesn't fit on one line."""
    return any(
        (isinstance(item, list) and any(isinstance(part, (dict, list)) for part in item)) or isinstance(item, dict)
        for item in value.values()
    )


def guarded(text: str) -> str:
    """Text as a cell of CSV that no spreadsheet takes for a formula: an apostrophe before what begins like one."""
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
    """A value as a cell of a Markdown table, its own signs disarmed."""
    text = printable(column.show(value).replace("\n", " ") if column.kind == "prose" else column.show(value))
    if not text or column.kind != "code":
        return text.translate(PLAIN)
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")

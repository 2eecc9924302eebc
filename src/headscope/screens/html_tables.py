"""HTML: a command's screen as a file (in colour, offline, printable) or in a notebook's cell, and records as tables."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy import Head
from headscope.files import write_atomically
from headscope.model import Model
from headscope.results.explained import LEAST_SHARE, Followed
from headscope.results.head_values import HEADS, HeadValues
from headscope.results.row_tables import Rows
from headscope.results.table import Placed
from headscope.results.verify_report import Report
from headscope.screens.anatomy_sheets import shapes_sheet
from headscope.screens.attention_sheets import attend_sheet
from headscope.screens.labels import printable, printable_lines, width
from headscope.screens.report_sheets import head_sheet, verify_sheet
from headscope.screens.tables import Column, Table, shown
from headscope.screens.terminal import Drawing, Paper, lines_of
from headscope.traces import HeadTrace, LayerTrace

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
"""Columns of the screen."""

PRE = "font: 14px/1.45 ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; overflow-x: auto"
FOREIGN = re.compile("[\u0300-\u1fff\u2e80-\ud7ff\uf900-\ufdff\ufe70-\ufeff\uff00-\uffef\U00010000-\U0010ffff]+")
"""Letters for which a browser takes another font, of another width."""
HELD = "display: inline-block; width: {0}ch; line-height: 1"
STYLE = f"""
body {{ margin: 2rem; background: #fff; color: #1b1f24; }}
pre {{ {PRE}; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #15171e; color: #e6e6e6; }} }}
"""


def write_screen(drawings: Iterable[Drawing], path: Path) -> str:
    """Write a screen as one HTML file, whole or not at all; return a line that says what it is.

    It has no scripts, and nothing is loaded from elsewhere.
    """
    console = _printed(drawings)
    code = _held(console.export_html(inline_styles=False, code_format="{code}", clear=False), 'class="w{0}"')
    rules = console.export_html(inline_styles=False, code_format="{stylesheet}")
    style = STYLE + rules + "".join(f"\n.w{size} {{ {HELD.format(size)} }}" for size in range(1, WIDTH + 1))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    content = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>headscope</title>\n<style>{style}</style>\n<pre>{code}</pre>\n</html>\n"
    ).encode()
    write_atomically(path, content)
    return f"the screen as a page, {len(content) / 1e3:,.0f} KB, open it in a browser"


def _printed(drawings: Iterable[Drawing]) -> Console:
    """A console that has printed a screen."""
    from rich.console import Console
    from rich.text import Text

    console = Console(
        record=True,
        file=io.StringIO(),
        width=10_000,
        force_terminal=True,
        force_jupyter=False,  # in a notebook's kernel it would display what it prints
        color_system="truecolor",
        highlight=False,
    )
    for line in lines_of(drawings, Paper(width=WIDTH, unicode=True, colour=True)):
        console.print(Text.assemble(*line, no_wrap=True, end=""), soft_wrap=True)
    return console


def _held(code: str, attribute: str) -> str:
    """The code of a screen in which letters that the font lacks have the columns that they have on a terminal."""
    return FOREIGN.sub(lambda found: f"<span {attribute.format(width(found[0]))}>{found[0]}</span>", code)


MOST_CELLS = 1 << 22
"""Most weights of a head that a notebook's cell draws without being told to: 2,048 x 2,048."""


def html_screen(shown: Model | Head | LayerTrace | HeadTrace | Report) -> str | None:
    """The screen of `shapes`, `head`, `attend` or `verify` in a notebook's cell; None for a text that is too long."""
    if isinstance(shown, LayerTrace | HeadTrace):
        if len(shown.trace.queries) * len(shown.trace.keys) > MOST_CELLS:
            return None
        sheet = attend_sheet(shown.trace, layer=shown.layer, head=shown.head if isinstance(shown, HeadTrace) else None)
    elif isinstance(shown, Head):
        sheet = head_sheet(Model(shown.checkpoint, shown.anatomy), shown.layer, shown.index)
    else:
        sheet = verify_sheet(shown) if isinstance(shown, Report) else shapes_sheet(shown)
    code = _held(_printed(sheet.drawings).export_html(inline_styles=True, code_format="{code}"), f'style="{HELD}"')
    return f'<pre style="{PRE}; white-space: pre">{code}</pre>'


MOST_ROWS = 200
"""Rows that a cell shows; `to_pandas` has them all."""


def html_table(record: Rows) -> str | None:
    """A record as a notebook shows it; None for numbers with a third axis, which are shown as text."""
    if isinstance(record, HeadValues):
        return "".join(_lines(_grid(record))) if record.dims == HEADS else None
    if isinstance(record, Placed) and isinstance(record, Mapping):
        return "".join(_lines(_spreads(record)))
    return "".join(_lines(_followed(record) if isinstance(record, Followed) else _listed(record)))


def _followed(record: Followed) -> Table:
    """Layers down, tokens across: what each brings, from LEAST_SHARE on, by the head that brings most; what is kept."""
    best, totals = record.shares.argmax(1), record.array
    rows = []
    for row, layer in enumerate(record.layers):
        shares = zip(totals[row], best[row], strict=True)
        cells = [f"{share:.2f} by {layer}.{head}" if share >= LEAST_SHARE else "" for share, head in shares]
        cells[record.token] = f"{record.kept[row]:.2f} kept"
        rows.append((layer, *cells))
    tokens = (Column(f"{at}", printable(token), align="right") for at, token in enumerate(record.tokens))
    return Table((Column("layer", align="right"), *tokens), tuple(rows), title=record.sentence)


def _listed(record: Rows) -> Table:
    """One row for each of the record's, under its name for the columns."""
    rows = record.rows()
    numbers = (bool, int, float, tuple)
    columns = tuple(
        Column(
            key, align="right" if isinstance(value, numbers) else "left", form=".4g" if isinstance(value, float) else ""
        )
        for key, value in (rows[0] if rows else {}).items()
    )
    cells = tuple(tuple(shown(row.get(column.key)) for column in columns) for row in rows[:MOST_ROWS])
    more = (f"{len(rows) - MOST_ROWS:,} more rows: to_pandas() has them all",) if len(rows) > MOST_ROWS else ()
    first, *rest = repr(record).split("\n")
    return Table(columns, cells, title=first if not rest else "", notes=more)


def _spreads(record: Mapping[str, HeadValues]) -> Table:
    """Mean and range over heads of each measure; what is missing stands below."""
    columns = (
        Column("measure", kind="code"),
        *(Column(name, align="right") for name in ("mean", "lowest", "highest")),
        Column("meaning", kind="prose"),
    )
    rows = []
    for name, values in record.items():
        seen = values.array[np.isfinite(values.array)]
        spread = (float(seen.mean()), float(seen.min()), float(seen.max())) if len(seen) else (None, None, None)
        rows.append((name, *spread, values.measure.described))
    first, *others = repr(record).split("\n")
    return Table(columns, tuple(rows), title=first, notes=tuple(others[len(rows) :]))


def _grid(values: HeadValues) -> Table:
    """Layers down, heads across."""
    layers, numbers = values.numbers or map(range, values.shape)
    heads = (Column(str(head), align="right", form=".3g") for head in numbers)
    rows = tuple(
        (layer, *(None if np.isnan(number) else float(number) for number in row))
        for layer, row in zip(layers, values.array.tolist(), strict=True)
    )
    return Table((Column("layer", "layer \\ head", align="right"), *heads), rows, title=repr(values).split("\n")[0])


def _lines(table: Table) -> Iterator[str]:
    """A table as HTML. Whatever it says is text: nothing in it is markup."""

    def cell(tag: str, column: Column, text: str) -> str:
        return f'<{tag} style="text-align:{column.align}">{html.escape(printable_lines(text))}</{tag}>'

    yield "<table>"
    if table.title:
        yield f"<caption>{html.escape(printable(table.title))}</caption>"
    yield f"<thead><tr>{''.join(cell('th', column, column.heading) for column in table.columns)}</tr></thead><tbody>"
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        yield f"<tr>{''.join(cell('td', column, column.show(value)) for column, value in cells)}</tr>"
    yield "</tbody></table>"
    yield from (f"<p>{html.escape(printable(note))}</p>" for note in table.notes)

"""Layout of tables and sentences as lines of a terminal, and their printing.

A drawing is a function from a `Paper` (width, character set, colour) to lines; a line is a tuple of (text, style). Only
`put` and `put_machine` write to a stream. rich is imported only to print in colour.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from headscope.screens.labels import encodable, fitted, fold, pad, printable, printable_lines, width, wrap
from headscope.screens.tables import Column, Table, json_text

if TYPE_CHECKING:
    from rich.console import Console

Line = tuple[tuple[str, str], ...]
"""Runs of text, each with a rich style; an empty style is the terminal's default."""

GAP = 2
PIPE_WIDTH = 80
LEAST_PROSE = 24


@dataclass(frozen=True, slots=True)
class Paper:
    """The surface that a drawing is made for.

    Attributes:
        width: columns.
        unicode: True if shades, blocks and other scripts can be shown; otherwise ASCII only.
        colour: True if at least 256 colours can be shown.
        folds: True to fold long names at the right edge. In a pipe they are kept whole, so that they can be searched.
    """

    width: int = PIPE_WIDTH
    unicode: bool = True
    colour: bool = False
    folds: bool = True

    def sign(self, fine: str, coarse: str) -> str:
        """`fine`, or `coarse` if only ASCII can be shown."""
        return fine if self.unicode else coarse

    def times(self, text: str) -> str:
        """A text of headscope's own, with × for the x between factors."""
        return text.replace(" x ", f" {self.sign('×', 'x')} ")


Drawing = Callable[[Paper], Iterable[Line]]


@dataclass(frozen=True)
class Sheet:
    """The output of a command.

    Attributes:
        record: makes the whole result, for --json.
        table: makes its table, for --csv and --markdown; None if it has none.
        drawings: the screen, from top to bottom.
        look_at: (layer, head) of a head to look at next, if any.
        schema: name of the record's schema in results/answers.py, where it isn't that of the command.
    """

    record: Callable[[], Mapping[str, Any]]
    table: Callable[[], Table] | None
    drawings: tuple[Drawing, ...]
    look_at: tuple[int, int] | None = None
    schema: str | None = None


def text_line(text: str, style: str = "") -> Line:
    """A line in a single style."""
    return ((text, style),)


def title(text: str, aside: str = "") -> Drawing:
    """A line in bold, with `aside` in a dim style beside it if it fits, otherwise below."""

    def draw(paper: Paper) -> Iterable[Line]:
        head, rest = printable(text), printable(aside)
        if width(head) + 3 + width(rest) <= paper.width:
            yield ((head, "bold"), (f"   {rest}" if rest else "", "dim"))
            return
        yield from (text_line(line, "bold") for line in wrap(head, paper.width))
        yield from (text_line(line, "dim") for line in wrap(rest, paper.width))

    return draw


def prose(text: str, style: str = "", mark: str = "") -> Drawing:
    """Sentences, wrapped; lines after the first are indented under a mark such as `- `."""

    def draw(paper: Paper) -> Iterable[Line]:
        for index, line in enumerate(wrap(printable(text), paper.width - len(mark))):
            yield text_line((mark if index == 0 else " " * len(mark)) + line, style)

    return draw


def notes(lines: Sequence[str]) -> Drawing:
    """Lines in a dim style."""

    def draw(paper: Paper) -> Iterable[Line]:
        for line in lines:
            yield from prose(line, "dim")(paper)

    return draw


def step_line(command: str) -> Drawing:
    """A command to paste, never wrapped."""
    return lambda paper: [(("next: ", "dim"), (printable(command), "bold"))]


def blank(paper: Paper) -> Iterable[Line]:
    """An empty line."""
    return [text_line("")]


def table(content: Table) -> Drawing:
    """A table that fits the paper. Nothing is dropped. If it is too wide, in this order,

    1. columns with the same value in every row are moved to a note below;
    2. the group column becomes headings between the rows;
    3. prose is wrapped, and finally names are folded.
    """

    def draw(paper: Paper) -> Iterable[Line]:
        if content.title:
            yield text_line(printable(content.title), "bold")
        if content.rows:
            yield from _Layout.of(content, paper).lines()
        else:
            yield text_line("(none)", "dim")
        yield from notes(content.notes)(paper)

    return draw


@dataclass(frozen=True)
class _Layout:
    paper: Paper
    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]
    groups: tuple[str, ...]
    sums: Mapping[str, str]
    summed: str | None
    constants: tuple[str, ...] = ()

    @classmethod
    def of(cls, content: Table, paper: Paper) -> _Layout:
        columns = content.columns
        cells = tuple(
            tuple(_cell_text(column, value) for column, value in zip(columns, row, strict=True)) for row in content.rows
        )
        layout = cls(paper, columns, cells, (), ("",) * len(cells), {}, content.summed).measured()
        if layout.needed > paper.width:
            layout = layout.constants_noted()
        if layout.needed > paper.width:
            layout = layout.grouped(content)
        return layout.squeezed()

    @property
    def needed(self) -> int:
        return sum(self.sizes) + GAP * (len(self.sizes) - 1)

    def measured(self) -> _Layout:
        sizes = [
            max(width(column.heading), *(width(line) for row in self.cells for line in row[at].split("\n")))
            for at, column in enumerate(self.columns)
        ]
        return replace(self, sizes=tuple(sizes))

    def without(self, places: Sequence[int]) -> _Layout:
        kept = [at for at in range(len(self.columns)) if at not in places]
        return replace(
            self,
            columns=tuple(self.columns[at] for at in kept),
            cells=tuple(tuple(row[at] for at in kept) for row in self.cells),
        ).measured()

    def constants_noted(self) -> _Layout:
        """Move columns with the same value in every row to a note below the table."""
        if len(self.cells) < 2:
            return self
        same = [at for at in range(1, len(self.columns)) if len({row[at] for row in self.cells}) == 1]
        constants = tuple(f"{self.columns[at].heading}: {self.cells[0][at] or 'none'} in every row" for at in same)
        return replace(self.without(same), constants=constants)

    def grouped(self, content: Table) -> _Layout:
        """Turn the group column's values into headings between the rows, with their sums."""
        at = next((at for at, column in enumerate(self.columns) if column.group), None)
        if at is None:
            return self
        groups = tuple(row[at] for row in self.cells)
        sums: dict[str, str] = {}
        if content.summed is not None:
            place = [column.key for column in content.columns].index(content.summed)
            totals: dict[str, int] = {}
            for group, row in zip(groups, content.rows, strict=True):
                totals[group] = totals.get(group, 0) + row[place]
            sums = {group: content.columns[place].show(total) for group, total in totals.items()}
        return replace(self.without([at]), groups=groups, sums=sums)

    def squeezed(self) -> _Layout:
        """Narrow the columns that may be wrapped or folded until the table fits."""
        sizes = list(self.sizes)
        for kind, least in (("prose", LEAST_PROSE), ("code", 16), ("prose", 8), ("code", 8), ("text", 8)):
            places = [at for at, column in enumerate(self.columns) if column.kind == kind and column.align == "left"]
            if kind != "prose" and not self.paper.folds:
                break
            while (over := sum(sizes) + GAP * (len(sizes) - 1) - self.paper.width) > 0:
                widest = max(places, key=lambda at: sizes[at], default=None)
                if widest is None or sizes[widest] <= least:
                    break
                rival = max((sizes[at] for at in places if at != widest and sizes[at] < sizes[widest]), default=least)
                sizes[widest] = max(sizes[widest] - over, min(rival, sizes[widest] - 1), least)
        return replace(self, sizes=tuple(sizes))

    def lines(self) -> Iterable[Line]:
        yield self.row([column.heading for column in self.columns], "bold")
        yield self.row([self.paper.sign("─", "-") * size for size in self.sizes], "dim")
        before = ""
        for group, cells in zip(self.groups, self.cells, strict=True):
            if group != before:
                yield self.heading(group)
                before = group
            yield from self.folded(cells)
        for line in self.constants:
            yield from notes([line])(self.paper)

    def heading(self, group: str) -> Line:
        """A group's name, with its sum aligned to the column that it sums."""
        if self.summed is None or not self.sums:
            return text_line(group, "bold")
        keys = [column.key for column in self.columns]
        at = keys.index(self.summed)
        edge = sum(self.sizes[: at + 1]) + GAP * at
        return ((group, "bold"), (pad(self.sums[group], edge - width(group), "right"), "bold"))

    def folded(self, cells: Sequence[str]) -> Iterable[Line]:
        parts = [
            [cell]
            if column.kind != "prose" and (width(cell) <= size or not self.paper.folds)
            else [line for part in cell.split("\n") for line in (wrap if column.kind == "prose" else fold)(part, size)]
            for column, cell, size in zip(self.columns, cells, self.sizes, strict=True)
        ]
        for index in range(max(map(len, parts))):
            yield self.row([part[index] if index < len(part) else "" for part in parts], "")

    def row(self, cells: Sequence[str], style: str) -> Line:
        padded = [
            pad(cell, size, column.align) for column, cell, size in zip(self.columns, cells, self.sizes, strict=True)
        ]
        return text_line((" " * GAP).join(padded).rstrip(), style)


def _cell_text(column: Column, value: object) -> str:
    """A value's text in its cell; only prose may contain line breaks."""
    text = column.show(value)
    return printable_lines(text) if column.kind == "prose" else printable(text)


def bar(share: float, size: int, paper: Paper) -> str:
    """A bar over `share` (0 to 1) of `size` columns, to an eighth of a column if Unicode can be shown."""
    share = min(max(share, 0.0), 1.0)
    if not paper.unicode:
        return "#" * round(share * size)
    eighths = round(share * size * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


class Bar(NamedTuple):
    """A line of `bars`: its name and number, its share of a full bar (None for no bar), and what stands before it."""

    name: str
    number: str
    share: float | None
    before: str = " "
    style: str = "cyan"


def bars(
    rows: Sequence[Bar],
    *,
    heading: tuple[str, str] = ("", ""),
    part: int = 3,
    most: int = 80,
    room: tuple[int, int] = (8, 60),
) -> Drawing:
    """Names with numbers and bars.

    Args:
        rows: the lines.
        heading: above the names and above the numbers; empty for none.
        part, most: names take at most this part of the width, and so many columns.
        room: least and most columns of a full bar.
    """

    def draw(paper: Paper) -> Iterable[Line]:
        before = max((len(row.before) for row in rows), default=1)
        label = min(most, paper.width // part, max(len(heading[0]), *(width(row.name) for row in rows), 0))
        numbers = max((width(row.number) for row in rows), default=0)
        full = max(room[0], min(room[1], paper.width - before - label - numbers - 5))
        if heading[0]:
            yield text_line(f"{'':>{before}} {heading[0]:<{label}} {heading[1]}".rstrip(), "bold")
        for row in rows:
            name = fitted(row.name, label, paper.sign("…", "."))
            line = [(f"{row.before:>{before}} ", "dim"), (f"{name}  {row.number} ", "")]
            yield tuple(line if row.share is None else [*line, (bar(row.share, full, paper), row.style)])

    return draw


def lines_of(drawings: Iterable[Drawing], paper: Paper) -> list[Line]:
    """All lines of a screen."""
    return [line for drawing in drawings for line in drawing(paper)]


def plain_text(drawings: Iterable[Drawing], paper: Paper) -> str:
    """A screen as text without styles."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines_of(drawings, paper))


def put(drawings: Iterable[Drawing], stream: TextIO) -> None:
    """Print a screen: in colour and at the window's width on a terminal, otherwise as plain text."""
    console = console_for(stream)
    paper = paper_for(stream, console)
    if console is None:
        stream.write(encodable(plain_text(drawings, paper), stream.encoding))
        return
    from rich.text import Text

    for line in lines_of(drawings, paper):
        runs = [(encodable(text, stream.encoding), style) for text, style in line]
        console.print(Text.assemble(*runs, no_wrap=True, overflow="ignore", end=""), crop=False, soft_wrap=True)


def put_machine(sheet: Sheet, form: str, stream: TextIO, command: str = "") -> None:
    """Print a sheet as `--json`, `--csv` or `--markdown`, without wrapping or colour; `command` names its schema."""
    if form == "--json":
        from headscope.results.answers import enveloped

        record = sheet.record()
        stream.write(json_text(enveloped(sheet.schema or command, record) if command else record))
        return
    assert sheet.table is not None
    text = sheet.table().csv() if form == "--csv" else sheet.table().markdown()
    stream.write(encodable(text, stream.encoding))


def console_for(stream: TextIO) -> Console | None:
    """A rich console for a terminal (or under FORCE_COLOR); None for pipes and files."""
    if not (stream.isatty() or os.environ.get("FORCE_COLOR")):
        return None
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else None


def paper_for(stream: TextIO, console: Console | None) -> Paper:
    """The paper for a stream: as wide as the window, or COLUMNS, or 80 columns."""
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    unicode = encoding.startswith("utf")
    if console is None:
        requested = os.environ.get("COLUMNS", "")
        columns = (int(requested) if requested.isdecimal() and len(requested) < 5 else 0) or PIPE_WIDTH
        return Paper(width=columns, unicode=unicode, colour=False, folds=False)
    colour = not console.no_color and console.color_system in ("256", "truecolor")
    columns = console.width or shutil.get_terminal_size().columns
    return Paper(width=max(columns, 20), unicode=unicode, colour=colour)

"""One head's weights in a terminal: a shaded matrix of queries and keys, or bars for the keys of one query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from headscope.screens.labels import clip, clusters, fitted, in_cells, pad, width
from headscope.screens.terminal import Bar, Drawing, Line, Paper, bars, notes, text_line

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

Scale = Literal["sqrt", "linear"]

SHADES = " ░▒▓█"
INKS = " .:-=+*#%@"
COLOURS = ("000004", "1b0c41", "4a0c6b", "781c6d", "a52c60", "cf4446", "ed6925", "fb9b06", "f7d13d", "fcffa4")
"""Colours from 0 to 1 (inferno): equal steps of lightness, readable in grey and for the colour-blind."""

ROW_LABEL = 16
KEY_LABEL = 8
WIDEST_CELL = 5
NARROWEST_CELL = 2
REST = 6
LEAST_SHOWN = 0.005
"""Weights below half a per cent are drawn as empty cells."""
BROKEN_STYLE = "bold red"
LEAST_INK = math.sqrt(LEAST_SHOWN)
"""Least ink that gets at least the lightest shade."""


class Window(NamedTuple):
    """The part of a matrix that is drawn: rows are queries, columns are keys."""

    rows: range
    columns: range


def inked(weight: float, scale: Scale) -> float:
    """The ink of a weight, 0 to 1: its square root, so that small weights are visible, or the weight itself."""
    weight = min(max(weight, 0.0), 1.0)
    return math.sqrt(weight) if scale == "sqrt" else weight


def colour_of(ink: float) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255, for an ink from 0 to 1."""
    place = ink * (len(COLOURS) - 1)
    low = min(int(place), len(COLOURS) - 2)
    part = place - low
    darker, lighter = bytes.fromhex(COLOURS[low]), bytes.fromhex(COLOURS[low + 1])
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(darker, lighter, strict=True))
    return red, green, blue


def style_of(ink: float) -> str:
    """A cell's colours: the ink as background, with black or white text, whichever is readable."""
    red, green, blue = colour_of(ink)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 110
    return f"{'#000000' if light else '#e8e8e8'} on #{red:02x}{green:02x}{blue:02x}"


def shade_of(ink: float, paper: Paper) -> str:
    """A character as dark as the ink; from LEAST_INK on at least the lightest shade."""
    shades = SHADES if paper.unicode else INKS
    return shades[max(min(round(ink * (len(shades) - 1)), len(shades) - 1), int(ink >= LEAST_INK))]


def cell_text(weight: float, ink: float, size: int, paper: Paper) -> str:
    """A cell of `size` columns: its shade, and from four columns on the weight in per cent."""
    if math.isnan(weight):
        return f"{'NaN' if size >= 4 else '?'} ".rjust(size)
    percent = f"{weight * 100:.0f}" if weight >= LEAST_SHOWN else ""
    if paper.colour:
        return f"{percent} ".rjust(size) if size >= 4 else " " * size
    shade = shade_of(ink, paper)
    return (f"{shade}{percent:>3}" if size >= 4 else shade * size).ljust(size)


def matrix(
    weights: Float[np.ndarray, "queries keys"],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    start: int = 0,
    scale: Scale = "sqrt",
    brief: bool = False,
) -> Drawing:
    """The weights as a shaded matrix, queries down and keys across, in a window from token `start` on.

    Rows are labelled with their queries and columns with their keys, spelled downwards if the cells are narrow. If not
    all keys fit, a last column has the share of each row that lies outside. With `brief`, columns have numbers only,
    and the legend takes one line.
    """

    def draw(paper: Paper) -> Iterable[Line]:
        digits = len(str(len(queries) - 1))
        label = min(ROW_LABEL, max(width(name) for name in queries))
        label = max(label, len("queries") - digits - 1)  # the heading of the rows
        margin = digits + 1 + label + 1
        window, size = _window(len(queries), len(keys), start, paper.width - margin)
        partial = len(window.columns) < len(keys)
        yield from _key_lines(keys, window, margin, size, paper, partial, brief)
        dots = paper.sign("…", ".")
        for query in window.rows:
            head = f"{query:>{digits}} ", fitted(queries[query], label, dots) + " "
            yield _row(weights[query], head, window.columns, size, paper, scale, partial)
        yield from _legend(paper, scale, brief)
        yield from _left_out(window, len(queries), len(keys))(paper)

    return draw


def _window(queries: int, keys: int, start: int, room: int) -> tuple[Window, int]:
    """The window and the width of a cell: all keys if two columns each fit, otherwise as many as fit from `start`."""
    size = min(WIDEST_CELL, room // keys)
    if size >= NARROWEST_CELL:
        return Window(range(queries), range(keys)), size
    fit = max(1, (room - REST) // NARROWEST_CELL)
    first = min(start, max(keys - fit, 0))
    columns = range(first, min(first + fit, keys))
    rows = range(min(first, max(queries - fit, 0)), min(first + fit, queries)) if queries == keys else range(queries)
    return Window(rows, columns), NARROWEST_CELL


def _key_lines(
    keys: Sequence[str], window: Window, margin: int, size: int, paper: Paper, partial: bool, brief: bool
) -> Iterable[Line]:
    """The keys' numbers and labels above the columns: horizontal if they fit, otherwise spelled downwards."""
    across = f"keys {paper.sign('→', '->')}"
    head = f"{'queries':<{margin}}{across:<{size * len(window.columns) + 1}}"
    yield text_line(head + "rest" * partial, "dim")
    names = [keys[at] for at in window.columns]
    numbers = [str(at) for at in window.columns]
    if size >= 4:
        yield text_line(" " * margin + "".join(f"{number:>{size - 1}} " for number in numbers), "dim")
    else:
        yield from _downwards([list(number) for number in numbers], margin, size, "dim")
    if brief:
        return
    if max(map(width, names)) < size:
        yield text_line(" " * margin + "".join(pad(name, size - 1, "right") + " " for name in names))
        return
    dots = paper.sign("…", ".")
    spelled = [clusters(clip(name, KEY_LABEL, dots)) for name in names]
    yield from _downwards(spelled, margin, size, "")


def _downwards(columns: Sequence[Sequence[str]], margin: int, size: int, style: str) -> Iterable[Line]:
    depth = max(map(len, columns))
    for at in range(depth):
        signs = [column[at - depth + len(column)] if at >= depth - len(column) else " " for column in columns]
        yield text_line((" " * margin + in_cells(signs, size)).rstrip(), style)


def _row(
    weights: Float[np.ndarray, " keys"],
    head: tuple[str, str],
    columns: range,
    size: int,
    paper: Paper,
    scale: Scale,
    partial: bool,
) -> Line:
    row = [float(weight) for weight in weights]
    line = [(head[0], "dim"), (head[1], "")]
    for key in columns:
        ink = inked(row[key], scale)
        style = BROKEN_STYLE if math.isnan(ink) else style_of(ink) if paper.colour else ""
        line.append((cell_text(row[key], ink, size, paper), style))
    if partial and math.isnan(sum(row)):
        line.append((f" {'NaN':>3}", BROKEN_STYLE))
    elif partial:
        outside = 1.0 - sum(row[key] for key in columns) / (sum(row) or 1.0)
        line.append((f" {max(outside, 0.0) * 100:>3.0f} %", "dim"))
    return tuple(line)


def _legend(paper: Paper, scale: Scale, brief: bool) -> Iterable[Line]:
    """The weight that each shade stands for, the scale, and the unit of the numbers."""
    entries: list[Line] = []
    if paper.colour:
        steps = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
        entries += [(("  ", style_of(inked(step, scale))), (f" {step * 100:.0f} %  ", "dim")) for step in steps]
    else:
        shades = SHADES if paper.unicode else INKS
        for at, shade in enumerate(shades[1:], 1):
            edge = (at - 0.5) / (len(shades) - 1) if at > 1 else LEAST_INK
            least = 100 * (edge**2 if scale == "sqrt" else edge)
            bound = f" from {least:.2g} %  " if at == 1 else f" {least:.0f} %  "
            entries.append(((shade * 2, ""), (bound, "dim")))
    if brief:
        entries.append(((f"{scale} scale, numbers are per cent", "dim"),))
    yield from _side_by_side(entries, paper.width)
    if brief:
        return
    meaning = (
        "square-root scale, so that small weights are visible (or: --set scale=linear)"
        if scale == "sqrt"
        else "linear scale (--set scale=sqrt shows small weights better)"
    )
    yield from notes([f"{meaning}; numbers are per cent, a row adds up to 100"])(paper)


def _side_by_side(entries: Sequence[Line], room: int) -> Iterable[Line]:
    """Entries side by side, on as few lines as possible."""
    line: Line = ()
    for entry in entries:
        longer = (*line, *entry)
        if line and width("".join(text for text, _ in longer).rstrip()) > room:
            yield line
            longer = entry
        line = longer
    yield line


def _left_out(window: Window, queries: int, keys: int) -> Drawing:
    if len(window.columns) == keys and len(window.rows) == queries:
        return notes(())
    rows, columns = window.rows, window.columns
    return notes(
        [
            f"{keys} tokens don't fit: this is queries {rows.start} to {rows.stop - 1} and keys {columns.start} to "
            f"{columns.stop - 1}, and `rest` is each row's weight on the other {keys - len(columns)} keys; "
            f"--set start={columns.stop if columns.stop < keys else 0} shows the next ones, "
            "--query the keys of one token, --save writes all of them"
        ]
    )


def strongest(weights: Float[np.ndarray, " keys"], top: int | None, threshold: float | None) -> list[int]:
    """The strongest keys, in order: at most `top`, and only as many as hold `threshold` (0 to 1) of the row's mass.

    Empty if the row has a NaN.
    """
    row = [float(weight) for weight in weights]
    if any(map(math.isnan, row)):
        return []
    order = sorted(range(len(row)), key=lambda key: (-row[key], key))
    if threshold is not None:
        mass, wanted = 0.0, threshold * sum(row)
        for count, key in enumerate(order, 1):
            mass += row[key]
            if mass >= wanted - 1e-6:
                order = order[:count]
                break
    return order[:top]


def key_bars(
    weights: Float[np.ndarray, " keys"], keys: Sequence[str], chosen: Sequence[int], *, rule: str = ""
) -> Drawing:
    """Bars with the weights of one query's chosen keys, and a note on the weight of the others."""

    def draw(paper: Paper) -> Iterable[Line]:
        row = [float(weight) for weight in weights]
        if any(map(math.isnan, row)):
            yield text_line("NaN: these weights are not numbers", BROKEN_STYLE)
            return
        digits = len(str(len(keys) - 1))
        full = max((row[key] for key in chosen), default=0.0) or 1.0
        lines = [Bar(keys[key], f"{row[key]:.3f}", row[key] / full, f"{key:>{digits}}") for key in chosen]
        yield from bars(lines, heading=("key", "weight"))(paper)
        together = sum(row[key] for key in chosen)
        others = len(keys) - len(chosen)
        rest = f"; the other {others} hold {max(sum(row) - together, 0.0):.3f}" if others else ""
        yield from notes(
            [f"{rule or f'{len(chosen)} of {len(keys)} keys'}: together {together:.3f}{rest}; a full bar is {full:.3f}"]
        )(paper)

    return draw


def each_query(
    weights: Float[np.ndarray, "queries keys"],
    queries: Sequence[str],
    keys: Sequence[str],
    chosen: Sequence[Sequence[int]],
) -> Drawing:
    """A line per query: the keys chosen for it, with their weights."""

    def draw(paper: Paper) -> Iterable[Line]:
        digits = len(str(len(queries) - 1))
        label = min(ROW_LABEL, max(5, *(width(name) for name in queries)))
        margin = digits + 1 + label + 2
        yield text_line(f"{'':>{digits}} {'query':<{label}}  keys, strongest first", "bold")
        for query, name in enumerate(queries):
            texts = [f"{pad(keys[key], 0)} {float(weights[query][key]):.2f}" for key in chosen[query]] or ["NaN"]
            lines = _side_by_side([((f"{text}   ", ""),) for text in texts], paper.width - margin)
            head = ((f"{query:>{digits}} ", "dim"), (fitted(name, label, paper.sign("…", ".")) + "  ", ""))
            for at, line in enumerate(lines):
                yield (*(head if at == 0 else ((" " * margin, ""),)), ("".join(text for text, _ in line).rstrip(), ""))

    return draw

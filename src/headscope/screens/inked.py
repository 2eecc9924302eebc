"""A text with shading behind its words, and a grid of layers and heads with shading behind its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from headscope.screens.labels import hold_direction, pad, width
from headscope.screens.matrix import INKS, SHADES
from headscope.screens.pieces import CONTINUED
from headscope.screens.terminal import Bar, Drawing, Line, Paper, bars, notes, text_line

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

LESS, MORE = "#8a3f9d", "#00804a"
"""Purple for what lowers a number, green for what raises it, as on the page (--less and --more of web/src/base.css)."""
DARKEST = "#0b3c7a"
LEAST_INK = 0.05
"""Share of the greatest value below which nothing is drawn."""
CELL = 5


def ink_of(value: float, greatest: float) -> float:
    """The darkness of a value, -1 to 1."""
    return value / greatest if greatest > 0 and math.isfinite(value) else 0.0


def signed_style(ink: float) -> str:
    """A word's colours: green behind it for positive ink, purple for negative; readable on black and on white."""
    if abs(ink) < LEAST_INK:
        return ""
    return _ground(MORE if ink > 0 else LESS, 0.25 + 0.75 * min(abs(ink), 1.0))


def unsigned_style(share: float) -> str:
    """A number's colours, white to dark blue, by its share of the range, 0 to 1."""
    return "" if share < LEAST_INK else _ground(DARKEST, min(share, 1.0))


def _ground(colour: str, share: float) -> str:
    """A ground from white to a colour, and black or white text on it."""
    ends = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    red, green, blue = (round(255 + (end - 255) * share) for end in ends)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 130
    return f"{'#000000' if light else '#ffffff'} on #{red:02x}{green:02x}{blue:02x}"


def sign_of(ink: float, paper: Paper) -> str:
    """The mark after a word if there are no colours: a shade, with a minus before it for negative ink."""
    if abs(ink) < LEAST_INK:
        return ""
    shades = SHADES if paper.unicode else INKS
    shade = shades[max(1, min(round(abs(ink) * (len(shades) - 1)), len(shades) - 1))]
    return shade if ink > 0 else f"-{shade}"


def inked_text(labels: Sequence[str], values: Float[np.ndarray, " tokens"]) -> Drawing:
    """The tokens as a text, each shaded by its value; the tokens of a word are joined."""

    def draw(paper: Paper) -> Iterable[Line]:
        greatest = max((abs(float(value)) for value in values if math.isfinite(value)), default=0.0)
        line: list[tuple[str, str]] = []
        used = 0
        for label, value in zip(labels, values, strict=True):
            continued = label.startswith(CONTINUED) and len(label) > 1
            ink = ink_of(float(value), greatest)
            word = label.removeprefix(CONTINUED) if continued else label
            text = hold_direction(word if paper.colour else word + sign_of(ink, paper))
            gap = "" if continued or not line else " "
            if line and used + width(gap + text) > paper.width:
                yield tuple(line)
                line, used, gap = [], 0, ""
            line += [(gap, ""), (text, signed_style(ink) if paper.colour else "")]
            used += width(gap + text)
        yield tuple(line)

    return draw


def signed_bars(
    rows: Sequence[tuple[int, str, float, str]], *, noun: str, unit: str, ranks: bool, beside: str = ""
) -> Drawing:
    """Tokens or words with signed values and bars of their absolute values, green or purple.

    Args:
        rows: of each its number, its label, its value, and its text in a further column.
        noun: what they are.
        unit: the heading of the values.
        ranks: show each value's sign and its place among the rows, instead of its amount.
        beside: the heading of the further column; empty for none.
    """

    greatest = max((abs(value) for _, _, value, _ in rows), default=0.0) or 1.0
    more = max(len(beside), *(width(text) for *_, text in rows), 0)
    lines = []
    for place, (counted, label, value, text) in enumerate(rows, 1):
        amount = f"{'+' if value > 0 else '-'} {place}" if ranks else f"{value:+9.4f}"
        number = f"{amount:>9}" + (f"  {pad(text, more)}" if beside else "")
        share = None if ranks else abs(value) / greatest
        lines.append(Bar(label, number, share, str(counted), MORE if value > 0 else LESS))
    heading = f" {'rank' if ranks else unit:<9}" + (f"  {beside}" if beside else "")
    return bars(lines, heading=(noun, heading), part=4 if beside else 3, room=(0 if beside else 8, 40))


def heat_map(
    change: Float[np.ndarray, "rows columns"],
    unit: str,
    *,
    noun: str = "change",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Drawing:
    """Layers down, heads across; numbers are per cent of the greatest absolute value, which is noted below.

    Args:
        change: the numbers.
        unit: theirs.
        noun: what they are.
        layers, heads: numbers of the rows and columns; by default counted from 0.
    """
    greatest = float(abs(change).max())
    rows, columns = layers or range(len(change)), heads or range(change.shape[1])

    def cell(layer: int, head: int, paper: Paper) -> tuple[str, str]:
        ink = ink_of(float(change[rows.index(layer), columns.index(head)]), greatest)
        number = round(100 * ink)
        text = f"{number:>+{CELL}}" if number else f"{paper.sign('·', '.'):>{CELL}}"
        return text, signed_style(ink) if paper.colour else ""

    def draw(paper: Paper) -> Iterable[Line]:
        yield from head_grid(rows, columns, cell, room=CELL)(paper)
        yield from notes([f"per cent of the greatest {noun}, {greatest:.4g} ({unit})"])(paper)

    return draw


def head_grid(
    layers: Sequence[int], heads: Sequence[int], cell: Callable[[int, int, Paper], tuple[str, str]], *, room: int
) -> Drawing:
    """Draw one cell for each head.

    Args:
        layers: the layers' numbers.
        heads: the heads' numbers.
        cell: the text, `room` columns wide, and the style of the cell of (layer, head).
        room: width of a cell in columns.
    """

    number = max([2, *(len(str(layer)) for layer in layers)])
    margin = len("layer ") + number  # of two digits: twelve heads of six columns take 80

    def draw(paper: Paper) -> Iterable[Line]:
        fit = max(1, (paper.width - margin) // room)
        for first in range(0, len(heads), fit):
            columns = heads[first : first + fit]
            yield text_line(f"{'head':>{margin}}" + "".join(f"{head:>{room}}" for head in columns), "bold")
            for layer in layers:
                yield ((f"layer {layer:>{number}}", "bold"), *(cell(layer, head, paper) for head in columns))

    return draw

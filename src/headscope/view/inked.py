"""A text with shading behind its words, and a grid of layers and heads with shading behind its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headscope.view.head_grid import head_grid
from headscope.view.labels import clip, hold_direction, pad, width
from headscope.view.matrix import INKS, SHADES
from headscope.view.pieces import CONTINUED
from headscope.view.terminal import Drawing, Line, Paper, bar, notes, text_line

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

RAISES, LOWERS = (0xD9, 0x5F, 0x0E), (0x2B, 0x6C, 0xB0)
"""Orange for what raises a number, blue for what lowers it: told apart by the colour-blind too."""
DARKEST = (0x0B, 0x3C, 0x7A)
LEAST_INK = 0.05
"""Share of the greatest value below which nothing is drawn."""
CELL = 5


def ink_of(value: float, greatest: float) -> float:
    """The darkness of a value, -1 to 1."""
    return value / greatest if greatest > 0 and math.isfinite(value) else 0.0


def signed_style(ink: float) -> str:
    """A word's colours: orange behind it for positive ink, blue for negative; readable on black and on white."""
    if abs(ink) < LEAST_INK:
        return ""
    share = 0.25 + 0.75 * min(abs(ink), 1.0)
    red, green, blue = (round(255 + (end - 255) * share) for end in (RAISES if ink > 0 else LOWERS))
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 130
    return f"{'#000000' if light else '#ffffff'} on #{red:02x}{green:02x}{blue:02x}"


def unsigned_style(share: float) -> str:
    """A number's colours, white to dark blue, by its share of the range, 0 to 1."""
    if share < LEAST_INK:
        return ""
    red, green, blue = (round(255 + (end - 255) * min(share, 1.0)) for end in DARKEST)
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
    labels: Sequence[str], values: Float[np.ndarray, " n"], chosen: Sequence[int], *, noun: str, unit: str
) -> Drawing:
    """Chosen tokens with signed values and bars of their absolute values, orange or blue."""

    def draw(paper: Paper) -> Iterable[Line]:
        greatest = max((abs(float(values[at])) for at in chosen), default=0.0) or 1.0
        digits = len(str(len(labels) - 1))
        label = min(paper.width // 3, max(len(noun), *(width(labels[at]) for at in chosen)))
        room = max(8, min(40, paper.width - digits - label - 14))
        yield text_line(f"{'':>{digits}} {noun:<{label}}  {unit}", "bold")
        for at in chosen:
            value = float(values[at])
            name = pad(clip(labels[at], label, paper.sign("…", ".")), label)
            style = "#d95f0e" if value > 0 else "#2b6cb0"
            bar_text = bar(abs(value) / greatest, room, paper)
            yield (
                (f"{at:>{digits}} ", "dim"),
                (f"{name}  {value:+9.4f} ", ""),
                (bar_text, style if paper.colour else ""),
            )

    return draw


def heat_map(change: Float[np.ndarray, "layers heads"], unit: str, *, noun: str = "change") -> Drawing:
    """Layers down, heads across; numbers are per cent of the greatest absolute value, which is noted below."""
    greatest = float(abs(change).max())
    layers, heads = change.shape

    def cell(layer: int, head: int, paper: Paper) -> tuple[str, str]:
        ink = ink_of(float(change[layer, head]), greatest)
        number = round(100 * ink)
        text = f"{number:>+{CELL}}" if number else f"{paper.sign('·', '.'):>{CELL}}"
        return text, signed_style(ink) if paper.colour else ""

    def draw(paper: Paper) -> Iterable[Line]:
        yield from head_grid(range(layers), range(heads), cell, room=CELL)(paper)
        yield from notes([f"per cent of the greatest {noun}, {greatest:.4g} ({unit})"])(paper)

    return draw

"""The figure of a match: words of query and document as two columns with ink, and the strongest links between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.results.match_record import SIDES
from headscope.screens.figures import COLUMN, SIGNED, STYLE, colours, finished, new_axes, plain, pyplot_for
from headscope.screens.inked import LESS, MORE

if TYPE_CHECKING:
    from headscope.results.match_record import Link, Match
    from headscope.results.score_parts import Part

LONGEST = 40
"""Characters of a sentence that are drawn."""


def plot_match(
    match: Match,
    *,
    by: str | None = None,
    ax: Any = None,
    width: float = COLUMN,
    save: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw the words of the query and of the document, each on its share, and lines for the strongest links.

    Shares are purple below 0, white at 0 and green above, on one scale for both sides.

    Args:
        by: `word` or `sentence` of the document; by default sentences for a document that reads as these first.
        ax: axes of matplotlib to draw into.
        width: of the figure, in inches.
        save: also write the figure: a path that ends in .svg, .pdf or .png.

    Raises:
        MissingExtraError: matplotlib is not installed; it comes with headscope[plot].
        InputError: another unit, or `save` has another ending.
    """
    pyplot = pyplot_for(save)
    units = ("word", by or match.unit("document"))
    sides = [
        [part for part in match.parts(side, unit) if not part.special] for side, unit in zip(SIDES, units, strict=True)
    ]
    rows = max(map(len, sides))
    with pyplot.rc_context(STYLE):
        axes = new_axes(pyplot, ax, (width, 0.16 * rows + 0.5))
        tops = [(rows - len(parts)) / 2 for parts in sides]
        greatest = max((abs(part.share) for parts in sides for part in parts), default=0.0) or 1.0
        for at, parts in enumerate(sides):
            _words(axes, parts, at, tops[at], greatest)
        for link in match.links():
            _line(axes, link, sides, tops)
        axes.set(xlim=(-1, 2), ylim=(rows - 0.5, -0.5))
        axes.set_title(f"{match.scoring.measure} {match.score:.3f}")
        axes.set_axis_off()
        return finished(axes, save)


def _words(axes: Any, parts: Sequence[Part], column: int, top: float, greatest: float) -> None:
    """One side's words from top to bottom, each on the colour of its share."""
    map_of, align = colours(SIGNED), ("right", "left")[column]
    for row, part in enumerate(parts):
        colour = map_of(0.5 + part.share / greatest / 2)
        dark = np.dot(colour[:3], (0.3, 0.59, 0.11)) < 0.5
        label = part.label if len(part.label) <= LONGEST else part.label[: LONGEST - 1] + "…"
        axes.text(
            column,
            top + row,
            plain([label])[0],
            ha=align,
            va="center",
            color="white" if dark else "black",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
        )


def _line(axes: Any, link: Link, sides: Sequence[Sequence[Part]], tops: Sequence[float]) -> None:
    """A line from the query's word to the word or sentence of the document that has the other word."""
    ends = [
        next(row for row, part in enumerate(parts) if set(word.tokens) <= set(part.tokens)) + top
        for word, parts, top in zip((link.query, link.document), sides, tops, strict=True)
    ]
    axes.plot((0.03, 0.97), ends, color=MORE if link.share > 0 else LESS, lw=1, zorder=0)

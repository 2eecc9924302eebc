"""The scoreboard as a picture: for each task, every tool's cost as a multiple of headscope's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scoreboard_table import TOOLS, YARDSTICK, figures, shown

MARKERS = {
    "transformers": ("o", "#0072B2"),
    "TransformerLens": ("s", "#D55E00"),
    "torchlens": ("D", "#009E73"),
    "bertviz": ("^", "#CC79A7"),
    "torchinfo": ("v", "#7A6A00"),
    "attnread": ("P", "#56B4E9"),
    "neuronscope-cli": ("X", "#000000"),
}
"""A shape and a colour of Okabe and Ito for each peer: told apart without colour, too."""
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "headscope", "svg.fonttype": "path", "font.size": 8}
INK, GROUND, BAND = "#1f2328", "#ffffff", "#f6f8fa"
STEP = 0.12
"""Between two tools' marks in one line, so that none hides another."""
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the picture; the same report and the same matplotlib give the same bytes of SVG."""
    with matplotlib.rc_context(SETTINGS):
        metadata = {"Date": None, "Creator": "headscope"} if path.suffix == ".svg" else None
        picture(report).savefig(path, metadata=metadata)


def picture(report: dict[str, Any]) -> Figure:
    """One line for each task that a peer can do, on a logarithmic axis: to the right of 1, headscope needs less.

    A tool with several ways has a mark for each. A task that a tool can't do has no mark.
    """
    rows = [figures(row) for row in report["rows"].values()]
    rows = [row for row in rows if any("ratio" in one and one["tool"] != YARDSTICK for one in row["cells"])]
    figure = Figure(figsize=(9.6, 0.36 * len(rows) + 1.1), facecolor=GROUND, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    for at, row in enumerate(rows):
        for cell in row["cells"]:
            if cell["tool"] not in MARKERS or "ratio" not in cell:
                continue
            marker, colour = MARKERS[cell["tool"]]
            spread = cell["ratio"]
            height = at + (list(MARKERS).index(cell["tool"]) - 3) * STEP
            axes.plot([spread["low"], spread["high"]], [height, height], color=colour, linewidth=1, alpha=0.6)
            axes.plot(spread["median"], height, marker, color=colour, markersize=4.5)
    axes.set_yticks(range(len(rows)), [f"{row['task']}  ({mine(row)})" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    for at in range(0, len(rows), 2):
        axes.axhspan(at - 0.5, at + 0.5, color=BAND, linewidth=0)
    axes.set_xticks(TICKS)
    axes.grid(axis="x", color="#d8dee4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.axvline(1, color=INK, linewidth=1.2, zorder=1)
    axes.tick_params(length=0, colors=INK)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.minorticks_off()
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlabel("times as much as headscope (its figure: in brackets)", color=INK)
    marks = [
        Line2D([], [], marker=marker, color=colour, linestyle="", markersize=5, label=tool)
        for tool, (marker, colour) in MARKERS.items()
    ]
    figure.legend(handles=marks, loc="outside upper right", ncols=len(marks), frameon=False)
    return figure


def mine(row: dict[str, Any]) -> str:
    """headscope's own figures, one for each of its ways."""
    cells = [cell for cell in row["cells"] if cell["tool"] == TOOLS[0] and "median" in cell]
    return f"{', '.join(shown(cell['median']) for cell in cells)} {row['unit']}"

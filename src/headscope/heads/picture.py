"""Pictures by matplotlib: heads as they form, with a panel per statistic, steps along, a line for each head."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError, MissingExtraError, install
from headscope.files import write_atomically
from headscope.heads.catalog import CATALOG, chosen
from headscope.heads.kinds import MEASURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headscope.results.table import HeadTable

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "headscope",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Fonts that come with matplotlib and fixed ids, so that the same survey gives the same bytes."""
METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "headscope"},
    "pdf": {"CreationDate": None, "Creator": "headscope", "Producer": None},
    "png": {"Software": "headscope"},
}
"""Metadata of a file, without the time, so that the same numbers give the same bytes."""
KINDS = (".svg", ".pdf", ".png")
DEFAULT = tuple(name for name in MEASURES if name != "normalised_entropy")
ACROSS = 3
"""Panels in a row."""


def draw(table: HeadTable, path: Path, statistics: str | Iterable[str] | None) -> Path:
    """Draw a table along steps and write it; errors as in `Watch.plot`."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise InputError(
            f"a picture can't be written as {kind or 'a file without an ending'}",
            where=str(path),
            advice=f"name a file that ends in {', '.join(KINDS)}",
        )
    if not table.along["steps"]:
        raise InputError("nothing was measured yet", where="watch.plot", advice="call watch.step(step) in the loop")
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError(
            "a picture needs matplotlib, which is not installed",
            where="watch.plot",
            advice=f"{install('plot')}, or read watch.rows()",
        ) from error
    names = [name for name in DEFAULT if name in table] if statistics is None else list(chosen(statistics))
    held = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        _figure(table, names or list(table)).savefig(held, format=kind[1:], dpi=150, metadata=METADATA[kind[1:]])
    write_atomically(path, held.getvalue())
    return path


def _figure(table: HeadTable, names: list[str]) -> Figure:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure

    layers = table.layers
    across = min(ACROSS, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(2.6 * across + 0.8, 2.2 * down), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, squeeze=False).ravel()
    steps = table.along["steps"]
    norm, colours = BoundaryNorm(np.arange(len(layers) + 1) - 0.5, 256), colormaps["viridis"]
    for axes, name in zip(panels, names, strict=False):
        values = table[name].array
        for row in range(len(layers)):
            axes.plot(steps, values[:, row], color=colours(norm(row)), lw=0.9, alpha=0.8, marker=".", ms=2.5)
        axes.set_title(CATALOG[name].names[0])
        axes.set_ylabel("mean weight" if CATALOG[name].unit.name.startswith("weight") else CATALOG[name].unit.name)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes in panels[: len(names)][-across:]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)
    ticks = range(0, len(layers), -(-len(layers) // 12))
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=list(panels), label="layer", ticks=list(ticks))
    bar.ax.set_yticklabels([str(layers[at]) for at in ticks])
    bar.ax.minorticks_off()
    return figure

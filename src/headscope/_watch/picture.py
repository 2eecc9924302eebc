"""Heads as they form: a figure with a panel per statistic, steps along, a line for each head."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import InputError, MissingExtraError
from headscope.statistics.catalog import CATALOG, chosen
from headscope.view.patterns import MEASURES
from headscope.writing import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headscope._watch.watching import Watch

KINDS = (".svg", ".pdf", ".png")
DEFAULT = tuple(name for name in MEASURES if name != "normalised_entropy")
ACROSS = 3
"""Panels in a row."""


def draw(watch: Watch, path: Path, statistics: str | Iterable[str] | None) -> Path:
    """Draw a watch and write it; errors as in `Watch.plot`."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise InputError(
            f"a picture can't be written as {kind or 'a file without an ending'}",
            where=str(path),
            advice=f"name a file that ends in {', '.join(KINDS)}",
        )
    if not watch.steps:
        raise InputError("nothing was measured yet", where="watch.plot", advice="call watch.step(step) in the loop")
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError(
            "a picture needs matplotlib, which is not installed",
            where="watch.plot",
            advice="pip install 'headscope[plot]', or read watch.rows()",
        ) from error
    from headscope._survey.plots import METADATA, SETTINGS

    names = [name for name in DEFAULT if name in watch.statistics] if statistics is None else list(chosen(statistics))
    held = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        _figure(watch, names or list(watch.statistics)).savefig(
            held, format=kind[1:], dpi=150, metadata=METADATA[kind[1:]]
        )
    write_atomically(path, held.getvalue())
    return path


def _figure(watch: Watch, names: list[str]) -> Figure:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure

    layers = sorted({layer for layer, _ in watch.heads})
    across = min(ACROSS, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(2.6 * across + 0.8, 2.2 * down), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, squeeze=False).ravel()
    norm, colours = BoundaryNorm(np.arange(len(layers) + 1) - 0.5, 256), colormaps["viridis"]
    for axes, name in zip(panels, names, strict=False):
        values = watch[name].array
        for row in range(len(layers)):
            axes.plot(watch.steps, values[:, row], color=colours(norm(row)), lw=0.9, alpha=0.8, marker=".", ms=2.5)
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

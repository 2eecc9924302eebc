"""A survey's figures for papers, as SVG and PDF: those of Clark et al. 2019, 'What Does BERT Look At?'."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope._survey.figures import CLUSTERS, FIGURES, LayerFigure, layer_ticks, round_up
from headscope._survey.findings import Findings, read_findings
from headscope._survey.plot_labels import label_widths, leader, place_labels
from headscope._survey.scaling import classical_scaling
from headscope.errors import MissingExtraError
from headscope.writing import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
"""Fonts come with matplotlib, and ids don't depend on chance: the same survey gives the same bytes."""
METADATA = {
    "svg": {"Date": None, "Creator": "headscope"},
    "pdf": {"CreationDate": None, "Creator": "headscope", "Producer": None},
}
POINT, LINE = "#0072B2", "#D55E00"
"""Blue and vermilion of Okabe and Ito: told apart in every common kind of colour blindness."""
FEW = 144
"""Heads up to which points and names of the clusters are of full size."""


def write_plots(folder: Path, *, parts: bool = True) -> list[Path]:
    """Write plots/NAME.svg and plots/NAME.pdf into a finished survey's folder.

    special-tokens, neighbours and entropy: a statistic by layer, every head a point. clusters: the heads on a plane by
    their Jensen-Shannon distances, where the survey has them. No names of models or documents are in the figures: that
    is for the caption. The same survey and the same matplotlib give the same bytes.

    Args:
        parts: whether every part is held against its hash first.

    Returns:
        What was written, in that order, SVG before PDF.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InputError: the folder has no finished survey, or can't be written to.
    """
    folder = Path(folder)
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError(
            "drawing figures needs matplotlib, which is not installed",
            where="the figures of a survey",
            advice="pip install 'headscope[plot]'; report.html has the same figures without it",
        ) from error
    found = read_findings(folder, parts=parts)
    (folder / "plots").mkdir(exist_ok=True)
    written = []
    with matplotlib.rc_context(SETTINGS):
        for name, figure in drawn(found).items():
            for kind, metadata in METADATA.items():
                held = io.BytesIO()
                figure.savefig(held, format=kind, metadata=metadata)
                written.append(folder / "plots" / f"{name}.{kind}")
                write_atomically(written[-1], held.getvalue())
    return written


def drawn(found: Findings) -> dict[str, Figure]:
    """Name -> matplotlib figure: those whose statistics were measured."""
    figures = {
        figure.name: _by_layer(found, figure)
        for figure in FIGURES
        if any(name in found.statistics for name in figure.panels)
    }
    if found.distances is not None:
        figures[CLUSTERS] = _clusters(found)
    return figures


def _by_layer(found: Findings, figure: LayerFigure) -> Figure:
    from matplotlib.figure import Figure

    values = {name: found.values(name) for name in figure.panels}
    seen = np.concatenate([table[np.isfinite(table)] for table in values.values()])
    highest = round_up(float(seen.max()) if len(seen) else 0.0)
    made = Figure(figsize=(2.5 * len(values) + 0.6, 2.4), layout="constrained")
    panels = made.subplots(1, len(values), sharey=True, squeeze=False)[0]
    for axes, (name, title) in zip(panels, figure.panels.items(), strict=True):
        _panel(axes, found, values[name])
        axes.set_title(title)
        axes.set_xlabel("layer")
        axes.set_ylim(0, highest * 1.02)
    panels[0].set_ylabel(figure.axis)
    return made


def _panel(axes: Axes, found: Findings, table: np.ndarray) -> None:
    """Each head a point at its layer, and a line through the layers' means."""
    at, column = np.nonzero(np.isfinite(table))
    places = np.arange(len(found.layers))
    axes.set_xlim(-0.6, len(places) - 0.4)
    ticks = layer_ticks(found.layers)
    axes.set_xticks([found.layers.index(layer) for layer in ticks], [str(layer) for layer in ticks])
    if not len(at):
        axes.text(0.5, 0.5, "nothing to measure", transform=axes.transAxes, ha="center", color="0.35")
        return
    axes.scatter(at, table[at, column], s=9, color=POINT, alpha=0.55, linewidths=0)
    rows = np.unique(at)
    axes.plot(rows, [np.nanmean(table[row]) for row in rows], color=LINE, linewidth=1.3)


def _clusters(found: Findings) -> Figure:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure

    assert found.distances is not None
    points = classical_scaling(found.distances).points
    dot = 2.2 if len(points) <= FEW else 1.4
    places = np.array([found.layers.index(layer) for layer, _ in found.named])
    edges = np.arange(len(found.layers) + 1) - 0.5
    norm, colours = BoundaryNorm(edges, 256), colormaps["viridis"]
    made = Figure(figsize=(6, 5), layout="constrained")
    axes = made.subplots()
    axes.scatter(
        points[:, 0],
        points[:, 1],
        c=places,
        norm=norm,
        cmap=colours,
        s=(2 * dot) ** 2,
        linewidths=0.3,
        edgecolors="0.2",
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("first coordinate (nats$^{1/2}$)")
    axes.set_ylabel("second coordinate (nats$^{1/2}$)")
    shown = [found.layers.index(layer) for layer in layer_ticks(found.layers)]
    bar = made.colorbar(ScalarMappable(norm, colours), ax=axes, label="layer", shrink=0.7, ticks=shown)
    bar.ax.set_yticklabels([str(found.layers[at]) for at in shown])
    bar.ax.minorticks_off()
    _name_heads(made, axes, found, points, dot)
    return made


def _name_heads(made: Figure, axes: Axes, found: Findings, points: np.ndarray, dot: float) -> None:
    """Each head's name beside its point, or at the end of a thin line where points are crowded."""
    from matplotlib.collections import LineCollection

    made.draw_without_rendering()  # only then is it known where points come to stand
    unit = made.dpi / 72
    places = axes.transData.transform(points) / unit
    low, high = axes.get_window_extent().get_points() / unit
    size = 2.5 * dot
    names = [f"{layer}.{head}" for layer, head in found.named]
    widths = label_widths(names, size)
    middles = place_labels(places, widths, size, radius=dot, low=low, high=high)
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": size, "ha": "center", "va": "center_baseline"}
    lines = []
    for name, point, place, middle, width in zip(names, points, places, middles, widths, strict=True):
        if np.isnan(middle).any():
            continue
        axes.annotate(name, tuple(point), xytext=tuple(middle - place), **style)
        ends = leader(place, middle, width, size, dot)
        if ends is not None:
            lines.append(axes.transData.inverted().transform(np.array(ends) * unit))
    axes.add_collection(LineCollection(lines, colors="0.6", linewidths=0.35, zorder=0.5), autolim=False)

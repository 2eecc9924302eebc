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
"""Fonts that come with matplotlib and fixed ids, so that the same survey gives the same bytes."""
KINDS = ("svg", "pdf")
METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "headscope"},
    "pdf": {"CreationDate": None, "Creator": "headscope", "Producer": None},
    "png": {"Software": "headscope"},
}
"""What a file says of itself, without the time, so that the same numbers give the same bytes."""
POINT, LINE = "#0072B2", "#D55E00"
"""Okabe and Ito's blue and vermilion, distinguishable in all common kinds of colour blindness."""
FEW = 144
"""Most heads for which the points and names of the clusters are full size."""


def write_plots(folder: Path, *, parts: bool = True) -> list[Path]:
    """Write plots/NAME.svg and plots/NAME.pdf into a finished survey's folder.

    special-tokens, neighbours and entropy: a statistic by layer, every head a point. clusters: the heads on a plane by
    their Jensen-Shannon distances, if the survey has them. Names of models and documents are left to the caption. The
    same survey and the same matplotlib give the same bytes.

    Args:
        folder: of the survey.
        parts: check every part against its hash first.

    Returns:
        Paths of the files, in that order, SVG before PDF.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InputError: the folder has no finished survey, or can't be written to.
    """
    folder = Path(folder)
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError(
            "matplotlib is not installed",
            where="the figures of a survey",
            advice="pip install 'headscope[plot]'; the site has the same figures without it",
        ) from error
    findings = read_findings(folder, parts=parts)
    (folder / "plots").mkdir(exist_ok=True)
    written = []
    with matplotlib.rc_context(SETTINGS):
        for name, figure in figures_of(findings).items():
            for kind in KINDS:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata=METADATA[kind])
                written.append(folder / "plots" / f"{name}.{kind}")
                write_atomically(written[-1], buffer.getvalue())
    return written


def figures_of(findings: Findings) -> dict[str, Figure]:
    """Name -> matplotlib figure, for the statistics that were measured."""
    figures = {
        figure.name: _by_layer(findings, figure)
        for figure in FIGURES
        if any(name in findings.statistics for name in figure.panels)
    }
    if findings.distances is not None:
        figures[CLUSTERS] = _clusters(findings)
    return figures


def _by_layer(findings: Findings, figure: LayerFigure) -> Figure:
    from matplotlib.figure import Figure

    values = {name: findings.values(name) for name in figure.panels}
    seen = np.concatenate([table[np.isfinite(table)] for table in values.values()])
    highest = round_up(float(seen.max()) if len(seen) else 0.0)
    drawing = Figure(figsize=(2.5 * len(values) + 0.6, 2.4), layout="constrained")
    panels = drawing.subplots(1, len(values), sharey=True, squeeze=False)[0]
    for axes, (name, title) in zip(panels, figure.panels.items(), strict=True):
        _panel(axes, findings, values[name])
        axes.set_title(title)
        axes.set_xlabel("layer")
        axes.set_ylim(0, highest * 1.02)
    panels[0].set_ylabel(figure.axis)
    return drawing


def _panel(axes: Axes, findings: Findings, table: np.ndarray) -> None:
    """Draw each head as a point at its layer, and a line through the layers' means."""
    at, column = np.nonzero(np.isfinite(table))
    places = np.arange(len(findings.layers))
    axes.set_xlim(-0.6, len(places) - 0.4)
    ticks = layer_ticks(findings.layers)
    axes.set_xticks([findings.layers.index(layer) for layer in ticks], [str(layer) for layer in ticks])
    if not len(at):
        axes.text(0.5, 0.5, "nothing to measure", transform=axes.transAxes, ha="center", color="0.35")
        return
    axes.scatter(at, table[at, column], s=9, color=POINT, alpha=0.55, linewidths=0)
    rows = np.unique(at)
    axes.plot(rows, [np.nanmean(table[row]) for row in rows], color=LINE, linewidth=1.3)


def _clusters(findings: Findings) -> Figure:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure

    assert findings.distances is not None
    points = classical_scaling(findings.distances).points
    dot = 2.2 if len(points) <= FEW else 1.4
    places = np.array([findings.layers.index(layer) for layer, _ in findings.named])
    edges = np.arange(len(findings.layers) + 1) - 0.5
    norm, colours = BoundaryNorm(edges, 256), colormaps["viridis"]
    drawing = Figure(figsize=(6, 5), layout="constrained")
    axes = drawing.subplots()
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
    ticks = [findings.layers.index(layer) for layer in layer_ticks(findings.layers)]
    bar = drawing.colorbar(ScalarMappable(norm, colours), ax=axes, label="layer", shrink=0.7, ticks=ticks)
    bar.ax.set_yticklabels([str(findings.layers[at]) for at in ticks])
    bar.ax.minorticks_off()
    _name_heads(drawing, axes, findings, points, dot)
    return drawing


def _name_heads(drawing: Figure, axes: Axes, findings: Findings, points: np.ndarray, dot: float) -> None:
    """Write each head's name beside its point, or at the end of a thin line where points are crowded."""
    from matplotlib.collections import LineCollection

    drawing.draw_without_rendering()  # fixes the positions of the points
    unit = drawing.dpi / 72
    places = axes.transData.transform(points) / unit
    low, high = axes.get_window_extent().get_points() / unit
    size = 2.5 * dot
    names = [f"{layer}.{head}" for layer, head in findings.named]
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

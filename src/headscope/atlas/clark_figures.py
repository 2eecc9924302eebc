"""The figures of a survey, after Clark et al. 2019, 'What Does BERT Look At?': their data, and drawing them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.atlas.contents import strange
from headscope.atlas.findings import SurveyData, read_findings
from headscope.atlas.layout_2d import classical_scaling, label_widths, leader, place_labels, round_up
from headscope.errors import MissingExtraError, install
from headscope.files import make_folder, write_if_new
from headscope.heads.picture import METADATA, SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LayerFigure:
    """A figure with layers along the x axis, a panel per statistic, a point per head, and a line through layer means.

    Attributes:
        name: the file's name without its suffix.
        title: above the figure.
        panels: statistic -> title of its panel.
        axis: label of the vertical axis, with the unit.
        source: the corresponding figure in the paper.
    """

    name: str
    title: str
    panels: dict[str, str]
    axis: str
    source: str


FIGURES = (
    LayerFigure(
        "special-tokens",
        "Weight on [CLS], on [SEP] and on punctuation",
        {"cls": "[CLS]", "sep": "[SEP]", "punctuation": "punctuation"},
        "mean weight",
        "Clark et al. 2019, figure 2",
    ),
    LayerFigure(
        "neighbours",
        "Weight on the previous token, the same and the next",
        {"previous": "previous token", "same": "same token", "next": "next token"},
        "mean weight",
        "Clark et al. 2019, section 3.1",
    ),
    LayerFigure(
        "entropy",
        "Entropy of every head",
        {"entropy": "entropy"},
        "mean entropy (nats)",
        "Clark et al. 2019, figure 4",
    ),
)

CLUSTERS = "clusters"
"""The figure of heads as points: multidimensional scaling of their Jensen-Shannon distances (figure 6 there)."""
CLUSTERS_TITLE = "Heads that look alike lie together"
CLUSTERS_SOURCE = "Clark et al. 2019, figure 6"


def layer_ticks(layers: tuple[int, ...], *, most: int = 12) -> tuple[int, ...]:
    """The layers labelled on an axis: all, or every second, third, …"""
    step = -(-len(layers) // most)
    return layers[::step]


KINDS = ("svg", "pdf")
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
            advice=f"{install('plot')}; the site has the same figures without it",
        ) from error
    findings = read_findings(folder, parts=parts)
    make_folder(folder / "plots")
    written = []
    with strange(folder), matplotlib.rc_context(SETTINGS):
        for name, figure in figures_of(findings).items():
            for kind in KINDS:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata=METADATA[kind])
                written.append(folder / "plots" / f"{name}.{kind}")
                write_if_new(written[-1], buffer.getvalue())
    return written


def figures_of(findings: SurveyData) -> dict[str, Figure]:
    """Name -> matplotlib figure, for the statistics that were measured."""
    figures = {
        figure.name: _by_layer(findings, figure)
        for figure in FIGURES
        if any(name in findings.statistics for name in figure.panels)
    }
    if findings.distances is not None:
        figures[CLUSTERS] = _clusters(findings)
    return figures


def _by_layer(findings: SurveyData, figure: LayerFigure) -> Figure:
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


def _panel(axes: Axes, findings: SurveyData, table: np.ndarray) -> None:
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


def _clusters(findings: SurveyData) -> Figure:
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


def _name_heads(drawing: Figure, axes: Axes, findings: SurveyData, points: np.ndarray, dot: float) -> None:
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

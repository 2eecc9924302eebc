"""The figures of a survey as SVG for its report: plain elements, coloured by the report's style."""

from __future__ import annotations

from html import escape

import numpy as np

from headscope._survey.colours import STEPS
from headscope._survey.figures import FIGURES, LayerFigure, layer_ticks, round_up
from headscope._survey.findings import Findings
from headscope._survey.labels import label_widths, leader, place_labels
from headscope._survey.scaling import classical_scaling
from headscope._survey.wording import shown

WIDTH, HEIGHT = 300, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 34
PLANE = 560
"""Side of the drawing of clusters."""
DOT, NAME = 4.2, 8.0
"""Radius of its points, and the size of their names."""


def layer_figure(found: Findings, figure: LayerFigure) -> str:
    """One figure, its panels beside each other; a panel of a statistic without values says so."""
    values = {name: found.values(name) for name in figure.panels}
    seen = np.concatenate([table[np.isfinite(table)] for table in values.values()])
    highest = round_up(float(seen.max()) if len(seen) else 0.0)
    panels = [
        _panel(found, values[name], title, at * (WIDTH + 12), highest)
        for at, (name, title) in enumerate(figure.panels.items())
    ]
    width = len(panels) * (WIDTH + 12) - 12
    label = (
        f'<text class="axis" transform="translate(11 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">{figure.axis}</text>'
    )
    return (
        f'<svg class="panels p{len(panels)}" viewBox="0 0 {width} {HEIGHT}" role="img" '
        f'aria-label="{escape(figure.title)}, by layer">{label}{"".join(panels)}</svg>'
    )


def _panel(found: Findings, table: np.ndarray, title: str, left: float, highest: float) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    step = (right - LEFT) / len(found.layers)

    def x(at: int) -> float:
        return left + LEFT + step * (at + 0.5)

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * value / highest

    parts = [f'<text class="title" x="{left + (LEFT + right) / 2:.4g}" y="14">{escape(title)}</text>']
    for part in range(5):
        value = highest * part / 4
        parts.append(
            f'<line class="rule" x1="{left + LEFT}" x2="{left + right}" y1="{y(value):.5g}" y2="{y(value):.5g}"/>'
            f'<text class="tick end" x="{left + LEFT - 5}" y="{y(value) + 3.5:.5g}">{value:g}</text>'
        )
    for layer in layer_ticks(found.layers):
        at = found.layers.index(layer)
        parts.append(f'<text class="tick" x="{x(at):.5g}" y="{bottom + 14}">{layer}</text>')
    parts.append(f'<text class="axis" x="{left + (LEFT + right) / 2:.4g}" y="{HEIGHT - 5}">layer</text>')
    line = []
    for at, layer in enumerate(found.layers):
        for head, value in zip(found.heads, table[at], strict=True):
            if np.isfinite(value):
                parts.append(
                    f'<circle class="point" cx="{x(at):.5g}" cy="{y(value):.5g}" r="2.6">'
                    f"<title>head {layer}.{head}: {shown(value)}</title></circle>"
                )
        row = table[at][np.isfinite(table[at])]
        if len(row):
            line.append(f"{x(at):.5g},{y(float(row.mean())):.5g}")
    if line:
        parts.append(f'<polyline class="mean" points="{" ".join(line)}"/>')
    else:
        parts.append(
            f'<text class="none" x="{left + (LEFT + right) / 2:.4g}" y="{(TOP + bottom) / 2}">nothing to measure</text>'
        )
    return "".join(parts)


def cluster_figure(found: Findings) -> str:
    """The heads on a plane, coloured by layer, each with its name."""
    assert found.distances is not None
    points = classical_scaling(found.distances).points
    reach = float(np.ptp(points, axis=0).max()) or 1.0
    middle = (points.max(0) + points.min(0)) / 2
    scale = (PLANE - 70) / reach
    tall = float(np.ptp(points[:, 1])) * scale + 90
    places = np.array([PLANE / 2, tall / 2 - 12]) + (points - middle) * scale * (1, -1)
    names = [f"{layer}.{head}" for layer, head in found.named]
    widths = label_widths(names, NAME)
    at_names = place_labels(places, widths, NAME, radius=DOT, low=(0, 0), high=(PLANE, tall - 24))
    lines, parts = [], []
    for (layer, _), title, place, at_name, width in zip(found.named, names, places, at_names, widths, strict=True):
        colour = layer_class(found.layers.index(layer), len(found.layers))
        parts.append(
            f'<circle class="{colour} head" cx="{place[0]:.5g}" cy="{place[1]:.5g}" r="{DOT}">'
            f"<title>head {title}</title></circle>"
        )
        if np.isnan(at_name).any():
            continue
        parts.append(f'<text class="name" x="{at_name[0]:.5g}" y="{at_name[1] + 0.36 * NAME:.5g}">{title}</text>')
        ends = leader(place, at_name, width, NAME, DOT)
        if ends is not None:
            (x1, y1), (x2, y2) = ends
            lines.append(f'<line class="leader" x1="{x1:.5g}" y1="{y1:.5g}" x2="{x2:.5g}" y2="{y2:.5g}"/>')
    parts = lines + parts
    unit = round_up(reach / 8)
    parts.append(
        f'<line class="unit" x1="20" x2="{20 + unit * scale:.5g}" y1="{tall - 12:.5g}" y2="{tall - 12:.5g}"/>'
        f'<text class="tick start" x="{26 + unit * scale:.5g}" y="{tall - 8.5:.5g}">distance {unit:g} nats^1/2</text>'
    )
    steps = "".join(
        f'<rect class="{layer_class(at, len(found.layers))}" x="{PLANE - 150 + 110 * at / len(found.layers):.5g}" '
        f'y="{tall - 17:.5g}" width="{110 / len(found.layers) + 0.3:.4g}" height="9"/>'
        for at in range(len(found.layers))
    )
    parts.append(
        f'{steps}<text class="tick end" x="{PLANE - 155}" y="{tall - 8.5:.5g}">layer {found.layers[0]}</text>'
        f'<text class="tick start" x="{PLANE - 35}" y="{tall - 8.5:.5g}">{found.layers[-1]}</text>'
    )
    return (
        f'<svg class="plane" viewBox="0 0 {PLANE} {tall:.5g}" role="img" '
        f'aria-label="Heads on a plane by their Jensen-Shannon distances">{"".join(parts)}</svg>'
    )


def layer_class(at: int, layers: int) -> str:
    """A class of the sequential map for a layer; the faintest part of the map is left out."""
    first = STEPS // 4
    return f"s{first + (STEPS - 1 - first) * at // max(1, layers - 1)}"


def figures(found: Findings) -> list[tuple[str, str, str]]:
    """Title, source and SVG of every figure that shows measured statistics."""
    return [
        (figure.title, figure.source, layer_figure(found, figure))
        for figure in FIGURES
        if any(name in found.statistics for name in figure.panels)
    ]

"""Layout of the report's plane of heads: points placed by distance, their names, and a scale bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope._survey.figures import round_up
from headscope._survey.plot_labels import label_widths, leader, place_labels
from headscope._survey.scaling import classical_scaling

if TYPE_CHECKING:
    from jaxtyping import Float

WIDTH = 560
"""Width of the drawing, in the unit of all other lengths (pixels at its natural size)."""
EDGE = 35
"""Margin around the points, for names."""
FOOT = 24
"""Margin below the points, for the scale bar."""
RADIUS, LETTERS = 4.2, 8.0
"""Radius of the points, and height of their names."""


def plane_of(distances: Float[np.ndarray, "heads heads"], names: Sequence[str], cells: Sequence[int]) -> dict[str, Any]:
    """The fields of `Plane` in web/src/report/data.ts from `kept` on.

    Args:
        distances: between heads.
        names, cells: of the heads, in the same order.

    Raises:
        InputError: as for `classical_scaling`.
    """
    scaled = classical_scaling(distances)
    points = scaled.points
    reach = float(np.ptp(points, axis=0).max()) or 1.0
    middle = (points.max(0) + points.min(0)) / 2
    scale = (WIDTH - 2 * EDGE) / reach
    height = float(np.ptp(points[:, 1])) * scale + 2 * EDGE + FOOT - 4
    places = np.array([WIDTH / 2, (height - FOOT) / 2]) + (points - middle) * scale * (1, -1)
    widths = label_widths(names, LETTERS)
    middles = place_labels(places, widths, LETTERS, radius=RADIUS, low=(0, 0), high=(WIDTH, height - FOOT))
    heads = []
    for cell, place, at_name, width in zip(cells, places, middles, widths, strict=True):
        unplaced = bool(np.isnan(at_name).any())
        ends = None if unplaced else leader(place, at_name, width, LETTERS, RADIUS)
        heads.append(
            {
                "cell": cell,
                "x": _rounded(place[0]),
                "y": _rounded(place[1]),
                "name": None if unplaced else [_rounded(value) for value in at_name],
                "leader": None if ends is None else [_rounded(value) for end in ends for value in end],
            }
        )
    unit = round_up(reach / 8)
    return {
        "kept": scaled.kept,
        "width": WIDTH,
        "height": _rounded(height),
        "radius": RADIUS,
        "letters": LETTERS,
        "heads": heads,
        "unit": {"distance": unit, "length": _rounded(unit * scale)},
    }


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")

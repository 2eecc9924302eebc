"""Placement of the names of points on a plane, so that none covers another or a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

ANGLES = (0, 180, 30, -30, 150, -150, 60, -60, 120, -120, 90, -90)
"""Degrees from a point to its name, the best first."""
RINGS = 16
"""Number of distances to try."""
CROWD = 6
"""Range, in heights of a name, within which neighbours count as a crowd."""


def label_widths(names: Sequence[str], size: float) -> Float[np.ndarray, " n"]:
    """Approximate widths, (n,), of names such as 10.3 in a font; a full stop is half as wide as a digit."""
    return np.array([size * (0.64 * len(name) - 0.3) for name in names])


def place_labels(
    points: Float[np.ndarray, "n 2"],
    widths: Float[np.ndarray, " n"],
    height: float,
    *,
    radius: float,
    low: tuple[float, float] | Float[np.ndarray, " 2"],
    high: tuple[float, float] | Float[np.ndarray, " 2"],
) -> Float[np.ndarray, "n 2"]:
    """The centre of each name, (n, 2), as near to its point as possible; NaN where there is no room.

    Names in crowds are placed first, because those at the rim find room further out. All lengths are in one unit; y may
    point up or down.

    Args:
        points: their positions.
        widths, height: of the names.
        radius: of the points, which names keep clear of.
        low, high: corners of the area that names must stay within.
    """
    turns = np.radians(ANGLES)
    ways = np.stack([np.cos(turns), np.sin(turns)], -1)
    crowd = [int((np.abs(points - point) < CROWD * height).all(-1).sum()) for point in points]
    centres = np.full(points.shape, np.nan)
    discs = np.column_stack([points, np.full(points.shape, radius)])
    for at in np.argsort(np.negative(crowd), kind="stable"):
        half = np.array([widths[at], height]) / 2
        # Obstacles within reach: points, and names already placed.
        named = np.isfinite(centres[:, 0])
        others = np.concatenate(
            [discs, np.column_stack([centres, widths / 2, np.full(len(widths), height / 2)])[named]]
        )
        reach = RINGS * height + 2 * half + 2 * radius
        others = others[(np.abs(others[:, :2] - points[at]) < reach + others[:, 2:]).all(-1)]
        for ring in range(RINGS):
            # The same gap between point and name in every direction: the name's box extends half.|way| that way.
            away = 1.3 * radius + 0.75 * height * ring + np.abs(ways) @ half
            middles = points[at] + ways * away[:, None]
            free = ((middles - half >= low) & (middles + half <= high)).all(-1)
            free &= ~(np.abs(middles[:, None] - others[:, :2]) < half + others[:, 2:]).all(-1).any(-1)
            if free.any():
                centres[at] = middles[np.argmax(free)]
                break
    return centres


def leader(
    point: Float[np.ndarray, " 2"], middle: Float[np.ndarray, " 2"], width: float, height: float, radius: float
) -> tuple[Float[np.ndarray, " 2"], Float[np.ndarray, " 2"]] | None:
    """A line from a point to its name, or None if the name is so near that it needs none."""
    way = middle - point
    length = math.hypot(*way)
    way = way / length
    rim = float(np.min([width, height] / np.maximum(2 * np.abs(way), 1e-9)))
    if length - rim < radius + 0.6 * height:
        return None
    return point + way * radius, middle - way * rim

"""Where the names of points on a plane stand, so that none covers another or a point."""

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
"""How many distances are tried."""
CROWD = 6
"""How many heights away other points make a crowd."""


def label_widths(names: Sequence[str], size: float) -> Float[np.ndarray, " n"]:
    """(n,): about how wide names like 10.3 are in a font of this size: a full stop is half as wide as a digit."""
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
    """(n, 2): the middle of each name, as near to its point as it can be; NaN where there is no room for it.

    Names in a crowd are placed first: those at its rim find room further out. All in one unit, whichever way y goes.

    Args:
        points: where the points are.
        widths, height: of the names.
        radius: of the points, which names keep clear of.
        low, high: corners of the ground that names must stay on.
    """
    turns = np.radians(ANGLES)
    ways = np.stack([np.cos(turns), np.sin(turns)], -1)
    crowd = [int((np.abs(points - point) < CROWD * height).all(-1).sum()) for point in points]
    found = np.full(points.shape, np.nan)
    discs = np.column_stack([points, np.full(points.shape, radius)])
    for at in np.argsort(np.negative(crowd), kind="stable"):
        half = np.array([widths[at], height]) / 2
        # Only what is as near as a name can get counts: points, and names that have their place.
        named = np.isfinite(found[:, 0])
        others = np.concatenate([discs, np.column_stack([found, widths / 2, np.full(len(widths), height / 2)])[named]])
        reach = RINGS * height + 2 * half + 2 * radius
        others = others[(np.abs(others[:, :2] - points[at]) < reach + others[:, 2:]).all(-1)]
        for ring in range(RINGS):
            # From the point to the rim of the name it is so far, whichever way: a box is half.|way| thick.
            away = 1.3 * radius + 0.75 * height * ring + np.abs(ways) @ half
            middles = points[at] + ways * away[:, None]
            free = ((middles - half >= low) & (middles + half <= high)).all(-1)
            free &= ~(np.abs(middles[:, None] - others[:, :2]) < half + others[:, 2:]).all(-1).any(-1)
            if free.any():
                found[at] = middles[np.argmax(free)]
                break
    return found


def leader(
    point: Float[np.ndarray, " 2"], middle: Float[np.ndarray, " 2"], width: float, height: float, radius: float
) -> tuple[Float[np.ndarray, " 2"], Float[np.ndarray, " 2"]] | None:
    """A line from a point's rim to its name's, where the name stands too far off to be taken for the point's."""
    way = middle - point
    length = math.hypot(*way)
    way = way / length
    rim = float(np.min([width, height] / np.maximum(2 * np.abs(way), 1e-9)))
    if length - rim < radius + 0.6 * height:
        return None
    return point + way * radius, middle - way * rim

"""Heads on a plane: classical scaling of their distances, places for their names, and the report's drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float


def classical_scaling(distances: Float[np.ndarray, "n n"]) -> tuple[Float[np.ndarray, "n 2"], float]:
    """Points of a plane whose Euclidean distances approximate `distances`, exactly if two dimensions suffice.

        B = -1/2 J D^2 J,  J = I - 1/n 1 1^T;    points = V sqrt(Lambda), the largest eigenvalues of B first

    Torgerson 1952, *Multidimensional Scaling: I. Theory and Method*. A dimension beyond those of the distances is 0.

    Returns:
        The points, centred; the axis with the greatest spread first, each flipped so that its largest coordinate is
        positive. And the share of the squared distances (the sum of all positive eigenvalues) that they hold, 0 to 1.

    Raises:
        InputError: a distance is not a number, as of heads whose weights aren't.
    """
    table = np.asarray(distances, dtype=np.float64)
    if not np.isfinite(table).all():
        raise InputError("a distance is not a number", where="distances", advice="leave out heads with NaN weights")
    squares = ((table + table.T) / 2) ** 2
    centred = -(squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()) / 2
    values, vectors = np.linalg.eigh(centred)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    points = np.zeros((len(table), 2))
    points[:, : len(table)] = vectors[:, :2] * np.sqrt(values[:2])
    largest = points[np.abs(points).argmax(0), np.arange(2)]
    points *= np.where(largest < 0, -1.0, 1.0)
    total = values.sum()
    return points, float(values[:2].sum() / total) if total > 0 else 1.0


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
        widths: of the names.
        height: of the names.
        radius: of the points, which names keep clear of.
        low: the lower corner of the area that names must stay within.
        high: its upper corner.
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


WIDTH = 560
"""Width of the drawing, in the unit of all other lengths (pixels at its natural size)."""
EDGE = 35
"""Margin around the points, for names."""
FOOT = 24
"""Margin below the points, for the scale bar."""
RADIUS, LETTERS = 4.2, 8.0
"""Radius of the points, and height of their names."""


def layer_ticks(layers: tuple[int, ...]) -> tuple[int, ...]:
    """The layers labelled on an axis, at most twelve: all, or every second, third, …"""
    return layers[:: -(-len(layers) // 12)]


def round_up(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `value`; 1 for 0."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 2.5, 5, 10) if step * unit >= value * (1 - 1e-9))


def plane_of(distances: Float[np.ndarray, "heads heads"], names: Sequence[str], cells: Sequence[int]) -> dict[str, Any]:
    """The fields of `Plane` in web/src/report/data.ts from `kept` on.

    Args:
        distances: between heads.
        names, cells: of the heads, in the same order.

    Raises:
        InputError: as for `classical_scaling`.
    """
    points, kept = classical_scaling(distances)
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
        "kept": kept,
        "width": WIDTH,
        "height": _rounded(height),
        "radius": RADIUS,
        "letters": LETTERS,
        "heads": heads,
        "unit": {"distance": unit, "length": _rounded(unit * scale)},
    }


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")

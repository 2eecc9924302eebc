"""Points on a plane whose distances are as near as can be to given ones: classical multidimensional scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Scaled:
    """A configuration of points.

    Attributes:
        points: (n, dimensions), centred; the axis with the greatest spread first, each axis turned so that its largest
            coordinate is positive.
        kept: share of the squared distances (the sum of all positive eigenvalues) that these dimensions hold, 0 to 1.
    """

    points: Float[np.ndarray, "n dimensions"]
    kept: float


def classical_scaling(distances: Float[np.ndarray, "n n"], *, dimensions: int = 2) -> Scaled:
    """Points whose Euclidean distances approximate `distances`; exact where points in so many dimensions have them.

        B = -1/2 J D^2 J,  J = I - 1/n 1 1^T;    points = V sqrt(Lambda), the largest eigenvalues of B first

    Torgerson 1952, *Multidimensional Scaling: I. Theory and Method*. Dimensions beyond those that the distances have
    are 0.

    Raises:
        InputError: the distances aren't a square, symmetric, finite table with 0 from each point to itself.
    """
    found = np.asarray(distances, dtype=np.float64)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not len(found):
        raise InputError(
            f"distances need as many rows as columns, and these are {found.shape}",
            where="distances",
            advice="pass a square table: row a, column b is the distance from a to b",
        )
    wrong = ~np.isfinite(found) | (np.abs(found - found.T) > 1e-6) | (np.eye(len(found), dtype=bool) & (found != 0))
    if wrong.any():
        a, b = (int(at) for at in np.argwhere(wrong)[0])
        raise InputError(
            f"from {a} to {b} the distance is {found[a, b]:g}, and back it is {found[b, a]:g}",
            where="distances",
            advice="distances are finite, the same both ways, and 0 from a point to itself",
        )
    squares = ((found + found.T) / 2) ** 2
    centred = -(squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()) / 2
    values, vectors = np.linalg.eigh(centred)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    points = np.zeros((len(found), dimensions))
    use = min(dimensions, len(found))
    points[:, :use] = vectors[:, :use] * np.sqrt(values[:use])
    largest = points[np.abs(points).argmax(0), np.arange(dimensions)]
    points *= np.where(largest < 0, -1.0, 1.0)
    total = values.sum()
    return Scaled(points, float(values[:dimensions].sum() / total) if total > 0 else 1.0)

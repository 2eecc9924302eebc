"""Classical multidimensional scaling: points on a plane whose distances approximate given ones."""

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
        points: (n, dimensions), centred; the axis with the greatest spread first, each axis flipped so that its largest
            coordinate is positive.
        kept: share of the squared distances (the sum of all positive eigenvalues) that these dimensions hold, 0 to 1.
    """

    points: Float[np.ndarray, "n dimensions"]
    kept: float


def classical_scaling(distances: Float[np.ndarray, "n n"], *, dimensions: int = 2) -> Scaled:
    """Points whose Euclidean distances approximate `distances`, exactly if `dimensions` suffice.

        B = -1/2 J D^2 J,  J = I - 1/n 1 1^T;    points = V sqrt(Lambda), the largest eigenvalues of B first

    Torgerson 1952, *Multidimensional Scaling: I. Theory and Method*. Dimensions beyond those of the distances are 0.

    Raises:
        InputError: the distances aren't a square, symmetric, finite matrix with zeros on the diagonal.
    """
    table = np.asarray(distances, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not len(table):
        raise InputError(
            f"expected a square matrix of distances, got shape {table.shape}",
            where="distances",
            advice="pass a matrix whose row a, column b is the distance from a to b",
        )
    wrong = ~np.isfinite(table) | (np.abs(table - table.T) > 1e-6) | (np.eye(len(table), dtype=bool) & (table != 0))
    if wrong.any():
        a, b = (int(at) for at in np.argwhere(wrong)[0])
        raise InputError(
            f"the distance from {a} to {b} is {table[a, b]:g}, and from {b} to {a} {table[b, a]:g}",
            where="distances",
            advice="distances must be finite, symmetric, and 0 on the diagonal",
        )
    squares = ((table + table.T) / 2) ** 2
    centred = -(squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()) / 2
    values, vectors = np.linalg.eigh(centred)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    points = np.zeros((len(table), dimensions))
    use = min(dimensions, len(table))
    points[:, :use] = vectors[:, :use] * np.sqrt(values[:use])
    largest = points[np.abs(points).argmax(0), np.arange(dimensions)]
    points *= np.where(largest < 0, -1.0, 1.0)
    total = values.sum()
    return Scaled(points, float(values[:dimensions].sum() / total) if total > 0 else 1.0)

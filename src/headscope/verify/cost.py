"""The cost of a difference of vectors in search: cosines, the order of all similarities, nearest neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.results.parity import Cost

if TYPE_CHECKING:
    from jaxtyping import Float

    Vectors = Float[np.ndarray, "texts d"]


def cost_of(a: Vectors, b: Vectors) -> Cost:
    """Compare the vectors of the same texts in two sides."""
    wide = [vectors.astype(np.float64) for vectors in (a, b)]
    with np.errstate(divide="ignore", invalid="ignore"):
        unit_a, unit_b = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in wide)
    cosines = np.einsum("nd,nd->n", unit_a, unit_b)
    if len(a) < 3:
        return Cost(cosines, float("nan"), 0)
    similar = [unit @ unit.T for unit in (unit_a, unit_b)]
    pairs = np.triu_indices(len(a), 1)
    nearest = [np.where(np.eye(len(a), dtype=bool), -np.inf, cells).argmax(-1) for cells in similar]
    return Cost(cosines, rank_correlation(*(cells[pairs] for cells in similar)), int((nearest[0] != nearest[1]).sum()))


def rank_correlation(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    """Spearman's: Pearson's of ranks, equal numbers sharing the mean of theirs; NaN if one is constant."""
    first, other = (ranks(values) - (len(values) - 1) / 2 for values in (a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return float((first * other).sum() / np.sqrt((first * first).sum() * (other * other).sum()))


def ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The rank of each number from 0; equal numbers share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[which]

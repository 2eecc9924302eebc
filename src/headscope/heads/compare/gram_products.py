"""Changes of a head's QK and OV from Gram products.

A head is stored as thin matrices, here with one row per head dimension: (d_head, d_model). Its products are
QK = W_Q W_K^T and OV = W_V W_O, both (d_model, d_model) of rank d_head at most. They are never built: with
A = L R^T, B = L' R'^T, dL = L' - L and dR = R' - R,

    B - A = dL R^T + L' dR^T
    |B - A|^2 = <dL^T dL, R^T R> + <L'^T L', dR^T dR> + 2 <dL^T L', R^T dR>,

where <X, Y> is the sum of X * Y over all cells, and every factor is (d_head, d_head). Equal factors give exactly 0. A
product in another basis (L M, R M^-T) is recognised as equal to within 1e-7 in fp64.

W_Q by itself depends on the basis that training happened to choose: W_Q M and W_K M^-T are the same head for every
invertible M. QK and OV don't depend on it. That is why W_Q isn't compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

    Rows = Float[np.ndarray, "heads d_head d_model"]
    PerHead = Float[np.ndarray, " heads"]


def product_change(left: Rows, right: Rows, new_left: Rows, new_right: Rows) -> PerHead:
    """The change |B - A| / |A| of each head's product in the Frobenius norm; the formula is at the top.

    Args:
        left: (heads, d_head, d_model), L^T of A = L R^T.
        right: (heads, d_head, d_model), R^T.
        new_left: L'^T of B.
        new_right: R'^T of B.
    """
    d_left, d_right = new_left - left, new_right - right
    square = (
        _inner(_gram(d_left, d_left), _gram(right, right))
        + _inner(_gram(new_left, new_left), _gram(d_right, d_right))
        + 2 * _inner(_gram(d_left, new_left), _gram(right, d_right))
    )
    base = _inner(_gram(left, left), _gram(right, right))
    return ratio(np.sqrt(np.maximum(square, 0)), np.sqrt(np.maximum(base, 0)))


def ratio(change: PerHead, base: PerHead) -> PerHead:
    """The change relative to the base: 0 where nothing changed, infinity where something came from nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(change == 0, 0.0, change / base)


def _gram(
    first: Float[np.ndarray, "heads d_head d_model"], other: Float[np.ndarray, "heads d_head d_model"]
) -> Float[np.ndarray, "heads d_head d_head"]:
    return first @ other.swapaxes(-1, -2)


def _inner(
    first: Float[np.ndarray, "heads d_head d_head"], other: Float[np.ndarray, "heads d_head d_head"]
) -> Float[np.ndarray, " heads"]:
    return (first * other).sum((-2, -1))

"""Changes from Gram products against full matrices written out."""

from __future__ import annotations

import numpy as np
import pytest

from headscope.heads.compare.gram_products import product_change
from headscope.heads.head_distances import relative

HEADS, D_HEAD, D_MODEL = 3, 5, 17


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(HEADS, D_HEAD, D_MODEL))


def naive_change(left: np.ndarray, right: np.ndarray, new_left: np.ndarray, new_right: np.ndarray) -> float:
    """|B - A| / |A| of the full (d_model, d_model) products."""
    a, b = left.T @ right, new_left.T @ new_right
    return float(np.linalg.norm(b - a) / np.linalg.norm(a))


@pytest.mark.parametrize("step", [1.0, 1e-2, 1e-5, 1e-9])
def test_the_change_of_a_product_is_that_of_the_full_matrices(step: float) -> None:
    left, right = rows(0), rows(1)
    new_left, new_right = left + step * rows(2), right + step * rows(3)
    found = product_change(left, right, new_left, new_right)
    wanted = [naive_change(*factors) for factors in zip(left, right, new_left, new_right, strict=True)]
    # The full matrices lose digits where the step is small: B - A is rounded at 1e-16 of A.
    np.testing.assert_allclose(found, wanted, rtol=1e-12 + 1e-15 / step)


def test_equal_factors_change_by_exactly_nothing() -> None:
    left, right = rows(0), rows(1)
    assert (product_change(left, right, left.copy(), right.copy()) == 0).all()


def test_a_rotation_of_both_factors_changes_nothing() -> None:
    left, right = rows(0), rows(1)
    turn, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(D_HEAD, D_HEAD)))
    assert (product_change(left, right, turn.T @ left, turn.T @ right) < 1e-7).all()


def test_any_change_of_basis_leaves_the_product() -> None:
    """W_Q M and W_K M^-T are the same head for every invertible M, though W_Q M is far from W_Q."""
    left, right = rows(0), rows(1)
    basis = np.random.default_rng(5).normal(size=(D_HEAD, D_HEAD)) + 3 * np.eye(D_HEAD)
    new_left, new_right = basis.T @ left, np.linalg.inv(basis) @ right
    assert np.linalg.norm(new_left - left) / np.linalg.norm(left) > 1
    assert (product_change(left, right, new_left, new_right) < 1e-6).all()


def test_what_came_from_nothing_changed_without_bound() -> None:
    zero, some = np.zeros((1, D_HEAD, D_MODEL)), rows(0)[:1]
    assert product_change(zero, zero, some, some) == np.inf
    assert relative(np.zeros((2, 3)), np.array([[0.0, 0, 0], [0, 1, 0]])).tolist() == [0, np.inf]
    np.testing.assert_allclose(relative(np.array([[3.0, 4.0]]), np.array([[3.0, 5.0]])), [0.2])

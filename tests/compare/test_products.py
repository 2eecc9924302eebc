"""Changes from Gram products against full matrices written out; angles against SciPy and against an SVD by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from headscope.heads.compare.products import largest_angle, product_change
from headscope.heads.distances import relative

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
    assert (largest_angle(left, left.copy()) == 0).all()


def test_a_rotation_of_both_factors_changes_nothing() -> None:
    left, right = rows(0), rows(1)
    turn, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(D_HEAD, D_HEAD)))
    assert (product_change(left, right, turn.T @ left, turn.T @ right) < 1e-7).all()
    assert (largest_angle(left, turn.T @ left) < 1e-7).all()


def test_any_change_of_basis_leaves_product_and_subspaces() -> None:
    """W_Q M and W_K M^-T are the same head for every invertible M, though W_Q M is far from W_Q."""
    left, right = rows(0), rows(1)
    basis = np.random.default_rng(5).normal(size=(D_HEAD, D_HEAD)) + 3 * np.eye(D_HEAD)
    new_left, new_right = basis.T @ left, np.linalg.inv(basis) @ right
    assert np.linalg.norm(new_left - left) / np.linalg.norm(left) > 1
    assert (product_change(left, right, new_left, new_right) < 1e-6).all()
    assert (largest_angle(left, new_left) < 1e-6).all()


@pytest.mark.parametrize("step", [10.0, 0.3, 1e-3, 1e-9])
def test_angles_are_those_of_scipy(step: float) -> None:
    a, b = rows(0), rows(0) + step * rows(1)
    wanted = [np.degrees(subspace_angles(first.T, other.T).max()) for first, other in zip(a, b, strict=True)]
    np.testing.assert_allclose(largest_angle(a, b), wanted, rtol=1e-9, atol=1e-12)


def test_angles_are_those_of_an_svd_written_out() -> None:
    a, b = rows(0), rows(1)
    for head, angle in enumerate(largest_angle(a, b)):
        u, v = (np.linalg.svd(matrix[head].T, full_matrices=False)[0] for matrix in (a, b))
        cosines = np.linalg.svd(u.T @ v, compute_uv=False)
        assert angle == pytest.approx(np.degrees(np.arccos(cosines.min())), rel=1e-9)


def test_planes_at_a_known_angle() -> None:
    """Two planes in space that share an axis and are turned by 30 degrees about it; and a plane and a line in it."""
    turned = np.array([0.0, np.cos(np.pi / 6), np.sin(np.pi / 6)])
    flat, tilted = np.eye(3)[:2], np.stack([np.eye(3)[0], turned])
    line = np.stack([np.eye(3)[0], 2 * np.eye(3)[0]])
    nothing = np.zeros((2, 3))
    found = largest_angle(np.stack([flat, flat, flat, nothing]), np.stack([tilted, line, nothing, nothing]))
    np.testing.assert_allclose(found[:2], [30, 0], atol=1e-12)
    assert np.isnan(found[2])
    assert found[3] == 0


def test_what_came_from_nothing_changed_without_bound() -> None:
    zero, some = np.zeros((1, D_HEAD, D_MODEL)), rows(0)[:1]
    assert product_change(zero, zero, some, some) == np.inf
    assert relative(np.zeros((2, 3)), np.array([[0.0, 0, 0], [0, 1, 0]])).tolist() == [0, np.inf]
    np.testing.assert_allclose(relative(np.array([[3.0, 4.0]]), np.array([[3.0, 5.0]])), [0.2])

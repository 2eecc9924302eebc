"""The plane of a survey's heads: the scaling behind it, and the places of names."""

from __future__ import annotations

import numpy as np
import pytest

from headscope.atlas.clark_figures import layer_ticks
from headscope.atlas.layout_2d import classical_scaling, leader, place_labels, round_up
from headscope.errors import InputError


def test_scaling_reproduces_the_distances_of_known_points() -> None:
    points = np.random.default_rng(3).normal(size=(20, 2)) * (3, 1) + 7
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    result = classical_scaling(apart)
    np.testing.assert_allclose(np.linalg.norm(result.points[:, None] - result.points[None], axis=-1), apart, atol=1e-9)
    assert result.kept == pytest.approx(1)
    np.testing.assert_allclose(result.points.mean(0), 0, atol=1e-9)
    assert result.points[:, 0].var() > result.points[:, 1].var()


def test_scaling_says_what_a_plane_cannot_hold() -> None:
    """A regular tetrahedron has three equal axes, of which a plane holds two."""
    result = classical_scaling(np.ones((4, 4)) - np.eye(4))
    assert result.kept == pytest.approx(2 / 3)
    np.testing.assert_allclose(np.abs((result.points**2).sum(0)), 0.5)


@pytest.mark.parametrize("size", [1, 2])
def test_scaling_of_few_points(size: int) -> None:
    result = classical_scaling(np.ones((size, size)) - np.eye(size))
    assert result.points.shape == (size, 2)
    assert np.linalg.norm(result.points[0] - result.points[-1]) == pytest.approx(size - 1)
    assert result.kept == 1


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 3)), np.zeros((0, 0)), np.array([[0, 1], [2, 0]]), np.eye(2), np.full((2, 2), np.nan)]
)
def test_scaling_refuses_what_is_no_table_of_distances(wrong: np.ndarray) -> None:
    with pytest.raises(InputError):
        classical_scaling(wrong)


@pytest.mark.parametrize(("heads", "spread"), [(1, 0), (4, 0), (12, 30), (144, 90), (384, 150)])
def test_no_name_covers_another_or_a_point(heads: int, spread: float) -> None:
    """Boxes of names and discs of points, held against each other pair by pair; near its point where there is room."""
    points = np.random.default_rng(heads).normal(size=(heads, 2)) * spread + 500
    widths = np.random.default_rng(1).uniform(8, 20, heads)
    middles = place_labels(points, widths, 6, radius=3, low=(0, 0), high=(1000, 1000))
    assert np.isfinite(middles).all()
    halves = np.stack([widths, np.full(heads, 6)], -1) / 2
    for at in range(heads):
        gaps = np.abs(middles[at] - points) - halves[at]
        assert (np.linalg.norm(np.maximum(gaps, 0), axis=-1) >= 3).all()
        others = np.arange(heads) != at
        apart = np.abs(middles[at] - middles[others]) - halves[at] - halves[others]
        assert (apart.max(-1) >= 0).all()
        line = leader(points[at], middles[at], widths[at], 6, 3)
        near = np.linalg.norm(np.maximum(np.abs(middles[at] - points[at]) - halves[at], 0)) < 3 + 6
        assert near if line is None else np.linalg.norm(line[0] - points[at]) == pytest.approx(3)


def test_a_name_without_room_is_left_out() -> None:
    result = place_labels(np.full((2, 2), 5.0), np.array([4.0, 11.0]), 3, radius=1, low=(0, 0), high=(10, 10))
    assert np.isfinite(result).tolist() == [[True, True], [False, False]]


def test_axes_end_at_round_numbers() -> None:
    assert [round_up(value) for value in (0, 0.013, 0.2, 3.1, 7, 10)] == [1, 0.02, 0.2, 5, 10, 10]
    assert layer_ticks(tuple(range(12))) == tuple(range(12))
    assert layer_ticks(tuple(range(24))) == tuple(range(0, 24, 2))

"""Patterns of heads that are known by construction."""

from __future__ import annotations

import numpy as np
import pytest

from headscope.attention import Mask
from headscope.statistics import head_statistics
from headscope.view.patterns import patterns_of

SIZE = 6
SPECIAL = np.array([True, False, False, True, False, True])


def found(weights):
    """The patterns of one head with exactly these weights: they are its bias, and its queries are 0."""
    with np.errstate(divide="ignore"):
        bias = np.log(weights)[None].astype(np.float32)
    nothing = np.zeros((1, SIZE, 1), np.float32)
    statistics = head_statistics(nothing, nothing, scale=1.0, special=SPECIAL, mask=Mask(bias=bias))
    return patterns_of(statistics, SIZE, layer=1, heads=[0], broken=np.zeros(1, bool))[0]


@pytest.mark.parametrize(
    ("weights", "name", "mass"),
    [
        (np.eye(SIZE, k=-1) + np.eye(SIZE)[0] * np.eye(SIZE)[:, :1], "previous", 1.0),
        (np.eye(SIZE), "same", 1.0),
        (np.roll(np.eye(SIZE), 1, axis=1), "next", 1.0),
        (np.tile(np.eye(SIZE)[0], (SIZE, 1)), "first", 1.0),
        (np.tile(np.eye(SIZE)[3], (SIZE, 1)), "separators", 1.0),
    ],
)
def test_pure_patterns(weights, name, mass):
    one = found(weights)
    assert one.name == name
    assert getattr(one, name) == pytest.approx(mass)
    assert one.entropy == pytest.approx(0, abs=1e-6)


def test_even_heads():
    one = found(np.full((SIZE, SIZE), 1 / SIZE))
    assert one.name == "even"
    assert one.evenness == pytest.approx(1)
    assert one.entropy == pytest.approx(np.log(SIZE))
    assert one.separators == pytest.approx(2 / SIZE)


def test_mixed_heads():
    weights = np.zeros((SIZE, SIZE))
    weights[:, 1] = weights[:, 2] = 0.5
    assert found(weights).name == "mixed"


def test_masses_are_means_over_the_queries_that_have_one():
    generator = np.random.default_rng(3)
    weights = generator.dirichlet(np.ones(SIZE), SIZE)
    one = found(weights)
    assert one.previous == pytest.approx(np.mean([weights[at, at - 1] for at in range(1, SIZE)]))
    assert one.next == pytest.approx(np.mean([weights[at, at + 1] for at in range(SIZE - 1)]))
    assert one.entropy == pytest.approx(np.mean([-(row * np.log(row)).sum() for row in weights]))

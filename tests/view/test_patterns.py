"""Patterns of heads that are known by construction."""

from __future__ import annotations

import numpy as np
import pytest

from headscope.view.patterns import patterns_of

SIZE = 6
SPECIAL = np.array([True, False, False, True, False, True])


def found(weights, block=SIZE):
    blocks = (weights[start : start + block] for start in range(0, len(weights), block))
    return patterns_of(blocks, SPECIAL, layer=1, head=2)


@pytest.mark.parametrize("block", [1, 4, SIZE])
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
def test_pure_patterns(weights, name, mass, block):
    one = found(weights, block)
    assert one.name == name
    assert getattr(one, name) == pytest.approx(mass)
    assert one.entropy == pytest.approx(0)


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
    one = found(weights, 2)
    assert one.previous == pytest.approx(np.mean([weights[at, at - 1] for at in range(1, SIZE)]))
    assert one.next == pytest.approx(np.mean([weights[at, at + 1] for at in range(SIZE - 1)]))
    assert one.entropy == pytest.approx(np.mean([-(row * np.log(row)).sum() for row in weights]))

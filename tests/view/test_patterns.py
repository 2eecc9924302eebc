"""Patterns of heads that are known by construction."""

from __future__ import annotations

import numpy as np
import pytest

from by_hand import axis_of
from headscope.attention.scores import Mask
from headscope.heads import grid
from headscope.heads.kinds import Pattern
from headscope.heads.measure import all_patterns
from headscope.heads.reference import roles_of
from headscope.traces import LayerRecord, Trace

TOKENS = ("[CLS]", "a", "b", "[SEP]", "c", "[SEP]")
SIZE = len(TOKENS)


def pattern(weights: np.ndarray) -> Pattern:
    """The pattern of one head with exactly these weights: they are its bias, and its queries are 0."""
    with np.errstate(divide="ignore"):
        bias = np.log(weights)[None].astype(np.float32)
    nothing = np.zeros((1, SIZE, 1), np.float32)
    special = tuple(token.startswith("[") for token in TOKENS)
    axis = axis_of(TOKENS, special=special)
    record = LayerRecord(q=nothing, k=nothing, v=None, lse=None, scale=1.0, mask=Mask(bias=bias), number=1)
    (only,) = all_patterns(Trace(model="-", queries=axis, layers=(record,)))
    return only


@pytest.mark.parametrize(
    ("weights", "name", "mass"),
    [
        (np.eye(SIZE, k=-1) + np.eye(SIZE)[0] * np.eye(SIZE)[:, :1], "previous", 1.0),
        (np.eye(SIZE), "same", 1.0),
        (np.roll(np.eye(SIZE), 1, axis=1), "next", 1.0),
        (np.tile(np.eye(SIZE)[0], (SIZE, 1)), "first", 1.0),
        (np.tile(np.eye(SIZE)[3], (SIZE, 1)), "sep", 1.0),
    ],
)
def test_pure_patterns(weights: np.ndarray, name: str, mass: float) -> None:
    one = pattern(weights)
    assert (one.layer, one.head, one.name) == (1, 0, name)
    assert one.means[name] == pytest.approx(mass)
    assert one.means["entropy"] == pytest.approx(0, abs=1e-6)


def test_even_heads() -> None:
    one = pattern(np.full((SIZE, SIZE), 1 / SIZE))
    assert one.name == "even"
    assert one.means["normalised_entropy"] == pytest.approx(1)
    assert one.means["entropy"] == pytest.approx(np.log(SIZE))
    assert one.means["sep"] == pytest.approx(2 / SIZE)


def test_mixed_heads() -> None:
    weights = np.full((SIZE, SIZE), 1e-6)
    weights[:, 1] = weights[:, 2] = 0.5
    assert pattern(weights).name == "mixed"


def test_masses_are_means_over_the_queries_that_have_one() -> None:
    generator = np.random.default_rng(3)
    weights = generator.dirichlet(np.ones(SIZE), SIZE)
    one = pattern(weights)
    assert one.means["previous"] == pytest.approx(np.mean([weights[at, at - 1] for at in range(1, SIZE)]))
    assert one.means["next"] == pytest.approx(np.mean([weights[at, at + 1] for at in range(SIZE - 1)]))
    assert one.means["entropy"] == pytest.approx(np.mean([-(row * np.log(row)).sum() for row in weights]))


def test_scores_that_outgrow_fp16() -> None:
    """Layers kept in fp16 are measured in fp32: products of their queries and keys may be larger than fp16 holds."""
    axis = axis_of(TOKENS, special=tuple(token.startswith("[") for token in TOKENS))
    found = []
    for dtype in (np.float16, np.float64):
        q = (300 * np.eye(SIZE)[None]).astype(dtype)
        record = LayerRecord(q=q, k=q, v=None, lse=None, scale=2e-5, mask=Mask(), number=0)
        trace = Trace(model="-", queries=axis, layers=(record,))
        (only,) = all_patterns(trace)
        of_page = grid.measure_layer(record, roles_of(trace)).statistics
        found.append({**only.means, **{f"page: {name}": values[0] for name, values in of_page.items()}})
    assert found[0] == pytest.approx(found[1], rel=1e-5, abs=1e-6, nan_ok=True)
    assert np.isfinite(found[0]["entropy"])

"""Products of parameters, of which the README's command runs as many as have every value, or every pair of values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pairwise(*axes: Sequence[Any]) -> list[Any]:
    """The full product, for parametrize; slow are those that have no pair of values that none before has."""
    places = list(product(*(range(len(axis)) for axis in axes)))
    pairs = {place: set(combinations(enumerate(place), 2)) for place in places}
    missing = set().union(*pairs.values())
    chosen: set[tuple[int, ...]] = set()
    while missing:
        best = max(places, key=lambda place: len(pairs[place] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return [
        pytest.param(
            *(axis[at] for axis, at in zip(axes, place, strict=True)), marks=[pytest.mark.slow][place in chosen :]
        )
        for place in places
    ]


def in_turn(*axes: Sequence[Any]) -> list[Any]:
    """The full product, for parametrize; all are slow but those that have each value once, in turn."""
    chosen = {tuple(at % len(axis) for axis in axes) for at in range(max(map(len, axes)))}
    return [
        pytest.param(
            *(axis[at] for axis, at in zip(axes, place, strict=True)), marks=[pytest.mark.slow][place in chosen :]
        )
        for place in product(*(range(len(axis)) for axis in axes))
    ]

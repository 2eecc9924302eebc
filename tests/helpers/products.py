"""Products of parameters, of which as few are tried as have every pair of values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

Place = tuple[int, ...]
"""Of each axis, the place of a value."""


def covering(axes: Sequence[Sequence[Any]], first: set[Place]) -> set[Place]:
    """These places, and more until they have every pair of values."""
    places = list(product(*(range(len(axis)) for axis in axes)))
    pairs = {place: set(combinations(enumerate(place), 2)) for place in places}
    missing = set().union(*pairs.values()).difference(*(pairs[place] for place in first))
    chosen = set(first)
    while missing:
        best = max(places, key=lambda place: len(pairs[place] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen


def parameters(axes: Sequence[Sequence[Any]], chosen: set[Place], quick: set[Place]) -> list[Any]:
    """For parametrize; slow are those that are not quick."""
    return [
        pytest.param(
            *(axis[at] for axis, at in zip(axes, place, strict=True)), marks=[pytest.mark.slow][place in quick :]
        )
        for place in sorted(chosen)
    ]


def pairwise(*axes: Sequence[Any]) -> list[Any]:
    """As few of a product as have every pair of values."""
    chosen = covering(axes, set())
    return parameters(axes, chosen, chosen)


def in_turn(*axes: Sequence[Any]) -> list[Any]:
    """As few of a product as have every pair of values; all are slow but those that have each value once, in turn."""
    quick = {tuple(at % len(axis) for axis in axes) for at in range(max(map(len, axes)))}
    return parameters(axes, covering(axes, quick), quick)

"""What is computed cell by cell from maps and arrays: a map again, of which only the tile asked for is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headscope._trace.tiled import Tiled

PLAIN = (Tiled, int, float, complex, bool, type(None))
"""What a function is given as it is."""


def elementwise(function: Callable[..., Any], name: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Tiled:
    """`function(*inputs, **options)` as a map.

    Args:
        function: a ufunc, or another function that works cell by cell and broadcasts.
        name: what it is called.
        inputs: maps, arrays and numbers that broadcast together.
        options: the function's keywords, none of which is a map or an array.
    """
    given: tuple[Any, ...] = tuple(one if isinstance(one, PLAIN) else np.asarray(one) for one in inputs)
    shape = np.broadcast_shapes(*(np.shape(one) for one in given))

    def tile(*parts: Any) -> Any:
        return function(*(_part(one, parts) for one in given), **options)

    with np.errstate(all="ignore"):
        dtype = np.asarray(function(*(_sample(one) for one in given), **options)).dtype
    return Tiled(f"{name}({', '.join(map(_called, given))})", shape, tile, dtype)


def _part(one: Any, parts: tuple[Any, ...]) -> Any:
    """The part of an input that belongs to a tile."""
    if not np.ndim(one):
        return one
    own = [
        part if size > 1 else np.zeros(1, np.intp)
        for part, size in zip(parts[len(parts) - np.ndim(one) :], np.shape(one), strict=True)
    ]
    return one.tile(*own) if isinstance(one, Tiled) else one[np.ix_(*own)]


def _sample(one: Any) -> Any:
    """An input of one cell, to see what comes out; numbers stay numbers, which NumPy rounds to the others' dtype."""
    return np.ones((1,) * one.ndim, one.dtype) if isinstance(one, (Tiled, np.ndarray)) else one


def _called(one: Any) -> str:
    if isinstance(one, Tiled):
        return one.kind
    return repr(one) if not np.ndim(one) and not isinstance(one, np.ndarray) else f"array {np.shape(one)}"

"""Cell-by-cell functions of maps and arrays, whose results are lazy maps too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headscope._trace.tiled import Tiled

PLAIN = (Tiled, int, float, complex, bool, type(None))
"""Types that are passed to a function unchanged."""


def elementwise(function: Callable[..., Any], name: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Tiled:
    """Return `function(*inputs, **options)` as a lazy map.

    Args:
        function: a ufunc, or another function that works cell by cell and broadcasts.
        name: name of the function.
        inputs: maps, arrays and numbers that broadcast together.
        options: the function's keyword arguments, none of which is a map or an array.
    """
    operands: tuple[Any, ...] = tuple(value if isinstance(value, PLAIN) else np.asarray(value) for value in inputs)
    shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands))

    def tile(*parts: Any) -> Any:
        return function(*(_part(operand, parts) for operand in operands), **options)

    with np.errstate(all="ignore"):
        dtype = np.asarray(function(*(_sample(operand) for operand in operands), **options)).dtype
    return Tiled(f"{name}({', '.join(map(_called, operands))})", shape, tile, dtype)


def _part(operand: Any, parts: tuple[Any, ...]) -> Any:
    """The part of an operand that belongs to a tile."""
    if not np.ndim(operand):
        return operand
    positions = [
        part if size > 1 else np.zeros(1, np.intp)
        for part, size in zip(parts[len(parts) - np.ndim(operand) :], np.shape(operand), strict=True)
    ]
    return operand.tile(*positions) if isinstance(operand, Tiled) else operand[np.ix_(*positions)]


def _sample(operand: Any) -> Any:
    """One cell of an operand, to find the result's dtype. Python numbers stay: NumPy gives them the others' dtype."""
    return np.ones((1,) * operand.ndim, operand.dtype) if isinstance(operand, (Tiled, np.ndarray)) else operand


def _called(operand: Any) -> str:
    if isinstance(operand, Tiled):
        return operand.kind
    is_number = not np.ndim(operand) and not isinstance(operand, np.ndarray)
    return repr(operand) if is_number else f"array {np.shape(operand)}"

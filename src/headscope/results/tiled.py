"""Maps defined by a function that computes any tile: indexing, iteration in blocks, cell-by-cell functions of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped

    Index = Int[np.ndarray, " n"]
    Parts = tuple[Index, ...]

AXES = ("layer", "head", "query", "key")
"""Names of a map's axes; a map with fewer axes has the last of these."""

TILE_CELLS = 1 << 18
"""Maximum number of cells of a tile in functions that work in blocks: 1 MiB in fp32, which fits in a core's cache."""


class Tiled:
    """A map with two or more axes, defined by the function that computes a tile of it.

    Attributes:
        kind: name of its cells: weights, scores, or an expression of these.
        shape: its size along each axis.
        dtype: dtype of its cells.
    """

    def __init__(
        self,
        kind: str,
        shape: tuple[int, ...],
        tile: Callable[..., Shaped[np.ndarray, "..."]],
        dtype: Any = np.float32,
    ) -> None:
        self.kind = kind
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.tile = tile
        """Computes the cells at given positions along each axis, as an array of these lengths."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def whole(self) -> Shaped[np.ndarray, "..."]:
        """All cells, as an array of the map's shape."""
        return self.tile(*(np.arange(size) for size in self.shape))

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], Parts]]:
        """Iterate over the map in C order, a few rows at a time: the slices of each block and its positions."""
        steps = [self.shape[-1]]
        room = TILE_CELLS // max(1, self.shape[-1])
        for size in self.shape[-2::-1]:
            steps.insert(0, max(1, min(size, room)))
            room = room // steps[0] if steps[0] == size else 1
        starts = (range(0, size, step) for size, step in zip(self.shape, steps, strict=True) if step)
        for corner in itertools.product(*starts):
            ends = (min(start + step, size) for start, step, size in zip(corner, steps, self.shape, strict=True))
            place = tuple(slice(start, end) for start, end in zip(corner, ends, strict=True))
            yield place, tuple(np.arange(span.start, span.stop) for span in place)

    def at(self, index: Any) -> Any:
        """The indexed cells, with the semantics of NumPy indexing.

        Raises:
            CellError: there is no such cell, or there are more indices than axes.
        """
        parts = self._parts(index)
        if len(parts) == 1 and np.shape(parts[0]) == self.shape and _kind(parts[0]) == "b":
            return self._where(parts[0])
        parts = tuple(part.whole() if isinstance(part, Tiled) else part for part in parts)
        lists = [part for part in parts if not (part is None or isinstance(part, slice) or _is_integer(part))]
        plain = not lists or (len(lists) == 1 and np.ndim(lists[0]) == 1 and not any(map(_is_integer, parts)))
        if not plain:
            return self._cells(parts)
        axes = iter(range(self.ndim))
        tile = self.tile(*(self._positions(part, next(axes)) for part in parts if part is not None))
        return tile[tuple(None if part is None else 0 if _is_integer(part) else slice(None) for part in parts)]

    def _parts(self, index: Any) -> tuple[Any, ...]:
        """An index for each axis; None for new axes."""
        parts = index if isinstance(index, tuple) else (index,)
        taken = sum(_axes_of(part) for part in parts if part is not Ellipsis)
        if taken > self.ndim or sum(part is Ellipsis for part in parts) > 1:
            raise CellError(
                f"too many indices: the {self.kind} have {self.ndim} axes, got {taken} indices",
                where=f"{self.kind}[{index!r:.60}]",
                advice=f"index as [{', '.join(AXES[-self.ndim :])}]",
            )
        rest = (slice(None),) * (self.ndim - taken)
        at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
        return (*parts[:at], *rest, *parts[at + 1 :])

    def _positions(self, part: Any, axis: int) -> Index:
        size = self.shape[axis]
        try:
            positions = np.arange(size)[part if isinstance(part, slice) or np.size(part) else slice(0)]
        except IndexError:
            noun = AXES[axis - self.ndim] if self.ndim <= len(AXES) else f"entry of axis {axis}"
            raise CellError(
                f"there is no {noun} {part!r:.60}: the axis has length {size}",
                where=f"{self.kind}, axis {axis}",
                advice=f"positions count from 0, so the last one is {size - 1}",
            ) from None
        return np.atleast_1d(positions)

    def _cells(self, parts: tuple[Any, ...]) -> Any:
        """The cells at coordinates that NumPy's own indexing determines, computed row by row."""
        coordinates = []
        for axis, size in enumerate(self.shape):
            line = np.arange(size).reshape([-1 if at == axis else 1 for at in range(self.ndim)])
            try:
                coordinates.append(np.asarray(np.broadcast_to(line, self.shape)[parts]))
            except IndexError as error:
                raise CellError(
                    f"there is no such cell: {error}",
                    where=f"{self.kind} of shape {self.shape}",
                    advice="positions count from 0 along each axis",
                ) from None
        shape = coordinates[0].shape
        *rows, columns = (axis_coordinates.ravel() for axis_coordinates in coordinates)
        cells = np.empty(len(columns), self.dtype)
        row = np.ravel_multi_index(tuple(rows), self.shape[:-1])
        order = np.argsort(row, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(row[order])) + 1) if len(order) else ():
            cells[members] = self.tile(*(along[members[:1]] for along in rows), columns[members]).reshape(-1)
        return cells.reshape(shape)[()]

    def _where(self, chosen: Any) -> Shaped[np.ndarray, " n"]:
        """The cells selected by a boolean map or array of the same shape, in order."""
        selected = [np.empty(0, self.dtype)]
        for place, parts in self.blocks():
            flags = chosen.tile(*parts) if isinstance(chosen, Tiled) else chosen[place]
            if flags.any():
                selected.append(self.tile(*parts)[flags])
        return np.concatenate(selected)


def transposed(source: Tiled, order: tuple[int, ...]) -> Tiled:
    """The map with its axes in another order."""

    def tile(*parts: Any) -> Any:
        source_parts = [parts[order.index(axis)] for axis in range(source.ndim)]
        return source.tile(*source_parts).transpose(order)

    shape = tuple(source.shape[axis] for axis in order)
    return Tiled(f"{source.kind}, transposed", shape, tile, source.dtype)


def stacked(maps: Sequence[Tiled]) -> Tiled:
    """Stack maps of the same shape along a new first axis."""

    def tile(which: Index, *parts: Index) -> Shaped[np.ndarray, "..."]:
        tiles = np.empty((len(which), *map(len, parts)), maps[0].dtype)
        for at, number in enumerate(which):
            tiles[at] = maps[number].tile(*parts)
        return tiles

    return Tiled(maps[0].kind, (len(maps), *maps[0].shape), tile, maps[0].dtype)


class CellError(InputError, IndexError):
    """There is no such query or key. Also an IndexError, as sequences require."""


def _is_integer(part: Any) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_))


def _axes_of(part: Any) -> int:
    """Number of axes of a map that an index uses."""
    if part is None or isinstance(part, (bool, np.bool_)):
        return 0
    if isinstance(part, slice) or _is_integer(part):
        return 1
    return np.ndim(part) if _kind(part) == "b" else 1


def _kind(part: Any) -> str:
    """The kind of an index's dtype: "b" for bool."""
    return (part.dtype if isinstance(part, (np.ndarray, Tiled)) else np.asarray(part).dtype).kind


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

"""Lazy maps: weights or scores, computed where they are indexed; for anything else, the whole map as an array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.results.arrays import Exchanged

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped

    Index = Int[np.ndarray, " n"]

AXES = ("layer", "head", "query", "key")
"""Names of a map's axes; a map with fewer axes has the last of these."""

TILE_CELLS = 1 << 18
"""Maximum number of cells of a tile in functions that work in blocks: 1 MiB in fp32, which fits in a core's cache."""

MOST_BYTES = 1 << 31
"""Size of the largest map that becomes an array by itself."""


class LazyMap(Exchanged):
    """A lazy map of queries (rows) by keys (columns): only the tile that is indexed is computed.

    The map of one head is (queries, keys), of a layer (heads, queries, keys), of a trace (layers, heads, queries,
    keys).

        weights[3], weights[:5, ::2], weights[mask]      # an array of these cells; nothing else is computed
        for place, cells in weights.blocks(): ...        # the whole map, a few rows at a time
        weights.mean(axis=-1), weights * 2, np.log(weights), torch.tensor(weights)    # of the whole map, as an array

    A map of more than 2 GiB doesn't become an array by itself; `weights[...]` computes it all the same.

    Attributes:
        kind: name of its cells: weights or scores.
        shape: its size along each axis.
        dtype: dtype of its cells.
        tile: computes the cells at given positions along each axis, as an array of these lengths.
    """

    def __init__(
        self, kind: str, shape: tuple[int, ...], tile: Callable[..., Shaped[np.ndarray, "..."]], dtype: Any = np.float32
    ) -> None:
        self.kind = kind
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.tile = tile

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], Shaped[np.ndarray, "..."]]]:
        """Iterate over the map in C order, a few rows at a time: the slices of each block and its cells."""
        steps = [max(1, self.shape[-1])]
        room = TILE_CELLS // steps[0]
        for size in self.shape[-2::-1]:
            steps.insert(0, max(1, min(size, room)))
            room = room // steps[0] if steps[0] == size else 1
        starts = (range(0, size, step) for size, step in zip(self.shape, steps, strict=True))
        for corner in itertools.product(*starts):
            ends = (min(start + step, size) for start, step, size in zip(corner, steps, self.shape, strict=True))
            place = tuple(slice(start, end) for start, end in zip(corner, ends, strict=True))
            yield place, self.tile(*(np.arange(span.start, span.stop) for span in place))

    def __getitem__(self, index: Any) -> Any:
        """The indexed cells, with the semantics of NumPy indexing.

        Raises:
            CellError: there is no such cell, or there are more indices than axes.
        """
        parts = self._parts(index)
        if len(parts) == 1 and np.shape(parts[0]) == self.shape and _kind(parts[0]) == "b":
            return self._where(parts[0])
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
            found = f"too many indices: the {self.kind} have {self.ndim} axes, got {taken} indices"
            advice = f"index as [{', '.join(AXES[-self.ndim :])}]"
            raise CellError(found, where=f"{self.kind}[{index!r:.60}]", advice=advice)
        rest = (slice(None),) * (self.ndim - taken)
        at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
        return (*parts[:at], *rest, *parts[at + 1 :])

    def _positions(self, part: Any, axis: int) -> Index:
        size = self.shape[axis]
        try:
            positions = np.arange(size)[part if isinstance(part, slice) or np.size(part) else slice(0)]
        except IndexError:
            noun = AXES[axis - self.ndim] if self.ndim <= len(AXES) else f"entry of axis {axis}"
            found = f"there is no {noun} {part!r:.60}: the axis has length {size}"
            advice = f"positions count from 0, so the last one is {size - 1}"
            raise CellError(found, where=f"{self.kind}, axis {axis}", advice=advice) from None
        return np.atleast_1d(positions)

    def _cells(self, parts: tuple[Any, ...]) -> Any:
        """The cells at coordinates that NumPy's own indexing determines, computed row by row."""
        coordinates = []
        for axis, size in enumerate(self.shape):
            line = np.arange(size).reshape([-1 if at == axis else 1 for at in range(self.ndim)])
            try:
                coordinates.append(np.asarray(np.broadcast_to(line, self.shape)[parts]))
            except IndexError as error:
                found = f"there is no such cell: {error}"
                advice = "positions count from 0 along each axis"
                raise CellError(found, where=f"{self.kind} of shape {self.shape}", advice=advice) from None
        shape = coordinates[0].shape
        *rows, columns = (axis_coordinates.ravel() for axis_coordinates in coordinates)
        cells = np.empty(len(columns), self.dtype)
        row = np.ravel_multi_index(tuple(rows), self.shape[:-1])
        order = np.argsort(row, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(row[order])) + 1) if len(order) else ():
            cells[members] = self.tile(*(along[members[:1]] for along in rows), columns[members]).reshape(-1)
        return cells.reshape(shape)[()]

    def _where(self, chosen: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, " n"]:
        """The cells selected by a boolean array of the same shape, in order."""
        selected = [cells[chosen[place]] for place, cells in self.blocks() if chosen[place].any()]
        return np.concatenate([np.empty(0, self.dtype), *selected])

    def _array(self) -> Shaped[np.ndarray, "..."]:
        """All cells.

        Raises:
            InputError: they would take more than MOST_BYTES.
        """
        if (size := self.size * self.dtype.itemsize) > MOST_BYTES:
            found = f"the whole map would take {size / 1e9:.1f} GB as an array"
            advice = "index what you need (map[3]), go through map.blocks(), or compute it all the same: map[...]"
            raise InputError(found, where=repr(self), advice=advice)
        return self[...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.kind} are computed on demand, so there is no array to share")
        return np.asarray(self._array(), dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if any(isinstance(place, LazyMap) for place in out):
            raise InputError("nothing can be written into a lazy map", where=self.kind, advice="write into an array")
        arrays = [value._array() if isinstance(value, LazyMap) else value for value in inputs]
        return getattr(ufunc, method)(*arrays, **options, **({"out": out} if out else {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"a map of {self.__dict__.get('kind', 'cells')} has no attribute {name!r}")
        return getattr(self._array(), name)

    def __bool__(self) -> bool:
        return bool(self._array())

    def __contains__(self, value: Any) -> bool:
        return any(bool((cells == value).any()) for _, cells in self.blocks())

    __hash__ = object.__hash__

    def __copy__(self) -> LazyMap:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyMap:
        return self

    def __reduce__(self) -> Any:
        found = f"a lazy map of {self.kind} can't be pickled: it is a function that computes cells from Q and K"
        advice = "pickle its trace, which is smaller, or its cells: np.asarray(map)"
        raise InputError(found, where="pickle", advice=advice)

    def __repr__(self) -> str:
        plurals = {"query": "queries"}
        names = AXES[-self.ndim :]
        sizes = [f"{size} {plurals.get(name, name + 's')}" for size, name in zip(self.shape, names, strict=True)]
        return f"{self.kind} ({', '.join(sizes)}), computed when indexed{self._small()}"


def stacked(maps: Sequence[LazyMap]) -> LazyMap:
    """Stack maps of the same shape along a new first axis."""

    def tile(which: Index, *parts: Index) -> Shaped[np.ndarray, "..."]:
        tiles = np.empty((len(which), *map(len, parts)), maps[0].dtype)
        for at, number in enumerate(which):
            tiles[at] = maps[number].tile(*parts)
        return tiles

    return LazyMap(maps[0].kind, (len(maps), *maps[0].shape), tile, maps[0].dtype)


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
    return (part.dtype if isinstance(part, (np.ndarray, LazyMap)) else np.asarray(part).dtype).kind

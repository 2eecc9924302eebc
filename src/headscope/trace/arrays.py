"""Arrays as a trace shows them: ones that know their shape in words, and maps that compute only the tile asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from headscope.attention import TILE_CELLS
from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Index = Int[np.ndarray, " n"]


@dataclass(frozen=True, eq=False, repr=False)
class Named(NDArrayOperatorsMixin):
    """An array with a word for each axis.

    It computes as its array does (`named.max()`, `named - other`, `np.log(named)`); what comes out is a plain array.

    Attributes:
        name: what it is, in the library's usual words: last_hidden_state, pooler_output, logits.
        dims: a word for each axis.
        array: the numbers.
        labels: what the last axis's entries are called, where the model says so.
    """

    name: str
    dims: tuple[str, ...]
    array: Float[np.ndarray, "..."]
    labels: tuple[str, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy:
            return np.array(self.array, dtype=dtype)
        return np.asarray(self.array, dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*(one.array if isinstance(one, Named) else one for one in inputs), **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in self.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self.array, name)

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def __len__(self) -> int:
        return len(self.array)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        axes = ", ".join(f"{dim} {size}" for dim, size in zip(self.dims, self.shape, strict=True))
        return f"{self.name} ({axes})"


class LazyMap:
    """A map of one head, queries down and keys across, of which only the tile asked for is computed.

    It indexes as a NumPy array of its shape does: integers, slices, one array of integers or booleans, or two that
    are paired. `np.asarray(map)` computes the whole (queries, keys). sum, mean, max, min and argmax go over it in
    blocks of queries.
    """

    def __init__(
        self,
        kind: str,
        shape: tuple[int, int],
        tile: Callable[[Index, Index], Float[np.ndarray, "n m"]],
        cells: Callable[[Index, Index], Float[np.ndarray, " n"]],
    ) -> None:
        self.kind = kind
        self.shape = shape
        self._tile = tile
        self._cells = cells

    dtype = np.dtype(np.float32)
    ndim = 2

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.kind} are computed when asked for: there is no array to share")
        return np.asarray(self[:, :], dtype=dtype)

    def __getitem__(self, index: Any) -> Any:
        first, second = self._two(index)
        rows, columns = self._positions(first, 0), self._positions(second, 1)
        if _is_list(first) and _is_list(second):
            rows, columns = np.broadcast_arrays(rows, columns)
            return self._cells(rows.ravel(), columns.ravel()).reshape(rows.shape)
        tile = self._tile(rows, columns)
        if _is_integer(second):
            tile = tile[:, 0]
        return tile[0] if _is_integer(first) else tile

    def sum(self, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
        """Over all cells, the queries (0) or the keys (1, -1); in fp64 unless told."""
        return self._joined(axis, lambda rows: rows.sum(axis, dtype=dtype or np.float64), sum)

    def mean(self, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
        """Over all cells, the queries (0) or the keys (1, -1); in fp64 unless told."""
        return self.sum(axis, dtype) / (self.size if axis is None else self.shape[axis])

    def max(self, axis: int | None = None, out: None = None) -> Any:
        """Over all cells, the queries (0) or the keys (1, -1)."""
        return self._joined(axis, lambda rows: rows.max(axis), lambda parts: np.max(parts, axis=0))

    def min(self, axis: int | None = None, out: None = None) -> Any:
        """Over all cells, the queries (0) or the keys (1, -1)."""
        return self._joined(axis, lambda rows: rows.min(axis), lambda parts: np.min(parts, axis=0))

    def argmax(self, axis: int | None = None, out: None = None) -> Any:
        """The key that each query gives most to (axis 1 or -1); the query that gives each key most (0); the cell."""
        if self._over_keys(axis):
            return self._joined(1, lambda rows: rows.argmax(1), list)
        best: Any = -np.inf
        where: Any = 0
        start = 0
        for rows in self._rows():
            found, at = rows.max(axis), rows.argmax(axis)
            at = at + start * (self.shape[1] if axis is None else 1)
            where, best = np.where(found > best, at, where), np.maximum(found, best)
            start += len(rows)
        return int(where) if axis is None else where

    def _joined(self, axis: int | None, each: Callable[[Any], Any], join: Callable[[list[Any]], Any]) -> Any:
        over_keys = self._over_keys(axis)
        parts = [each(rows) for rows in self._rows()]
        return np.concatenate(parts) if over_keys else join(parts)

    def _rows(self) -> Iterator[Float[np.ndarray, "n keys"]]:
        """The rows, some at a time."""
        step = max(1, TILE_CELLS // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            yield self[start : start + step]

    def _over_keys(self, axis: int | None) -> bool:
        if axis not in (None, 0, 1, -1, -2):
            raise InputError(
                f"there is no axis {axis}", where=self.kind, advice="0 are the queries, 1 or -1 the keys, None is all"
            )
        return axis in (1, -1)

    def _two(self, index: Any) -> tuple[Any, Any]:
        parts = index if isinstance(index, tuple) else (index,)
        if any(part is Ellipsis for part in parts):
            at = next(i for i, part in enumerate(parts) if part is Ellipsis)
            rest = len(parts) - 1
            parts = (*parts[:at], *[slice(None)] * (2 - rest), *parts[at + 1 :])
        if len(parts) > 2:
            raise InputError(
                f"{len(parts)} indices for the {self.kind} of one head, which have two axes",
                where=f"{self.kind}[{index!r}]",
                advice="index as [query, key]",
            )
        return (*parts, *[slice(None)] * (2 - len(parts)))

    def _positions(self, part: Any, axis: int) -> Index:
        size = self.shape[axis]
        try:
            found = np.arange(size)[part]
        except IndexError:
            noun = ("query", "key")[axis]
            raise CellError(
                f"there is no {noun} {part!r}: the text has {size} of them",
                where=f"{self.kind}, axis {axis}",
                advice=f"tokens count from 0, so the last one is {size - 1}",
            ) from None
        return np.atleast_1d(found)

    def __repr__(self) -> str:
        return f"{self.kind} ({self.shape[0]} queries, {self.shape[1]} keys), computed when indexed"


class CellError(InputError, IndexError):
    """A query or key that isn't there; an IndexError too, so that sequences behave."""


def _is_integer(part: Any) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_))


def _is_list(part: Any) -> bool:
    return isinstance(part, (list, np.ndarray))

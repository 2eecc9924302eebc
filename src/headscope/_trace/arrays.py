"""Arrays as a trace shows them: ones that know their shape in words, and maps that compute only the tile asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from headscope._trace import numpy_calls
from headscope._trace.elementwise import elementwise
from headscope._trace.reductions import NOTHING, axes_of, first_best, reduce
from headscope._trace.tiled import AXES, Tiled, transposed
from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float


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


class LazyMap(NDArrayOperatorsMixin, Tiled):
    """A map, queries down and keys across, of which only the tile asked for is computed.

    The map of one head is (queries, keys), of a layer (heads, queries, keys), of a trace (layers, heads, queries,
    keys). It computes as a NumPy array of its shape does, and holds a few rows at a time where NumPy holds them all:

    - An index (`weights[3]`, `weights[:5, ::2]`, `weights[mask]`) gives the array of the cells asked for.
    - What works cell by cell (`weights * 2`, `np.log(weights)`, `a.weights - b.weights`, `weights > 0.1`) gives a map
      again; so do `.T`, `transpose`, `swapaxes`, `astype`, `clip` and `round`.
    - Sums, means, extremes, `std`, `any`, `argmax`, … go over the rows in blocks; sums of weights are taken in fp64.
      So does a matrix product with an array, `weights @ v`, which is computed at once.
    - `np.asarray(weights)`, `weights[...]`, `reshape`, and every NumPy function that is not named here compute the
      whole map, with as much memory as it has cells.

    Attributes:
        kind: what its cells are: weights, scores, or what was computed from them.
        shape: its size along each axis.
        dtype: of its cells.
    """

    @classmethod
    def of(cls, source: Tiled) -> LazyMap:
        """The same map as one that NumPy computes with."""
        return cls(source.kind, source.shape, source.tile, source.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.at(index)

    def __iter__(self) -> Iterator[Any]:
        return (self.at(row) for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.kind} are computed when asked for: there is no array to share")
        return np.asarray(self.whole(), dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return numpy_calls.ufunc(LazyMap, ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return numpy_calls.function(LazyMap, function, args, options)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self.whole())

    def __float__(self) -> float:
        return float(self.item())

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    @property
    def T(self) -> LazyMap:
        """The map with its axes in the opposite order."""
        return self.transpose()

    @property
    def mT(self) -> LazyMap:
        """The map with queries and keys exchanged."""
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: Any) -> LazyMap:
        """The map with its axes in another order, the opposite one by default."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        found = axes_of(self, tuple(order or reversed(range(self.ndim))))
        if len(found) != self.ndim:
            raise InputError(
                f"{len(found)} axes for a map of {self.ndim}",
                where=f"{self.kind}.transpose",
                advice="name each axis once",
            )
        return LazyMap.of(transposed(self, found))

    def swapaxes(self, first: int, second: int) -> LazyMap:
        """The map with two axes exchanged."""
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self.transpose(*order)

    def astype(self, dtype: Any, **_: Any) -> LazyMap:
        """The map in another precision."""
        return LazyMap(self.kind, self.shape, lambda *parts: self.tile(*parts).astype(dtype), dtype)

    def clip(self, a_min: Any = None, a_max: Any = None, **options: Any) -> LazyMap:
        """The map with its cells kept between two bounds."""
        return LazyMap.of(elementwise(np.clip, "clip", (self, a_min, a_max), options))

    def round(self, decimals: int = 0) -> LazyMap:
        """The map with its cells rounded."""
        return LazyMap.of(elementwise(np.round, "round", (self,), {"decimals": decimals}))

    def sum(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = NOTHING,
        where: Any = True,
    ) -> Any:
        """Over all cells or some axes; in fp64 by default."""
        return reduce(self, np.add, axis, dtype=dtype, out=out, keepdims=keepdims, initial=initial, where=where)

    def prod(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = NOTHING,
        where: Any = True,
    ) -> Any:
        """The product of all cells, or along some axes."""
        return reduce(self, np.multiply, axis, dtype=dtype, out=out, keepdims=keepdims, initial=initial, where=where)

    def max(
        self, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = NOTHING, where: Any = True
    ) -> Any:
        """The largest of all cells, or along some axes."""
        return reduce(self, np.maximum, axis, out=out, keepdims=keepdims, initial=initial, where=where)

    def min(
        self, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = NOTHING, where: Any = True
    ) -> Any:
        """The smallest of all cells, or along some axes."""
        return reduce(self, np.minimum, axis, out=out, keepdims=keepdims, initial=initial, where=where)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
        """Whether any cell is not 0."""
        return reduce(self, np.logical_or, axis, out=out, keepdims=keepdims, where=where)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
        """Whether no cell is 0."""
        return reduce(self, np.logical_and, axis, out=out, keepdims=keepdims, where=where)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True
    ) -> Any:
        """Over all cells or some axes; in fp64 by default."""
        total = self.sum(axis, dtype or np.float64, None, keepdims, where=where)
        found = total / self._count(axis, keepdims, where)
        return found if out is None else _into(out, found)

    def var(
        self,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        ddof: int | float = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        correction: Any = NOTHING,
        mean: Any = NOTHING,
    ) -> Any:
        """The variance of all cells, or along some axes, in fp64: once for the mean, once for the distances from it."""
        centre = self.mean(axis, dtype, keepdims=True, where=where) if mean is NOTHING else mean
        distance = self.astype(dtype or np.float64) - centre
        total = (distance * distance).sum(axis, keepdims=keepdims, where=where)
        found = total / (self._count(axis, keepdims, where) - (ddof if correction is NOTHING else correction))
        return found if out is None else _into(out, found)

    def std(self, axis: Any = None, dtype: Any = None, out: Any = None, *args: Any, **options: Any) -> Any:
        """The standard deviation: the root of `var`."""
        found = np.sqrt(self.var(axis, dtype, None, *args, **options))
        return found if out is None else _into(out, found)

    def argmax(self, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """Where the largest cell stands: along -1 the key that each query gives most to."""
        return first_best(self, np.argmax, axis, out, keepdims)

    def argmin(self, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """Where the smallest cell stands."""
        return first_best(self, np.argmin, axis, out, keepdims)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """The cells whose positions along two axes differ by `offset`, as the result's last axis."""
        first, second = axes_of(self, (axis1, axis2))
        others = [axis for axis in range(self.ndim) if axis not in (first, second)]
        turned = self.transpose(*others, first, second)
        start, rows, columns = max(0, -offset), *turned.shape[-2:]
        along = np.arange(start, max(start, min(rows, columns - offset)))
        return turned[..., along, along + offset]

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, **options: Any) -> Any:
        """The sum of a diagonal."""
        return self.diagonal(offset, axis1, axis2).sum(-1, **options)

    def dot(self, other: Any) -> Any:
        """`self @ other` of a map of one head."""
        return np.dot(self, other)

    def __getattr__(self, name: str) -> Any:
        if name not in OF_THE_WHOLE:
            raise AttributeError(f"a map of {self.__dict__.get('kind', 'cells')} has no {name!r}")
        return getattr(self.whole(), name)

    def _count(self, axis: Any, keepdims: bool, where: Any) -> Any:
        """How many cells a sum is over."""
        if where is True:
            return math.prod(self.shape[at] for at in axes_of(self, axis))
        return np.broadcast_to(np.asarray(where, dtype=bool), self.shape).sum(axis, keepdims=keepdims)

    def __repr__(self) -> str:
        names = AXES[-self.ndim :] if self.ndim <= len(AXES) else ()
        plurals = {"query": "queries"}
        sizes = [f"{size} {plurals.get(name, name + 's')}" for size, name in zip(self.shape, names, strict=bool(names))]
        return f"{self.kind} ({', '.join(sizes) or self.shape}), computed when indexed"


OF_THE_WHOLE = frozenset(
    {
        *("argsort", "choose", "compress", "copy", "cumprod", "cumsum", "flat", "flatten", "item", "nonzero", "ravel"),
        *("real", "repeat", "reshape", "searchsorted", "squeeze", "take", "tobytes", "tofile", "tolist"),
    }
)
"""What a map has from its array, all of which is then computed."""


def _into(out: Any, found: Any) -> Any:
    out[...] = found
    return out

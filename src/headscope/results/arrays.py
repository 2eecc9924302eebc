"""The arrays of a trace: with named axes, or lazy maps that compute only the tile that is indexed; and their tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from headscope.errors import InputError, TraceError
from headscope.results import numpy_calls
from headscope.results.reductions import NOTHING, axes_of, first_best, reduce
from headscope.results.tiled import AXES, Tiled, elementwise, transposed

if TYPE_CHECKING:
    from jaxtyping import Float


class ArrayLike(NDArrayOperatorsMixin):
    """A record that can be used as its main array: indexed, compared, computed with; results are plain arrays.

    Subclasses are dataclasses that have `array`.
    """

    array: Float[np.ndarray, "..."]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        return self.array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy:
            return np.array(self.array, dtype=dtype)
        return np.asarray(self.array, dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (value.array if isinstance(value, ArrayLike) else value for value in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "array" or name in self.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self.array, name)

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def __len__(self) -> int:
        return len(self.array)

    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False, repr=False)
class Named(ArrayLike):
    """An array with a name for each axis.

    It supports the operations of its array (`named.max()`, `named - other`, `np.log(named)`), which return plain
    arrays.

    Attributes:
        name: its name in transformers: last_hidden_state, pooler_output, logits.
        dims: the name of each axis.
        array: the array itself.
        labels: names for the entries of the last axis, if the model defines them.
    """

    name: str
    dims: tuple[str, ...]
    array: Float[np.ndarray, "..."]
    labels: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        axes = ", ".join(f"{dim} {size}" for dim, size in zip(self.dims, self.shape, strict=True))
        return f"{self.name} ({axes})"


class LazyMap(NDArrayOperatorsMixin, Tiled):
    """A lazy map of queries (rows) by keys (columns): only the tile that is indexed is computed.

    The map of one head is (queries, keys), of a layer (heads, queries, keys), of a trace (layers, heads, queries,
    keys). It behaves like a NumPy array of its shape, but holds only a few rows in memory at a time:

    - Indexing (`weights[3]`, `weights[:5, ::2]`, `weights[mask]`) returns an array of the indexed cells.
    - Operations on single cells (`weights * 2`, `np.log(weights)`, `a.weights - b.weights`, `weights > 0.1`) return
      another lazy map, and so do `.T`, `transpose`, `swapaxes`, `astype`, `clip` and `round`.
    - Sums, means, extremes, `std`, `any`, `argmax`, … are computed in blocks of rows; sums of weights in fp64. So is a
      matrix product with an array, `weights @ v`, which returns an array.
    - `np.asarray(weights)`, `weights[...]`, `reshape`, and NumPy functions that are not listed here compute the whole
      map in memory.

    Attributes:
        kind: name of its cells: weights, scores, or an expression of these.
        shape: its size along each axis.
        dtype: dtype of its cells.
    """

    @classmethod
    def of(cls, source: Tiled) -> LazyMap:
        """Turn a tiled map into one that supports NumPy operations."""
        return cls(source.kind, source.shape, source.tile, source.dtype)

    def __copy__(self) -> LazyMap:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyMap:
        return self

    def __reduce__(self) -> Any:
        raise InputError(
            f"a lazy map of {self.kind} can't be pickled: it is a function that computes cells from Q and K",
            where="pickle",
            advice="pickle its trace, which is smaller, or its cells: np.asarray(map)",
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.at(index)

    def __iter__(self) -> Iterator[Any]:
        return (self.at(row) for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.kind} are computed on demand, so there is no array to share")
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
        """The map with its axes reversed."""
        return self.transpose()

    @property
    def mT(self) -> LazyMap:
        """The map with queries and keys swapped."""
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: Any) -> LazyMap:
        """The map with its axes permuted; by default, reversed."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        permutation = axes_of(self, tuple(order or reversed(range(self.ndim))))
        if len(permutation) != self.ndim:
            raise InputError(
                f"expected {self.ndim} axes, got {len(permutation)} axes",
                where=f"{self.kind}.transpose",
                advice="name each axis once",
            )
        return LazyMap.of(transposed(self, permutation))

    def swapaxes(self, first: int, second: int) -> LazyMap:
        """The map with two axes swapped."""
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self.transpose(*order)

    def astype(self, dtype: Any, **_: Any) -> LazyMap:
        """The map with its cells converted to another dtype."""
        return LazyMap(self.kind, self.shape, lambda *parts: self.tile(*parts).astype(dtype), dtype)

    def clip(self, a_min: Any = None, a_max: Any = None, **options: Any) -> LazyMap:
        """The map with its cells limited to the range from `a_min` to `a_max`."""
        return LazyMap.of(elementwise(np.clip, "clip", (self, a_min, a_max), options))

    def round(self, decimals: int = 0) -> LazyMap:
        """The map with its cells rounded to `decimals` decimals."""
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
        """The sum over all cells or some axes, in fp64 by default."""
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
        """The product over all cells or some axes."""
        return reduce(self, np.multiply, axis, dtype=dtype, out=out, keepdims=keepdims, initial=initial, where=where)

    def max(
        self, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = NOTHING, where: Any = True
    ) -> Any:
        """The largest cell, of all or along some axes."""
        return reduce(self, np.maximum, axis, out=out, keepdims=keepdims, initial=initial, where=where)

    def min(
        self, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = NOTHING, where: Any = True
    ) -> Any:
        """The smallest cell, of all or along some axes."""
        return reduce(self, np.minimum, axis, out=out, keepdims=keepdims, initial=initial, where=where)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
        """True if any cell is not 0, over all cells or some axes."""
        return reduce(self, np.logical_or, axis, out=out, keepdims=keepdims, where=where)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Any:
        """True if no cell is 0, over all cells or some axes."""
        return reduce(self, np.logical_and, axis, out=out, keepdims=keepdims, where=where)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True
    ) -> Any:
        """The mean over all cells or some axes, in fp64 by default."""
        total = self.sum(axis, dtype or np.float64, None, keepdims, where=where)
        mean = total / self._count(axis, keepdims, where)
        return mean if out is None else _into(out, mean)

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
        """The variance over all cells or some axes, in fp64; the map is computed twice, the first time for the mean."""
        centre = self.mean(axis, dtype, keepdims=True, where=where) if mean is NOTHING else mean
        distance = self.astype(dtype or np.float64) - centre
        total = (distance * distance).sum(axis, keepdims=keepdims, where=where)
        variance = total / (self._count(axis, keepdims, where) - (ddof if correction is NOTHING else correction))
        return variance if out is None else _into(out, variance)

    def std(self, axis: Any = None, dtype: Any = None, out: Any = None, *args: Any, **options: Any) -> Any:
        """The standard deviation: the square root of `var`."""
        deviation = np.sqrt(self.var(axis, dtype, None, *args, **options))
        return deviation if out is None else _into(out, deviation)

    def argmax(self, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """Index of the largest cell: along axis -1, the key to which each query attends most."""
        return first_best(self, np.argmax, axis, out, keepdims)

    def argmin(self, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """Index of the smallest cell."""
        return first_best(self, np.argmin, axis, out, keepdims)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """The cells whose positions along two axes differ by `offset`, along the last axis of the result."""
        first, second = axes_of(self, (axis1, axis2))
        others = [axis for axis in range(self.ndim) if axis not in (first, second)]
        reordered = self.transpose(*others, first, second)
        start, rows, columns = max(0, -offset), *reordered.shape[-2:]
        along = np.arange(start, max(start, min(rows, columns - offset)))
        return reordered[..., along, along + offset]

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, **options: Any) -> Any:
        """The sum of a diagonal."""
        return self.diagonal(offset, axis1, axis2).sum(-1, **options)

    def dot(self, other: Any) -> Any:
        """The product `self @ other` for a map of one head."""
        return np.dot(self, other)

    def __getattr__(self, name: str) -> Any:
        if name not in OF_THE_WHOLE:
            raise AttributeError(f"a map of {self.__dict__.get('kind', 'cells')} has no attribute {name!r}")
        return getattr(self.whole(), name)

    def _count(self, axis: Any, keepdims: bool, where: Any) -> Any:
        """Number of cells in each sum along `axis`."""
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
"""Attributes of NumPy arrays for which the whole map is computed."""


def _into(out: Any, values: Any) -> Any:
    out[...] = values
    return out


@dataclass(frozen=True)
class TokenAxis:
    """The tokens along one axis of a trace's maps: its queries or its keys. All fields have one entry per token.

    Attributes:
        tokens: the tokens, as the vocabulary spells them.
        ids: their ids; -1 for tokens without an id, such as patches of an image.
        segments: 0 for tokens of the first text, 1 for tokens of the second.
        special: True for tokens that the tokenizer added: [CLS], [SEP], ….
        words: number of the word that the token belongs to, counted from 0; None for special tokens, or if unknown.
        spans: range of characters (start, stop) in the token's text; None for special tokens, or if unknown.

    Raises:
        TraceError: the fields differ in length.
    """

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    spans: tuple[tuple[int, int] | None, ...]

    def __post_init__(self) -> None:
        sizes = {name: len(getattr(self, name)) for name in self.__dataclass_fields__}
        if len(set(sizes.values())) > 1:
            raise TraceError(
                f"the fields of a token axis differ in length: {sizes}",
                where="token axis",
                advice="pass an id, a segment, a special flag, a word and a span for every token",
            )

    def __len__(self) -> int:
        return len(self.ids)

"""The arrays of a trace, with named axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from headscope.errors import require
from headscope.late import Keyed

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


class Exchanged(NDArrayOperatorsMixin):
    """Something that NumPy makes an array of, and PyTorch, JAX and others a tensor: `torch.from_dlpack(weights)`."""

    def __dlpack__(self, **options: Any) -> Any:
        array = np.asarray(self)
        return (array if array.flags.writeable else array.copy()).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return (1, 0)  # a CPU's memory

    def _small(self) -> str:
        """The numbers, on lines of their own; of more than 32 x 32, nothing."""
        cells: Any = self
        return f"\n{np.array2string(cells[...], precision=3, suppress_small=True)}" if cells.size <= 1024 else ""


class ArrayLike(Exchanged):
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

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array)

    def __contains__(self, value: Any) -> bool:
        return value in self.array

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
        return f"{self.name} ({axes})" + self._small()

    def coordinates(self) -> dict[str, Any]:
        """Name of an axis -> names of its entries, for the axes whose entries have any."""
        return {} if self.labels is None else {self.dims[-1]: list(self.labels)}

    def to_xarray(self) -> Any:
        """Return the array as a DataArray of xarray, with its axes and the names of their entries.

        Raises:
            MissingExtraError: xarray is not installed.
        """
        require("xarray", where="to_xarray", otherwise="use array")
        import xarray

        return xarray.DataArray(self.array, self.coordinates(), self.dims, name=self.name)


class Arrays(Keyed):
    """A mapping of names to arrays: two are equal if their names and their arrays are."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(self, Mapping) or not isinstance(other, Mapping) or self.keys() != other.keys():
            return False
        return all(np.array_equal(self[name], other[name], equal_nan=True) for name in self)


@dataclass(frozen=True, eq=False, repr=False)
class NamedMap(Named):
    """Weights with a name for each query and key (`labels`): of one head, or of several along the first axis.

    Attributes:
        queries: the names of the queries.
        heads: (layer, head) of each head; () for one without an axis.
    """

    queries: tuple[str, ...] = ()
    heads: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, array: Float[np.ndarray, "..."], queries: Any, keys: Any, heads: Any) -> NamedMap:
        """Weights by name."""
        dims = ("heads", "queries", "keys")[3 - array.ndim :]
        return cls("weights", dims, array, tuple(keys), tuple(queries), tuple(heads))

    def coordinates(self) -> dict[str, Any]:
        """Name of an axis -> names of its entries: heads as `3.1`, queries and keys by their text."""
        heads = {"heads": [f"{layer}.{head}" for layer, head in self.heads]} if self.heads else {}
        return {**heads, "queries": list(self.queries), **super().coordinates()}

    def to_pandas(self) -> Any:
        """Return a frame of pandas: queries down and keys across, by their text; several heads one below the other.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", where="to_pandas", otherwise="use array")
        import pandas

        index = pandas.Index(self.queries, name="query")
        if self.heads:
            places = [(*head, query) for head in self.heads for query in self.queries]
            index = pandas.MultiIndex.from_tuples(places, names=["layer", "head", "query"])
        columns = pandas.Index(self.labels, name="key")
        return pandas.DataFrame(self.array.reshape(len(index), len(columns)), index, columns)


def full(part: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """The numbers in fp32 if they are in fp16, for scores and norms outgrow it; otherwise as they are."""
    return part.astype(np.float32) if part.dtype == np.float16 else part


def rounded(part: Float[np.ndarray, "..."], dtype: type[np.floating[Any]]) -> Float[np.ndarray, "..."]:
    """A copy in this dtype; in fp32 if fp16 would make any of the numbers infinite."""
    with np.errstate(over="ignore"):
        narrow = part.astype(dtype)
    too_narrow = dtype == np.float16 and (np.isinf(narrow) & np.isfinite(part)).any()
    return part.astype(np.float32) if too_narrow else narrow

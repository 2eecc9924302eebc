"""One line of a checkpoint's header: a tensor's name, dtype, shape and byte span; and its bytes as a NumPy array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from headscope.checkpoint.raw_files import Source
from headscope.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

LARGEST = 2**63 - 1
"""Maximum offset, length or count in a checkpoint: file addresses are signed 64-bit integers."""


class Dtype(NamedTuple):
    """A type of elements.

    Attributes:
        bits: per element.
        torch: its name in torch; empty if torch lacks it.
        storage: the beginning of its class of storages in a pickle of torch; empty if it has none of its own.
        numpy: NumPy's code; empty if NumPy lacks it.
    """

    bits: int
    torch: str = ""
    storage: str = ""
    numpy: str = ""


DTYPES = {
    "F64": Dtype(64, "float64", "Double", "<f8"),
    "F32": Dtype(32, "float32", "Float", "<f4"),
    "F16": Dtype(16, "float16", "Half", "<f2"),
    "BF16": Dtype(16, "bfloat16", "BFloat16"),
    "F8_E4M3": Dtype(8, "float8_e4m3fn"),
    "F8_E5M2": Dtype(8, "float8_e5m2"),
    "F8_E8M0": Dtype(8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": Dtype(8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": Dtype(8, "float8_e5m2fnuz"),
    "F6_E2M3": Dtype(6),
    "F6_E3M2": Dtype(6),
    "F4": Dtype(4),
    "I64": Dtype(64, "int64", "Long", "<i8"),
    "I32": Dtype(32, "int32", "Int", "<i4"),
    "I16": Dtype(16, "int16", "Short", "<i2"),
    "I8": Dtype(8, "int8", "Char", "<i1"),
    "U64": Dtype(64, "uint64", numpy="<u8"),
    "U32": Dtype(32, "uint32", numpy="<u4"),
    "U16": Dtype(16, "uint16", numpy="<u2"),
    "U8": Dtype(8, "uint8", "Byte", "<u1"),
    "BOOL": Dtype(8, "bool", "Bool", "?"),
    "C64": Dtype(64, "complex64", "ComplexFloat"),
}
"""Every dtype that safetensors defines, by safetensors' names."""

UPCAST = {"BF16": "<u2", "F8_E4M3": "<u1", "F8_E5M2": "<u1"}
"""Dtype that is read as float32 -> NumPy's code for its bits."""

AXES_LIMIT = 32


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor's entry in a header.

    Attributes:
        name: the tensor's name in the checkpoint.
        dtype: safetensors' name of the element type, a key of `DTYPES`.
        shape: the length of each axis.
        file: the name of the tensor's weight file.
        start: the first byte of the tensor in that file.
        stop: one past its last byte.
        strides: the stride of each axis, in elements; None if the tensor is C-contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int
    strides: tuple[int, ...] | None = None

    @property
    def count(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that `count` elements of this dtype take."""
        return self.count * DTYPES[self.dtype].bits // 8


def natural(value: object) -> TypeGuard[int]:
    """Return True for an integer from 0 to `LARGEST`."""
    return type(value) is int and 0 <= value <= LARGEST


def element_count(shape: Sequence[int]) -> int | None:
    """Return the number of elements of a shape, or None if it exceeds what a file can address.

    Axes of length 0 don't excuse the others: NumPy has no array of shape (0, 2**62, 2**62) either.
    """
    extent = 1
    for length in shape:
        extent *= max(length, 1)
        if extent > LARGEST:
            return None
    return 0 if 0 in shape else extent


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous tensor of this shape."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def read_tensor(
    source: Source, entry: TensorEntry, rows: slice | None, columns: slice | None
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a tensor, or its given rows (axis 0) and columns (axis 1), as a read-only array.

    Only the bytes from the slice's first element to its last are read. If NumPy has the dtype, the array is a view of
    the mapped file; BF16 and F8 are upcast to float32, which represents all their values exactly.

    Raises:
        UnsupportedError: a dtype that NumPy can't represent exactly.
        InputError: a slice with a step, beyond the axis, or along an axis that the tensor doesn't have.
    """
    import numpy as np

    stored = DTYPES[entry.dtype].numpy or UPCAST.get(entry.dtype)
    where = f"{entry.name} in {source.where}"
    if stored is None or len(entry.shape) > AXES_LIMIT:
        kind = f"dtype {entry.dtype}" if stored is None else f"{len(entry.shape)} axes"
        native = ", ".join(name for name, dtype in DTYPES.items() if dtype.numpy)
        raise UnsupportedError(
            f"headscope can't read tensors of {kind}", where=where, advice=f"convert it to one of {native}"
        )
    bounds = [(0, length) for length in entry.shape]
    for axis, (part, axis_name) in enumerate(((rows, "rows"), (columns, "columns"))):
        if part is not None:
            bounds[axis : axis + 1] = [_bounds(part, axis, axis_name, entry.shape, where)]
    shape = tuple(stop - start for start, stop in bounds)
    strides = entry.strides if entry.strides is not None else contiguous_strides(entry.shape)
    if 0 in shape:
        array = np.empty(shape, dtype=stored)
    else:
        size = DTYPES[entry.dtype].bits // 8
        first = sum(start * step for (start, _), step in zip(bounds, strides, strict=True))
        last = sum((stop - 1) * step for (_, stop), step in zip(bounds, strides, strict=True))
        span = source.view(entry.start + first * size, entry.start + (last + 1) * size)
        array = np.lib.stride_tricks.as_strided(
            np.frombuffer(span, dtype=stored), shape, tuple(step * size for step in strides), writeable=False
        )
    if entry.dtype == "BF16":
        array = np.asarray(array.astype(np.uint32) << 16).view(np.float32)  # for shape (), the shift returns a scalar
    elif entry.dtype in UPCAST:
        array = np.asarray(_eight_bit_values(entry.dtype)[array])
    array.flags.writeable = False
    return array


def _bounds(part: slice, axis: int, axis_name: str, shape: tuple[int, ...], where: str) -> tuple[int, int]:
    if axis >= len(shape):
        raise InputError(
            f"{axis_name} are axis {axis}, but the tensor has shape {shape}",
            where=where,
            advice=f"leave {axis_name} out",
        )
    length = shape[axis]
    if not isinstance(part, slice):
        advice = f"pass a slice within 0:{length}"
        raise InputError(f"{axis_name} is {part!r:.40}, expected a slice", where=where, advice=advice)
    start, stop, _ = slice(part.start, part.stop).indices(length)
    inside = all(bound is None or -length <= bound <= length for bound in (part.start, part.stop))
    if part.step not in (None, 1) or not inside or start > stop:
        step = "" if part.step is None else f":{part.step}"
        raise InputError(
            f"{axis_name} {part.start}:{part.stop}{step} of an axis of {length}",
            where=where,
            advice=f"pass a slice within 0:{length}, without a step",
        )
    return start, stop


@cache
def _eight_bit_values(dtype: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the value of each of the 256 codes (Micikevicius et al. 2022, FP8 formats for deep learning, table 1)."""
    import numpy as np

    code = np.arange(256, dtype=np.uint16)
    if dtype == "F8_E5M2":  # the upper half of fp16
        return (code << 8).view(np.float16).astype(np.float32)
    # E4M3 has one bit more for the fraction, and a bias of 7 instead of 15; its last code is NaN, none is infinity.
    values = ((code & 0x80) << 8 | (code & 0x7F) << 7).view(np.float16).astype(np.float32) * np.float32(2**8)
    values[(code & 0x7F) == 0x7F] = np.nan
    return values

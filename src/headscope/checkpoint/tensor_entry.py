"""A tensor of a checkpoint: its entry in the header, and its bytes, or those of a slice, as a read-only NumPy array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from headscope.checkpoint.raw_files import Source
from headscope.errors import InputError, UnsupportedError

LARGEST = 2**63 - 1
"""Maximum offset, length or count in a checkpoint: file addresses are signed 64-bit integers."""

DTYPE_BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "C64": 64,
}
"""Bits per element of every dtype that safetensors defines, by safetensors' names."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor's entry in a header.

    Attributes:
        name: the tensor's name in the checkpoint.
        dtype: safetensors' name of the element type, a key of `DTYPE_BITS`.
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
        return self.count * DTYPE_BITS[self.dtype] // 8


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


NATIVE = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "?",
}
UPCAST = {"BF16": "<u2", "F8_E4M3": "<u1", "F8_E5M2": "<u1"}
AXES_LIMIT = 32


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
    stored = NATIVE.get(entry.dtype) or UPCAST.get(entry.dtype)
    where = f"{entry.name} in {source.where}"
    if stored is None or len(entry.shape) > AXES_LIMIT:
        kind = f"dtype {entry.dtype}" if stored is None else f"{len(entry.shape)} axes"
        raise UnsupportedError(
            f"headscope can't read tensors of {kind}", where=where, advice=f"convert it to one of {', '.join(NATIVE)}"
        )
    whole = rows is None and columns is None and entry.strides is None and 0 not in entry.shape
    if whole and entry.dtype in NATIVE:
        return np.frombuffer(source.view(entry.start, entry.stop), dtype=stored).reshape(entry.shape)
    bounds = [(0, length) for length in entry.shape]
    for axis, (part, axis_name) in enumerate(((rows, "rows"), (columns, "columns"))):
        if part is not None:
            bounds[axis : axis + 1] = [_bounds(part, axis, axis_name, entry.shape, where)]
    shape = tuple(stop - start for start, stop in bounds)
    strides = entry.strides if entry.strides is not None else contiguous_strides(entry.shape)
    if 0 in shape:
        array = np.empty(shape, dtype=stored)
    else:
        size = DTYPE_BITS[entry.dtype] // 8
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
    start = 0 if part.start is None else part.start
    stop = length if part.stop is None else part.stop
    start, stop = (start + length if start < 0 else start), (stop + length if stop < 0 else stop)
    if part.step not in (None, 1) or not 0 <= start <= stop <= length:
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
    exponent_bits, bias = {"F8_E4M3": (4, 7), "F8_E5M2": (5, 15)}[dtype]
    mantissa_bits = 7 - exponent_bits
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    if dtype == "F8_E5M2":
        values = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), values)
    else:
        values = np.where((code & 0x7F) == 0x7F, np.nan, values)
    return np.where(code >= 128, -values, values).astype(np.float32)

"""One line of a checkpoint's header: a tensor's name, dtype, shape and byte span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

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

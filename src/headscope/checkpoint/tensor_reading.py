"""From bytes to arrays: a tensor, or a slice of a tensor, as a read-only NumPy array."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from headscope.checkpoint.entry import DTYPE_BITS, TensorEntry, contiguous_strides
from headscope.checkpoint.raw_files import Source
from headscope.errors import InputError, UnsupportedError

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

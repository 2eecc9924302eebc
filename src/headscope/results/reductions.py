"""Sums, extremes and matrix products of lazy maps, computed a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.results.tiled import AXES, TILE_CELLS, Tiled, transposed

if TYPE_CHECKING:
    from jaxtyping import Shaped

REDUCIBLE = frozenset(
    {
        np.add,
        np.multiply,
        np.maximum,
        np.minimum,
        np.fmax,
        np.fmin,
        np.logical_and,
        np.logical_or,
        np.logical_xor,
        np.bitwise_and,
        np.bitwise_or,
        np.bitwise_xor,
    }
)
"""Ufuncs that can be reduced block by block."""

NOTHING: Any = np._NoValue


def axes_of(source: Tiled, axis: Any) -> tuple[int, ...]:
    """The axes that an `axis` argument names, counted from 0; all axes for None.

    Raises:
        InputError: there is no such axis, or an axis is named twice.
    """
    requested = range(source.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    for number in requested:
        if not -source.ndim <= number < source.ndim:
            names = ", ".join(f"{at} {name}" for at, name in enumerate(AXES[-source.ndim :]))
            raise InputError(
                f"there is no axis {number}", where=source.kind, advice=f"the axes are {names}; None means all"
            )
    axes = [number % source.ndim for number in requested]
    if len(set(axes)) != len(axes):
        raise InputError("an axis is named twice", where=source.kind, advice="name each axis once")
    return tuple(axes)


def reduce(
    source: Tiled,
    ufunc: np.ufunc,
    axis: Any = None,
    *,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = NOTHING,
    where: Any = True,
) -> Any:
    """Return `ufunc.reduce` of the whole map, computed in blocks; sums of floats are in fp64 by default.

    Args:
        source: the map.
        ufunc: one of REDUCIBLE, or any other ufunc, for which the whole map is computed.
        axis, dtype, out, keepdims, initial, where: as for NumPy's reductions.
    """
    axes = axes_of(source, axis)
    if dtype is None and ufunc is np.add and source.dtype.kind == "f":
        dtype = np.float64
    if dtype is not None:
        options: dict[str, Any] = {"dtype": dtype}
    else:
        options = {}
    if not source.size:
        start = {} if initial is NOTHING else {"initial": initial}
        return finish(ufunc.reduce(source.whole(), axis=axes, keepdims=True, **start, **options), axes, out, keepdims)
    result: Any = None
    shape = tuple(1 if at in axes else size for at, size in enumerate(source.shape))
    flags = where if where is True else _broadcast(where, source.shape)
    for place, parts in source.blocks():
        first = all(place[at].start == 0 for at in axes)
        begin = {"initial": initial} if initial is not NOTHING and (first or ufunc.identity is None) else {}
        chosen = {} if flags is True else {"where": flags[place]}
        part = ufunc.reduce(source.tile(*parts), axis=axes, keepdims=True, **begin, **chosen, **options)
        if result is None:
            result = np.empty(shape, part.dtype)
        here = tuple(slice(0, 1) if at in axes else span for at, span in enumerate(place))
        result[here] = part if first else ufunc(result[here], part)
    return finish(result, axes, out, keepdims)


def _broadcast(where: Any, shape: tuple[int, ...]) -> Shaped[np.ndarray, "..."]:
    return np.broadcast_to(where.whole() if isinstance(where, Tiled) else np.asarray(where, dtype=bool), shape)


def finish(result: Any, axes: tuple[int, ...], out: Any, keepdims: bool) -> Any:
    """Give a result whose reduced axes have size 1 the shape that NumPy returns, or write it to `out`."""
    result = np.asarray(result)
    if not keepdims:
        result = np.squeeze(result, axes)
    if out is None:
        return result[()]
    out[...] = result
    return out


def first_best(source: Tiled, best: Callable[..., Any], axis: int | None, out: Any, keepdims: bool) -> Any:
    """Index of the first best cell, as `best` (np.argmax or np.argmin) returns it for an array."""
    better = np.greater if best is np.argmax else np.less
    axes = axes_of(source, axis)
    if axis is None:
        record: Any = None
        where, before = 0, 0
        for _, parts in source.blocks():
            row = source.tile(*parts).ravel()
            at = int(best(row))
            if record is None or better(row[at], record) or (np.isnan(row[at]) and not np.isnan(record)):
                record, where = row[at], before + at
            before += len(row)
        return finish(np.full((1,) * source.ndim, where), axes, out, keepdims)
    (along,) = axes
    shape = tuple(1 if at == along else size for at, size in enumerate(source.shape))
    places = np.zeros(shape, np.intp)
    records = np.empty(shape, source.dtype)
    for place, parts in source.blocks():
        block = source.tile(*parts)
        winners = np.expand_dims(best(block, axis=along), along)
        values = np.take_along_axis(block, winners, along)
        here = tuple(slice(0, 1) if i == along else span for i, span in enumerate(place))
        if place[along].start:
            known = records[here]
            ahead = better(values, known) | (np.isnan(values) & ~np.isnan(known))
            winners = np.where(ahead, winners + place[along].start, places[here])
            values = np.where(ahead, values, known)
        places[here], records[here] = winners, values
    return finish(places, axes, out, keepdims)


def by_rows(source: Tiled, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Apply a function of whole rows, over the last axis, a few rows at a time."""
    result: Any = None
    for place, parts in source.blocks():
        part = np.asarray(function(source.tile(*parts), *args, axis=-1, **options))
        if result is None:
            result = np.empty(source.shape[:-1], part.dtype)
        result[place[:-1]] = part
    return result


def matmul(a: Any, b: Any) -> Any:
    """Return a @ b, where at least one of them is a map, computed a few rows at a time."""
    if not isinstance(a, Tiled):
        swapped = matmul(_swapped(b), a if np.ndim(a) == 1 else np.swapaxes(a, -1, -2))
        return swapped if np.ndim(a) == 1 else np.swapaxes(swapped, -1, -2)
    vector = np.ndim(b) == 1
    if not isinstance(b, Tiled):
        b = np.asarray(b)[:, None] if vector else np.asarray(b)
    if b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: shapes {a.shape} and {b.shape} don't match: {a.shape[-1]} columns, {b.shape[-2:][0]} rows"
        )
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    dtype = np.result_type(a.dtype, b.dtype)
    if batch != a.shape[:-2]:
        whole = b.whole() if isinstance(b, Tiled) else b
        return a.whole() @ (whole[..., 0] if vector else whole)
    product = np.zeros((*batch, a.shape[-2], b.shape[-1]), dtype)
    for place, parts in a.blocks():
        lead = tuple(
            part if size > 1 else np.zeros(1, np.intp)
            for part, size in zip(parts[a.ndim - b.ndim : -2], b.shape[:-2], strict=True)
        )
        block = a.tile(*parts)
        if isinstance(b, Tiled):
            step = max(1, TILE_CELLS // max(1, b.shape[-1]))
            for start in range(0, a.shape[-1], step):
                keys = np.arange(start, min(start + step, a.shape[-1]))
                product[place[:-1]] += block[..., keys] @ b.tile(*lead, keys, np.arange(b.shape[-1]))
        else:
            product[place[:-1]] = block @ (b[np.ix_(*lead)] if lead else b)
    return product[..., 0] if vector else product


def _swapped(source: Tiled) -> Tiled:
    """The map with its last two axes swapped."""
    return transposed(source, (*range(source.ndim - 2), source.ndim - 1, source.ndim - 2))

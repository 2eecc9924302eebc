"""NumPy's functions on lazy maps: some return a map, some work in blocks of rows, the rest take the whole map."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from headscope.errors import InputError
from headscope.results.reductions import REDUCIBLE, by_rows, matmul, reduce
from headscope.results.tiled import Tiled, elementwise

METHODS: dict[Callable[..., Any], str] = {
    np.sum: "sum",
    np.prod: "prod",
    np.mean: "mean",
    np.std: "std",
    np.var: "var",
    np.max: "max",
    np.amax: "max",
    np.min: "min",
    np.amin: "min",
    np.any: "any",
    np.all: "all",
    np.argmax: "argmax",
    np.argmin: "argmin",
    np.transpose: "transpose",
    np.swapaxes: "swapaxes",
    np.diagonal: "diagonal",
    np.trace: "trace",
    np.clip: "clip",
    np.round: "round",
}
"""NumPy function -> the method of a map that implements it."""

CELL_BY_CELL = frozenset({np.where, np.isclose, np.nan_to_num, np.real, np.imag, np.angle, np.i0, np.sinc})
"""Functions other than ufuncs whose result is a map. np.where with a single argument is not among them."""

BY_ROWS = frozenset(
    {
        np.median,
        np.percentile,
        np.quantile,
        np.nansum,
        np.nanprod,
        np.nanmean,
        np.nanstd,
        np.nanvar,
        np.nanmax,
        np.nanmin,
        np.nanmedian,
        np.nanpercentile,
        np.nanquantile,
        np.ptp,
        np.linalg.norm,
    }
)
"""Functions that are applied to whole rows if they reduce the last axis; otherwise they take the whole map."""


def function(kind: Any, called: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return `called(*args, **options)`, where at least one argument is a map.

    Args:
        kind: the class of maps to return.
        called: the NumPy function.
        args, options: its arguments.
    """
    options = dict(options)
    first: Any = args[0] if args else None
    if isinstance(first, Tiled):
        if called in (np.shape, np.ndim):
            return first.shape if called is np.shape else first.ndim
        if called in METHODS and not _maps((*args[1:], options.get("out"))):
            return getattr(first, METHODS[called])(*args[1:], **options)
        if called is np.count_nonzero:
            return np.not_equal(cast(Any, first), 0).sum(*args[1:], **options)
        if called is np.dot and first.ndim == np.ndim(args[1]) == 2 and not options:
            return matmul(first, args[1])
        if called in BY_ROWS and _along_rows(called, args, options):
            arguments = inspect.signature(called).bind(*args, **options).arguments
            source = arguments.pop(next(iter(arguments)))
            del arguments["axis"]
            return by_rows(source, called, **arguments)
    if called is np.allclose:
        return bool(np.isclose(*args, **options).all())
    if called is np.array_equal and not options and np.shape(args[0]) == np.shape(args[1]):
        return bool(np.equal(args[0], args[1]).all())
    if called in CELL_BY_CELL and (called is not np.where or len(args) == 3) and not _maps(options.values()):
        return kind.of(elementwise(called, called.__name__, args, options))
    return called(*map(whole, args), **{name: whole(value) for name, value in options.items()})


def ufunc(kind: Any, called: np.ufunc, method: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return the result of a ufunc's method, where at least one input is a map. See `function`.

    Raises:
        InputError: `out` is a map.
    """
    options = dict(options)
    out = options.pop("out", ())
    if _maps(out):
        raise InputError(
            "a lazy map is computed on demand, so nothing can be written to it",
            where=f"np.{called.__name__}",
            advice="convert it to an array first: np.asarray(weights)",
        )
    if method == "reduce" and called in REDUCIBLE and isinstance(inputs[0], Tiled):
        axis = options.pop("axis", 0)
        return reduce(inputs[0], called, axis, out=out[0] if out else None, **options)
    if method == "__call__" and called is np.matmul and not options:
        product = matmul(*inputs)
        return product if not out else _write(out[0], product)
    plain = method == "__call__" and called.signature is None and called.nout == 1
    if plain and options.get("where", True) is True:
        result = kind.of(elementwise(called, called.__name__, inputs, options))
        return result if not out else _fill(out[0], result)
    if out:
        options["out"] = out
    return getattr(called, method)(*map(whole, inputs), **{name: whole(value) for name, value in options.items()})


def whole(argument: Any) -> Any:
    """Replace each map in an argument by its whole array."""
    if isinstance(argument, Tiled):
        return argument.whole()
    return type(argument)(map(whole, argument)) if type(argument) in (list, tuple) else argument


def _maps(values: Any) -> bool:
    return any(isinstance(value, Tiled) for value in values)


def _along_rows(called: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Return True if a function of BY_ROWS reduces only the last axis, to one number for each row."""
    arguments = inspect.signature(called).bind(*args, **options).arguments
    several = any(np.ndim(arguments[name]) for name in ("q",) if name in arguments)
    unsupported = {"out", "keepdims", "where", "initial", "overwrite_input", "mean"} & set(arguments)
    return arguments.get("axis") in (-1, args[0].ndim - 1) and not several and not unsupported


def _write(out: Any, values: Any) -> Any:
    out[...] = values
    return out


def _fill(out: Any, source: Tiled) -> Any:
    """Compute a map into an array, block by block."""
    for place, parts in source.blocks():
        out[place] = source.tile(*parts)
    return out

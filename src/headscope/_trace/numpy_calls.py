"""NumPy's functions, called with maps: which stay maps, which go over the rows in blocks, which take the whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from headscope._trace.elementwise import elementwise
from headscope._trace.reductions import REDUCIBLE, by_rows, matmul, reduce
from headscope._trace.tiled import Tiled
from headscope.errors import InputError

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
"""Functions that are methods of a map."""

CELL_BY_CELL = frozenset({np.where, np.isclose, np.nan_to_num, np.real, np.imag, np.angle, np.i0, np.sinc})
"""Functions other than ufuncs whose result is a map again. np.where with one argument is not."""

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
"""Functions that see whole rows where they go along the last axis; else they take the whole map."""


def function(kind: Any, called: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """What `called(*args, **options)` gives where a map is among its arguments.

    Args:
        kind: the class of the maps that come out.
    """
    options = dict(options)
    first: Any = args[0] if args else None
    if isinstance(first, Tiled):
        if called in (np.shape, np.ndim):
            return first.shape if called is np.shape else first.ndim
        if called in METHODS and not any(isinstance(one, Tiled) for one in (*args[1:], options.get("out"))):
            return getattr(first, METHODS[called])(*args[1:], **options)
        if called is np.count_nonzero:
            return np.not_equal(cast(Any, first), 0).sum(*args[1:], **options)
        if called is np.dot and first.ndim == np.ndim(args[1]) == 2 and not options:
            return matmul(first, args[1])
        if called in BY_ROWS and _along_rows(called, args, options):
            given = inspect.signature(called).bind(*args, **options).arguments
            source = given.pop(next(iter(given)))
            del given["axis"]
            return by_rows(source, called, **given)
    if called is np.allclose:
        return bool(np.isclose(*args, **options).all())
    if called is np.array_equal and not options and np.shape(args[0]) == np.shape(args[1]):
        return bool(np.equal(args[0], args[1]).all())
    if called in CELL_BY_CELL and (called is not np.where or len(args) == 3) and not _maps(options.values()):
        return kind.of(elementwise(called, called.__name__, args, options))
    return called(*map(whole, args), **{name: whole(one) for name, one in options.items()})


def ufunc(kind: Any, called: np.ufunc, method: str, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """What a ufunc's method gives where a map is among its inputs; see `function`."""
    options = dict(options)
    out = options.pop("out", ())
    if _maps(out):
        raise InputError(
            "a map is computed when it is looked at, so nothing can be written to it",
            where=f"np.{called.__name__}",
            advice="take its array first: np.asarray(weights)",
        )
    if method == "reduce" and called in REDUCIBLE and isinstance(inputs[0], Tiled):
        axis = options.pop("axis", 0)
        return reduce(inputs[0], called, axis, out=out[0] if out else None, **options)
    if method == "__call__" and called is np.matmul and not options:
        found = matmul(*inputs)
        return found if not out else _write(out[0], found)
    plain = method == "__call__" and called.signature is None and called.nout == 1
    if plain and options.get("where", True) is True:
        found = kind.of(elementwise(called, called.__name__, inputs, options))
        return found if not out else _fill(out[0], found)
    if out:
        options["out"] = out
    return getattr(called, method)(*map(whole, inputs), **{name: whole(one) for name, one in options.items()})


def whole(given: Any) -> Any:
    """An argument with the whole array of each map in it."""
    if isinstance(given, Tiled):
        return given.whole()
    return type(given)(map(whole, given)) if type(given) in (list, tuple) else given


def _maps(given: Any) -> bool:
    return any(isinstance(one, Tiled) for one in given)


def _along_rows(called: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether a function of BY_ROWS goes along the last axis alone, with one number for each row."""
    given = inspect.signature(called).bind(*args, **options).arguments
    several = any(np.ndim(given[name]) for name in ("q",) if name in given)
    strange = {"out", "keepdims", "where", "initial", "overwrite_input", "mean"} & set(given)
    return given.get("axis") in (-1, args[0].ndim - 1) and not several and not strange


def _write(out: Any, found: Any) -> Any:
    out[...] = found
    return out


def _fill(out: Any, found: Tiled) -> Any:
    """Compute a map into an array, block by block."""
    for place, parts in found.blocks():
        out[place] = found.tile(*parts)
    return out

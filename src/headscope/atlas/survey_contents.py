"""The contents that the files of a survey must have: a survey may come from a stranger, with the right hashes.

A hash says that a file is as it was written, not that headscope wrote it. The manifest and the aggregates are checked
field by field; whatever else doesn't fit, in a table or between two files, ends in `InputError` too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscope.checkpoint.json_text import brief, kind_of, shortened
from headscope.errors import HeadscopeError, InputError
from headscope.heads import CATALOG

AGAIN = (
    "run the same survey command again: it resumes and makes damaged or missing files again "
    "(damaged files are kept in damaged/)"
)
"""Advice for a survey that is not complete."""

EMPTY = "run the survey again into an empty folder"
"""Advice for one whose files are whole, but not what headscope writes."""

FIELDS = ("mean", "deviation", "min", "q05", "q25", "q50", "q75", "q95", "max")
"""Measures of every statistic; q05 is the quantile below which 5% of the windows lie."""

FILE = {"bytes": int, "sha256": str}

MANIFEST = {
    "model": {"name": str, "class": str, "sha256": str, "parameters": int, "layers": [int], "heads": [[int]]},
    "settings": {"length": int, "dtype": str, "device": str, "examples?": int},
    "versions": {str: str},
    "corpus": {"name": str, "kind": str, "files": [{"name": str, "bytes": int}]},
    "statistics": [str],
    "left_out": {str: str},
    "counts": {"documents": int, "refused": int, "windows": int, "tokens": int, "unknown?": int},
    "refused": {"reasons": {str: int}, "documents": [{"document": str, "reason": str, "detail": str}]},
    "similarity?": {"windows": [{"document": str, "window": int}]},
    "parts": [{"name": str, **FILE}],
    "files": {str: FILE},
}
"""The fields of a complete manifest that are read, each with its kind; `?` marks those that may be missing."""

RECORD = {
    "run": str,
    "survey": {},
    "part": int,
    "texts": str,
    "documents": int,
    "windows": int,
    "tokens": int,
    "unknown": int,
    "refused": [{"document": str, "reason": str, "detail": str}],
}
"""The fields of a part's record."""

NAME = re.compile(r"(?:(?:parts|atlas|similarity|effects)/)?[\w-]+\.(?:parquet|json|npy)", re.ASCII)
"""Names of the files that a manifest lists: none leads out of the survey's folder."""


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Check the fields of a complete manifest.

    Raises:
        ValueError: one is missing, or of another kind.
    """
    check(manifest, MANIFEST)
    for name in (*manifest["files"], *(part["name"] for part in manifest["parts"])):
        if not NAME.fullmatch(name):
            raise ValueError(f"{brief(name)} is not a file of a survey")


def check_aggregates(aggregates: Any, statistics: list[str]) -> None:
    """Check the aggregates of a survey with these statistics.

    Raises:
        ValueError: a field is missing or of another kind, a list has another length, or a statistic is unknown.
    """
    measured = {name: [[(float, int, type(None))]] for name in FIELDS} | {"count": [[int]], "meaning": str}
    check(aggregates, {"windows": int, "layers": [int], "heads": [[int]], "statistics": {str: measured}})
    if sorted(aggregates["statistics"]) != sorted(statistics) or len(set(statistics)) < len(statistics):
        raise ValueError("statistics: not those that the manifest names")
    if unknown := [name for name in statistics if name not in CATALOG]:
        raise ValueError(f"statistics: this headscope knows no {brief(unknown[0])}")
    layers, heads = aggregates["layers"], aggregates["heads"]
    if any(len(set(numbers)) < len(numbers) for numbers in (layers, *heads)):
        raise ValueError("layers, heads: a number occurs twice")
    for name, fields in aggregates["statistics"].items():
        for field in (*FIELDS, "count"):
            if [len(row) for row in fields[field]] != [len(row) for row in heads] or len(heads) != len(layers):
                raise ValueError(f"statistics.{name}.{field}: not a number for each head of each layer")
            if not all(number is None or math.isfinite(number) for row in fields[field] for number in row):
                raise ValueError(f"statistics.{name}.{field}: a number that is not finite")


def check(value: Any, shape: Any, place: str = "") -> None:
    """Check a value of JSON against a shape: a type or several, a list of one shape, or an object by its names.

    Raises:
        ValueError: it has another shape; the message names the place.
    """
    if isinstance(shape, Mapping):
        _check_type(value, (dict,), place)
        for name, inner in shape.items():
            if name is str:
                for other, item in value.items():
                    check(item, inner, f"{place}.{shortened(other, 40)}")
            elif name.removesuffix("?") in value:
                check(value[name.removesuffix("?")], inner, f"{place}.{name.removesuffix('?')}")
            elif not name.endswith("?"):
                raise ValueError(f"{(place + '.' + name).lstrip('.')}: missing")
    elif isinstance(shape, list):
        _check_type(value, (list,), place)
        for at, item in enumerate(value):
            check(item, shape[0], f"{place}[{at}]")
    else:
        _check_type(value, shape if isinstance(shape, tuple) else (shape,), place)


def _check_type(value: Any, types: tuple[type, ...], place: str) -> None:
    """Raise ValueError unless a value has one of these types; an int alone must be natural, and fit in 64 bits."""
    if type(value) not in types or (types == (int,) and not 0 <= value < 2**63):
        expected = " or ".join(kind.__name__ for kind in types)
        found = brief(value) if isinstance(value, (int, float, str)) else kind_of(value)
        raise ValueError(f"{place.lstrip('.') or 'the file'}: expected {expected}, got {found}")


@contextmanager
def strange(folder: Path | str) -> Iterator[None]:
    """Turn what contents that no survey has lead to into an InputError that names the survey."""
    try:
        yield
    except HeadscopeError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"a file of the survey holds something that no survey does: {type(error).__name__}: "
            f"{shortened(' '.join(str(error).split()), 300)}",
            where=str(folder),
            advice=EMPTY,
        ) from error

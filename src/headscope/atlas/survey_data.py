"""A survey's results, read back from its folder: the aggregates, the manifest, the distances between heads.

A survey may come from a stranger, with the right hashes: a hash says that a file is as it was written, not that
headscope wrote it. The manifest and the aggregates are checked field by field; whatever else doesn't fit, in a table or
between two files, ends in `InputError` too.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint.json_text import JsonError, brief, few, kind_of, parse_object, shortened
from headscope.checkpoint.raw_files import open_regular, read_whole
from headscope.errors import HeadscopeError, HeadscopeWarning, InputError, require
from headscope.files import fault
from headscope.heads import CATALOG
from headscope.results.heads_apart import HeadDistances
from headscope.results.table import across, in_columns

if TYPE_CHECKING:
    import pyarrow
    from jaxtyping import Float


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


FORMAT = "headscope survey 2"
"""The manifest's `format`."""

SIMILARITY = "similarity.parquet"


LARGEST = 1 << 31
"""Most bytes of a file that is read whole."""


@dataclass(frozen=True)
class SurveyData:
    """A survey's results.

    Attributes:
        manifest: model, settings, corpus, counts, refused documents; see docs/survey.md.
        layers: the number of each layer in the model.
        heads: the numbers of the heads, the columns of every table; NaN where a layer lacks a head.
        statistics: name -> field (FIELDS, and `count` of windows) -> (layers, heads).
        distances: between heads; None if not measured.
        named: (layer, head) of every head, layer by layer.
    """

    manifest: Mapping[str, Any]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    statistics: Mapping[str, Mapping[str, Float[np.ndarray, "layers heads"]]]
    distances: HeadDistances | None
    named: tuple[tuple[int, int], ...]

    def values(self, statistic: str, field: str = "mean") -> Float[np.ndarray, "layers heads"]:
        """One field of a statistic, (layers, heads); all NaN for a statistic that was not measured."""
        if statistic in self.statistics:
            return self.statistics[statistic][field]
        return np.full((len(self.layers), len(self.heads)), np.nan)


def read_findings(folder: Path, *, parts: bool = True) -> SurveyData:
    """Read a finished survey. Arguments and other errors as for `read_records`.

    Raises:
        MissingExtraError: the survey has distances between heads, and pyarrow is not installed.
    """
    manifest, aggregates = read_records(folder, parts=parts)
    with strange(folder):
        return _findings(folder, manifest, aggregates)


def _findings(folder: Path, manifest: dict[str, Any], aggregates: dict[str, Any]) -> SurveyData:
    layers, named = tuple(aggregates["layers"]), named_heads(aggregates)
    statistics = {
        name: {field: table_of(aggregates, name, field) for field in (*FIELDS, "count")}
        for name in aggregates["statistics"]
    }
    distances = read_distances(folder, manifest, named) if "similarity" in manifest else None
    return SurveyData(manifest, layers, across(aggregates["heads"]), statistics, distances, named)


def named_heads(aggregates: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """(layer, head) of every head, layer by layer."""
    layers = zip(aggregates["layers"], aggregates["heads"], strict=True)
    return tuple((layer, head) for layer, heads in layers for head in heads)


def read_records(folder: Path, *, parts: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the aggregates of a finished survey, once all of its files have been checked.

    Args:
        parts: check the parts, too. Pass False if they have just been checked.

    Raises:
        InputError: the folder has no survey, the survey is not complete, or a file is damaged or missing.
    """
    where = folder / "manifest.json"
    manifest = parse_manifest(where)
    if not manifest["complete"]:
        raise InputError(
            "the survey is not finished: its manifest has complete = false", where=str(where), advice=AGAIN
        )
    listed = {**manifest["files"], **({part["name"]: part for part in manifest["parts"]} if parts else {})}
    problems = {name: problem for name, record in listed.items() if (problem := file_fault(folder / name, record))}
    if problems:
        name, problem = next(iter(problems.items()))
        more = f"; {len(problems) - 1} more are damaged: {few(list(problems)[1:], 5)}" if len(problems) > 1 else ""
        raise InputError(f"{name}: {problem}{more}", where=str(folder / name), advice=AGAIN)
    data = read_listed(folder, "aggregates.json", manifest["files"].get("aggregates.json"))
    try:
        aggregates = parse_object(data, unique=False)
        check_aggregates(aggregates, manifest["statistics"])
    except (JsonError, ValueError) as error:
        raise InputError(
            f"the aggregates are not a survey's: {error}", where=str(where.parent), advice=EMPTY
        ) from error
    return manifest, aggregates


class DamageWarning(HeadscopeWarning):
    """A file of a survey was damaged; it has been set aside and is made again."""


def read_listed(folder: Path, name: str, listed: Mapping[str, Any] | None) -> bytes:
    """Read a file that the manifest lists, and check the bytes that were read.

    Args:
        folder: of the survey.
        name: of the file.
        listed: its entry in the manifest.

    Raises:
        InputError: it is not listed, is missing or can't be read, or is not the file that is listed.
    """
    path = folder / name
    try:
        data = b"" if listed is None else read_whole(path, LARGEST)
    except OSError as error:
        raise InputError(f"{name} can't be read: {error.strerror or error}", where=str(path), advice=AGAIN) from error
    if listed is None or hashlib.sha256(data).hexdigest() != listed["sha256"]:
        problem = (
            "the manifest doesn't list it" if listed is None else "its bytes do not match the hash in manifest.json"
        )
        raise InputError(f"{name}: {problem}", where=str(path), advice=AGAIN)
    return data


def read_table(folder: Path, name: str, listed: Mapping[str, Any] | None) -> pyarrow.Table:
    """Read a table that the manifest lists, whole. Arguments as for `read_listed`.

    Raises:
        InputError: as in `read_listed`; or it is not Parquet.
        MissingExtraError: pyarrow is not installed.
    """
    require("pyarrow", "survey", where=str(folder / name))
    from headscope.atlas.store import table_of_bytes

    data = read_listed(folder, name, listed)
    try:
        return table_of_bytes(data)
    except ValueError as error:
        raise InputError(f"{name} is not a survey's table: {error}", where=str(folder / name), advice=EMPTY) from error


class ManifestError(InputError):
    """A manifest that can't be used.

    Attributes:
        foreign: True if it looks like an intact file of something else, not like a survey's damaged manifest.
    """

    def __init__(self, problem: str, path: Path, advice: str, *, foreign: bool = False) -> None:
        super().__init__(problem, where=str(path), advice=advice)
        self.foreign = foreign


def parse_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest and check its bytes against the hash written with them.

    Raises:
        ManifestError: it is missing, damaged, or a file of something else.
        InputError: it can't be read.
    """
    try:
        data = read_whole(path, LARGEST)
    except FileNotFoundError as error:
        advice = "name the folder that `headscope survey --out` wrote"
        if any(path.parent.glob("parts/part-*.parquet")):
            advice = AGAIN
        raise ManifestError("there is no manifest.json", path.parent, advice) from error
    except OSError as error:
        raise InputError(
            f"the manifest can't be read: {error.strerror or error}", where=str(path), advice="check the folder"
        ) from error
    problem = fault(data)
    try:
        manifest = parse_object(data, unique=False)
    except JsonError as error:
        problem = f"{problem or 'its hash is right'}, and it holds no JSON object ({error})"
        raise ManifestError(f"the manifest can't be read: {problem}", path, AGAIN) from error
    if manifest.get("format") != FORMAT:
        raise ManifestError(
            f"expected a manifest with format {FORMAT!r}, got {brief(manifest.get('format'))}",
            path,
            "name another folder; if this one held a survey, run the same survey command again",
            foreign=True,
        )
    if problem is not None:
        raise ManifestError(f"the manifest is damaged: {problem}", path, AGAIN)
    try:
        check(manifest, {"complete": bool})
        if manifest["complete"]:
            check_manifest(manifest)
    except ValueError as error:
        raise ManifestError(f"the manifest is not a survey's: {error}", path, AGAIN) from error
    return manifest


def file_fault(path: Path, listed: Mapping[str, Any]) -> str | None:
    """A clause that says what is wrong with a file that a manifest lists, or None."""
    try:
        record = file_record(path)
    except FileNotFoundError:
        return "the file is missing"
    except OSError as error:
        return f"it can't be read: {error.strerror or error}"
    same = all(record[name] == listed[name] for name in record)
    return None if same else "its bytes do not match the hash in manifest.json"


def file_record(path: Path) -> dict[str, Any]:
    """Size and sha256 of a file."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def table_of(aggregates: Mapping[str, Any], statistic: str, field: str) -> Float[np.ndarray, "layers heads"]:
    """One field of a statistic, each value in its head's column; NaN for a missing value or head."""
    rows = aggregates["statistics"][statistic][field]
    return in_columns([np.array(row, dtype=np.float64) for row in rows], aggregates["heads"])


def read_distances(folder: Path, manifest: Mapping[str, Any], named: tuple[tuple[int, int], ...]) -> HeadDistances:
    """The mean distances between a survey's heads.

    Raises:
        InputError: as in `read_listed`; or the file is of other heads.
    """
    values = read_table(folder, SIMILARITY, manifest["files"].get(SIMILARITY))["distance"].to_numpy()
    if len(values) != len(named) ** 2:
        raise InputError(
            f"the file has {len(values)} rows; expected {len(named) ** 2}, one for each pair of {len(named)} heads",
            where=str(folder / SIMILARITY),
            advice=EMPTY,
        )
    return HeadDistances.of(np.asarray(values, dtype=np.float64).reshape(len(named), len(named)), named)

"""The files of a survey, read back from its folder and checked: the manifest, the aggregates, tables.

Every file has a seal: whose file it is, its name, and a hash. A survey may come from a stranger, with the right seals:
they say that files are as they were written, not that headscope wrote them. The manifest and the aggregates are checked
field by field; whatever else doesn't fit, in a table or between two files, ends in `InputError` too.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headscope.checkpoint.json_text import JsonError, brief, few, kind_of, parse_object, shortened
from headscope.checkpoint.raw_files import read_whole
from headscope.errors import HeadscopeError, HeadscopeWarning, InputError, require
from headscope.files import fault, label_of
from headscope.heads import CATALOG

if TYPE_CHECKING:
    import pyarrow


AGAIN = "run the same survey command again: it resumes and makes damaged or missing files again"
"""Advice for a survey that is not complete."""

EMPTY = "run the survey again into an empty folder"
"""Advice for one whose files are whole, but not what headscope writes."""

FIELDS = ("mean", "deviation", "min", "q05", "q25", "q50", "q75", "q95", "max")
"""Measures of every statistic; q05 is the quantile below which 5% of the windows lie."""

FILE = {"bytes": int}

MANIFEST = {
    "model": {"name": str, "class": str, "sha256": str, "parameters": int, "layers": [int], "heads": [[int]]},
    "settings": {"length": int, "dtype": str, "device": str, "examples?": int},
    "versions": {str: str},
    "corpus": {"name": str, "kind": str, "files": [{"name": str, "bytes": int}]},
    "statistics": [str],
    "left_out": {str: str},
    "counts": {"documents": int, "refused": int, "windows": int, "tokens": int, "unknown": int},
    "refused": {"reasons": {str: int}, "documents": [{"document": str, "reason": str, "detail": str}]},
    "similarity?": {"windows": [{"document": str, "window": int}]},
    "parts": [{"name": str, "texts": str, **FILE}],
    "files": {str: FILE},
    "arrays?": {str: FILE},
    "seal": str,
}
"""The fields of a complete manifest that are read, each with its kind; `?` marks those that may be missing."""

RECORD = {
    "texts": str,
    "documents": int,
    "windows": int,
    "tokens": int,
    "unknown": int,
    "refused": [{"document": str, "reason": str, "detail": str}],
}
"""The fields of a part's record."""

NAME = re.compile(r"(?:(?:parts|similarity|effects|writes)/)?[\w-]+\.(?:parquet|json|npy)", re.ASCII)
"""Names of the files that a manifest lists: none leads out of the survey's folder."""


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

LARGEST = 1 << 31
"""Most bytes of a file that is read whole."""


class Owner(NamedTuple):
    """The survey that files belong to, as their labels say.

    Attributes:
        run: hash of all that the numbers depend on but the texts; the manifest and the parts have it.
        texts: hash of that and of the texts of all parts; what is made from them has it.
    """

    run: str
    texts: str

    @classmethod
    def of(cls, run: str, parts: Iterable[Mapping[str, Any]]) -> Owner:
        """The owner of all files, from the records of the parts."""
        return cls(run, digest([run, *(part["texts"] for part in parts)]))

    def label(self, name: str) -> str:
        """The label of a file of this name."""
        return f"{self.run if name.startswith(('manifest.json', 'parts/')) else self.texts} {name} "

    def owns(self, label: str) -> bool:
        """Return True for the label of any file of this survey."""
        return label.partition(" ")[0] in self

    def fault(self, name: str, data: bytes) -> str | None:
        """A clause that says why these bytes are not this survey's file of that name, or None."""
        problem, label = fault(data), label_of(data)
        if problem is not None or label == self.label(name):
            return problem
        return f"it is {label.split(' ')[1]} of this survey" if self.owns(label) else "it is of another survey"


def digest(value: Any) -> str:
    """The sha256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


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
    files = Files.of(folder, manifest)
    wanted = [*manifest["files"], *(part["name"] for part in manifest["parts"] if parts)]
    problems = {name: problem for name in wanted if (problem := files.checked(name)[1])}
    if problems:
        name, problem = next(iter(problems.items()))
        more = f"; {len(problems) - 1} more are damaged: {few(list(problems)[1:], 5)}" if len(problems) > 1 else ""
        raise InputError(f"{name}: {problem}{more}", where=str(folder / name), advice=AGAIN)
    try:
        aggregates = parse_object(files.read("aggregates.json"), unique=False)
        check_aggregates(aggregates, manifest["statistics"])
    except (JsonError, ValueError) as error:
        raise InputError(
            f"the aggregates are not a survey's: {error}", where=str(where.parent), advice=EMPTY
        ) from error
    return manifest, aggregates


class DamageWarning(HeadscopeWarning):
    """A file of a survey was damaged; it is made again."""


def owner_of(manifest: Mapping[str, Any]) -> Owner:
    """The owner of a finished survey's files."""
    return Owner.of(manifest["seal"].partition(" ")[0], manifest["parts"])


class Files(NamedTuple):
    """The files of a finished survey, each checked when it is read.

    Attributes:
        folder: of the survey.
        names: of the files that the manifest lists.
        owner: of the survey's files.
    """

    folder: Path
    names: frozenset[str]
    owner: Owner

    @classmethod
    def of(cls, folder: Path, manifest: Mapping[str, Any]) -> Files:
        """The files that a complete manifest lists."""
        parts = (part["name"] for part in manifest["parts"])
        names = frozenset({*manifest["files"], *manifest.get("arrays", {}), *parts})
        return cls(folder, names, owner_of(manifest))

    def checked(self, name: str) -> tuple[bytes, str | None]:
        """The bytes of a file, and a clause that says what is wrong with them, or None."""
        if name not in self.names:
            return b"", "the manifest doesn't list it"
        try:
            data = read_whole(self.folder / name, LARGEST)
        except FileNotFoundError:
            return b"", "the file is missing"
        except OSError as error:
            return b"", f"it can't be read: {error.strerror or error}"
        return data, self.owner.fault(name, data)

    def read(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            InputError: it is not listed, is missing or can't be read, or is not the file that is listed.
        """
        data, problem = self.checked(name)
        if problem is not None:
            raise InputError(f"{name}: {problem}", where=str(self.folder / name), advice=AGAIN)
        return data

    def table(self, name: str) -> pyarrow.Table:
        """A table, whole.

        Raises:
            InputError: as in `read`; or it is not Parquet.
            MissingExtraError: pyarrow is not installed.
        """
        where = str(self.folder / name)
        require("pyarrow", "survey", where=where)
        from headscope.atlas.store import table_of_bytes

        data = self.read(name)
        try:
            return table_of_bytes(data)
        except ValueError as error:
            raise InputError(f"{name} is not a survey's table: {error}", where=where, advice=EMPTY) from error


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
            check(manifest, MANIFEST)
            parts = (part["name"] for part in manifest["parts"])
            for name in (*manifest["files"], *manifest.get("arrays", {}), *parts):
                if not NAME.fullmatch(name):
                    raise ValueError(f"{brief(name)} is not a file of a survey")
    except ValueError as error:
        raise ManifestError(f"the manifest is not a survey's: {error}", path, AGAIN) from error
    return manifest

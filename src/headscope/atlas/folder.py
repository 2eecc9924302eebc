"""A survey's folder: its lock, its finished parts, and the manifest that identifies the survey."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import parquet

from headscope.atlas.store import array_and_record, array_bytes, part_name, part_record, schema
from headscope.atlas.survey_data import FORMAT, DamageWarning, ManifestError, Owner, digest, parse_manifest
from headscope.errors import InputError
from headscope.files import (
    BLANK,
    fault,
    label_of,
    make_folder,
    remove_partial_files,
    sealed,
    sealed_parquet,
    unwritable,
    write_durably,
)

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

PART = re.compile(r"part-(\d{5,18})\.parquet")

MOST_REFUSED = 1000
"""Most refused documents that the manifest lists; all are counted."""

IDENTITY = {
    "model": "another model",
    "settings": "other settings",
    "versions": "other versions of software",
    "corpus": "another corpus",
    "statistics": "other statistics",
    "left_out": "other statistics",
}
"""Fields of the manifest that must be equal for one run to resume another's survey -> as in “a survey with …”."""


class Folder:
    """The folder that a survey is written to.

    A damaged file is removed, with a warning, and made again. A whole file of another survey is never touched.

    Attributes:
        path: the folder.
        owner: the survey being written, as the labels of its files name it.
        resumed: True if an earlier run began this survey.
        parts: how many parts an earlier run finished that also wrote all else, if none of that is damaged; None
            otherwise.
        arrays: names of the arrays that this run read or wrote; tables are made from them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "manifest.json"
        self.owner = Owner("", "")
        self.resumed = False
        self.parts: int | None = None
        self.arrays: dict[str, None] = {}
        self._statistics: list[str] = []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and lock it against other surveys.

        Raises:
            InputError: the folder can't be made, or another survey is writing to it.
        """
        make_folder(self.path / "parts")
        if sys.platform == "win32":  # it can't open a folder, and has no locks of this kind
            yield
            return
        import fcntl

        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise unwritable(self.path, error, "the folder can't be opened") from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                found = "another survey is writing to this folder"
                advice = "wait until it has finished, or name another folder"
                raise InputError(found, where=str(self.path), advice=advice) from error
            except OSError:  # a file system without locks, such as a network's that is mounted read-only
                pass
            yield
        finally:
            os.close(handle)

    def begin(self, identity: dict[str, Any]) -> None:
        """Write the manifest of a new survey, or resume the same survey.

        A missing or damaged manifest is written again if one of the parts is of this survey.

        Raises:
            InputError: the folder holds another survey, or other files.
        """
        identity = json.loads(json.dumps(identity))
        run = digest(identity)
        self.owner = Owner(run, run)
        self._statistics = identity["statistics"]
        remove_partial_files(self.path)
        try:
            begun = parse_manifest(self.manifest_path)
        except ManifestError as error:
            self._begin_anew(identity, error)
            return
        self._compare(begun, identity)
        self.read("manifest.json")
        self.resumed = True
        if begun["complete"]:
            self.begin_tables(begun["parts"])
            names = begun["files"] | begun.get("arrays", {})
            if len([name for name in names if self.read(name) is not None]) == len(names):
                self.parts = len(begun["parts"])

    def begin_tables(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Have the labels of all that is made from the parts say so; these are their records."""
        self.owner = Owner.of(self.owner.run, parts)

    def _begin_anew(self, identity: dict[str, Any], error: ManifestError) -> None:
        """Write a manifest where none can be read, if the folder has nothing else, or a part of this survey.

        Raises:
            InputError: it has other files.
        """
        exists = self.manifest_path.exists()
        self.resumed = any(map(self._ours, (self.path / "parts").glob("part-*.parquet")))
        others = sorted(
            path.relative_to(self.path).as_posix()
            for path in (*self.path.iterdir(), *(self.path / "parts").iterdir())
            if path != self.path / "parts" and not path.name.endswith(".partial")  # of another machine
        )
        if error.foreign or (others and not self.resumed):
            found = error.found if exists else f"the folder holds other files: {', '.join(others[:5])}"
            advice = "name an empty folder, or one that doesn't exist yet"
            raise InputError(found, where=str(self.manifest_path if exists else self.path), advice=advice)
        if self.resumed and not exists:
            self._warn("manifest.json", "it is missing")
        self.write_json("manifest.json", {"format": FORMAT, "complete": False, **identity})

    def _ours(self, part: Path) -> bool:
        """Return True if a part is whole, and of this survey."""
        try:
            return self.owner.fault(f"parts/{part.name}", part.read_bytes()) is None
        except OSError:
            return False

    def _compare(self, begun: dict[str, Any], requested: dict[str, Any]) -> None:
        """Compare the identity of the survey in the folder with the requested one.

        Raises:
            InputError: they differ; the message says in what.
        """
        differing = [name for name in IDENTITY if begun.get(name) != requested.get(name)]
        if not differing:
            return
        weights = [of["model"]["sha256"] for of in (begun, requested)]  # settings add to what is said of a model
        kind = "settings" if "settings" in differing and weights[0] == weights[1] else differing[0]
        lines = [line for name in differing for line in _differences(begun.get(name), requested.get(name), name)]
        differences = list(dict.fromkeys(line.removeprefix("settings.") for line in lines))
        more = f"; and {len(differences) - MOST_DIFFERENCES} more" if len(differences) > MOST_DIFFERENCES else ""
        listed = "; ".join(differences[:MOST_DIFFERENCES])
        found = f"the folder holds a survey with {IDENTITY[kind]}: {listed}{more}"
        advice = "name another folder with --out, or repeat the settings of the survey in this one"
        raise InputError(found, where=str(self.path), advice=advice)

    def part_path(self, index: int) -> Path:
        """The path of a part, whether it exists or not."""
        return self.path / part_name(index)

    def finished(self, index: int) -> dict[str, Any] | None:
        """The record of a finished part, or None. A damaged part is removed."""
        name = part_name(index)
        data = self.read(name)
        if data is None:
            return None
        if parquet.read_schema(pyarrow.BufferReader(data)).equals(schema(self._statistics)):
            return part_record(data)
        self.discard(name, "it has other columns than this survey")
        return None

    def read(self, name: str) -> bytes | None:
        """The bytes of a file of this survey, or None. A damaged file is removed.

        Raises:
            InputError: the file is whole, and of another survey; or reading it is not permitted.
        """
        path = self.path / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise InputError(
                "reading the file is not permitted", where=str(path), advice="change its permissions, and run again"
            ) from error
        except OSError as error:  # a bad sector, a folder of that name
            self.discard(name, f"it can't be read: {error.strerror or error}")
            return None
        problem = self.owner.fault(name, data)
        if problem is None:
            return data
        if fault(data) is None and not self.owner.owns(label_of(data)):
            advice = "move the file away, or name another folder with --out"
            raise InputError(f"{name}: {problem}", where=str(path), advice=advice)
        self.discard(name, problem)
        return None

    def array(self, name: str, record: Mapping[str, Any]) -> Float[np.ndarray, "..."] | None:
        """An array with that record, or None. A damaged one, or one with another record, is removed."""
        data = self.read(name)
        if data is None:
            return None
        array, written = array_and_record(data)
        if {key: written.get(key) for key in record} == json.loads(json.dumps(dict(record))):
            self.arrays[name] = None
            return array
        self.discard(name, "it was measured on something else")
        return None

    def discard(self, name: str, problem: str) -> None:
        """Remove an unusable file, with a warning."""
        path = self.path / name
        try:
            path.rmdir() if path.is_dir() else path.unlink()
        except OSError as error:
            raise unwritable(path, error, f"{problem}, and the file can't be removed") from error
        self._warn(name, problem)

    def _warn(self, name: str, problem: str) -> None:
        warnings.warn(DamageWarning(f"{self.path / name}: {problem}; it is made again"), stacklevel=2)

    def clear(self) -> None:
        """Remove the parts and the manifest of a survey that is not worth resuming."""
        try:
            for path in (*(self.path / "parts").glob("part-*.parquet"), self.manifest_path):
                path.unlink()
        except OSError as error:
            raise unwritable(self.path, error, "files of the survey can't be removed") from error

    def check_no_more(self, count: int) -> None:
        """Check that the folder has no part beyond the first `count`. Damaged ones are removed.

        Raises:
            InputError: there are others.
        """
        expected = {self.part_path(index).name for index in range(count)}
        others = sorted(path.name for path in (self.path / "parts").iterdir() if path.name not in expected)
        parts = {name: int(match[1]) for name in others if (match := PART.fullmatch(name))}
        others = [name for name in others if name not in parts or self.finished(parts[name]) is not None]
        if others:
            found = f"the folder has parts that don't come from this corpus: {', '.join(others[:5])}"
            raise InputError(found, where=str(self.path / "parts"), advice="name another folder with --out")

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the folder atomically, unless it has these bytes; it then survives a power cut.

        Raises:
            InputError: another survey's file has that name, or the file can't be written.
        """
        self.read(name)
        write_durably(self.path / name, data)

    def write_table(self, name: str, table: pyarrow.Table) -> None:
        """Write a table as sealed Parquet."""
        self.write(name, sealed_parquet(table, self.owner.label(name)))

    def write_array(self, name: str, array: Float[np.ndarray, "..."], record: Mapping[str, Any]) -> None:
        """Write an array with a record of what it was measured on, sealed."""
        self.arrays[name] = None
        self.write(name, array_bytes(array, self.owner.label(name), record))

    def write_json(self, name: str, record: dict[str, Any]) -> None:
        """Write a record as sealed JSON."""
        seal = self.owner.label(name) + BLANK.decode()
        text = json.dumps({**record, "seal": seal}, indent=1, ensure_ascii=False, allow_nan=False)
        # Surrogates, from names that aren't valid UTF-8, are escaped as JSON escapes them.
        self.write(name, sealed((text + "\n").encode("utf-8", "backslashreplace")))

    def sizes(self, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """The files of that name, as the manifest lists them."""
        return {name: {"bytes": (self.path / name).stat().st_size} for name in names}


MOST_DIFFERENCES = 8
"""Most differences that an error spells out."""


def _differences(begun: Any, requested: Any, path: str) -> Iterator[str]:
    """Yield a clause for each difference between two records."""
    if isinstance(begun, dict) and isinstance(requested, dict):
        for name in {**begun, **requested}:
            if begun.get(name) != requested.get(name):
                yield from _differences(begun.get(name), requested.get(name), f"{path}.{name}")
        return
    was, now = (json.dumps(value, ensure_ascii=False) for value in (begun, requested))
    start = next((at for at, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    yield f"{path} was {_around(was, start)}, is {_around(now, start)}"


def _around(text: str, place: int) -> str:
    """A text, cut to 80 characters around a position."""
    if len(text) <= 80:
        return text
    start = max(place - 40, 0)
    return f"{'…' if start else ''}{text[start : start + 78]}{'…' if start + 78 < len(text) else ''}"

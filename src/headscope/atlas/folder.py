"""A survey's folder: its lock, its finished parts, and the manifest that identifies the survey."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from headscope.atlas.store import array_and_record, part_record, schema
from headscope.atlas.survey_data import (
    FORMAT,
    RECORD,
    DamageWarning,
    ManifestError,
    check,
    file_fault,
    file_record,
    parse_manifest,
)
from headscope.errors import InputError, first_line
from headscope.files import (
    BLANK,
    fault,
    make_folder,
    remove_partial_files,
    sealed,
    sync_folder,
    unwritable,
    write_durably,
)

SURVEY_FILES = re.compile(
    r"manifest\.json|aggregates\.(parquet|json)|similarity\.parquet|damaged"
    r"|parts(/part-\d+\.parquet)?|similarity(/window-\d+\.npy)?"
    r"|effects(/round-\d+\.npy)?|writes(/(choosing|held-out)-\d+\.npy)?|site"
    r"|(sample|syntax|relations|labels|distributions|examples|lines|effects|removal|writes)\.parquet"
)
"""Names of the files and folders that a survey writes."""

PART = re.compile(r"part-(\d{5,18})\.parquet")

DAMAGED = "damaged"
"""Subfolder to which damaged files are moved."""

MOST_REFUSED = 1000
"""Most refused documents that the manifest lists; all are counted."""

IDENTITY = ("model", "settings", "versions", "corpus", "statistics", "left_out")
"""Fields of the manifest that must be equal for one run to resume another's survey."""


class Folder:
    """The folder that a survey is written to.

    Attributes:
        path: the folder.
        stamp: identifies the survey being written; each of its parts and matrices carries it.
        resumed: True if an earlier run began this survey.
        parts: how many parts an earlier run finished that also wrote all else, if none of that is damaged; None
            otherwise.
        arrays: names of the arrays that this run read or wrote; tables are made from them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "manifest.json"
        self.stamp: dict[str, Any] = {}
        self.resumed = False
        self.parts: int | None = None
        self.arrays: dict[str, None] = {}
        self._statistics: list[str] = []
        self._listed: dict[str, dict[str, Any]] = {}
        """File name -> bytes and hash, as a complete manifest lists them."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and lock it against other surveys.

        Raises:
            InputError: the folder can't be made, or another survey is writing to it.
        """
        make_folder(self.path / "parts")
        try:
            # Windows can't open a folder, and has no locks of this kind.
            handle = None if sys.platform == "win32" else os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise unwritable(self.path, error, "the folder can't be opened") from error
        try:
            if handle is not None:
                self._lock(handle)
            yield
        finally:
            if handle is not None:
                os.close(handle)

    def _lock(self, handle: int) -> None:
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                "another survey is writing to this folder",
                where=str(self.path),
                advice="wait until it has finished, or name another folder",
            ) from error
        except OSError:  # a file system without locks, such as a network's that is mounted read-only
            return

    def begin(self, identity: dict[str, Any]) -> None:
        """Write the manifest of a new survey, or resume the same survey.

        A missing or damaged manifest is written again if the parts carry the stamp of this survey.

        Raises:
            InputError: the folder holds another survey, or other files.
        """
        identity = json.loads(json.dumps(identity))
        self.stamp = {"run": _digest(identity), "survey": _brief(identity)}
        self._statistics = identity["statistics"]
        remove_partial_files(self.path)
        try:
            begun = parse_manifest(self.manifest_path)
        except ManifestError as error:
            self._begin_anew(identity, error)
            return
        self._compare(begun, identity, "the folder holds a survey with {}")
        self.resumed = True
        if begun["complete"]:
            others = begun["files"] | begun.get("arrays", {})
            self._listed = {part["name"]: part for part in begun["parts"]} | others
            problems = {name: file_fault(self.path / name, record) for name, record in others.items()}
            if not any(problems.values()):
                self.parts = len(begun["parts"])
            for name, problem in problems.items():
                if problem is not None and (self.path / name).exists():
                    self.set_aside(name, problem)

    def _begin_anew(self, identity: dict[str, Any], error: ManifestError) -> None:
        """Write a manifest where none can be read, if the folder's other files allow it.

        Raises:
            InputError: the folder holds parts of another survey, or other files.
        """
        exists = self.manifest_path.exists()
        stamps = self._stamps()
        self.resumed = any(stamp["run"] == self.stamp["run"] for stamp in stamps)
        if not self.resumed:
            if stamps:
                problem = "is unusable" if exists else "is missing"
                self._compare(
                    stamps[0]["survey"],
                    self.stamp["survey"],
                    f"the manifest {problem}, and the parts are of a survey with {{}}",
                )
            names = [path.relative_to(self.path).as_posix() for path in self.path.iterdir()]
            names += [f"parts/{path.name}" for path in (self.path / "parts").iterdir()]
            empty = {"parts", DAMAGED, "manifest.json"}
            others = sorted(
                name
                for name in names
                if name not in empty
                and not name.endswith(".partial")  # of another machine
                and not (exists and SURVEY_FILES.fullmatch(name))
            )
            if error.foreign or others:
                raise InputError(
                    error.found if exists else f"the folder holds other files: {', '.join(others[:5])}",
                    where=str(self.manifest_path if exists else self.path),
                    advice="name an empty folder, or one that doesn't exist yet",
                )
        if exists:
            self.set_aside("manifest.json", error.found)
        elif stamps:
            warning = f"{self.manifest_path} is missing: it is written again from the parts"
            warnings.warn(DamageWarning(warning), stacklevel=2)
        self.write_json("manifest.json", {"format": FORMAT, "complete": False, **identity})

    def _stamps(self) -> list[dict[str, Any]]:
        """The record of each undamaged part, which says which survey it belongs to."""
        records = []
        for path in sorted((self.path / "parts").glob("part-*.parquet")):
            try:
                data = path.read_bytes()
            except OSError:
                continue
            if _problem(f"parts/{path.name}", data) is None:
                records.append(part_record(data))
        return records

    def _compare(self, begun: dict[str, Any], requested: dict[str, Any], message: str) -> None:
        """Compare the identity of the survey in the folder with the requested one.

        Raises:
            InputError: they differ; the message says in what. `{}` in `message` becomes the first difference.
        """
        differing = [name for name in IDENTITY if begun.get(name) != requested.get(name)]
        if not differing:
            return
        lines = [line for name in differing for line in _differences(begun.get(name), requested.get(name), name)]
        differences = list(dict.fromkeys(line.removeprefix("settings.") for line in lines))
        more = f"; and {len(differences) - MOST_DIFFERENCES} more" if len(differences) > MOST_DIFFERENCES else ""
        raise InputError(
            f"{message.format(NAMES[differing[0]])}: {'; '.join(differences[:MOST_DIFFERENCES])}{more}",
            where=str(self.path),
            advice="name another folder with --out, or repeat the settings of the survey in this one",
        )

    def part_path(self, index: int) -> Path:
        """The path of a part, whether it exists or not."""
        return self.path / "parts" / f"part-{index:05}.parquet"

    def finished(self, index: int) -> dict[str, Any] | None:
        """The record of a finished part, or None. A damaged part, or one of another survey, is set aside."""
        path = self.part_path(index)
        name = f"parts/{path.name}"
        data = self.read(name)
        if data is None:
            return None
        record = part_record(data)
        problem = None
        if record["run"] != self.stamp["run"]:
            problem = "it belongs to another survey"
        elif record["part"] != index:
            problem = f"it is part {record['part']}, not part {index}"
        elif not parquet.read_schema(pyarrow.BufferReader(data)).equals(schema(self._statistics)):
            problem = "it has other columns than this survey"
        if problem is None:
            return record
        self.set_aside(name, problem)
        return None

    def read(self, name: str) -> bytes | None:
        """The bytes of a sealed file, or None. A damaged file is set aside.

        Raises:
            InputError: reading the file is not permitted.
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
            self.set_aside(name, f"it can't be read: {error.strerror or error}")
            return None
        problem = _problem(name, data)
        listed = self._listed.get(name)
        if problem is None and listed is not None and hashlib.sha256(data).hexdigest() != listed["sha256"]:
            problem = "it is not the file that the manifest lists"
        if problem is None:
            return data
        self.set_aside(name, problem)
        return None

    def set_aside(self, name: str, problem: str) -> None:
        """Move an unusable file to damaged/, with a warning."""
        plain = name.replace("/", "-")
        number = 1
        while (target := self.path / DAMAGED / (plain if number == 1 else f"{plain}.{number}")).exists():
            number += 1
        try:
            make_folder(self.path / DAMAGED)
            os.rename(self.path / name, target)
            sync_folder(target.parent)
            sync_folder((self.path / name).parent)
        except OSError as error:
            raise unwritable(
                self.path / name, error, f"{problem}, and the file can't be moved to {DAMAGED}/"
            ) from error
        warnings.warn(
            DamageWarning(f"{self.path / name}: {problem}; kept as {target.relative_to(self.path)}, and made again"),
            stacklevel=2,
        )

    def clear(self) -> None:
        """Remove the parts and the manifest of a survey that is not worth resuming."""
        try:
            for path in (*(self.path / "parts").glob("part-*.parquet"), self.manifest_path):
                path.unlink()
        except OSError as error:
            raise unwritable(self.path, error, "files of the survey can't be removed") from error

    def check_no_more(self, count: int) -> None:
        """Check that the folder has no part beyond the first `count`. Damaged or foreign parts are set aside.

        Raises:
            InputError: there are others.
        """
        expected = {self.part_path(index).name for index in range(count)}
        others = sorted(path.name for path in (self.path / "parts").iterdir() if path.name not in expected)
        parts = {name: int(match[1]) for name in others if (match := PART.fullmatch(name))}
        others = [name for name in others if name not in parts or self.finished(parts[name]) is not None]
        if others:
            raise InputError(
                f"the folder has parts that don't come from this corpus: {', '.join(others[:5])}",
                where=str(self.path / "parts"),
                advice="name another folder with --out",
            )

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the folder atomically, unless it has these bytes; it then survives a power cut."""
        self._listed.pop(name, None)
        if name.endswith(".npy"):
            self.arrays[name] = None
        write_durably(self.path / name, data)

    def write_json(self, name: str, record: dict[str, Any]) -> None:
        """Write a record as sealed JSON, as `write` does."""
        text = json.dumps({**record, "seal": BLANK.decode()}, indent=1, ensure_ascii=False, allow_nan=False)
        # Surrogates, from names that aren't valid UTF-8, are escaped as JSON escapes them.
        self.write(name, sealed((text + "\n").encode("utf-8", "backslashreplace")))

    def file_record(self, name: str) -> dict[str, Any]:
        """Size and sha256 of a file of the folder."""
        return file_record(self.path / name)


NAMES = {
    "model": "another model",
    "settings": "other settings",
    "versions": "other versions of software",
    "corpus": "another corpus",
    "statistics": "other statistics",
    "left_out": "other statistics",
}
"""Field of the identity -> its difference, as in “a survey with …”."""

MOST_DIFFERENCES = 8
"""Most differences that an error spells out."""


def _problem(name: str, data: bytes) -> str | None:
    """A clause that says why a sealed file can't be used, or None. Whoever seals a file may have put anything in it."""
    try:
        if (problem := fault(data)) is None:
            record = array_and_record(data)[1] if name.endswith(".npy") else part_record(data)
            check(record, RECORD if name.startswith("parts/") else {"run": str})
        return problem
    except (ValueError, TypeError, LookupError, MemoryError, RecursionError) as error:
        return f"it is not what a survey writes: {first_line(error)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _brief(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity short enough for every part to carry: long lists are replaced by hashes."""
    corpus = identity["corpus"]
    files = {"count": len(corpus["files"]), "sha256": _digest(corpus["files"])}
    return {**identity, "corpus": {**corpus, "files": files}}


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

"""A survey's folder: who may write there, which parts are done, and the manifest that says what it all is."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscope._survey.durable import make_folder, sync_folder, write_durably
from headscope._survey.findings import FORMAT, ManifestError, file_fault, file_record, parse_manifest
from headscope._survey.seal import BLANK, DamageWarning, fault, sealed
from headscope._survey.table import part_record
from headscope.errors import InputError

LEFT_OVER = re.compile(
    r"^\.(part-\d+\.parquet|window-\d+\.npy|manifest\.json|aggregates\.\w+|similarity\.parquet"
    r"|(syntax|acts|pairs|texts)-\d+\.parquet|(syntax|labels|examples)\.parquet)\."
)
"""What a process that was killed leaves beside a file that it was writing."""

OWN = re.compile(
    r"manifest\.json|aggregates\.(parquet|json)|similarity\.parquet|report\.html|plots|damaged"
    r"|parts(/part-\d+\.parquet)?|similarity(/window-\d+\.npy)?"
    r"|atlas(/\w+-\d+\.parquet)?|(syntax|labels|examples)\.parquet"
)
"""The names that a survey writes."""

PART = re.compile(r"part-(\d{5,18})\.parquet")

DAMAGED = "damaged"
"""The folder within the survey's to which damaged files are moved."""

MOST_REFUSED = 1000
"""Refused documents that the manifest names; all are counted."""

IDENTITY = ("model", "settings", "versions", "corpus", "statistics", "left_out")
"""What two runs must have in common to resume each other's survey."""


class Folder:
    """Where a survey is written.

    Attributes:
        path: the folder.
        stamp: of the survey that is being written: what each of its parts and matrices says that it belongs to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "manifest.json"
        self.stamp: dict[str, Any] = {}
        self._listed: dict[str, dict[str, Any]] = {}
        """Files by name -> bytes and hash, as a complete manifest lists them."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep others from writing there meanwhile.

        Raises:
            InputError: it can't be made, it holds something else, or another survey is writing there.
        """
        try:
            make_folder(self.path / "parts")
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(
                f"the folder can't be made: {error.strerror or error}",
                where=str(self.path),
                advice="name a folder, or a place where one may be made",
            ) from error
        try:
            self._lock(handle)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        try:
            import fcntl
        except ImportError:  # Windows has no such locks
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                "another survey is writing there",
                where=str(self.path),
                advice="wait until it is done, or name another folder",
            ) from error

    def begin(self, identity: dict[str, Any]) -> None:
        """Say what is being done, or resume the same survey that was begun there.

        A manifest that is missing or damaged is made again where the parts say that they are of this very survey.

        Raises:
            InputError: the folder holds another survey, or something else.
        """
        identity = json.loads(json.dumps(identity))
        self.stamp = {"run": _digest(identity), "survey": _brief(identity)}
        for place in (self.path, self.path / "parts", self.path / "similarity", self.path / "atlas"):
            if place.is_dir():
                for one in place.iterdir():
                    if LEFT_OVER.match(one.name):
                        one.unlink()
        try:
            begun = parse_manifest(self.manifest_path)
        except ManifestError as error:
            self._begin_anew(identity, error)
            return
        self._compare(begun, identity, "a survey with {} was begun there")
        if begun["complete"]:
            self._listed = {one["name"]: one for one in begun["parts"]} | begun["files"]
            for name in begun["files"]:
                problem = file_fault(self.path / name, begun["files"][name])
                if problem is not None and (self.path / name).exists():
                    self.set_aside(name, problem)

    def _begin_anew(self, identity: dict[str, Any], error: ManifestError) -> None:
        """Write a manifest where there is none that can be read, if nothing speaks against it.

        Raises:
            InputError: the folder holds parts of another survey, or other things.
        """
        there = self.manifest_path.exists()
        stamps = self._stamps()
        if not any(stamp["run"] == self.stamp["run"] for stamp in stamps):
            if stamps:
                begun = "its manifest " + ("can't be used" if there else "is gone") + ", and its parts are of a survey"
                self._compare(stamps[0]["survey"], self.stamp["survey"], f"{begun} with {{}}")
            names = [one.relative_to(self.path).as_posix() for one in self.path.iterdir()]
            names += [f"parts/{one.name}" for one in (self.path / "parts").iterdir()]
            empty = {"parts", DAMAGED, "manifest.json"}
            others = sorted(one for one in names if one not in empty and not (there and OWN.fullmatch(one)))
            if error.foreign or others:
                raise InputError(
                    error.found if there else f"the folder holds other things: {', '.join(others[:5])}",
                    where=str(self.manifest_path if there else self.path),
                    advice="name a folder that is empty or isn't there",
                )
        if there:
            self.set_aside("manifest.json", error.found)
        elif stamps:
            warnings.warn(DamageWarning(f"{self.manifest_path} is gone: it is made again from the parts"), stacklevel=2)
        self.write_json("manifest.json", {"format": FORMAT, "complete": False, **identity})

    def _stamps(self) -> list[dict[str, Any]]:
        """What each part that is whole says that it belongs to."""
        found = []
        for path in sorted((self.path / "parts").glob("part-*.parquet")):
            try:
                data = path.read_bytes()
            except OSError:
                continue
            if fault(data) is None:
                found.append(part_record(data))
        return found

    def _compare(self, begun: dict[str, Any], asked: dict[str, Any], how: str) -> None:
        """That two identities are the same.

        Raises:
            InputError: they differ; the message says in what.
        """
        differing = [name for name in IDENTITY if begun.get(name) != asked.get(name)]
        if not differing:
            return
        lines = [line for name in differing for line in _differences(begun.get(name), asked.get(name), name)]
        differences = list(dict.fromkeys(line.removeprefix("settings.") for line in lines))
        more = f"; and {len(differences) - MOST_DIFFERENCES} more" if len(differences) > MOST_DIFFERENCES else ""
        raise InputError(
            f"{how.format(NAMES[differing[0]])}: {'; '.join(differences[:MOST_DIFFERENCES])}{more}",
            where=str(self.path),
            advice="name another folder with --out, or run what was begun there",
        )

    def part_path(self, index: int) -> Path:
        """Where a part is, or will be."""
        return self.path / "parts" / f"part-{index:05}.parquet"

    def finished(self, index: int) -> dict[str, Any] | None:
        """The record of a part that is done; None where there is none. A damaged or foreign one is set aside."""
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
        if problem is None:
            return record
        self.set_aside(name, problem)
        return None

    def read(self, name: str) -> bytes | None:
        """The bytes of a sealed file; None where there is none. A damaged one is set aside.

        Raises:
            InputError: it may not be read.
        """
        path = self.path / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise InputError(
                "the file may not be read", where=str(path), advice="change its permissions, and run again"
            ) from error
        except OSError as error:  # a bad sector, a folder of that name
            self.set_aside(name, f"it can't be read: {error.strerror or error}")
            return None
        problem = fault(data)
        listed = self._listed.get(name)
        if problem is None and listed is not None and hashlib.sha256(data).hexdigest() != listed["sha256"]:
            problem = "it is not the file that the manifest lists"
        if problem is None:
            return data
        self.set_aside(name, problem)
        return None

    def set_aside(self, name: str, problem: str) -> None:
        """Move a file that can't be used out of the way, and say so."""
        plain = name.replace("/", "-")
        number = 1
        while (kept := self.path / DAMAGED / (plain if number == 1 else f"{plain}.{number}")).exists():
            number += 1
        try:
            make_folder(self.path / DAMAGED)
            os.rename(self.path / name, kept)
            sync_folder(kept.parent)
            sync_folder((self.path / name).parent)
        except OSError as error:
            raise InputError(
                f"{problem}, and the file can't be set aside: {error.strerror or error}",
                where=str(self.path / name),
                advice="move it out of the folder yourself, and run again",
            ) from error
        warnings.warn(
            DamageWarning(f"{self.path / name}: {problem}; kept as {kept.relative_to(self.path)}, and made again"),
            stacklevel=2,
        )

    def clear(self) -> None:
        """Remove what was begun: nothing in it is worth resuming."""
        for one in (self.path / "parts").glob("part-*.parquet"):
            one.unlink()
        for one in (self.path / "atlas").glob("*.parquet"):
            one.unlink()
        self.manifest_path.unlink()

    def check_no_more(self, count: int) -> None:
        """That there are so many parts and no others. A damaged or foreign one is set aside.

        Raises:
            InputError: there are others.
        """
        expected = {self.part_path(index).name for index in range(count)}
        others = sorted(one.name for one in (self.path / "parts").iterdir() if one.name not in expected)
        parts = {name: int(found[1]) for name in others if (found := PART.fullmatch(name))}
        others = [name for name in others if name not in parts or self.finished(parts[name]) is not None]
        if others:
            raise InputError(
                f"there are parts that don't come from this corpus: {', '.join(others[:5])}",
                where=str(self.path / "parts"),
                advice="name another folder with --out",
            )

    def write(self, name: str, data: bytes) -> None:
        """A file of the folder, whole or not at all; once this returns, it outlasts a power cut."""
        self._listed.pop(name, None)
        write_durably(self.path / name, data)

    def write_json(self, name: str, record: dict[str, Any]) -> None:
        """The same, as JSON with a seal."""
        text = json.dumps({**record, "seal": BLANK.decode()}, indent=1, ensure_ascii=False, allow_nan=False)
        # What UTF-8 can't hold, as a part of a name that isn't UTF-8, is escaped as JSON escapes it.
        self.write(name, sealed((text + "\n").encode("utf-8", "backslashreplace")))

    def file_record(self, name: str) -> dict[str, Any]:
        """Bytes and sha256 of a file of the folder."""
        return file_record(self.path / name)


NAMES = {
    "model": "another model",
    "settings": "other settings",
    "versions": "other versions of software",
    "corpus": "another corpus",
    "statistics": "other statistics",
    "left_out": "other statistics",
}
"""How a difference is named: a survey with …."""

MOST_DIFFERENCES = 8
"""Differences that an error spells out."""


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _brief(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity that is short enough to stand in every part: long lists as hashes."""
    model, corpus = identity["model"], identity["corpus"]
    modules = {"sha256": model["modules"]["sha256"]}
    files = {"count": len(corpus["files"]), "sha256": _digest(corpus["files"])}
    return {**identity, "model": {**model, "modules": modules}, "corpus": {**corpus, "files": files}}


def _differences(begun: Any, asked: Any, path: str) -> Iterator[str]:
    """Where two records differ, in words."""
    if isinstance(begun, dict) and isinstance(asked, dict):
        for name in {**begun, **asked}:
            if begun.get(name) != asked.get(name):
                yield from _differences(begun.get(name), asked.get(name), f"{path}.{name}")
        return
    was, now = (json.dumps(value, ensure_ascii=False) for value in (begun, asked))
    alike = next((at for at, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    yield f"{path} was {_around(was, alike)}, is {_around(now, alike)}"


def _around(text: str, place: int) -> str:
    """A text of at most 80 characters, or as many of them around a place."""
    if len(text) <= 80:
        return text
    start = max(place - 40, 0)
    return f"{'…' if start else ''}{text[start : start + 78]}{'…' if start + 78 < len(text) else ''}"

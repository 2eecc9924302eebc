"""A survey's folder: who may write there, which parts are done, and the manifest that says what it all is."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.survey.findings import FORMAT
from headscope.survey.table import part_record
from headscope.writing import write_atomically

LEFT_OVER = re.compile(r"^\.(part-\d+\.parquet|window-\d+\.npy|manifest\.json|aggregates\.\w+|similarity\.parquet)\.")
"""What a process that was killed leaves beside a file that it was writing."""

MOST_REFUSED = 1000
"""Refused documents that the manifest names; all are counted."""

IDENTITY = ("model", "settings", "versions", "corpus", "statistics", "left_out")
"""What two runs must have in common to go on with each other's parts."""


class Folder:
    """Where a survey is written.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "manifest.json"
        self.run = ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep others from writing there meanwhile.

        Raises:
            InputError: it can't be made, it holds something else, or another survey is writing there.
        """
        try:
            (self.path / "parts").mkdir(parents=True, exist_ok=True)
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
        """Say what is being done, or go on where the same was begun.

        Raises:
            InputError: the folder holds another survey, or something else.
        """
        identity = json.loads(json.dumps(identity))
        text = json.dumps(identity, sort_keys=True)
        self.run = hashlib.sha256(text.encode()).hexdigest()
        for place in (self.path, self.path / "parts", self.path / "similarity"):
            if place.is_dir():
                for one in place.iterdir():
                    if LEFT_OVER.match(one.name):
                        one.unlink()
        if not self.manifest_path.exists():
            others = [one.name for one in self.path.iterdir() if one.name != "parts"]
            others += [f"parts/{one.name}" for one in (self.path / "parts").iterdir()]
            if others:
                raise InputError(
                    f"the folder holds other things: {', '.join(sorted(others)[:5])}",
                    where=str(self.path),
                    advice="name a folder that is empty or isn't there",
                )
            self.write_json("manifest.json", {"format": FORMAT, "complete": False, **identity})
            return
        begun = self.manifest()
        for name in IDENTITY:
            if begun.get(name) != identity[name]:
                raise InputError(
                    f"a survey with {NAMES[name]} was begun there: {_difference(begun.get(name), identity[name])}",
                    where=str(self.path),
                    advice="name another folder with --out, or run what was begun there",
                )

    def manifest(self) -> dict[str, Any]:
        """The manifest as it stands.

        Raises:
            InputError: it is none.
        """
        try:
            found = json.loads(self.manifest_path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(
                f"its manifest can't be read: {error}", where=str(self.manifest_path), advice="name another folder"
            ) from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InputError(
                f"its manifest is not one of {FORMAT!r}", where=str(self.manifest_path), advice="name another folder"
            )
        return found

    def part_path(self, index: int) -> Path:
        """Where a part is, or will be."""
        return self.path / "parts" / f"part-{index:05}.parquet"

    def finished(self, index: int) -> dict[str, Any] | None:
        """The record of a part that is done; None where there is none, or one that is damaged or of another survey."""
        record = part_record(self.part_path(index))
        return record if record is not None and record.get("run") == self.run else None

    def clear(self) -> None:
        """Take away what was begun: nothing in it is worth going on with."""
        for one in (self.path / "parts").iterdir():
            one.unlink()
        self.manifest_path.unlink()

    def check_no_more(self, count: int) -> None:
        """That there are so many parts and no others.

        Raises:
            InputError: there are others.
        """
        expected = {self.part_path(index).name for index in range(count)}
        others = sorted(one.name for one in (self.path / "parts").iterdir() if one.name not in expected)
        if others:
            raise InputError(
                f"there are parts that don't come from this corpus: {', '.join(others[:5])}",
                where=str(self.path / "parts"),
                advice="name another folder with --out",
            )

    def write(self, name: str, data: bytes) -> None:
        """A file of the folder, whole or not at all."""
        write_atomically(self.path / name, data)

    def write_json(self, name: str, record: dict[str, Any]) -> None:
        """The same, as JSON."""
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        self.write(name, (text + "\n").encode())

    def file_record(self, name: str) -> dict[str, Any]:
        """Bytes and sha256 of a file of the folder."""
        digest = hashlib.sha256()
        with (self.path / name).open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
            return {"bytes": file.tell(), "sha256": digest.hexdigest()}


NAMES = {
    "model": "another model",
    "settings": "other settings",
    "versions": "other versions of software",
    "corpus": "another corpus",
    "statistics": "other statistics",
    "left_out": "other statistics",
}
"""How a difference is named: a survey with …."""


def _difference(begun: Any, asked: Any) -> str:
    """Where two records differ, in words."""
    if isinstance(begun, dict) and isinstance(asked, dict):
        names = [name for name in {**begun, **asked} if begun.get(name) != asked.get(name)]
        return "; ".join(f"{name} was {_short(begun.get(name))}, is {_short(asked.get(name))}" for name in names)
    return f"it was {_short(begun)}, is {_short(asked)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"

"""The location of a checkpoint's files: a `Place` is a folder on disk (here) or a repository on the hub (hub.py)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Protocol

from headscope.checkpoint.files import check_regular
from headscope.checkpoint.source import LocalFile, Source, unreadable
from headscope.errors import CheckpointError, InputError

MOST_FOLDERS = 200


class Place(Protocol):
    """A folder or a repository, with files by name.

    Attributes:
        where: its name in messages.
    """

    where: str

    def source(self, name: str) -> Source | None:
        """Return a weight file, to be read by span; None if there is none of that name."""

    def path(self, name: str) -> Path | None:
        """Return a file's path on this machine; None if there is none of that name."""

    def names(self) -> list[str]:
        """Return the names of all files, sorted; the names of folders, if they are listed, end in a slash."""

    def below(self) -> list[str]:
        """Return the names of files in subfolders, as folder/name; incomplete if there are many folders."""

    def fetch(self, name: str) -> Source:
        """Download a weight file and return it."""


class Folder:
    """A `Place` on disk."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self.where = str(path)

    def source(self, name: str) -> Source | None:
        path = self.folder / check_name(name)
        try:
            # LocalFile rejects what is neither a file nor a folder (a pipe, a device).
            return LocalFile(path, name) if path.exists() and not path.is_dir() else None
        except OSError as error:
            raise unreadable(path, error) from error

    def path(self, name: str) -> Path | None:
        path = self.folder / check_name(name)
        try:
            if not path.exists():
                return None
            check_regular(path.stat())
        except OSError as error:
            raise unreadable(path, error) from error
        return path

    def names(self) -> list[str]:
        try:
            return sorted(path.name + "/" * path.is_dir() for path in self.folder.iterdir())
        except OSError as error:
            raise unreadable(self.folder, error) from error

    def below(self) -> list[str]:
        """Search one level of subfolders; two in `snapshots`, where the hub's cache keeps one folder per commit."""
        files: list[str] = []
        for name in [name for name in self.names() if name.endswith("/")][:MOST_FOLDERS]:
            inner = Folder(self.folder / name)
            # Unreadable subfolders are skipped: the user didn't ask for them.
            with suppress(CheckpointError):
                files += [name + file for file in (inner.below() if name == "snapshots/" else inner.names())]
        return files

    def fetch(self, name: str) -> Source:
        return LocalFile(self.folder / check_name(name), name)


def check_name(name: str) -> str:
    """Return a file's name, after checking that it doesn't lead out of the folder.

    Raises:
        InputError: it does, or it isn't a name.
    """
    parts = name.split("/")
    if not name or "\\" in name or "\0" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise InputError(
            f"{name!r} is not the name of a file inside the checkpoint",
            where=name,
            advice="pass a name such as vocab.txt",
        )
    return name

"""Where a checkpoint's files lie: a `Place` is a folder on disk here, a repository on the hub in hub.py."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Protocol

from headscope.checkpoint.files import check_regular
from headscope.checkpoint.source import LocalFile, Source, unreadable
from headscope.errors import CheckpointError, InputError

MOST_FOLDERS = 200


class Place(Protocol):
    """Files by name.

    Attributes:
        where: the place as a person would name it.
    """

    where: str

    def source(self, name: str) -> Source | None:
        """A weight file, to be read by span; None where there is none of that name."""

    def path(self, name: str) -> Path | None:
        """A file's path on this machine; None where there is none of that name."""

    def names(self) -> list[str]:
        """The names of all files, sorted; folders, where they are listed, end in a slash."""

    def below(self) -> list[str]:
        """The names of files that lie further down, as folder/name; not all, where there are many folders."""

    def fetch(self, name: str) -> Source:
        """A weight file, whole and on this machine."""


class Folder:
    """A `Place` on disk."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self.where = str(path)

    def source(self, name: str) -> Source | None:
        path = self.folder / check_name(name)
        try:
            # What is neither a file nor a folder (a pipe, a device) is refused by LocalFile.
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
        """One folder down, and where the hub's cache keeps its commits one more."""
        found: list[str] = []
        for name in [name for name in self.names() if name.endswith("/")][:MOST_FOLDERS]:
            inner = Folder(self.folder / name)
            # Folders that may not be looked into are passed over: nothing was asked of them.
            with suppress(CheckpointError):
                found += [name + file for file in (inner.below() if name == "snapshots/" else inner.names())]
        return found

    def fetch(self, name: str) -> Source:
        return LocalFile(self.folder / check_name(name), name)


def check_name(name: str) -> str:
    """The name of a file inside a place, refused (InputError) where it leads out of it."""
    parts = name.split("/")
    if not name or "\\" in name or "\0" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise InputError(
            f"{name!r} does not name a file inside the checkpoint", where=name, advice="give a name such as vocab.txt"
        )
    return name

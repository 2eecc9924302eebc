"""A checkpoint's bytes: regular files read up to a limit, weight files by span, folders by name.

Reading a pipe would wait for its writer, and a device may never end. Both are rejected before the first byte. A
`Source` is a file that is read by span, a `FileTree` a folder: on disk (here), or on the hub (hub.py).
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from headscope.errors import CheckpointError, InputError, NotFoundError

MOST_FOLDERS = 200

HELD_AT_ONCE = 1 << 24
"""Bytes of a file that are read at a time where all of it is held, so that there is no second copy of it."""

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, without a buffer.

    Raises:
        OSError: it is a folder, a pipe, a device or a socket, or the system can't open it.
    """
    check_regular(os.stat(path))
    return open(path, "rb", buffering=0)


def check_regular(status: os.stat_result) -> None:
    """Raise OSError, naming the kind of file, unless it is a regular file."""
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {KINDS.get(kind, 'something else')}, not a regular file")


def read_whole(path: Path, most: int) -> bytes:
    """Return all bytes of a file.

    Raises:
        OSError: it has more bytes than `most`, is not a regular file, or can't be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {most:,} are read")
        return read_span(file, 0, size)


def read_span(file: BinaryIO, start: int, stop: int) -> bytes:
    """Return the bytes from start to stop; fewer if the file ends before."""
    chunks = []
    while start < stop and (chunk := _read_at(file, start, stop - start)):
        chunks.append(chunk)
        start += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _read_at(file: BinaryIO, start: int, count: int) -> bytes:
    if hasattr(os, "pread"):  # other threads, and processes that were forked, may read the same open file
        return os.pread(file.fileno(), count, start)
    file.seek(start)
    return file.read(count)


class Source(Protocol):
    """A file of known size that is read by span.

    Attributes:
        name: the file's name, as in `TensorEntry.file`.
        where: the file's name in messages.
        size: its length in bytes.
        remote: True if each read is a request over the network.
    """

    name: str
    where: str
    size: int
    remote: bool

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from start to stop. Raises CheckpointError if the file doesn't have them all."""

    def view(self, start: int, stop: int) -> memoryview:
        """Return the same bytes, without a copy if the file is on disk."""


def check_span(source: Source, start: int, stop: int) -> None:
    """Raise CheckpointError unless the bytes from start to stop are inside the file."""
    if not 0 <= start <= stop <= source.size:
        raise CheckpointError(
            f"bytes {start} to {stop} are needed, but the file has {source.size}",
            where=source.where,
            advice="the file is truncated or damaged: download or copy it again",
        )


class LocalFile:
    """A `Source` on disk: headers are read, weights are memory-mapped on first access.

    The file is opened once. If another takes its place, the opened one is read on; if it is written to, reading raises.
    """

    remote = False

    def __init__(self, path: Path, name: str | None = None) -> None:
        """Open the file.

        Args:
            path: its path.
            name: its name, as in `TensorEntry.file`; by default that of the path.

        Raises:
            CheckpointError: it is not a regular file, or can't be read.
        """
        self.path = path
        self.name = name if name is not None else path.name
        self.where = str(path)
        self._file: BinaryIO | None = None
        self._opened = self._state()
        self.size = self._opened[0]
        self._map: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without the open file: another process opens it when it first reads."""
        return {**vars(self), "_file": None, "_map": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalFile:
        """Return the object itself, which stays with the file that it has opened."""
        return self

    def read(self, start: int, stop: int) -> bytes:
        check_span(self, start, stop)
        try:
            data = read_span(self._handle(), start, stop)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._check_unchanged()
        if len(data) < stop - start:
            raise unreadable(self.path, OSError("it ends before its length says"))
        return data

    def view(self, start: int, stop: int) -> memoryview:
        if start == stop:
            return memoryview(self.read(start, stop))
        check_span(self, start, stop)
        self._check_unchanged()
        if self._map is None:
            try:
                self._map = mmap.mmap(self._handle().fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:  # a ValueError: the file is empty now
                raise unreadable(self.path, error) from error
        return memoryview(self._map)[start:stop]

    def _handle(self) -> BinaryIO:
        if self._file is None:
            try:
                self._file = open_regular(self.path)
            except (OSError, ValueError) as error:  # a ValueError: the name holds a NUL, or half of a surrogate pair
                raise unreadable(self.path, error) from error
            weakref.finalize(self, self._file.close)
        return self._file

    def _state(self) -> tuple[int, int]:
        """Length and time of the last change."""
        status = os.fstat(self._handle().fileno())
        return status.st_size, status.st_mtime_ns

    def _check_unchanged(self) -> None:
        """Raise CheckpointError if another program has written to the file since it was opened."""
        if (state := self._state()) != self._opened:
            raise CheckpointError(
                f"the file had {self.size} bytes when it was opened, and has {state[0]} now"
                if state[0] != self.size
                else "the file has been written to since it was opened",
                where=self.where,
                advice="open it again when the other program has finished",
            )


class HeldFile:
    """A `Source` of which all bytes are read into memory at once: what is done to the file later changes nothing.

    Attributes:
        data: the bytes.
    """

    remote = False

    def __init__(self, file: LocalFile) -> None:
        self.name, self.where, self.size = file.name, file.where, file.size
        self.data = bytearray(file.size)
        for start in range(0, file.size, HELD_AT_ONCE):
            part = slice(start, min(start + HELD_AT_ONCE, file.size))
            self.data[part] = file.read(part.start, part.stop)

    def read(self, start: int, stop: int) -> bytes:
        return bytes(self.view(start, stop))

    def view(self, start: int, stop: int) -> memoryview:
        check_span(self, start, stop)
        return memoryview(self.data)[start:stop]


def unreadable(path: Path, error: OSError | ValueError) -> CheckpointError:
    """Return the error for a file that the system can't read or that is not a regular file."""
    return CheckpointError(
        f"the file can't be read: {getattr(error, 'strerror', None) or error}",
        where=str(path),
        advice="pass an existing regular file that you have permission to read",
    )


def _exists(path: Path) -> bool:
    """Return True if there is a file or folder.

    Raises:
        OSError: there is a link that leads nowhere: what it stands for is missing, and not merely absent.
    """
    if path.exists():
        return True
    if path.is_symlink():
        raise OSError(errno.ENOENT, f"it is a link to {os.readlink(path)!r:.100}, which leads nowhere")
    return False


class FileTree(Protocol):
    """A folder or a repository, with files by name.

    Attributes:
        where: its name in messages.
        unreachable: the error for files that are not on this machine, if the hub can't be asked for them.
    """

    where: str
    unreachable: NotFoundError | None

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
    """A `FileTree` on disk."""

    unreachable: NotFoundError | None = None

    def __init__(self, path: Path) -> None:
        self.folder = path
        self.where = str(path)

    def source(self, name: str) -> Source | None:
        path = self.folder / check_name(name)
        try:
            # LocalFile rejects what is neither a file nor a folder (a pipe, a device).
            return LocalFile(path, name) if _exists(path) and not path.is_dir() else None
        except OSError as error:
            raise unreadable(path, error) from error

    def path(self, name: str) -> Path | None:
        path = self.folder / check_name(name)
        try:
            if not _exists(path):
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


def is_plain(name: str) -> bool:
    """Return True for the name of a file or folder, without a way to it."""
    signs = any(sign in name for sign in "/\\:\0")
    return name not in ("", ".", "..") and not signs and name.isprintable() and len(name) < 256


def check_name(name: str) -> str:
    """Return a file's name, after checking that it doesn't lead out of the folder.

    Raises:
        InputError: it does, or it isn't a name.
    """
    if not all(map(is_plain, name.split("/"))):
        raise InputError(
            f"{name!r} is not the name of a file inside the checkpoint",
            where=name,
            advice="pass a name such as vocab.txt",
        )
    return name

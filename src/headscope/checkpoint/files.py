"""Files opened for reading: regular ones only, and no more bytes of them than are allowed.

Reading a pipe waits for whoever writes to it, and a device may never end. Both are refused before the first byte.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, opened for reading without a buffer.

    Raises:
        OSError: it is a folder, a pipe, a device or a socket, or the system doesn't open it.
    """
    check_regular(os.stat(path))
    # What takes the file's name meanwhile is not waited for either.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        check_regular(os.fstat(handle))
    except OSError:
        os.close(handle)
        raise
    return open(handle, "rb", buffering=0)


def check_regular(status: os.stat_result) -> None:
    """Raise OSError, saying what it is, for everything that is not a regular file."""
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {KINDS.get(kind, 'something else')}, not a regular file")


def read_whole(path: Path, most: int) -> bytes:
    """All bytes of a file.

    Raises:
        OSError: it has more bytes than `most`, it is not a regular file, or the system doesn't read it.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, at most {most:,} are read")
        return read_span(file, 0, size)


def read_span(file: BinaryIO, start: int, stop: int) -> bytes:
    """The bytes from start to stop, fewer where the file ends before."""
    file.seek(start)
    pieces = []
    while start < stop and (piece := file.read(stop - start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)

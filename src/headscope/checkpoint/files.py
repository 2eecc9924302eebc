"""Reading files: only regular files, and only up to a limit of bytes.

Reading a pipe would wait for its writer, and a device may never end. Both are rejected before the first byte.
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
    """Open a regular file for reading, without a buffer.

    Raises:
        OSError: it is a folder, a pipe, a device or a socket, or the system can't open it.
    """
    check_regular(os.stat(path))
    # O_NONBLOCK: don't wait for a pipe that has replaced the file meanwhile.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        check_regular(os.fstat(handle))
    except OSError:
        os.close(handle)
        raise
    return open(handle, "rb", buffering=0)


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
    file.seek(start)
    chunks = []
    while start < stop and (chunk := file.read(stop - start)):
        chunks.append(chunk)
        start += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)

"""Files and folders that outlast a power cut, as far as the system can promise it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from headscope.errors import InputError
from headscope.writing import write_atomically


def write_durably(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and return once both its bytes and its name are on disk.

    The order: the bytes to a file beside its place, fsync of that file, rename, fsync of the folder.

    Raises:
        InputError: it can't be written there.
    """
    write_atomically(path, content)
    try:
        sync_folder(Path(os.path.realpath(path)).parent)
    except OSError as error:
        raise InputError(
            f"the file is written, but may not outlast a power cut: {error.strerror or error}",
            where=str(path),
            advice="check the disk, and run again",
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; each one's name is on disk once this returns.

    Raises:
        OSError: it can't be made.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Write to disk which names a folder holds. Windows can't, nor can some network file systems.

    Raises:
        OSError: the disk failed.
    """
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # POSIX: there is nothing to synchronise this kind of file with
            raise
    finally:
        os.close(handle)

"""Writing files and folders so that they survive a power cut, as far as the system allows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from headscope.errors import InputError
from headscope.writing import write_atomically


def write_durably(path: Path, content: bytes) -> None:
    """Write a file atomically, and return once both its bytes and its name are on disk.

    The bytes go to a temporary file in the same folder, then fsync, rename, and fsync of the folder.

    Raises:
        InputError: the file can't be written.
    """
    write_atomically(path, content)
    try:
        sync_folder(Path(os.path.realpath(path)).parent)
    except OSError as error:
        raise InputError(
            f"the file is written, but may not survive a power cut: {error.strerror or error}",
            where=str(path),
            advice="check the disk, and run again",
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents; their names are on disk once this returns.

    Raises:
        OSError: the folder can't be made.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's list of names to disk. Windows and some network file systems can't.

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

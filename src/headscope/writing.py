"""Atomic writes: a file is written whole or not at all; devices, pipes and links are never replaced.

The content goes to a partial file in the same folder (`.NAME.….partial`), which is then renamed over the target. The
writer holds a lock on the partial file, which the system releases when the process dies, however it dies. So a later
run that gets the lock knows that nobody will finish the file, and removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from zlib import crc32

from headscope.errors import InputError

if sys.platform != "win32":  # Windows needs no lock: an open file can't be removed there
    import fcntl

LONGEST_STEM = 50
"""Characters of a file's name that its partial file repeats: even at 4 bytes each, the name fits in 255 bytes."""

MACHINE = f"{crc32(os.uname().nodename.encode()) if sys.platform != 'win32' else 0:08x}"
"""Part of a partial file's name: another machine's locks may not be visible here, so its files are left alone."""

PARTIAL = re.compile(rf"\..*\.{MACHINE}-[0-9a-f]{{16}}\.partial")

_cleaned: set[str] = set()
"""Folders in which this process has already looked for partial files."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. An existing file keeps its mode, owner and group.

    If the path is a link, the file that it points to is written. A device or a pipe is written to, never replaced.

    Raises:
        InputError: the file can't be written.
    """
    try:
        descriptor = _open_descriptor(path)
        status = _status(path)
        if descriptor is not None or (status is not None and not stat.S_ISREG(status.st_mode)):
            # Without O_CREAT: if the device has disappeared meanwhile, no file takes its name.
            handle = os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
        elif status is not None and not os.access(path, os.W_OK):
            raise PermissionError(0, "it is read-only")
        else:
            _replace(Path(os.path.realpath(path)), status, content)
    except (OSError, ValueError) as error:  # a ValueError: the name holds a NUL, or half of a surrogate pair
        raise InputError(
            f"the file can't be written: {getattr(error, 'strerror', None) or error}",
            where=str(path),
            advice="name a file in a folder that exists and is writable",
        ) from error


def remove_partial_files(folder: Path) -> None:
    """Remove the partial files of killed writers from a folder. Files that are still being written stay."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if PARTIAL.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _replace(target: Path, status: os.stat_result | None, content: bytes) -> None:
    """Write the content to a partial file and rename it over the target, whose status is None if it doesn't exist."""
    if str(target.parent) not in _cleaned:
        _cleaned.add(str(target.parent))
        remove_partial_files(target.parent)
    with _partial_file(target, 0o666 if status is None else 0o600) as (handle, partial):
        with os.fdopen(handle, "wb", closefd=sys.platform == "win32") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # without it, a power cut may leave an empty file under the new name
        if status is not None:
            _keep_attributes(partial, target, status)
        os.replace(partial, target)


@contextmanager
def _partial_file(target: Path, mode: int) -> Iterator[tuple[int, str]]:
    """Create and lock a file beside the target; yield its descriptor and path. Removed if the block raises."""
    while True:
        name = f".{target.name[:LONGEST_STEM]}.{MACHINE}-{secrets.token_hex(8)}.partial"
        path = str(target.parent / name)
        # The system applies the umask: to read it, a process would have to change it for all of its threads.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        if sys.platform == "win32":
            break
        with suppress(OSError):  # a file system without locks: then nobody takes the file for abandoned, either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            break
        os.close(handle)  # another run removed it before it was locked
    try:
        yield handle, path
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise
    finally:
        if sys.platform != "win32":
            os.close(handle)


def _remove_if_abandoned(path: str) -> None:
    """Remove a partial file unless its writer is still running."""
    if sys.platform == "win32":
        os.unlink(path)  # Windows refuses while the file is open
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(handle)


def _keep_attributes(partial: str, target: Path, status: os.stat_result) -> None:
    """Give the new file the owner, group, mode and access list of the one it replaces, as far as permitted."""
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if sys.platform != "win32":
        created = os.stat(partial)
        if created.st_uid != status.st_uid:
            with suppress(OSError):
                os.chown(partial, status.st_uid, -1)
        if created.st_gid != status.st_gid:
            try:
                os.chown(partial, -1, status.st_gid)
            except OSError:  # then our group must not get the other group's permissions
                mode = (mode & ~0o070) | ((mode & 0o007) << 3)
    os.chmod(partial, mode)
    if sys.platform == "linux":
        with suppress(OSError):  # a file system without such attributes
            for name in os.listxattr(target):
                if name.startswith("user.") or name == "system.posix_acl_access":
                    os.setxattr(partial, name, os.getxattr(target, name))


def _open_descriptor(path: Path) -> int | None:
    """Return this process's descriptor for a path such as /dev/stdout or /dev/fd/3; None for any other path.

    The file behind it is not replaced: output already written to the descriptor comes before the new content.
    """
    for _ in range(8):
        if path.name.isdecimal() and os.path.realpath(path.parent) in (f"/proc/{os.getpid()}/fd", "/dev/fd"):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            return int(path.name)
        try:
            path = path.parent / os.readlink(path)
        except OSError:
            return None
    return None


def _status(path: Path) -> os.stat_result | None:
    """Return the status of the file at a path, following links; None if there is none."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None

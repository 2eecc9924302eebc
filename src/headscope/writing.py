"""Files are written whole or not at all; devices, pipes and links stay what they are.

A file is written under another name beside its place (`.NAME.….partial`) and renamed over it. Its writer holds a lock
on the partial file, which the system releases when the process dies, however it dies. So a later run that gets the
lock knows that nobody will finish the file, and removes it.
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

if sys.platform != "win32":  # where a file that somebody has open can't be removed, and so needs no lock
    import fcntl

LONGEST_STEM = 50
"""Characters of a file's name that its partial file repeats: of 4 bytes each, they leave room in a name of 255."""

MACHINE = f"{crc32(os.uname().nodename.encode()) if sys.platform != 'win32' else 0:08x}"
"""Part of a partial file's name: locks of another machine may not be seen here, so its files are left alone."""

PARTIAL = re.compile(rf"\..*\.{MACHINE}-[0-9a-f]{{16}}\.partial")

_cleaned: set[str] = set()
"""The folders in which this process has looked for partial files."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Its mode, owner and group stay as they were; a new file gets the umask's.

    Of a link, the file that it leads to is written. A device or a pipe is written to, never replaced.

    Raises:
        InputError: it can't be written there.
    """
    try:
        descriptor = _own_descriptor(path)
        status = _status(path)
        if descriptor is not None or (status is not None and not stat.S_ISREG(status.st_mode)):
            # Without O_CREAT: where the device has gone meanwhile, no file takes its name.
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
            advice="name a file in a folder that exists and may be written to",
        ) from error


def remove_partial_files(folder: Path) -> None:
    """Remove what writers that were killed left in a folder. Files that are still being written stay."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if PARTIAL.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _replace(target: Path, status: os.stat_result | None, content: bytes) -> None:
    """Write the content beside its place, and rename it over the file of this status (None: there is none)."""
    if str(target.parent) not in _cleaned:
        _cleaned.add(str(target.parent))
        remove_partial_files(target.parent)
    with _partial_file(target, 0o666 if status is None else 0o600) as (handle, partial):
        with os.fdopen(handle, "wb", closefd=sys.platform == "win32") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut may leave the new name with empty contents
        if status is not None:
            _keep_attributes(partial, target, status)
        os.replace(partial, target)


@contextmanager
def _partial_file(target: Path, mode: int) -> Iterator[tuple[int, str]]:
    """A new file beside the target, locked by us: its descriptor and its path. Removed where the block fails."""
    while True:
        name = f".{target.name[:LONGEST_STEM]}.{MACHINE}-{secrets.token_hex(8)}.partial"
        path = str(target.parent / name)
        # The system applies the umask: to read it, a process would have to set it for all of its threads.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        if sys.platform == "win32":
            break
        with suppress(OSError):  # a file system without locks: then nobody takes the file for abandoned either
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
    """Remove a partial file unless its writer lives."""
    if sys.platform == "win32":
        os.unlink(path)  # refused by the system while it is open
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(handle)


def _keep_attributes(partial: str, target: Path, status: os.stat_result) -> None:
    """Give the new file the owner, group, mode and access list of the one that it replaces, as far as we may."""
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if sys.platform != "win32":
        made = os.stat(partial)
        if made.st_uid != status.st_uid:
            with suppress(OSError):
                os.chown(partial, status.st_uid, -1)
        if made.st_gid != status.st_gid:
            try:
                os.chown(partial, -1, status.st_gid)
            except OSError:  # then our own group must not get what was another's
                mode = (mode & ~0o070) | ((mode & 0o007) << 3)
    os.chmod(partial, mode)
    if sys.platform == "linux":
        with suppress(OSError):  # a file system without such attributes
            for name in os.listxattr(target):
                if name.startswith("user.") or name == "system.posix_acl_access":
                    os.setxattr(partial, name, os.getxattr(target, name))


def _own_descriptor(path: Path) -> int | None:
    """The descriptor of this process that a path such as /dev/stdout or /dev/fd/3 stands for; None for others.

    The file behind it is not replaced: what was written to the descriptor before belongs in front.
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
    """What is at a path, links followed; None where nothing is."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None

"""Atomic and durable writes: a file is written whole or not at all; devices, pipes and links are never replaced.

The content goes to a partial file in the same folder (`.NAME.….partial`), which is then renamed over the target. The
writer holds a lock on the partial file, which the system releases when the process dies, however it dies. So a later
run that gets the lock knows that nobody will finish the file, and removes it.

Sealed files carry a hash inside, so that damage is recognised wherever they end up. A file is made with 64 zeros for
the hash; the SHA-256 of those bytes then replaces the zeros.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from headscope.errors import InputError

if TYPE_CHECKING:
    import pyarrow

if sys.platform != "win32":  # Windows needs no lock: an open file can't be removed there
    import fcntl

LONGEST_STEM = 50
"""Characters of a file's name that its partial file repeats: even at 4 bytes each, the name fits in 255 bytes."""

MACHINE = f"{crc32(os.uname().nodename.encode()) if sys.platform != 'win32' else 0:08x}"
"""Part of a partial file's name: another machine's locks may not be visible here, so its files are left alone."""

PARTIAL = re.compile(rf"\..*\.{MACHINE}-[0-9a-f]{{16}}\.partial")

MARK = b"headscope-sha256:"
"""The mark before the hash. The last one in a file counts, because names of documents may contain it, too."""

BLANK = MARK + b"0" * 64
"""Mark and zeros, before a file is sealed."""

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
        raise unwritable(path, error) from error


def unwritable(path: Path, error: Exception, problem: str = "the file can't be written") -> InputError:
    """Return the error for a failed write, which says so if the disk is full or read-only."""
    reason = str(getattr(error, "strerror", None) or error)
    advice = "name a file in a folder that exists and is writable"
    if is_full(error):
        reason, advice = "the disk is full", "free some space, or write to another disk"
    elif getattr(error, "errno", None) == errno.EROFS:
        reason, advice = "the disk is read-only", "write to another disk"
    return InputError(f"{problem}: {reason}", where=str(path), advice=advice)


def is_full(error: Exception) -> bool:
    """Return True for the error of a full disk, or of a user who may not write more."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def write_temporary(content: bytes, suffix: str) -> Path:
    """Write a new file in the system's temporary folder, readable by its owner alone. Nobody removes it.

    Raises:
        InputError: no file can be written there.
    """
    try:
        handle, name = tempfile.mkstemp(prefix="headscope-", suffix=suffix)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        raise InputError(
            f"no temporary file can be written: {error.strerror or error}",
            where=tempfile.tempdir or "TMPDIR",
            advice="name a file: --html FILE",
        ) from error
    return Path(name)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file atomically, and return once both its bytes and its name are on disk.

    The bytes go to a temporary file in the same folder, then fsync, rename, and fsync of the folder. A file that has
    these bytes is not written again.

    Raises:
        InputError: the file can't be written.
    """
    written = write_if_new(path, content)
    try:
        sync_folder(Path(os.path.realpath(path)).parent)
    except OSError as error:
        if written:  # else the disk may be read-only
            raise unwritable(path, error, "the file is written, but may not survive a power cut") from error


def write_if_new(path: Path, content: bytes) -> bool:
    """Write a file atomically, unless it has this content: a finished survey can be read from a read-only disk.

    Returns:
        True if it was written.

    Raises:
        InputError: the file can't be written.
    """
    with suppress(OSError):
        if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
            return False
    write_atomically(path, content)
    return True


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents; their names are on disk once this returns.

    Raises:
        InputError: the folder can't be made.
    """
    try:
        if path.is_dir():
            return
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)
    except (OSError, ValueError) as error:
        raise unwritable(path, error, "the folder can't be made") from error


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


def sealed(data: bytes) -> bytes:
    """A file's bytes, with their hash instead of the last BLANK."""
    at = data.rindex(BLANK)
    return data[:at] + MARK + hashlib.sha256(data).hexdigest().encode() + data[at + len(BLANK) :]


def fault(data: bytes) -> str | None:
    """A clause that says what is wrong with a sealed file's bytes, or None."""
    if not data:
        return "it is empty"
    at = data.rfind(MARK)
    if at < 0:
        return "the hash written with it is missing"
    blank = data[:at] + BLANK + data[at + len(BLANK) :]
    if len(blank) == len(data) and sealed(blank) == data:
        return None
    return "its bytes do not match the hash written with them"


def parquet_bytes(table: pyarrow.Table) -> bytes:
    """A table as Parquet, the same bytes for the same rows."""
    import pyarrow
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def sealed_parquet(table: pyarrow.Table, metadata: Mapping[bytes, str] | None = None) -> bytes:
    """A table as Parquet with its hash inside, after what else its metadata has."""
    # The seal comes last, so it is the last mark in the file even if a name contains one.
    return sealed(parquet_bytes(table.replace_schema_metadata({**(metadata or {}), b"headscope.seal": BLANK})))

"""Atomic and durable writes: a file is written whole or not at all; devices, pipes and links are never replaced.

The content goes to a partial file in the same folder (`.NAME.….partial`), which is then renamed over the target.

Sealed files carry a label and a hash inside, so that damage is recognised wherever they end up, and a whole file that
belongs elsewhere, too. A file is made with 64 zeros for the hash; the SHA-256 of those bytes then replaces the zeros.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.errors import InputError

if TYPE_CHECKING:
    import pyarrow

LONGEST_STEM = 50
"""Characters of a file's name that its partial file repeats: even at 4 bytes each, the name fits in 255 bytes."""

PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")
"""Name of a partial file."""

MARK = b"headscope-sha256:"
"""The mark before the hash. The last one in a file counts, because names of documents may contain it, too."""

BLANK = MARK + b"0" * 64
"""Mark and zeros, before a file is sealed."""

LABEL = re.compile(rb"[0-9a-f]{64} [\w./-]+ \Z")
"""A label before the mark: a hash that says whose the file is, and its name."""


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Write a file of these parts whole or not at all. An existing file keeps its mode.

    If the path is a link, the file that it points to is written. A device or a pipe is written to, never replaced.

    Raises:
        InputError: the file can't be written.
    """
    try:
        status = None
        with suppress(FileNotFoundError):
            status = os.stat(path)
        # What is behind /dev/stdout may be a file: it is written to as well.
        if status is not None and (path.parts[:2] == ("/", "dev") or not stat.S_ISREG(status.st_mode)):
            # Without O_CREAT: if the device has disappeared meanwhile, no file takes its name.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
                stream.writelines(content)
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
    """Remove what killed writers left in a folder and below it, where nobody else may be writing."""
    for path in folder.rglob(".*.partial"):
        if PARTIAL.fullmatch(path.name):
            with suppress(OSError):  # a read-only disk
                path.unlink()


def _replace(target: Path, status: os.stat_result | None, content: Iterable[bytes | memoryview]) -> None:
    """Write the content to a partial file and rename it over the target, whose status is None if it doesn't exist."""
    partial = target.parent / f".{target.name[:LONGEST_STEM]}.{secrets.token_hex(8)}.partial"
    # The system applies the umask: to read it, a process would have to change it for all of its threads.
    mode = 0o666 if status is None else 0o600
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())  # without it, a power cut may leave an empty file under the new name
        if status is not None:
            os.chmod(partial, stat.S_IMODE(status.st_mode) & 0o777)
        os.replace(partial, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def sealed(data: bytes) -> bytes:
    """A file's bytes, with their hash instead of the last BLANK."""
    at = data.rindex(BLANK)
    return data[:at] + _seal_at(data, at) + data[at + len(BLANK) :]


def fault(data: bytes | bytearray) -> str | None:
    """A clause that says what is wrong with a sealed file's bytes, or None."""
    if not data:
        return "it is empty"
    at = data.rfind(MARK)
    if at < 0:
        return "the hash written with it is missing"
    if data[at : at + len(BLANK)] == _seal_at(data, at):
        return None
    return "its bytes do not match the hash written with them"


def _seal_at(data: bytes | bytearray, at: int) -> bytes:
    hashed, whole = hashlib.sha256(), memoryview(data)
    for part in (whole[:at], BLANK, whole[at + len(BLANK) :]):
        hashed.update(part)
    return MARK + hashed.hexdigest().encode()


def label_of(data: bytes) -> str:
    """The label in a sealed file's bytes; empty if there is none."""
    at = data.rfind(MARK)
    found = LABEL.search(data, max(at - 200, 0), max(at, 0))
    return found[0].decode() if found else ""


def parquet_bytes(table: pyarrow.Table) -> bytes:
    """A table as Parquet, the same bytes for the same rows."""
    import pyarrow
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def sealed_parquet(table: pyarrow.Table, label: str, metadata: Mapping[bytes, str] | None = None) -> bytes:
    """A table as Parquet with its label and hash inside, after what else its metadata has."""
    # The seal comes last, so it is the last mark in the file even if a name contains one.
    seal = {b"headscope.seal": label.encode() + BLANK}
    return sealed(parquet_bytes(table.replace_schema_metadata({**(metadata or {}), **seal})))

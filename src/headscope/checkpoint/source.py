"""The bytes of a weight file: a `Source` is read by span, from disk (here) or by range requests (hub.py)."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Protocol

from headscope.checkpoint.files import check_regular, open_regular, read_span
from headscope.errors import CheckpointError


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
    """A `Source` on disk: headers are read, weights are memory-mapped on first access."""

    remote = False

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name if name is not None else path.name
        self.where = str(path)
        try:
            status = path.stat()
            check_regular(status)
        except (OSError, ValueError) as error:  # a ValueError: the name holds a NUL, or half of a surrogate pair
            raise unreadable(path, error) from error
        self.size = status.st_size
        self._map: mmap.mmap | None = None

    def read(self, start: int, stop: int) -> bytes:
        check_span(self, start, stop)
        try:
            with open_regular(self.path) as file:
                data = read_span(file, start, stop)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(data) < stop - start:
            raise self._changed()
        return data

    def view(self, start: int, stop: int) -> memoryview:
        check_span(self, start, stop)
        if start == stop:
            return memoryview(b"")
        if self._map is None:
            try:
                with open_regular(self.path) as file:
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise unreadable(self.path, error) from error
            if len(self._map) != self.size:
                self._map = None
                raise self._changed()
        return memoryview(self._map)[start:stop]

    def _changed(self) -> CheckpointError:
        return CheckpointError(
            f"the file had {self.size} bytes when it was opened and has another length now",
            where=self.where,
            advice="another program is writing to it: open the checkpoint again when it has finished",
        )


def unreadable(path: Path, error: OSError | ValueError) -> CheckpointError:
    """Return the error for a file that the system can't read or that is not a regular file."""
    return CheckpointError(
        f"the file can't be read: {getattr(error, 'strerror', None) or error}",
        where=str(path),
        advice="pass an existing regular file that you have permission to read",
    )

"""Where a weight file's bytes come from: a `Source` is read by span, from the disk or (hub.py) by range request."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Protocol

from headscope.checkpoint.files import check_regular, open_regular, read_span
from headscope.errors import CheckpointError


class Source(Protocol):
    """A file of known size whose bytes can be asked for by span.

    Attributes:
        name: the file's own name, as a `TensorEntry` carries it.
        where: the file as a person would name it, for messages.
        size: its length in bytes.
        remote: whether each read is a request over the network.
    """

    name: str
    where: str
    size: int
    remote: bool

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from start to stop. CheckpointError where the file does not have them all."""

    def view(self, start: int, stop: int) -> memoryview:
        """The same bytes, without a copy where the file is on disk."""


def check_span(source: Source, start: int, stop: int) -> None:
    """CheckpointError unless bytes start to stop lie inside the file."""
    if not 0 <= start <= stop <= source.size:
        raise CheckpointError(
            f"bytes {start} to {stop} are needed, but the file has {source.size}",
            where=source.where,
            advice="the file is truncated or damaged: download or copy it again",
        )


class LocalFile:
    """A `Source` on disk: headers are read, weights are memory-mapped when they are first asked for."""

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
            advice="something is writing to it: open the checkpoint again when that is done",
        )


def unreadable(path: Path, error: OSError | ValueError) -> CheckpointError:
    """The error for a file that the operating system would not give us, or that is not a regular one."""
    return CheckpointError(
        f"it can't be read: {getattr(error, 'strerror', None) or error}",
        where=str(path),
        advice="give a regular file that exists and that you may read",
    )

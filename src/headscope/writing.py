"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headscope.errors import InputError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its place first, then moved over it.

    Raises:
        InputError: it can't be written there.
    """
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # or a power cut may leave the new name with empty contents
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(beside, 0o666 & ~umask)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise InputError(
            f"the file can't be written: {error.strerror or error}",
            where=str(path),
            advice="name a file in a folder that exists and may be written to",
        ) from error

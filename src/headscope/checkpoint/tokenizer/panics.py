"""The `tokenizers` library's failures as errors of ours, and the text of a panic kept off the screen."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from tempfile import TemporaryFile
from threading import RLock

from headscope.checkpoint.json_text import shortened
from headscope.errors import CheckpointError, HeadscopeError

STDERR = 2
PANIC = re.compile(rb"\n?thread '[^\n]* panicked at .*?(?:\nnote: [^\n]*\n|\Z)", re.DOTALL)
"""What Rust writes before it raises: where, why, a backtrace where one is asked for, and a note on backtraces."""

LONGEST_MESSAGE = 400

_redirected = RLock()


@contextmanager
def library_errors(where: str, advice: str) -> Iterator[None]:
    """Turn what the `tokenizers` library raises into a CheckpointError.

    It raises plain Exception for bad files and, where its Rust code panics, a PanicException that derives from
    BaseException alone.
    """
    try:
        with _without_panics():
            yield
    except HeadscopeError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the tokenizers library says: {shortened(str(error), LONGEST_MESSAGE)}", where=where, advice=advice
        ) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"the tokenizers library broke down: {shortened(str(error), LONGEST_MESSAGE)}", where=where, advice=advice
        ) from error


@contextmanager
def _without_panics() -> Iterator[None]:
    """Take the text of a panic out of what is written to standard error meanwhile.

    Rust writes it to the descriptor itself, whatever sys.stderr is. So the descriptor is another file for this long;
    what else was written to it, by any thread, follows at once.
    """
    with _redirected:
        try:
            stderr = os.dup(STDERR)
        except OSError:  # closed: nothing can be written to it
            yield
            return
        held = _held_file(os.getpid())
        os.dup2(held, STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, STDERR)
            os.close(stderr)
            size = os.lseek(held, 0, os.SEEK_CUR)
            if size:
                os.lseek(held, 0, os.SEEK_SET)
                text = PANIC.sub(b"", os.read(held, size))
                os.lseek(held, 0, os.SEEK_SET)
                os.ftruncate(held, 0)
                while text:
                    text = text[os.write(STDERR, text) :]


@cache
def _held_file(_process: int) -> int:
    """A file of this process alone that holds what is written to standard error: a forked child gets its own."""
    with TemporaryFile() as file:
        return os.dup(file.fileno())

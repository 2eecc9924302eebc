"""Failures of the `tokenizers` library as headscope's errors, without the text of Rust panics on the screen."""

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
"""The text of a Rust panic: location, reason, a backtrace if enabled, and a note on backtraces."""

LONGEST_MESSAGE = 400

_redirected = RLock()


@contextmanager
def library_errors(where: str, advice: str) -> Iterator[None]:
    """Turn exceptions of the `tokenizers` library into CheckpointError.

    The library raises plain Exception for bad files and, if its Rust code panics, a PanicException, which derives only
    from BaseException.
    """
    try:
        with _without_panics():
            yield
    except HeadscopeError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the tokenizers library raised: {shortened(str(error), LONGEST_MESSAGE)}", where=where, advice=advice
        ) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"the tokenizers library panicked: {shortened(str(error), LONGEST_MESSAGE)}", where=where, advice=advice
        ) from error


@contextmanager
def _without_panics() -> Iterator[None]:
    """Remove the text of panics from the output to standard error during the block.

    Rust writes to the descriptor itself, whatever sys.stderr is. So the descriptor is redirected to a file during the
    block; afterwards, all other output in the file, from any thread, is written to standard error.
    """
    with _redirected:
        try:
            stderr = os.dup(STDERR)
        except OSError:  # standard error is closed
            yield
            return
        buffer = _buffer_file(os.getpid())
        os.dup2(buffer, STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, STDERR)
            os.close(stderr)
            size = os.lseek(buffer, 0, os.SEEK_CUR)
            if size:
                os.lseek(buffer, 0, os.SEEK_SET)
                text = PANIC.sub(b"", os.read(buffer, size))
                os.lseek(buffer, 0, os.SEEK_SET)
                os.ftruncate(buffer, 0)
                while text:
                    text = text[os.write(STDERR, text) :]


@cache
def _buffer_file(_process: int) -> int:
    """Open the file that standard error is redirected to; a forked process gets a separate one."""
    with TemporaryFile() as file:
        return os.dup(file.fileno())

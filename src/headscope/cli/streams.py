"""The standard streams and Ctrl-C: a full stream or a broken pipe leads to an exit code, never to a traceback."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import warnings
from typing import NoReturn, TextIO

from headscope.errors import HeadscopeError
from headscope.screens.labels import encodable, printable, printable_lines

REFUSED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


class OutputError(Exception):
    """Standard output can't be written to. Not an OSError: rich, click and typer handle those by their own rules.

    Attributes:
        reader_left: True if it is a pipe whose reader has gone, as in `headscope shapes - | head -1`.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.reader_left = error.errno == errno.EPIPE


class Output(io.TextIOWrapper):
    """Standard output, which escapes characters that its encoding lacks; a failure raises OutputError."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise OutputError(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise OutputError(error) from error


def put_bytes(content: bytes) -> None:
    """Write bytes to standard output as they are.

    Raises:
        OutputError: it can't be written to.
    """
    sys.stdout.flush()
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise OutputError(error) from error


def prepare() -> None:
    """Prepare the process's streams, its warnings and Ctrl-C. Called once."""
    sys.stdout = Output(
        sys.stdout.buffer,
        encoding=sys.stdout.encoding,
        errors="backslashreplace",
        line_buffering=sys.stdout.isatty(),
    )
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
    # NaN and infinity are reported in messages.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="headscope")
    formatted = warnings.formatwarning
    warnings.formatwarning = lambda *args, **kwargs: printable_lines(formatted(*args, **kwargs))
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as it is in a shell's background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)


def finish(error: OutputError) -> NoReturn:
    """Exit after standard output failed: silently if its reader has gone, otherwise with a message."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # buffered text goes there at exit
    if error.reader_left:
        sys.exit(PIPE_CLOSED)
    sys.stderr.write(f"error: standard output can't be written to: {error}\n")
    sys.exit(REFUSED)


def say(error: HeadscopeError, stream: TextIO) -> None:
    """Print an error; text from files in it is escaped."""
    lines = [f"error: {printable(error.found)}"]
    lines += [
        f"  {name}: {printable(text)}" for name, text in (("where", error.where), ("what to do", error.advice)) if text
    ]
    stream.write(encodable("\n".join(lines) + "\n", stream.encoding))

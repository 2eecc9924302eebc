"""The standard streams and Ctrl-C: a closed, full or broken stream leads to an exit code, never to a traceback."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from headscope.errors import HeadscopeError, InputError
from headscope.screens.labels import encodable, printable, printable_lines
from headscope.screens.terminal import usable_size

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from typing_extensions import Self

REFUSED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

CLOSED = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)
"""Modes of /dev/null for a closed stdin, stdout and stderr: reading and writing still fail, except for stderr."""
SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")
"""Environment variables that rich and typer parse as numbers without checking them."""


class OutputError(Exception):
    """Standard output can't be written to. Not an OSError: rich, click and typer handle those by their own rules.

    Attributes:
        reader_left: True if it is a pipe whose reader has gone, as in `headscope shapes - | head -1`.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.reader_left = error.errno == errno.EPIPE


class Stream(io.TextIOWrapper):
    """A standard stream that escapes characters which its encoding lacks."""

    @classmethod
    def of(cls, stream: TextIO | None, number: int) -> Self:
        """Wrap a stream, or make one for a file descriptor that has none."""
        if stream is None:
            return cls(open(number, "wb", closefd=False), encoding="utf-8", errors="backslashreplace")
        lines = getattr(stream, "line_buffering", False)
        return cls(stream.buffer, encoding=stream.encoding, errors="backslashreplace", line_buffering=lines)


class Output(Stream):
    """Standard output; a failure raises OutputError."""

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


class Messages(Stream):
    """Standard error; if it can't be written to, messages are lost and the exit code stays."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            return


class ClosedInput(io.RawIOBase):
    """Standard input that is closed."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise InputError(
            "standard input is closed", where="standard input", advice="pipe the text in, or pass it as an argument"
        )


class Interrupt:
    """Raises KeyboardInterrupt on Ctrl-C and remembers it, because libraries may convert or swallow the exception."""

    def __init__(self) -> None:
        self.seen = False

    def watch(self) -> None:
        """Take over from `__main__`, unless Ctrl-C is ignored, as it is in a shell's background jobs."""
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt

    def show(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Handle an uncaught exception, as sys.excepthook."""
        if self.seen:
            os._exit(INTERRUPTED)
        sys.stderr.write(printable_lines("".join(traceback.format_exception(kind, error, trace))))


def prepare() -> Interrupt:
    """Make the process's streams, environment and Ctrl-C safe. Called once, before any file is opened."""
    interrupt = Interrupt()
    for number, mode in enumerate(CLOSED):
        if not _is_open(number):  # the next file that is opened would get this number, and be written to
            os.open(os.devnull, mode)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(ClosedInput()), encoding="utf-8")
    sys.stdout, sys.stderr = Output.of(sys.stdout, 1), Messages.of(sys.stderr, 2)
    for name in SIZES:
        if not usable_size(os.environ.get(name, "")):
            os.environ.pop(name, None)
    if not usable_size(os.environ.get("COMP_CWORD", "1")):
        os.environ["COMP_CWORD"] = "0"
    sys.unraisablehook = lambda problem: None if interrupt.seen else sys.__unraisablehook__(problem)
    warnings.filterwarnings(
        "ignore", category=RuntimeWarning, module="headscope"
    )  # NaN and infinity are reported in messages
    formatted = warnings.formatwarning
    warnings.formatwarning = lambda *args, **kwargs: printable_lines(formatted(*args, **kwargs))
    sys.excepthook = interrupt.show
    interrupt.watch()
    return interrupt


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


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

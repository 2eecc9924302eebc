"""The standard streams and Ctrl-C: a closed, full or broken stream ends in an exit code, never in a traceback."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from headscope.errors import InputError
from headscope.view.labels import printable_lines
from headscope.view.terminal import usable_size

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from typing_extensions import Self

REFUSED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

CLOSED = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)
"""How /dev/null is opened for a closed stdin, stdout and stderr: reading and writing go on failing, but for stderr."""
SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")
"""Environment variables that rich and typer read as numbers, unchecked."""


class OutputError(Exception):
    """Standard output takes no more. No OSError: rich, click and typer end the process on those by their own rules.

    Attributes:
        reader_left: whether it is a pipe that nobody reads any more, as in `headscope shapes - | head -1`.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.reader_left = error.errno == errno.EPIPE


class Stream(io.TextIOWrapper):
    """A standard stream that writes what its encoding lacks as escapes."""

    @classmethod
    def of(cls, stream: TextIO | None, number: int) -> Self:
        """The same stream, or a new one where there is none."""
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


class Messages(Stream):
    """Standard error; where it can't be written to, nothing is said, and the exit code stays."""

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
    """Standard input that was closed."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise InputError(
            "standard input is closed", where="standard input", advice="pipe the text in, or give it as an argument"
        )


class Interrupt:
    """Ctrl-C as KeyboardInterrupt, and remembered: libraries turn it into errors of their own, or swallow it."""

    def __init__(self) -> None:
        self.seen = False

    def watch(self) -> None:
        """Take over from `__main__`, unless Ctrl-C is ignored: a shell starts what it puts in the background so."""
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt

    def show(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """What the interpreter calls with an error that nobody caught."""
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
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="headscope")  # NaN and infinity are said in words
    formatted = warnings.formatwarning
    warnings.formatwarning = lambda *about, **more: printable_lines(formatted(*about, **more))
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
    """End the process after standard output failed: quietly where its reader has left, else with one line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still held back goes there at the end
    if error.reader_left:
        sys.exit(PIPE_CLOSED)
    sys.stderr.write(f"error: standard output can't be written to: {error}\n")
    sys.exit(REFUSED)

"""The app that all commands share: errors as messages and exit codes, the tour, printing of sheets.

A standard stream that is full, a broken pipe or Ctrl-C leads to an exit code, never to a traceback.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from headscope.errors import HeadscopeError, NoteWarning
from headscope.screens.labels import encodable, printable, printable_lines

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.screens.terminal import Sheet


REFUSED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

JSON = {"--json", "--as=json"}
DOUBTFUL = 1
"""Exit code if the output is shown but not to be trusted: computations differ, or there is NaN among the numbers."""
USAGE_ERROR: Any = typer.BadParameter.__base__
"""typer's error for a wrong command line. Its module differs between versions."""


class Running:
    """The command line that is running.

    Attributes:
        command: the command's name.
        json: True if it asks for JSON, so that errors are JSON, too.
    """

    command: str = ""
    json: bool = False


class Commands(TyperGroup):
    """The commands, and the one place where errors become messages and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept --debug anywhere, because users append it to a command that has just failed."""
        end = args.index("--") if "--" in args else len(args)
        Running.json = bool(JSON & {*args[:end], *map("=".join, pairwise(args[:end]))})
        if "--debug" in args[:end]:
            args = ["--debug", *(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            error.message = printable(error.message)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NoteWarning)  # sheets have notes
                return super().invoke(ctx)
        except USAGE_ERROR as error:
            put_error("UsageError", error.message, None, "add --help for the command's options")
            error.message = printable(error.message)
            raise
        except HeadscopeError as error:
            if ctx.params.get("debug"):
                raise
            put_error(type(error).__name__, error.found, error.where, error.advice)
            say(error, sys.stderr)
            raise typer.Exit(REFUSED) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


def put_error(kind: str, message: str, where: str | None, advice: str | None) -> None:
    """Print an error as JSON on stdout, if the command line asks for JSON."""
    if Running.json:
        sys.stdout.write(error_text(kind, message, where, advice))


def error_text(kind: str, message: str, where: str | None, advice: str | None) -> str:
    """An error as JSON."""
    from headscope.results.answers import ErrorAnswer, enveloped, filled
    from headscope.screens.tables import json_text

    record = filled(ErrorAnswer, kind=kind, message=message, where=where, advice=advice, exit_code=REFUSED)
    return json_text(enveloped("error", record))


app = typer.Typer(
    name="headscope",
    cls=Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show(sheet: Sheet, form: str | None = None, *, step: str | None = None) -> None:
    """Print a sheet.

    Args:
        sheet: to print.
        form: --json, --csv or --markdown; None for a screen.
        step: a command to try next, printed below a screen.
    """
    from headscope.screens.terminal import blank, put, put_machine, step_line

    if form is not None:
        put_machine(sheet, form, sys.stdout, Running.command)
    else:
        put((*sheet.drawings, *(() if step is None else (blank, step_line(step)))), sys.stdout)


def named(model: str) -> tuple[str, str | None]:
    """A model's name and revision, from NAME@REVISION; a path that exists is a name."""
    from headscope.checkpoint.resolve import HUB_ID

    name, at, revision = model.partition("@")
    return (
        (name, revision) if at and revision and HUB_ID.fullmatch(name) and not os.path.exists(model) else (model, None)
    )


def opened(model: str, tokenizer: str | None = None, segments: str | None = None) -> Model:
    """Open the model of this name, also NAME@REVISION. Reads its header and config, but no weights.

    Args:
        model: its name.
        tokenizer: folder or name of another tokenizer.
        segments: of a pair: own (by default), one or two.
    """
    from headscope.model import open_model

    name, revision = named(model)
    return open_model(name, revision=revision, tokenizer=tokenizer, segments=segments or "own")


def print_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        from headscope import __version__

        typer.echo(f"headscope {__version__}")
        raise typer.Exit


@app.callback(no_args_is_help=False)
def headscope(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback if a command fails.")] = False,
) -> None:
    """See inside every attention head of BERT and its kin. Layers and heads count from 0.

    Run without a command for a tour of the bundled model.
    """
    Running.command = ctx.invoked_subcommand or ""
    if ctx.invoked_subcommand is None:
        from headscope.screens.terminal import put
        from headscope.screens.tour import take_tour, tour_drawings

        put(tour_drawings(take_tour(opened("-"))), sys.stdout)


def tell(line: str) -> None:
    """Print a message on stderr, so that stdout has only the output itself."""
    typer.echo(printable(line), err=True)


def tell_saved(path: Path, what: str) -> None:
    """Print on stderr what was written, and where."""
    tell(f"wrote {path}: {what}")


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
        sys.stdout.buffer, encoding=sys.stdout.encoding, errors="backslashreplace", line_buffering=sys.stdout.isatty()
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


def main() -> None:
    """The entry point of the `headscope` command."""
    prepare()
    try:
        try:
            app(prog_name="headscope")
        finally:
            sys.stdout.flush()
    except OutputError as error:
        finish(error)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            sys.stderr.flush()
            os._exit(INTERRUPTED)  # without waiting for threads that may still compute
        raise

"""The app that all commands share: errors as messages and exit codes, the tour, printing of sheets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from headscope.cli.streams import INTERRUPTED, REFUSED, OutputError, finish, prepare
from headscope.errors import HeadscopeError
from headscope.view.labels import printable

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.view.terminal import Sheet


DOUBTFUL = 1
"""Exit code if the output is shown but not to be trusted: computations differ, or there is NaN among the numbers."""
USAGE_ERROR: Any = typer.BadParameter.__base__
"""typer's error for a wrong command line. Its module differs between versions."""


class Commands(TyperGroup):
    """The commands, and the one place where errors become messages and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept --debug anywhere, because users append it to a command that has just failed."""
        end = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:end]:
            args = ["--debug", *(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            error.message = printable(error.message)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except USAGE_ERROR as error:
            error.message = printable(error.message)
            raise
        except HeadscopeError as error:
            if ctx.params.get("debug"):
                raise
            from headscope.view.failure import say

            say(error, sys.stderr)
            raise typer.Exit(REFUSED) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


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
    from headscope.view.terminal import blank, put, put_machine, step_line

    if form is not None:
        put_machine(sheet, form, sys.stdout)
    else:
        put((*sheet.drawings, *(() if step is None else (blank, step_line(step)))), sys.stdout)


def opened(name: str, revision: str | None) -> Model:
    """Open the model of this name. Reads its header and config, but no weights."""
    from headscope.model import open_model

    return open_model(name, revision=revision)


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
    if ctx.invoked_subcommand is None:
        from headscope.tour import take_tour, tour_drawings
        from headscope.view.terminal import put

        put(tour_drawings(take_tour(opened("-", None))), sys.stdout)


def tell(line: str) -> None:
    """Print a message on stderr, so that stdout has only the output itself."""
    typer.echo(printable(line), err=True)


def tell_saved(path: Path, what: str) -> None:
    """Print on stderr what was written, and where."""
    tell(f"wrote {path}: {what}")


def main() -> None:
    """The entry point of the `headscope` command."""
    interrupt = prepare()
    try:
        try:
            app(prog_name="headscope")
        finally:
            sys.excepthook = interrupt.show  # typer replaces it
            if not interrupt.seen:
                sys.stdout.flush()
    except OutputError as error:
        finish(error)
    except SystemExit as end:
        if interrupt.seen:
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 0)  # without waiting for threads that may still compute
        raise

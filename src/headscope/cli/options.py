"""The arguments and options that several commands share, as the command line spells them."""

from __future__ import annotations

from typing import Annotated

import typer

from headscope.view.typed import shortened, whole_number


def number(text: object) -> int:
    """A whole number on the command line. typer's own passes on numbers of any size, which nothing below expects."""
    found = whole_number(str(text).strip())
    if found is None:
        raise typer.BadParameter(f"{shortened(str(text))} is not a whole number of at most 18 digits")
    return found


ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="A hub id, a folder, a file, or - for the bundled model."),
]
Text = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", show_default=False, help="The text to read; - takes it from standard input."),
]
ModelOrTrace = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A hub id, a folder, a file, or - for the bundled model. Without TEXT: a trace that was saved.",
    ),
]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="NAME", help="A branch, tag or commit of a hub id.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")]
Pair = Annotated[str | None, typer.Option("--pair", metavar="TEXT", help="A second text that goes with it.")]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", parser=number, metavar="N", help="Cut a longer text to so many tokens.")
]
Words = Annotated[bool, typer.Option("--words", help="TEXT is words that are split already, at its spaces.")]
Ids = Annotated[bool, typer.Option("--ids", help="TEXT is ready-made token ids, such as '101 7592 102'.")]
Ablate = Annotated[
    list[str] | None,
    typer.Option("--ablate", metavar="L.H", help="Silence head H of layer L; may be given several times."),
]

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
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="NAME", help="A branch, tag or commit of a hub id.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

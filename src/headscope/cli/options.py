"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from headscope.view.typed import shortened, whole_number


def number(text: object) -> int:
    """Parse a whole number. typer's own parser would accept numbers of any size, which the library doesn't expect."""
    value = whole_number(str(text).strip())
    if value is None:
        raise typer.BadParameter(f"{shortened(str(text))} is not a whole number of at most 18 digits")
    return value


ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="A hub id, a folder, a file, or - for the bundled model."),
]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="NAME", help="A branch, tag or commit of the model on the hub.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

"""An error of ours as people read it, on stderr and in the page: what was found, where, what to do."""

from __future__ import annotations

from typing import TextIO

from headscope.errors import HeadscopeError
from headscope.screens.labels import encodable, printable


def say(error: HeadscopeError, stream: TextIO) -> None:
    """Print an error; text from files in it is escaped."""
    lines = [f"error: {printable(error.found)}"]
    lines += [
        f"  {name}: {printable(text)}" for name, text in (("where", error.where), ("what to do", error.advice)) if text
    ]
    stream.write(encodable("\n".join(lines) + "\n", stream.encoding))


def in_the_page(error: HeadscopeError) -> str:
    """An error of a run that the page asked for; advice names nothing that only a command line or a call has."""
    advice = None if error.advice is None else error.advice.split(", or pass ")[0]
    return str(HeadscopeError(error.found, where=error.where, advice=advice))

"""Printing a HeadscopeError on stderr: what was found, where, what to do."""

from __future__ import annotations

from typing import TextIO

from headscope.errors import HeadscopeError
from headscope.view.labels import encodable, printable


def say(error: HeadscopeError, stream: TextIO) -> None:
    """Print an error; text from files in it is escaped."""
    lines = [f"error: {printable(error.found)}"]
    lines += [
        f"  {name}: {printable(text)}" for name, text in (("where", error.where), ("what to do", error.advice)) if text
    ]
    stream.write(encodable("\n".join(lines) + "\n", stream.encoding))

"""The pages that web/ builds, filled with data: untrusted text never becomes markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

PLACE = "<!--headscope:data-->"
TITLE = "<title>headscope</title>"


@cache
def template(name: str) -> str:
    """Return a built page without data: `page` or `report`. They are built from web/ and committed."""
    return (files("headscope") / "view" / "static" / f"{name}.html").read_text(encoding="utf-8")


def filled(name: str, *, title: str, elements: Iterable[bytes]) -> bytes:
    """Return a built page with its title and data, as bytes.

    Args:
        name: `page` or `report`, as in `template`.
        title: plain text; it is escaped here.
        elements: script elements, from `json_element`.
    """
    before, after = template(name).replace(TITLE, f"<title>{html.escape(title)}</title>", 1).split(PLACE)
    return b"".join([before.encode(), *elements, after.encode()])


def json_element(name: str, value: Any) -> bytes:
    """Return data for the page's script: a script element with id `name` that runs nothing."""
    return f'<script type="application/json" id="{name}">{inert(value)}</script>\n'.encode()


def inert(value: Any) -> str:
    """Return JSON that can neither close its script element nor open a comment in it.

    Raises:
        ValueError: a number is NaN or infinite, which JSON can't represent.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def printable(text: str) -> str:
    """Return text with unprintable characters (direction overrides, controls) escaped, such as `\\u202e`."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )

"""The pages that web/ builds, and data put into them: text that nobody vouches for is never markup."""

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
    """A built page, without data: `page` or `report`. Built from web/ and committed."""
    return (files("headscope") / "view" / "static" / f"{name}.html").read_text(encoding="utf-8")


def filled(name: str, *, title: str, elements: Iterable[bytes]) -> bytes:
    """A built page's bytes with its title and data.

    Args:
        name: of the page, as for `template`.
        title: text, escaped here.
        elements: script elements, as `json_element` makes them.
    """
    before, after = template(name).replace(TITLE, f"<title>{html.escape(title)}</title>", 1).split(PLACE)
    return b"".join([before.encode(), *elements, after.encode()])


def json_element(name: str, value: Any) -> bytes:
    """Data for the page's script: a script element that runs nothing, named `name`."""
    return f'<script type="application/json" id="{name}">{inert(value)}</script>\n'.encode()


def inert(value: Any) -> str:
    """JSON that can't end the script element it stands in, nor open a comment there.

    Raises:
        ValueError: a number is NaN or infinite, which JSON can't hold.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def printable(text: str) -> str:
    """Text with what is not printed (overrides of direction, controls) spelled out: `\\u202e`."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )

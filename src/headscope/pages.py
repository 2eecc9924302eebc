"""The pages that web/ builds, filled with data: untrusted text never becomes markup."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

PLACE = "<!--headscope:data-->"
TITLE = "<title>headscope</title>"


@cache
def template(name: str) -> str:
    """Return a page without data, as web/ builds it: `page`, `typed` (which runs a model) or `report`."""
    return (files("headscope") / "page" / "static" / f"{name}.html").read_text(encoding="utf-8")


@cache
def words() -> bytes:
    """Return the page's words in all its languages, as an element for `filled`."""
    content = (files("headscope") / "page" / "static" / "words.json").read_bytes()
    return b'<script type="application/json" id="hs-words">%b</script>\n' % content


@cache
def script(name: str) -> bytes:
    """Return a built script that is no page: `encoder`, which a page with a model starts as a worker."""
    content = (files("headscope") / "page" / "static" / f"{name}.js").read_bytes()
    assert b"</script" not in content.lower()
    return content


def filled(name: str, *, title: str, elements: Iterable[bytes], beside: bool = False) -> bytes:
    """Return a built page with its title and data, as bytes.

    Args:
        name: as in `template`.
        title: plain text; it is escaped here.
        elements: script elements, from `json_element`.
        beside: True for a page of a folder that has the files of `shared`. Its policy allows scripts and styles that
            are files beside it: there is none in the page itself.
    """
    page = _taken_apart(name)[0] if beside else template(name)
    before, after = page.replace(TITLE, f"<title>{html.escape(title)}</title>", 1).split(PLACE)
    return b"".join([before.encode(), *elements, after.encode()])


def shared(name: str) -> dict[str, bytes]:
    """Return a built page's style and script as files, for pages that stand beside each other in one folder."""
    _, style, script = _taken_apart(name)
    return {f"{name}.css": style.encode(), f"{name}.js": f'"use strict";{script}'.encode()}


@cache
def _taken_apart(name: str) -> tuple[str, str, str]:
    """A built page that links its style and script; the style; the script."""
    page = template(name)
    style, script = (re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL) for tag in ("style", "script"))
    assert style is not None
    assert script is not None
    bare = page.replace(style[0], f'<link rel="stylesheet" href="{name}.css">')
    bare = bare.replace(script[0], f'<script src="{name}.js"></script>')
    return re.sub(r"(script|style)-src 'sha256-[^']*'", r"\1-src 'self'", bare), style[1], script[1]


def json_element(name: str, value: Any) -> bytes:
    """Return data for the page's script: a script element with id `name` that runs nothing."""
    return f'<script type="application/json" id="{name}">{inert(value)}</script>\n'.encode()


def inert_element(name: str, content: bytes) -> bytes:
    """Return bytes for the page's script: an element with id `name` that runs nothing.

    Args:
        name: its id.
        content: base64, or a built script.
    """
    return b'<script type="application/octet-stream" id="%b">%b</script>\n' % (name.encode(), content)


def inert(value: Any) -> str:
    """Return JSON that can neither close its script element nor open a comment in it.

    Raises:
        ValueError: a number is NaN or infinite, which JSON can't represent.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def printable(text: str) -> str:
    """Return text with unprintable characters (direction overrides, controls) escaped, such as `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def all_printable(texts: Iterable[str]) -> list[str]:
    """Return each text as `printable` does."""
    return [text if text.isprintable() else printable(text) for text in texts]

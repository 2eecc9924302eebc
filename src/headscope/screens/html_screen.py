"""A command's screen as one HTML file: in colour, offline, selectable, printable."""

from __future__ import annotations

import base64
import hashlib
import html
import io
from collections.abc import Iterable
from pathlib import Path

from headscope.files import write_atomically
from headscope.screens.terminal import Drawing, Paper, lines_of

WIDTH = 100
"""Columns of the screen."""

STYLE = """
body { margin: 2rem; background: #fff; color: #1b1f24; }
pre { font: 14px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-x: auto; }
@media (prefers-color-scheme: dark) { body { background: #15171e; color: #e6e6e6; } }
"""


def screen_html(drawings: Iterable[Drawing], *, title: str) -> bytes:
    """A screen's bytes as HTML, without scripts and without anything loaded from elsewhere.

    Args:
        drawings: the screen, from top to bottom.
        title: of the document; text, escaped here.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(
        record=True, file=io.StringIO(), width=10_000, force_terminal=True, color_system="truecolor", highlight=False
    )
    for line in lines_of(drawings, Paper(width=WIDTH, unicode=True, colour=True)):
        console.print(Text.assemble(*line, no_wrap=True, end=""), soft_wrap=True)
    code = console.export_html(inline_styles=False, code_format="{code}", clear=False)
    rules = console.export_html(inline_styles=False, code_format="{stylesheet}")
    style = STYLE + rules
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n<pre>{code}</pre>\n</html>\n"
    ).encode()


def write_screen(drawings: Iterable[Drawing], path: Path, *, title: str) -> str:
    """Write a screen as one HTML file, whole or not at all; return a line that says what it is."""
    content = screen_html(drawings, title=title)
    write_atomically(path, content)
    return f"the screen as a page, {len(content) / 1e3:,.0f} KB, open it in a browser"

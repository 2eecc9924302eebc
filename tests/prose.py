"""Sentences of Markdown pages, for the tests that hold their length."""

from __future__ import annotations

import re
from collections.abc import Iterator

FENCED = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2 *$", re.DOTALL | re.MULTILINE)
ASIDE = re.compile(r"<!--.*?-->", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
ITEM = re.compile(r"\s*(?:[-*]|\d\.) +")
END = re.compile(r"(?<=\S)[.!?][”’)*\"]*(?=\s|$)")
WORD = re.compile(r"\w[\w’'%.,/-]*")


def blocks(markdown: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, each in one line; no headings and no code."""
    text = TAG.sub("", ASIDE.sub("", FENCED.sub("\n", markdown)))
    together: list[str] = []
    for line in [*text.splitlines(), ""]:
        code = line.startswith("    ") and not together
        dash = line.lstrip()[:1] in ("-", "*")  # a line of a paragraph may begin with “0. A row”
        item = ITEM.match(line) if dash or not together else None
        if not line.strip() or line.startswith(("#", ":::", "|")) or item or code:
            if together:
                yield " ".join(together)
            together = []
        if line.startswith("|"):
            yield from (cell.strip() for cell in line.strip("| ").split(" | "))
        elif line.strip() and not line.startswith(("#", ":::")) and not code:
            together.append(line[item.end() :].strip() if item else line.strip())


def sentences(markdown: str) -> Iterator[str]:
    """The sentences of a page, with code as one word and links as their text."""
    for block in blocks(markdown):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "Code", block)).replace("**", "")
        start = 0
        for end in END.finditer(plain):
            yield plain[start : end.end()].strip()
            start = end.end()
        if plain[start:].strip():
            yield plain[start:].strip()


def words(text: str) -> int:
    """Number of words; code counts as one, signs as none."""
    return len(WORD.findall(text))

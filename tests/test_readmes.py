"""The READMEs in three languages say the same: the same commands, figures, pictures and links in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OTHERS = ("README.ja.md", "README.zh.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```\w*\n(.*?)^```|^((?: {4}\S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)


def outline(text: str) -> list[int]:
    """The levels of the headings."""
    return [len(found) for found in re.findall(r"^(#+) ", BLOCK.sub("", text), re.MULTILINE)]


def commands(text: str) -> list[str]:
    """The code of every block without its comments."""
    found = "".join(fenced or indented for fenced, indented in BLOCK.findall(text))
    return [line.split("#")[0].strip() for line in found.splitlines() if line.split("#")[0].strip()]


def tables(text: str) -> list[int]:
    """How many cells each line of a table has."""
    return [line.count("|") for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("name", OTHERS)
def test_translations_say_the_same(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert outline(text) == outline(README)
    assert commands(text) == commands(README)
    assert tables(text) == tables(README)
    languages = {"README.md", *OTHERS}
    assert [one for one in LINK.findall(text) if one not in languages] == [
        one for one in LINK.findall(README) if one not in languages
    ]
    assert languages - {name} <= set(LINK.findall(text))


@pytest.mark.parametrize("name", ["README.md", *OTHERS])
def test_links_lead_somewhere(name: str) -> None:
    for link in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
        assert "://" in link or (ROOT / link.split("#")[0]).exists(), link

"""Pages that can be read: guides of at most 1,500 words, sentences of at most 30, code that can be copied."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path
from typing import Any

import yaml

from prose import blocks, sentences, words

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NAV: list[dict[str, Any]] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
GUIDES = [page for part in NAV for page in (next(iter(entry.values())) for entry in part.get("Guides", ()))]
ENGLISH = sorted(
    str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if not re.search(r"\b(ja|zh)\.md$", path.name)
)
LONGEST = 30
"""Words of a sentence."""
ABBREVIATIONS = re.compile(r"\b(et al|cf|e\.g|i\.e)\.")
FENCE = re.compile(r"^( *)```python([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def page(name: str) -> str:
    return ABBREVIATIONS.sub(r"\1", (DOCS / name).read_text(encoding="utf-8"))


def test_sentences_are_found() -> None:
    text = "# A title\n\nOne two. “Three four.” Five `six seven`?\n\n- Eight [nine](ten.md).\n\n| a | b c |\n"
    text += "\n```\nno.\n```\n    no\n"
    assert list(sentences(text)) == ["One two.", "“Three four.”", "Five Code?", "Eight nine.", "a", "b c"]
    assert [words(sentence) for sentence in sentences(text)] == [2, 2, 2, 2, 1, 2]
    assert list(blocks("a\nb\n\n1. c\n   d")) == ["a b", "c d"]


def test_guides_are_short_enough_to_be_read() -> None:
    """What is looked up stands in a page of the reference."""
    assert [guide for guide in GUIDES if sum(map(words, sentences(page(guide)))) > 1500] == []


def test_sentences_are_short_enough_to_be_read() -> None:
    assert [
        (name, sentence) for name in ENGLISH for sentence in sentences(page(name)) if words(sentence) > LONGEST
    ] == []


def arguments_of(node: ast.arguments) -> list[ast.arg]:
    """All arguments of a function, those that collect the rest among them."""
    collecting = [arg for arg in (node.vararg, node.kwarg) if arg is not None]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *collecting]


def names(code: str) -> tuple[set[str], set[str]]:
    """(names that a block takes from elsewhere, names that it defines)."""
    nodes = list(ast.walk(ast.parse(code)))
    defined = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    defined |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {arg.arg for node in nodes if isinstance(node, ast.arguments) for arg in arguments_of(node)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return used - defined - set(dir(builtins)), defined


def test_code_that_readers_see_runs_when_it_is_copied() -> None:
    """Shown blocks that the build runs use only what shown blocks above them define, and nothing of docs/tools."""
    for name in ENGLISH:
        known: set[str] = set()
        for indent, options, code in FENCE.findall((DOCS / name).read_text(encoding="utf-8")):
            if 'exec="on"' in options and "source=" not in options:
                continue
            lines = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
            assert not re.search(r"^\s*(from|import) (walk|hooks|blocks)\b", lines, re.MULTILINE), (name, lines)
            if "exec=" in options:
                used, defined = names(lines)
                assert used <= known, f"{name}: {used - known} come from a block that readers don't see"
                known |= defined

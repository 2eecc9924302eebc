"""Docstrings that say what a thing is or does: a noun phrase or a verb, never an indirect question."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import headscope as hs

SOURCE = Path(hs.__file__).parent
QUESTION = re.compile(r"(What|How|Which|Where|Who|Whose|Whether|When|Why)\b")
DIALECT = re.compile(
    r"\b(flatters|lets go of|is no row of|give it its due|leave `\w+` out|unless told|put back|taken away)\b"
)
"""Phrases that a reader stumbles over, each of which was once in a docstring."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings of a file: of itself, its classes and functions, and of names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield node.body[0].lineno, text
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for named, after in itertools.pairwise(body):
                value = after.value if isinstance(after, ast.Expr) else None
                if isinstance(named, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Constant):
                    yield after.lineno, str(value.value)


def test_all_docstrings_are_found() -> None:
    first, inside = (
        '"""A."""\nx = 1\n"""B."""\n',
        '    """D."""\n    y: int = 2\n    """E."""\n    def f(self):\n        """F."""\n',
    )
    tree = ast.parse(f"{first}class C:\n{inside}")
    assert sorted(docstrings(tree)) == [(1, "A."), (3, "B."), (5, "D."), (7, "E."), (9, "F.")]


def test_docstrings_are_noun_phrases_or_begin_with_a_verb() -> None:
    assert [
        f"{path}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if QUESTION.match(text) or DIALECT.search(text)
    ] == []

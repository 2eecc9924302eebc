"""The house itself: imports go one way, nothing heavy is imported early, the public face is what it says."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import headscope as hs

SOURCE = Path(hs.__file__).parent
ORDER = [
    "errors",
    "callable_packages",
    "writing",
    "checkpoint",
    "anatomy",
    "attention",
    "activations",
    "trace",
    "encoder",
    "model",
    "kernels",
    "capture",
    "reference",
    "verify",
    "statistics",
    "explain",
    "survey",
    "filling",
    "view",
    "tour",
    "cli",
]
"""Read from top to bottom: each part may import only what stands above it."""

FACE = {
    ("trace", "verify"),
    ("trace", "statistics"),
    ("trace", "view"),
    ("trace", "capture"),
    ("model", "verify"),
    ("model", "filling"),
    ("model", "explain"),
    ("trace", "explain"),
}
"""Methods of the public face that reach down: `trace.verify()` and its like import what they call when called."""

HEAVY = ("numpy", "torch", "transformers", "ray", "starlette", "uvicorn", "matplotlib", "pyarrow", "huggingface_hub")


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, bool]]:
    """The parts of headscope that a file imports, each with whether at module level; types-only imports left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "headscope" and len(parts) > 1:
                found.append((parts[1], node in tree.body))
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    own = part_of(path)
    if own in ("__init__", "__main__"):
        return
    assert own in ORDER, f"{own} has no place in the layout"
    for other, at_top in imports(path):
        if other == own:
            continue
        if not at_top and (own, other) in FACE:
            continue
        assert ORDER.index(other) < ORDER.index(own), f"{own} imports {other}, which stands below it"


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_headscope_imports_nothing_heavy() -> None:
    assert in_fresh_python(f"import headscope, sys; print([m for m in {HEAVY} if m in sys.modules])") == "[]\n"


def test_the_public_names_are_these() -> None:
    assert hs.__all__ == [
        "Captured",
        "HeadscopeError",
        "Model",
        "Trace",
        "ablate",
        "capture",
        "describe",
        "load",
        "open",
        "survey",
        "trace",
    ]
    assert set(hs.__all__) < set(dir(hs))
    for name in hs.__all__:
        assert callable(getattr(hs, name))
    with pytest.raises(AttributeError, match="no attribute 'banana'"):
        hs.banana


def test_the_packages_that_can_be_called_say_how() -> None:
    from headscope.capture.captured import capture
    from headscope.capture.one_liner import trace
    from headscope.survey.run import survey

    for package, function in ((hs.capture, capture), (hs.trace, trace), (hs.survey, survey)):
        assert isinstance(package, ModuleType)
        assert inspect.signature(package) == inspect.signature(function)
        assert package.__call__.__doc__ == function.__doc__


def test_every_file_says_what_lives_there() -> None:
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_every_error_says_what_where_and_what_to_do() -> None:
    """A HeadscopeError is never raised without a place and an advice."""
    from headscope import errors

    names = {name for name, value in vars(errors).items() if isinstance(value, type)} - {"HeadscopeError"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                given = {keyword.arg for keyword in node.keywords}
                assert {"where", "advice"} <= given or None in given, f"{path}:{node.lineno}"

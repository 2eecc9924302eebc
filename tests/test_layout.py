"""The house itself: imports go one way, nothing heavy is imported early, the public face is what it says."""

from __future__ import annotations

import ast
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import headscope as hs

SOURCE = Path(hs.__file__).parent
ORDER = [
    "errors",
    "writing",
    "pages",
    "upward",
    "checkpoint",
    "anatomy",
    "terms",
    "attention",
    "activations",
    "_trace",
    "encoder",
    "model",
    "kernels",
    "_capture",
    "reference",
    "verify",
    "statistics",
    "explain",
    "_survey",
    "_compare",
    "filling",
    "view",
    "_watch",
    "tour",
    "cli",
]
"""Read from top to bottom: each part may import only what stands above it."""

UPWARD = SOURCE / "upward.py"
"""The file through which convenience methods reach up: its late imports are left out."""

HEAVY = ("numpy", "torch", "transformers", "ray", "starlette", "uvicorn", "matplotlib", "pyarrow", "huggingface_hub")


FILES = {
    ".".join(("headscope", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
"""Every module's name and file."""


def imports(module: str) -> set[str]:
    """The modules of headscope that a module imports, at its top and late, with the packages that they are in.

    Imports for type checking alone are left out, and so are a module's own packages, which are imported before it.
    """
    path = FILES[module]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = {
        id(inner)
        for node in ast.walk(tree)
        if (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
        or (path == UPWARD and isinstance(node, ast.FunctionDef))
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and str(node.value).startswith("headscope."):
            names.add(str(node.value).partition(":")[0])  # for import_module
    known = {name for name in names if name in FILES}
    packages = {name.rpartition(".")[0] for name in known}
    return {
        name for name in known | packages if name not in ("", "headscope", module) and not module.startswith(f"{name}.")
    }


@pytest.mark.parametrize("module", FILES)
def test_imports_go_one_way(module: str) -> None:
    if module in ("headscope", "headscope.__main__"):
        return
    part = module.split(".")[1]
    assert part in ORDER, f"{part} has no place in the layout"
    for name in imports(module):
        other = name.split(".")[1]
        assert ORDER.index(other) <= ORDER.index(part), f"{module} imports {name}, which stands below it"


def test_no_files_import_each_other_in_a_circle() -> None:
    """Late imports count, too."""
    waiting = {module: imports(module) for module in FILES if module not in ("headscope", "headscope.__main__")}
    while ready := {module for module, needed in waiting.items() if not needed & waiting.keys()}:
        waiting = {module: needed for module, needed in waiting.items() if module not in ready}
    assert not waiting, "circles, and what hangs on them: " + ", ".join(sorted(waiting))


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_headscope_imports_nothing_heavy() -> None:
    assert in_fresh_python(f"import headscope, sys; print([m for m in {HEAVY} if m in sys.modules])") == "[]\n"


def test_the_public_names_are_these() -> None:
    assert hs.__all__ == [
        "Captured",
        "HeadscopeCallback",
        "HeadscopeError",
        "Model",
        "Survey",
        "Trace",
        "ablate",
        "capture",
        "compare",
        "describe",
        "load",
        "open",
        "survey",
        "trace",
        "watch",
    ]
    assert set(hs.__all__) < set(dir(hs))
    for name in hs.__all__:
        assert callable(getattr(hs, name))
    with pytest.raises(AttributeError, match="no attribute 'banana'"):
        hs.banana


def test_no_package_has_the_name_of_a_public_function() -> None:
    """Importing headscope._capture.x would otherwise make `headscope.capture` the package."""
    assert not set(hs.__all__) & {module.split(".")[1] for module in FILES if "." in module}


def test_help_of_a_public_name_is_that_of_the_function() -> None:
    for function in (hs.capture, hs.trace, hs.survey, hs.open, hs.load, hs.describe):
        assert inspect.isfunction(function)
        text = pydoc.render_doc(function, renderer=pydoc.plaintext)
        assert "Raises:" in text
        assert str(inspect.signature(function)).split("(")[1][:10] in text
    with pytest.raises(AttributeError, match="cannot assign"):
        hs.open().trace("a cat").model = "another"  # type: ignore[misc]


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

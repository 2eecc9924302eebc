"""jaxtyping's annotations, checked by beartype while the tests run.

headscope imports jaxtyping for type checkers only, so that a person's import stays quick. Here the names of each
module's TYPE_CHECKING block are brought in, and every function and method that stands in its file is wrapped.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from beartype import beartype
from jaxtyping import jaxtyped

CHECKED = (
    "headscope.terms",
    "headscope.attention",
    "headscope.activations",
    "headscope._compare.products",
    "headscope._trace.arrays",
    "headscope.encoder.weights",
    "headscope.encoder.embedding",
    "headscope.encoder.rotation",
    "headscope.encoder.distances",
    "headscope.encoder.nearby",
    "headscope.encoder.convolution",
    "headscope.encoder.feed_forward",
    "headscope.encoder.post_norm",
    "headscope.encoder.pre_norm",
    "headscope.encoder.forward",
    "headscope.encoder.tops",
    "headscope.explain.alti",
    "headscope.explain.intervals",
    "headscope.explain.knockout",
    "headscope.explain.linearised",
    "headscope.explain.prefixes",
    "headscope.explain.sentence",
    "headscope.explain.similarity",
)


def check_shapes() -> None:
    """Wrap the checked modules, and replace what other modules imported from them."""
    modules = [importlib.import_module(name) for name in CHECKED]
    replaced: dict[int, FunctionType] = {}
    for module in modules:
        bring_in_annotations(module)
        for holder, name, function in own_functions(module):
            wrapped = jaxtyped(function, typechecker=beartype)
            replaced[id(function)] = wrapped
            setattr(holder, name, wrapped)
    for loaded in [module for name, module in sys.modules.items() if name.startswith("headscope")]:
        for name, value in list(vars(loaded).items()):
            if id(value) in replaced:
                setattr(loaded, name, replaced[id(value)])


def bring_in_annotations(module: ModuleType) -> None:
    """Run the body of `if TYPE_CHECKING:` in the module."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            block = ast.Module(body=node.body, type_ignores=[])
            exec(compile(block, str(module.__file__), "exec"), vars(module))  # our own source, read above


def own_functions(module: ModuleType) -> Iterator[tuple[Any, str, FunctionType]]:
    """Functions and methods whose code stands in the module's file."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    own_classes = [found for found in classes if found.__module__ == module.__name__]
    for holder in (module, *own_classes):
        for name, value in list(vars(holder).items()):
            if isinstance(value, FunctionType) and value.__code__.co_filename == module.__file__:
                yield holder, name, value

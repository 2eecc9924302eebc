"""jaxtyping's annotations, checked by beartype while the tests run.

headscope imports jaxtyping for type checkers only, so that a person's import stays quick. Here the names of each
module's TYPE_CHECKING block are brought in, and every function and method that stands in its file is wrapped. A call is
checked when its function is first given arguments of these shapes: to check every call takes as long as all the rest.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Hashable, Iterator
from functools import cache, wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from beartype import beartype
from jaxtyping import jaxtyped

CHECKED = "attention.terms attention.scores attention.activations heads.weight_changes results.arrays "
CHECKED += "encoder.role_weights encoder.distances encoder.attending encoder.forward encoder.task_heads "
CHECKED += "explain.propagation explain.attribution heads.intervals runs.engine"
PLAIN = {type(None), bool, str}
"""Types whose values an annotation can tell apart."""


def check_shapes() -> None:
    """Wrap the checked modules, and replace what other modules imported from them."""
    modules = [importlib.import_module(f"headscope.{name}") for name in CHECKED.split()]
    replaced: dict[int, FunctionType] = {}
    for module in modules:
        bring_in_annotations(module)
        for holder, name, function in own_functions(module):
            wrapped = checked_once_a_shape(function)
            replaced[id(function)] = wrapped
            setattr(holder, name, wrapped)
    for loaded in [module for name, module in sys.modules.items() if name.startswith("headscope")]:
        for name, value in list(vars(loaded).items()):
            if id(value) in replaced:
                setattr(loaded, name, replaced[id(value)])


def checked_once_a_shape(function: FunctionType) -> Any:
    """The function, whose annotations are checked whenever it is given arguments of other shapes than before."""
    checked = cache(lambda: jaxtyped(function, typechecker=beartype))  # written by beartype in the first call
    seen: set[Hashable] = set()

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        shapes = (len(args), *map(shape_of, args), *named, *map(shape_of, named.values()))
        if shapes in seen:
            return function(*args, **named)
        seen.add(shapes)
        return checked()(*args, **named)

    return call


def shape_of(value: Any) -> Hashable:
    """What an annotation can tell of an argument."""
    kind = type(value)
    if isinstance(value, np.ndarray) or (kind not in PLAIN and hasattr(kind, "__torch_function__")):
        return kind, value.shape, value.dtype
    return value if kind in PLAIN else kind


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

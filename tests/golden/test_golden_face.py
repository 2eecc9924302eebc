"""The public face as text: exported names, signatures, fields of results, commands with their options.

Every class that a public function or method names in an annotation is part of it, wherever it lives.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import headscope as hs
import headscope.errors
from headscope.cli import app

KEPT = Path(__file__).parent / "kept" / "face.txt"
WORD = re.compile(r"\w+")
SPECIAL = ("__init__", "__call__", "__getitem__", "__iter__", "__len__", "__enter__", "__contains__")


@cache
def named_for_types(module: str) -> dict[str, str]:
    """Name -> module, of what a file imports, for types too."""
    tree = ast.parse(Path(sys.modules[module].__file__ or "").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return {alias.asname or alias.name: f"{node.module}:{alias.name}" for node in imports for alias in node.names}


def class_named(name: str, module: str) -> type | None:
    """The class of headscope that a name means in an annotation of a module."""
    value = getattr(sys.modules[module], name, None)
    origin, _, attribute = named_for_types(module).get(name, "").partition(":")
    if value is None and origin.startswith("headscope"):
        value = getattr(__import__(origin, fromlist=[attribute]), attribute, None)
    return value if isinstance(value, type) and value.__module__.startswith("headscope") else None


class AsWritten(str):
    """An annotation that prints as it stands in the source."""

    __slots__ = ()
    __repr__ = str.__str__


def signature_of(function: Any) -> inspect.Signature:
    """A signature, its annotations as they are written."""
    signature = inspect.signature(function)
    return signature.replace(
        parameters=[
            one if one.annotation is one.empty else one.replace(annotation=AsWritten(one.annotation))
            for one in signature.parameters.values()
        ],
        return_annotation=AsWritten(signature.return_annotation),
    )


def members(kind: type) -> Iterator[tuple[str, str, str]]:
    """Name and text of each public member of a class, and what it gives; also those of its bases in headscope."""
    for base in kind.__mro__:
        if not base.__module__.startswith("headscope"):
            continue
        for name, annotation in inspect.get_annotations(base).items():
            yield name, f"{name}: {annotation}" + plain_default(base, name), str(annotation)
        for name in assigned(base):
            yield name, name, ""
        for name, value in vars(base).items():
            if isinstance(value, property | cached_property):
                getter = value.fget if isinstance(value, property) else value.func
                gives = str(signature_of(getter).return_annotation)
                yield name, f"{name} -> {gives}", gives
            elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
                signature = signature_of(getattr(value, "__func__", value))
                yield name, f"{name}{signature}", str(signature.return_annotation)


def assigned(kind: type) -> list[str]:
    """The attributes that a class's own `__init__` assigns, if it is written out."""
    start = inspect.unwrap(vars(kind).get("__init__"))
    if start is None or start.__code__.co_filename != inspect.getfile(kind):
        return []
    tree = ast.parse(textwrap.dedent(inspect.getsource(start)))
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return [node.attr for node in stored if ast.unparse(node.value) == "self"]


def plain_default(kind: type, name: str) -> str:
    """The default of a field that prints the same everywhere, and an equals sign."""
    value = vars(kind).get(name, ...)
    return f" = {value!r}" if isinstance(value, str | int | float | bool | tuple | None) else ""


def described(kind: type) -> tuple[list[str], str]:
    """A class's lines, and what its members give. Only of exported classes `__init__` is public."""
    given = {name for name in SPECIAL if name != "__init__" or kind.__name__ in hs.__all__}
    public = {
        name: (text, gives) for name, text, gives in reversed(list(members(kind))) if name[0] != "_" or name in given
    }
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    lines = [f"class {kind.__name__}({bases})", *(f"    {public[name][0]}" for name in sorted(public))]
    return lines, "\n".join(gives for _, gives in public.values())


def face() -> str:
    """Names, functions, and every class that can be reached from them."""
    public = {name: getattr(hs, name) for name in hs.__all__}
    functions = {name: signature_of(value) for name, value in public.items() if inspect.isfunction(value)}
    lines = ["headscope: " + ", ".join(sorted(dir(hs))), "", *(f"{name}{of}" for name, of in functions.items())]
    errors = [
        kind for kind in vars(hs.errors).values() if isinstance(kind, type) and issubclass(kind, hs.HeadscopeError)
    ]
    lines += ["", *(f"class {kind.__name__}({kind.__bases__[0].__name__})" for kind in errors[1:])]
    waiting = [(str(of.return_annotation), public[name].__module__) for name, of in functions.items()]
    waiting += [(value.__name__, value.__module__) for value in public.values() if isinstance(value, type)]
    seen: dict[type, list[str]] = {}
    while waiting:
        text, module = waiting.pop()
        for kind in filter(None, (class_named(word, module) for word in WORD.findall(text))):
            if kind not in seen and kind.__name__[0] != "_":
                seen[kind], gives = described(kind)
                bases = [base.__module__ for base in kind.__mro__ if base.__module__.startswith("headscope")]
                waiting += [(gives, base) for base in bases]
    for kind in sorted(seen, key=lambda kind: kind.__name__):
        lines += ["", *seen[kind]]
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments and options: names, kinds, defaults, help."""
    group: Any = get_command(app)
    context = group.context_class(group, info_name="headscope")
    lines = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        lines += ["", f"$ headscope {name}  # {(command.help or '').splitlines()[0]}"]
        for one in command.params:
            names = " ".join([*one.opts, *one.secondary_opts]) if one.param_type_name == "option" else one.metavar
            default = "" if one.default in (None, False) or one.required else f" [{one.default}]"
            hidden = " (hidden)" if getattr(one, "hidden", False) else ""
            metavar = f" {one.metavar}" if one.metavar and one.param_type_name == "option" else ""
            lines.append(f"    {names}{metavar}{default}{hidden}: {getattr(one, 'help', None) or ''}")
    return "\n".join(lines)


def test_the_public_face(request: pytest.FixtureRequest) -> None:
    text = f"{face()}\n{commands()}\n"
    if request.config.getoption("--refresh-screens"):
        KEPT.write_text(text, encoding="utf-8", newline="\n")
    kept = KEPT.read_text(encoding="utf-8").splitlines()
    assert text.splitlines() == kept

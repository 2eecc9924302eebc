"""The JSON Schemas of answers, which follow from their dataclasses: docs/schemas has them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from headscope.results.answers import ANSWERS, VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an answer, with the meaning of every field."""
    schema = _object(ANSWERS[name])
    envelope = {"schema": {"const": f"headscope/{name}"}, "version": {"const": VERSION}}
    schema["properties"] = envelope | schema["properties"]
    schema["required"] = ["schema", "version", *schema["required"]]
    return {"$schema": DIALECT, "title": f"headscope/{name}", **schema}


def _object(row: type, within: tuple[type, ...] = ()) -> dict[str, Any]:
    """The schema of a record. A field named after a word of Python, such as `class_`, loses its underscore."""
    hints, means = get_type_hints(row), meanings(row)
    properties = {name: _typed(hint, (*within, row)) | {"description": means[name]} for name, hint in hints.items()}
    return {
        **({"$anchor": row.__name__} if row in _contained(row) else {}),
        "type": "object",
        "description": inspect.cleandoc(row.__doc__ or "").splitlines()[0],
        "properties": {name.rstrip("_"): schema for name, schema in properties.items()},
        "required": [field.name.rstrip("_") for field in fields(row) if field.default is MISSING],
        "additionalProperties": False,
    }


def _contained(row: type) -> list[Any]:
    """The types that lists of a record hold."""
    return [get_args(hint)[0] for hint in get_type_hints(row).values() if get_origin(hint) in (list, tuple)]


def _typed(hint: Any, within: tuple[type, ...]) -> dict[str, Any]:
    """The schema of an annotation in these records; one of them is referred to, not described again."""
    if hint is Any:
        return {}
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if is_dataclass(hint) and isinstance(hint, type):
        return {"$ref": f"#{hint.__name__}"} if hint in within else _object(hint, within)
    if get_origin(hint) in (list, tuple):
        return {"type": "array", "items": _typed(get_args(hint)[0], within)}
    if get_origin(hint) in (dict, Mapping):
        return {"type": "object", "additionalProperties": _typed(get_args(hint)[1], within)}
    assert get_origin(hint) in (Union, UnionType), hint
    choices = [_typed(choice, within) for choice in get_args(hint)]
    if all(choice.keys() == {"type"} for choice in choices):
        return {"type": [choice["type"] for choice in choices]}
    return {"anyOf": choices}


def meanings(row: type) -> dict[str, str]:
    """Field -> its meaning, which stands beside its type: `Of[type, "its meaning"]`."""
    return {name: get_args(hint)[-1] for name, hint in get_type_hints(row, include_extras=True).items()}

"""JSON Schemas of the answers of commands, from their dataclasses, and the envelope of every record."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from headscope.results import answers, readings, side_answers

VERSION = 1
"""Version of all records."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
ANSWERS: dict[str, type] = {
    "shapes": readings.ShapesAnswer,
    "summary": readings.SummaryAnswer,
    "config": readings.ConfigAnswer,
    "tree": readings.TreeAnswer,
    "fit": readings.FitAnswer,
    "head": answers.HeadAnswer,
    "attend-token": answers.AttendAnswer,
    "fill": answers.FillAnswer,
    "predict": answers.PredictAnswer,
    "effects": answers.EffectsAnswer,
    "attribute": answers.AttributeAnswer,
    "why": readings.WhyAnswer,
    "verify": readings.ReportAnswer,
    "compare": side_answers.CompareAnswer,
    "survey": side_answers.SurveyAnswer,
    "match": side_answers.MatchAnswer,
    "error": answers.ErrorAnswer,
}
"""Name of a schema -> the dataclass that describes its record."""


def enveloped(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its schema's name and version in front."""
    return {"schema": f"headscope/{name}", "version": VERSION, **record}


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
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _typed(get_args(hint)[1], within)}
    assert get_origin(hint) in (Union, UnionType), hint
    choices = [_typed(choice, within) for choice in get_args(hint)]
    if all(choice.keys() == {"type"} for choice in choices):
        return {"type": [choice["type"] for choice in choices]}
    return {"anyOf": choices}


def meanings(row: type) -> dict[str, str]:
    """Field -> its meaning, which stands beside its type: `Of[type, "its meaning"]`."""
    return {name: get_args(hint)[-1] for name, hint in get_type_hints(row, include_extras=True).items()}

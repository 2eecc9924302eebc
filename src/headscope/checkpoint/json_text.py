"""JSON from a checkpoint (headers, indexes, configs), read with bounds: no duplicate names, no bombs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

INTEGER_DIGITS = 100
"""Most digits of a number. Configs say "no limit" as 1000000000000000019884624838656; a header's are checked again."""


class JsonError(Exception):
    """Why a text is not the JSON object it should be."""


def parse_object(data: bytes, *, unique: bool) -> dict[str, Any]:
    """The JSON object that these bytes spell.

    Args:
        data: UTF-8 text.
        unique: refuse a name that occurs twice in one object, whatever its values; otherwise only where they differ.

    Raises:
        JsonError: not UTF-8, not JSON, not an object, a name twice, nested too deeply, or a number too long.
    """

    def unite(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        united = dict(pairs)
        if len(united) != len(pairs):
            seen: dict[str, Any] = {}
            for name, value in pairs:
                if name in seen and (unique or seen[name] != value):
                    raise JsonError(f"the name {shown(name)} occurs twice")
                seen[name] = value
        return united

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8") from error
    try:
        value = json.loads(text, object_pairs_hook=unite, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise JsonError("nested too deeply") from error
    if not isinstance(value, dict):
        raise JsonError(f"an object was expected, this is {kind_of(value)}")
    return value


def kind_of(value: Any) -> str:
    """What JSON calls a value of this kind, with its article."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def shown(name: str) -> str:
    """A name from a file, quoted, escaped and short enough for a message."""
    return shortened(ascii(name) if not name.isprintable() else repr(name))


def shortened(text: str) -> str:
    """A text from a file, short enough for a message."""
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"


def brief(value: object) -> str:
    """A value from a file as Python writes it, short enough for a message."""
    return shortened(repr(value))


def few(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS:
        raise JsonError(f"a number of {len(digits)} digits")
    return int(digits)

"""Bounded JSON parsing for headers, indexes, configs and traces: all JSON that headscope reads goes through here."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.checkpoint.raw_files import read_whole

INTEGER_DIGITS = 100
"""Maximum digits of an integer. Configs write "no limit" as 1000000000000000019884624838656; headers check again."""

MOST_BYTES = 100_000_000
"""Maximum bytes of a JSON text: the limit of safetensors headers."""

MOST_LEVELS = 100
"""Maximum levels of nesting. Configs have 4; recursive code such as json.dumps handles this many."""

HALVES = re.compile("[\ud800-\udfff]")


class JsonError(Exception):
    """A text is not JSON, or exceeds the limits."""


def read_object(path: Path, *, unique: bool, most: int = MOST_BYTES) -> dict[str, Any]:
    """Read the JSON object in a file; see `parse_object`.

    Args:
        path: the file.
        unique: as in `parse_object`.
        most: the maximum number of bytes.

    Raises:
        JsonError: as in `parse_object`; or the file is too large, is not a regular file, or can't be read.
    """
    try:
        data = read_whole(path, most)
    except OSError as error:
        raise JsonError(error.strerror or str(error)) from error
    return parse_object(data, unique=unique)


def parse_object(data: bytes | str, *, unique: bool) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        data: a text, or its bytes in UTF-8.
        unique: True to reject every name that occurs twice in one object; False to reject it only if the values differ.

    Raises:
        JsonError: not UTF-8, not JSON, not an object, a duplicate name, too many levels of nesting, or an integer with
            too many digits.
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
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8") from error
    try:
        value = json.loads(text, object_pairs_hook=unite, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise JsonError("nested too deeply") from error
    if not isinstance(value, dict):
        raise JsonError(f"expected an object, got {kind_of(value)}")
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    if level:
        raise JsonError(f"nested too deeply: more than {MOST_LEVELS} levels")
    return value


def written(value: Any) -> str:
    """Return a value as readable JSON in valid UTF-8: only unpaired surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def kind_of(value: Any) -> str:
    """Return JSON's name for the type of a value, with its article."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def shown(name: str) -> str:
    """Return a name from a file for a message: quoted, escaped and shortened."""
    return shortened(ascii(name) if not name.isprintable() else repr(name))


def shortened(text: str, most: int = 100) -> str:
    """Return a text from a file for a message, shortened to about `most` characters."""
    return text if len(text) <= most else f"{text[: most - 20]}... ({len(text)} characters)"


def brief(value: object) -> str:
    """Return the repr of a value from a file for a message, shortened."""
    return shortened(repr(value))


def few(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS:
        raise JsonError(f"an integer of {len(digits)} digits")
    return int(digits)

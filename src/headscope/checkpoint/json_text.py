"""JSON from a file (headers, indexes, configs, traces), read with bounds: the one way in which headscope reads JSON.

What a text would take is known before it is parsed: its items are counted and its depth is measured on its brackets,
commas and colons alone, in a few passes over its bytes. So a hostile file costs about what it costs to read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.checkpoint.files import read_whole

INTEGER_DIGITS = 100
"""Most digits of a number. Configs say "no limit" as 1000000000000000019884624838656; a header's are checked again."""

MOST_BYTES = 100_000_000
"""Most bytes of a JSON text: what safetensors allows a header."""

MOST_ITEMS = 2_000_000
"""Most items (values and names) of a JSON text. An index of 200,000 tensors has 400,000; they take 100 bytes each."""

MOST_LEVELS = 100
"""Most levels of nesting. Configs have 4; every walk over a value, such as writing it again, has room for this many."""

STRUCTURE = b'[]{},:"'
OTHER_BYTES = bytes(set(range(256)) - set(STRUCTURE))
AS_LISTS = bytes.maketrans(b"{}", b"[]")


HALVES = re.compile("[\ud800-\udfff]")


class JsonError(Exception):
    """Why a text is not the JSON that it should be."""


def read_object(path: Path, *, unique: bool, most: int = MOST_BYTES, items: int = MOST_ITEMS) -> dict[str, Any]:
    """The JSON object in a file. Arguments and errors as for `parse_object`.

    Raises:
        JsonError: also where the file has more than `most` bytes, is not a regular file, or can't be read.
    """
    try:
        data = read_whole(path, most)
    except OSError as error:
        raise JsonError(error.strerror or str(error)) from error
    return parse_object(data, unique=unique, items=items)


def parse_object(data: bytes | str, *, unique: bool, items: int = MOST_ITEMS) -> dict[str, Any]:
    """The JSON object that a text spells.

    Args:
        data: a text, or its bytes in UTF-8.
        unique: refuse a name that occurs twice in one object, whatever its values; otherwise only where they differ.
        items: the most values and names that it may hold.

    Raises:
        JsonError: not UTF-8, not JSON, not an object, a name twice, too many items, nested too deeply, or a number too
            long.
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

    check_structure(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data, items)
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8") from error
    try:
        value = json.loads(text, object_pairs_hook=unite, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    if not isinstance(value, dict):
        raise JsonError(f"an object was expected, this is {kind_of(value)}")
    return value


def check_structure(data: bytes, items: int = MOST_ITEMS) -> None:
    """Raise JsonError where a JSON text holds more items than this, or nests them deeper than `MOST_LEVELS`.

    Whether it is JSON at all is left to the parser, which gets no further in what isn't.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = data.translate(None, OTHER_BYTES).replace(b'""', b"")
    # The quotes that are left stand around strings that hold marks themselves; each of these is an item.
    if marks.count(b'"') // 2 > items:
        raise JsonError(f"it holds more than {items:,} items")
    marks = re.sub(rb'"[^"]*"?', b"", marks)
    count = 1 + sum(map(marks.count, (b"[", b"{", b",", b":")))
    if count > items:
        raise JsonError(f"it holds {count:,} items, at most {items:,} are read")
    nested = marks.translate(AS_LISTS, b",:")
    for _ in range(MOST_LEVELS):  # each pass removes the innermost level
        inner = nested.replace(b"[]", b"")
        if len(inner) == len(nested):
            break
        nested = inner
    if nested.count(b"[") > MOST_LEVELS or b"[]" in nested:
        raise JsonError(f"nested too deeply: more than {MOST_LEVELS} levels")


def written(value: Any) -> str:
    """A value as JSON that UTF-8 can hold: readable, but for halves of surrogate pairs, which are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def kind_of(value: Any) -> str:
    """What JSON calls a value of this kind, with its article."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def shown(name: str) -> str:
    """A name from a file, quoted, escaped and short enough for a message."""
    return shortened(ascii(name) if not name.isprintable() else repr(name))


def shortened(text: str, most: int = 100) -> str:
    """A text from a file, short enough for a message."""
    return text if len(text) <= most else f"{text[: most - 20]}... ({len(text)} characters)"


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

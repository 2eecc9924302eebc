"""Mutations of files: of their bytes, of the JSON in them, of a safetensors header, of a pickle in its archive."""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from typing import Any

Mutation = Callable[[random.Random, bytes, list[bytes]], bytes]
"""From a file, and others of its kind, to a damaged one."""

EXTREMES = ["0", "-1", "1", "255", "65536", str(2**31), str(-(2**31)), str(2**53 + 1), str(2**63), str(-(2**63) - 1)]
EXTREMES += [str(2**64), "9" * 99, "9" * 5000, "0.5", "-0.0", "1e308", "1e999", "-1e999", "1e-999", "NaN", "Infinity"]
EXTREMES += ["-Infinity", "true", "null"]
"""Numbers, or what may stand where a number does, as JSON spells them."""

WORDS = ["", " ", "bert", "roberta", "gelu", "relu", "float32", "F32", "BF16", "F4", "[CLS]", "##", "\0", "\ud800"]
WORDS += ["é" * 9, "../x", "/dev/zero", "a" * 300, "\u202e", "x\ny", "%s{0}", "BertForMaskedLM"]
WORDS += ["BertJapaneseTokenizer", "▁", "(", "["]

DIGITS = re.compile(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?")
PLACEHOLDER = "\x01raw{}\x01"
MOST_BYTES = 200_000
"""A mutation that would make a longer file is cut there: the largest files are tried by name, in test_bounds.py."""


def mutate_bytes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to four changes to the bytes as they lie: bits, cuts, splices, repeats, numbers."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        rng.choice(BYTE_CHANGES)(rng, changed, others)
    return bytes(changed[:MOST_BYTES])


def _span(rng: random.Random, size: int, most: int = 64) -> slice:
    start = rng.randrange(size + 1)
    return slice(start, min(size, start + rng.randint(1, most)))


def _flip(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    for _bit in range(rng.choice((1, 1, 2, 8)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _remove(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    del data[_span(rng, len(data))]


def _repeat(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    part = _span(rng, len(data))
    data[part.start : part.start] = data[part] * rng.choice((1, 1, 2, 100))


def _splice(rng: random.Random, data: bytearray, others: list[bytes]) -> None:
    other = rng.choice(others)
    data[_span(rng, len(data))] = other[_span(rng, len(other), 400)]


def _overwrite(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    count = rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 2 ** (8 * count - 1), 2 ** (8 * count) - 1, rng.getrandbits(8 * count)))
    start = rng.randrange(len(data) + 1)
    data[start : start + count] = (value % 2 ** (8 * count)).to_bytes(count, rng.choice(("little", "big")))


def _number(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    numbers = list(DIGITS.finditer(data))
    if numbers:
        match = rng.choice(numbers)
        data[match.start() : match.end()] = rng.choice(EXTREMES).encode()


BYTE_CHANGES = (_flip, _cut, _remove, _repeat, _splice, _overwrite, _number)


def mutate_json(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to three changes to the value that the text spells: types, numbers, nesting, names that occur twice."""
    return dump(rng, *change_value(rng, json.loads(data)))[:MOST_BYTES]


def change_value(rng: random.Random, value: Any) -> tuple[Any, dict[str, str]]:
    """A changed copy of a JSON value, and the raw JSON that its placeholders stand for."""
    holder = json.loads(json.dumps([value]))
    raw: dict[str, str] = {}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        container, key = _place(rng, holder)
        kind = rng.random()
        if kind < 0.3:
            container[key] = alike(rng, container[key])
        elif kind < 0.55:
            container[key] = nonsense(rng, raw)
        elif kind < 0.65 and container is not holder:
            del container[key]
        elif kind < 0.75:
            container[key] = rng.choice(([container[key]], {"x": container[key]}, [container[key]] * 2))
        elif kind < 0.85:
            other, place = _place(rng, holder)
            container[key] = json.loads(json.dumps(other[place]))
        elif isinstance(container, dict):
            renamed = rng.choice((*WORDS, key + "s", key[:-1], "0", "-1", "1" * 400))
            container[renamed] = container.pop(key)
        else:
            container[key:key] = [nonsense(rng, raw)] * rng.choice((1, 3, 50))
    return holder[0] if holder else None, raw


def alike(rng: random.Random, value: Any) -> Any:
    """Another value of the same type, so that what only looks at types goes on with it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((0, 1, 2, 3, 7, -1, value - 1, value + 1, 100, 2**31 - 1, 2**31, 2**32 - 1, 10**18))
    if isinstance(value, float):
        return rng.choice((0.0, -0.0, -value, 1e-300, 1e300, value * 10))
    if isinstance(value, str):
        return rng.choice((*WORDS, value + value, value[1:], value.upper(), value + "\n", "\x1b[31m" + value))
    if isinstance(value, list):
        return rng.choice(([], value[::-1], value * 2, value[1:]))
    if isinstance(value, dict):
        return rng.choice(({}, dict(list(value.items())[1:])))
    return rng.choice((0, "", False))


def _place(rng: random.Random, holder: list[Any]) -> tuple[Any, Any]:
    """A random container and a key or index of it, deep ones as likely as shallow ones."""
    container: Any = holder
    key: Any = 0
    while container[key] and isinstance(container[key], (dict, list)) and rng.random() < 0.8:
        container = container[key]
        key = rng.choice(list(container)) if isinstance(container, dict) else rng.randrange(len(container))
    return container, key


def nonsense(rng: random.Random, raw: dict[str, str]) -> Any:
    """A value of any kind; what json.dumps can't spell is a placeholder, kept in raw."""
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice((None, True, False, [], {}, [[]], [None], {"": None}))
    if kind == 1:
        return rng.choice(WORDS)
    if kind == 2:
        return rng.choice((0, 1, -1, 2, 3, 7, 0.5, 1.5, 1e-12, 1e308, 2**31, 2**63, 2**64))
    if kind == 3:
        return [rng.choice((*WORDS, 1, -1, None, 0.5, True)) for _ in range(rng.randrange(5))]
    if kind == 4:
        return {rng.choice((*WORDS, "0", "1", "content")): rng.choice((1, None, "x", [], "0")) for _ in range(3)}
    if kind == 5:
        depth = rng.choice((2, 50, 99, 101, 130, 900, 5000))
        opened, closed = rng.choice((("[", "]"), ('{"a":', "}")))
        text = opened * depth + "1" + closed * depth
    elif kind == 6:
        text = '{"a": 1, "a": ' + rng.choice(("1", "2", "[]")) + "}"
    else:
        text = rng.choice(EXTREMES)
    placeholder = PLACEHOLDER.format(len(raw))
    raw[placeholder] = text
    return placeholder


def dump(rng: random.Random, value: Any, raw: dict[str, str]) -> bytes:
    """The JSON text of a value with placeholders; in one of ten, a name of the outermost object occurs twice."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    for placeholder, content in raw.items():
        text = text.replace(json.dumps(placeholder), content)
    if rng.random() < 0.1 and isinstance(value, dict) and value:
        repeated = json.dumps(rng.choice(list(value)))
        text = f"{{{repeated}: {rng.choice(EXTREMES)}, {text[1:]}"
    return text.encode("utf-8", "surrogatepass")


def mutate_header(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The same of a safetensors file's header; its length stays right, so that the JSON is reached."""
    length = int.from_bytes(data[:8], "little")
    header = mutate_json(rng, data[8 : 8 + length], others)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def mutate_archive(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The bytes of one entry of a zip archive; its checksum stays right, so that the pickle is reached."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(changed, "w") as file:
        names = archive.namelist()
        chosen = names[0] if rng.random() < 0.8 else rng.choice(names)
        for name in names:
            content = archive.read(name)
            if name == chosen:
                content = mutate_bytes(rng, content, [content, rng.choice(others)])
            file.writestr(name, content)
    return changed.getvalue()

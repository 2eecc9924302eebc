"""Hostile safetensors files and indexes. Each maker writes into a folder, which is then opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headscope.errors import CheckpointError, NotFoundError
from making import write_safetensors

Attack = tuple[Callable[[Path], Any], type[Exception]]
"""What writes the file, and the kind of error that it raises."""


def raw(data: bytes) -> Callable[[Path], Any]:
    """model.safetensors of exactly these bytes."""
    return lambda folder: (folder / "model.safetensors").write_bytes(data)


def header(text: str | bytes, data: bytes = b"", *, length: int | None = None) -> Callable[[Path], Any]:
    """model.safetensors with this header text, and data after it."""
    encoded = text if isinstance(text, bytes) else text.encode()
    return raw((len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data)


def tensor(value: str, data: bytes = b"") -> Callable[[Path], Any]:
    """A header with the one tensor x, described by this JSON."""
    return header(f'{{"x":{value}}}', data)


def entry(dtype: str, shape: str, start: int, stop: int) -> str:
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":[{start},{stop}]}}'


def two(first: tuple[int, int], second: tuple[int, int], size: int) -> Callable[[Path], Any]:
    """Tensors a and b of bytes with these spans, in a file with this much data."""
    spans = {
        name: entry('"U8"', f"[{stop - start}]", start, stop)
        for name, (start, stop) in zip("ab", (first, second), strict=True)
    }
    return header("{" + ",".join(f'"{name}":{value}' for name, value in spans.items()) + "}", bytes(size))


def shards(
    weight_map: object, *, index: str | None = None, held: dict[str, list[str]] | None = None
) -> Callable[[Path], Any]:
    """model.safetensors.index.json with this weight_map (or text), beside shards that hold these names."""

    def make(folder: Path) -> None:
        for file, names in (held or {"1.safetensors": ["a"], "2.safetensors": ["b"]}).items():
            write_safetensors(folder / file, {name: np.ones(2) for name in names})
        text = json.dumps({"weight_map": weight_map}) if index is None else index
        (folder / "model.safetensors.index.json").write_text(text)

    return make


GOOD = entry('"U8"', "[4]", 0, 4)

HEADERS: dict[str, Attack] = {
    "empty": (raw(b""), CheckpointError),
    "cut in the length": (raw(b"\x08\0\0"), CheckpointError),
    "cut in the header": (header('{"x":', length=500), CheckpointError),
    "cut in the data": (tensor(GOOD, bytes(3)), CheckpointError),
    "length over the limit": (header("{}", length=2**63), CheckpointError),
    "a page instead of weights": (raw(b"<!DOCTYPE html><html></html>"), CheckpointError),
    "a git lfs pointer": (raw(b"version https://git-lfs/spec/v1\noid sha256:0\n"), CheckpointError),
    "overlap": (two((0, 4), (2, 6), 6), CheckpointError),
    "the same span twice": (two((0, 4), (0, 4), 4), CheckpointError),
    "gap": (two((0, 4), (6, 8), 8), CheckpointError),
    "gap at the start": (two((2, 4), (4, 8), 8), CheckpointError),
    "out of range": (two((0, 4), (4, 80), 8), CheckpointError),
    "bytes of no tensor": (tensor(GOOD, bytes(9)), CheckpointError),
    "span backwards": (tensor(entry('"U8"', "[4]", 4, 0)), CheckpointError),
    "span below zero": (tensor(entry('"U8"', "[4]", -4, 0)), CheckpointError),
    "span of three": (tensor('{"dtype":"U8","shape":[],"data_offsets":[0,1,2]}'), CheckpointError),
    "span and shape differ": (tensor(entry('"F32"', "[4]", 0, 4), bytes(4)), CheckpointError),
    "half a byte": (tensor(entry('"F4"', "[1]", 0, 1), bytes(1)), CheckpointError),
    "unknown dtype": (tensor(entry('"F33"', "[4]", 0, 4), bytes(4)), CheckpointError),
    "dtype in lower case": (tensor(entry('"u8"', "[4]", 0, 4), bytes(4)), CheckpointError),
    "dtype a number": (tensor(entry("8", "[4]", 0, 4), bytes(4)), CheckpointError),
    "negative shape": (tensor(entry('"U8"', "[-2,-2]", 0, 4), bytes(4)), CheckpointError),
    "shape of fractions": (tensor(entry('"U8"', "[4.0]", 0, 4), bytes(4)), CheckpointError),
    "shape of truths": (tensor(entry('"U8"', "[true]", 0, 1), bytes(1)), CheckpointError),
    "shape a number": (tensor(entry('"U8"', "4", 0, 4), bytes(4)), CheckpointError),
    "shape overflows": (tensor(entry('"U8"', f"[{2**62},4]", 0, 0)), CheckpointError),
    "shape overflows to 0": (tensor(entry('"U8"', f"[{2**32},{2**32}]", 0, 0)), CheckpointError),
    "shape overflows behind 0": (tensor(entry('"U8"', f"[0,{2**62},{2**62}]", 0, 0)), CheckpointError),
    "shape beyond 64 bits": (tensor(entry('"U8"', f"[{2**65}]", 0, 4)), CheckpointError),
    "number bomb": (tensor(entry('"U8"', f"[{'9' * 9000}]", 0, 4)), CheckpointError),
    "shape bomb": (tensor(entry('"U8"', f"[{'2,' * 99999}2]", 0, 4)), CheckpointError),
    "no shape": (tensor('{"dtype":"U8","data_offsets":[0,0]}'), CheckpointError),
    "not an entry": (tensor("[1]"), CheckpointError),
    "name twice": (header(f'{{"x":{GOOD},"x":{GOOD}}}', bytes(4)), CheckpointError),
    "field twice": (tensor('{"dtype":"U8","dtype":"I8"}'), CheckpointError),
    "metadata twice": (header('{"__metadata__":{},"__metadata__":{}}'), CheckpointError),
    "metadata of numbers": (header('{"__metadata__":{"a":1}}'), CheckpointError),
    "metadata a list": (header('{"__metadata__":[]}'), CheckpointError),
    "not JSON": (header("{'x': 1}"), CheckpointError),
    "text after the JSON": (header("{} {}"), CheckpointError),
    "a list": (header("[]"), CheckpointError),
    "space first": (header(" {}"), CheckpointError),
    "not UTF-8": (header(b'{"\xff":1}'), CheckpointError),
    "half a surrogate": (header(f'{{"\\ud800":{GOOD}}}', bytes(4)), CheckpointError),
    "nested deeply": (tensor('{"a":' * 99999), CheckpointError),
    "lists nested deeply": (tensor("[" * 99999), CheckpointError),
    "a folder of that name": (lambda folder: (folder / "model.safetensors").mkdir(), NotFoundError),
}

INDEXES: dict[str, Attack] = {
    "missing shard": (shards({"a": "1.safetensors", "b": "3.safetensors"}), CheckpointError),
    "absent tensors": (shards({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}), CheckpointError),
    "tensor not in the index": (shards({"a": "1.safetensors"}, held={"1.safetensors": ["a", "b"]}), CheckpointError),
    "tensor in another shard": (shards({"a": "2.safetensors", "b": "1.safetensors"}), CheckpointError),
    "tensor in two shards": (
        shards(
            {"a": "1.safetensors", "b": "2.safetensors"},
            held={"1.safetensors": ["a"], "2.safetensors": ["b", "a"]},
        ),
        CheckpointError,
    ),
    "shard above": (shards({"a": "../1.safetensors"}), CheckpointError),
    "shard absolute": (shards({"a": "/etc/passwd"}), CheckpointError),
    "shard of another system": (shards({"a": "..\\1.safetensors"}), CheckpointError),
    "shard with NUL": (shards({"a": "1.safetensors\0"}), CheckpointError),
    "shard without name": (shards({"a": ""}), CheckpointError),
    "shard a number": (shards({"a": 1}), CheckpointError),
    "shard with a long name": (shards({"a": "x" * 5000}), CheckpointError),
    "shards of two formats": (
        shards({"a": "1.safetensors", "b": "b.bin"}, held={"1.safetensors": ["a"], "b.bin": ["b"]}),
        CheckpointError,
    ),
    "index without map": (shards({}), CheckpointError),
    "index a list": (shards({}, index="[]"), CheckpointError),
    "index not JSON": (shards({}, index="nonsense"), CheckpointError),
    "index with a name twice": (
        shards({}, index='{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}'),
        CheckpointError,
    ),
    "index a bomb": (shards({}, index='{"weight_map":' * 99999), CheckpointError),
}

"""Hostile safetensors files and indexes. Each maker writes into a folder, which is then opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headscope.errors import CheckpointError, NotFoundError
from making import write_safetensors

Attack = tuple[Callable[[Path], Any], type[Exception], str]


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
    "empty": (raw(b""), CheckpointError, "0 bytes, too few"),
    "cut in the length": (raw(b"\x08\0\0"), CheckpointError, "3 bytes, too few"),
    "cut in the header": (header('{"x":', length=500), CheckpointError, "to have 500 bytes, but the file has 13"),
    "cut in the data": (tensor(GOOD, bytes(3)), CheckpointError, "is truncated: its header describes"),
    "length over the limit": (header("{}", length=2**63), CheckpointError, "the format allows 100000000"),
    "a page instead of weights": (raw(b"<!DOCTYPE html><html></html>"), CheckpointError, "not a safetensors file"),
    "a git lfs pointer": (raw(b"version https://git-lfs/spec/v1\noid sha256:0\n"), CheckpointError, "git lfs pull"),
    "overlap": (two((0, 4), (2, 6), 6), CheckpointError, "span of 'b' overlaps"),
    "the same span twice": (two((0, 4), (0, 4), 4), CheckpointError, "span of 'b' overlaps"),
    "gap": (two((0, 4), (6, 8), 8), CheckpointError, "span of 'b' leaves a gap"),
    "gap at the start": (two((2, 4), (4, 8), 8), CheckpointError, "span of 'a' leaves a gap"),
    "out of range": (two((0, 4), (4, 80), 8), CheckpointError, "is truncated"),
    "bytes of no tensor": (tensor(GOOD, bytes(9)), CheckpointError, "belong to no tensor"),
    "span backwards": (tensor(entry('"U8"', "[4]", 4, 0)), CheckpointError, "in ascending order"),
    "span below zero": (tensor(entry('"U8"', "[4]", -4, 0)), CheckpointError, "not two non-negative 64-bit integers"),
    "span of three": (tensor('{"dtype":"U8","shape":[],"data_offsets":[0,1,2]}'), CheckpointError, "not two"),
    "span and shape differ": (tensor(entry('"F32"', "[4]", 0, 4), bytes(4)), CheckpointError, "takes 16 bytes"),
    "half a byte": (tensor(entry('"F4"', "[1]", 0, 1), bytes(1)), CheckpointError, "takes 0.5 bytes"),
    "unknown dtype": (tensor(entry('"F33"', "[4]", 0, 4), bytes(4)), CheckpointError, "its dtype is 'F33'"),
    "dtype in lower case": (tensor(entry('"u8"', "[4]", 0, 4), bytes(4)), CheckpointError, "its dtype is 'u8'"),
    "dtype a number": (tensor(entry("8", "[4]", 0, 4), bytes(4)), CheckpointError, "its dtype is a number"),
    "negative shape": (
        tensor(entry('"U8"', "[-2,-2]", 0, 4), bytes(4)),
        CheckpointError,
        "non-negative 64-bit integers",
    ),
    "shape of fractions": (
        tensor(entry('"U8"', "[4.0]", 0, 4), bytes(4)),
        CheckpointError,
        "non-negative 64-bit integers",
    ),
    "shape of truths": (
        tensor(entry('"U8"', "[true]", 0, 1), bytes(1)),
        CheckpointError,
        "non-negative 64-bit integers",
    ),
    "shape a number": (tensor(entry('"U8"', "4", 0, 4), bytes(4)), CheckpointError, "non-negative 64-bit integers"),
    "shape overflows": (tensor(entry('"U8"', f"[{2**62},4]", 0, 0)), CheckpointError, "more elements than a file"),
    "shape overflows to 0": (tensor(entry('"U8"', f"[{2**32},{2**32}]", 0, 0)), CheckpointError, "more elements"),
    "shape overflows behind 0": (tensor(entry('"U8"', f"[0,{2**62},{2**62}]", 0, 0)), CheckpointError, "more elements"),
    "shape beyond 64 bits": (
        tensor(entry('"U8"', f"[{2**65}]", 0, 4)),
        CheckpointError,
        "non-negative 64-bit integers",
    ),
    "number bomb": (tensor(entry('"U8"', f"[{'9' * 9000}]", 0, 4)), CheckpointError, "an integer of 9000 digits"),
    "shape bomb": (tensor(entry('"U8"', f"[{'2,' * 99999}2]", 0, 4)), CheckpointError, "more elements"),
    "no shape": (tensor('{"dtype":"U8","data_offsets":[0,0]}'), CheckpointError, "no 'shape'"),
    "not an entry": (tensor("[1]"), CheckpointError, "expected an object"),
    "name twice": (header(f'{{"x":{GOOD},"x":{GOOD}}}', bytes(4)), CheckpointError, "the name 'x' occurs twice"),
    "field twice": (tensor('{"dtype":"U8","dtype":"I8"}'), CheckpointError, "the name 'dtype' occurs twice"),
    "metadata twice": (header('{"__metadata__":{},"__metadata__":{}}'), CheckpointError, "occurs twice"),
    "metadata of numbers": (header('{"__metadata__":{"a":1}}'), CheckpointError, "not an object of strings"),
    "metadata a list": (header('{"__metadata__":[]}'), CheckpointError, "not an object of strings"),
    "not JSON": (header("{'x': 1}"), CheckpointError, "not JSON"),
    "text after the JSON": (header("{} {}"), CheckpointError, "not JSON"),
    "a list": (header("[]"), CheckpointError, "doesn't begin with"),
    "space first": (header(" {}"), CheckpointError, "doesn't begin with"),
    "not UTF-8": (header(b'{"\xff":1}'), CheckpointError, "byte 2 is not UTF-8"),
    "half a surrogate": (header(f'{{"\\ud800":{GOOD}}}', bytes(4)), CheckpointError, "not Unicode text"),
    "nested deeply": (tensor('{"a":' * 99999), CheckpointError, "nested too deeply"),
    "lists nested deeply": (tensor("[" * 99999), CheckpointError, "nested too deeply"),
    "a folder of that name": (lambda folder: (folder / "model.safetensors").mkdir(), NotFoundError, "no weights"),
}

INDEXES: dict[str, Attack] = {
    "missing shard": (
        shards({"a": "1.safetensors", "b": "3.safetensors"}),
        CheckpointError,
        "3.safetensors is missing",
    ),
    "absent tensors": (
        shards({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}),
        CheckpointError,
        "lists 1 tensors that are in no shard, such as 'c'",
    ),
    "tensor not in the index": (
        shards({"a": "1.safetensors"}, held={"1.safetensors": ["a", "b"]}),
        CheckpointError,
        "'b' is in 1.safetensors, but the index lacks it",
    ),
    "tensor in another shard": (
        shards({"a": "2.safetensors", "b": "1.safetensors"}),
        CheckpointError,
        "but the index assigns it to",
    ),
    "tensor in two shards": (
        shards(
            {"a": "1.safetensors", "b": "2.safetensors"},
            held={"1.safetensors": ["a"], "2.safetensors": ["b", "a"]},
        ),
        CheckpointError,
        "'a' is in two shards",
    ),
    "shard above": (shards({"a": "../1.safetensors"}), CheckpointError, "not a file beside the index"),
    "shard absolute": (shards({"a": "/etc/passwd"}), CheckpointError, "not a file beside the index"),
    "shard of another system": (shards({"a": "..\\1.safetensors"}), CheckpointError, "not a file beside the index"),
    "shard with NUL": (shards({"a": "1.safetensors\0"}), CheckpointError, "not a file beside the index"),
    "shard without name": (shards({"a": ""}), CheckpointError, "not a file beside the index"),
    "shard a number": (shards({"a": 1}), CheckpointError, "is not a file name"),
    "shard with a long name": (shards({"a": "x" * 5000}), CheckpointError, "not a file beside the index"),
    "shards of two formats": (
        shards({"a": "1.safetensors", "b": "b.bin"}, held={"1.safetensors": ["a"], "b.bin": ["b"]}),
        CheckpointError,
        "this is a safetensors file, not what torch.save writes",
    ),
    "index without map": (shards({}), CheckpointError, "no weight_map"),
    "index a list": (shards({}, index="[]"), CheckpointError, "expected an object"),
    "index not JSON": (shards({}, index="nonsense"), CheckpointError, "not JSON"),
    "index with a name twice": (
        shards({}, index='{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}'),
        CheckpointError,
        "'a' occurs twice",
    ),
    "index a bomb": (shards({}, index='{"weight_map":' * 99999), CheckpointError, "nested too deeply"),
}

"""Hostile checkpoints. Each maker writes into a folder, which is then opened."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headscope.errors import CheckpointError, ConfigError, NotFoundError, UnsafeError, UnsupportedError
from making import write_safetensors

Make = Callable[[Path], Any]
"""What writes the file into a folder."""


def raw(data: bytes) -> Make:
    """model.safetensors of exactly these bytes."""
    return lambda folder: (folder / "model.safetensors").write_bytes(data)


def header(text: str | bytes, data: bytes = b"", *, length: int | None = None) -> Make:
    """model.safetensors with this header text, and data after it."""
    encoded = text if isinstance(text, bytes) else text.encode()
    return raw((len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data)


def described(value: str, data: bytes = b"") -> Make:
    """A header with the one tensor x, described by this JSON."""
    return header(f'{{"x":{value}}}', data)


def entry(dtype: str, shape: str, start: int, stop: int) -> str:
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":[{start},{stop}]}}'


def two(first: tuple[int, int], second: tuple[int, int], size: int) -> Make:
    """Tensors a and b of bytes with these spans, in a file with this much data."""
    a, b = (entry('"U8"', f"[{stop - start}]", start, stop) for start, stop in (first, second))
    return header(f'{{"a":{a},"b":{b}}}', bytes(size))


def shards(weight_map: object, *, index: str | None = None, held: dict[str, list[str]] | None = None) -> Make:
    """model.safetensors.index.json with this weight_map (or text), beside shards that hold these names."""

    def make(folder: Path) -> None:
        for file, names in (held or {"1.safetensors": ["a"], "2.safetensors": ["b"]}).items():
            write_safetensors(folder / file, {name: np.ones(2) for name in names})
        text = json.dumps({"weight_map": weight_map}) if index is None else index
        (folder / "model.safetensors.index.json").write_text(text)

    return make


WELL = entry('"U8"', "[4]", 0, 4)

HEADERS: dict[str, Make] = {
    "empty": raw(b""),
    "cut in the length": raw(b"\x08\0\0"),
    "cut in the header": header('{"x":', length=500),
    "cut in the data": described(WELL, bytes(3)),
    "length over the limit": header("{}", length=2**63),
    "a page instead of weights": raw(b"<!DOCTYPE html><html></html>"),
    "a git lfs pointer": raw(b"version https://git-lfs/spec/v1\noid sha256:0\n"),
    "overlap": two((0, 4), (2, 6), 6),
    "the same span twice": two((0, 4), (0, 4), 4),
    "gap": two((0, 4), (6, 8), 8),
    "gap at the start": two((2, 4), (4, 8), 8),
    "out of range": two((0, 4), (4, 80), 8),
    "bytes of no tensor": described(WELL, bytes(9)),
    "span backwards": described(entry('"U8"', "[4]", 4, 0)),
    "span below zero": described(entry('"U8"', "[4]", -4, 0)),
    "span of three": described('{"dtype":"U8","shape":[],"data_offsets":[0,1,2]}'),
    "span and shape differ": described(entry('"F32"', "[4]", 0, 4), bytes(4)),
    "half a byte": described(entry('"F4"', "[1]", 0, 1), bytes(1)),
    "unknown dtype": described(entry('"F33"', "[4]", 0, 4), bytes(4)),
    "dtype in lower case": described(entry('"u8"', "[4]", 0, 4), bytes(4)),
    "dtype a number": described(entry("8", "[4]", 0, 4), bytes(4)),
    "negative shape": described(entry('"U8"', "[-2,-2]", 0, 4), bytes(4)),
    "shape of fractions": described(entry('"U8"', "[4.0]", 0, 4), bytes(4)),
    "shape of truths": described(entry('"U8"', "[true]", 0, 1), bytes(1)),
    "shape a number": described(entry('"U8"', "4", 0, 4), bytes(4)),
    "shape overflows": described(entry('"U8"', f"[{2**62},4]", 0, 0)),
    "shape overflows to 0": described(entry('"U8"', f"[{2**32},{2**32}]", 0, 0)),
    "shape overflows behind 0": described(entry('"U8"', f"[0,{2**62},{2**62}]", 0, 0)),
    "shape beyond 64 bits": described(entry('"U8"', f"[{2**65}]", 0, 4)),
    "number bomb": described(entry('"U8"', f"[{'9' * 9000}]", 0, 4)),
    "shape bomb": described(entry('"U8"', f"[{'2,' * 99999}2]", 0, 4)),
    "no shape": described('{"dtype":"U8","data_offsets":[0,0]}'),
    "not an entry": described("[1]"),
    "name twice": header(f'{{"x":{WELL},"x":{WELL}}}', bytes(4)),
    "field twice": described('{"dtype":"U8","dtype":"I8"}'),
    "metadata twice": header('{"__metadata__":{},"__metadata__":{}}'),
    "metadata of numbers": header('{"__metadata__":{"a":1}}'),
    "metadata a list": header('{"__metadata__":[]}'),
    "not JSON": header("{'x': 1}"),
    "text after the JSON": header("{} {}"),
    "a list": header("[]"),
    "space first": header(" {}"),
    "not UTF-8": header(b'{"\xff":1}'),
    "half a surrogate": header(f'{{"\\ud800":{WELL}}}', bytes(4)),
    "nested deeply": described('{"a":' * 99999),
    "lists nested deeply": described("[" * 99999),
    "a folder of that name": lambda folder: (folder / "model.safetensors").mkdir(),
}

INDEXES: dict[str, Make] = {
    "missing shard": shards({"a": "1.safetensors", "b": "3.safetensors"}),
    "absent tensors": shards({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}),
    "tensor not in the index": shards({"a": "1.safetensors"}, held={"1.safetensors": ["a", "b"]}),
    "tensor in another shard": shards({"a": "2.safetensors", "b": "1.safetensors"}),
    "tensor in two shards": shards(
        {"a": "1.safetensors", "b": "2.safetensors"}, held={"1.safetensors": ["a"], "2.safetensors": ["b", "a"]}
    ),
    "shard above": shards({"a": "../1.safetensors"}),
    "shard absolute": shards({"a": "/etc/passwd"}),
    "shard of another system": shards({"a": "..\\1.safetensors"}),
    "shard with NUL": shards({"a": "1.safetensors\0"}),
    "shard without name": shards({"a": ""}),
    "shard a number": shards({"a": 1}),
    "shard with a long name": shards({"a": "x" * 5000}),
    "shards of two formats": shards(
        {"a": "1.safetensors", "b": "b.bin"}, held={"1.safetensors": ["a"], "b.bin": ["b"]}
    ),
    "index without map": shards({}),
    "index a list": shards({}, index="[]"),
    "index not JSON": shards({}, index="nonsense"),
    "index with a name twice": shards({}, index='{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}'),
    "index a bomb": shards({}, index='{"weight_map":' * 99999),
}


def config(data: bytes) -> Make:
    """A folder with this config.json."""

    def make(folder: Path) -> None:
        write_safetensors(folder / "model.safetensors", {"x": np.ones(2)})
        (folder / "config.json").write_bytes(data)

    return make


CONFIGS: dict[str, Make] = {
    "empty": config(b""),
    "not JSON": config(b"hidden_size: 768"),
    "cut": config(b'{"hidden_size": 76'),
    "a list": config(b"[1, 2]"),
    "a number": config(b"768"),
    "NUL": config(b'{"a": "\0"}'),
    "only NULs": config(bytes(100)),
    "not UTF-8": config(b'{"a": "\xff"}'),
    "UTF-16": config('{"a": 1}'.encode("utf-16")),
    "nested deeply": config(b'{"a":' * 99999),
    "number bomb": config(b'{"a": ' + b"9" * 9000 + b"}"),
    "two answers": config(b'{"hidden_size": 768, "hidden_size": 1024}'),
}


# PyTorch checkpoints: pickles that ask for code, bombs, and archives that contradict themselves.

SENTINEL = "it ran"
COMMAND = f"echo > '{SENTINEL}'"
FOUR = bytes(16)


def text(value: str) -> bytes:
    """The opcode that pushes this string."""
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def number(value: int) -> bytes:
    """The opcode that pushes this whole number."""
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(number(value) for value in values) + b"t"


def called(name: str, arguments: bytes) -> bytes:
    """A call of the global with this full name; arguments is what pushes their tuple."""
    module, _, attribute = name.rpartition(".")
    return f"c{module}\n{attribute}\n".encode() + arguments + b"R"


def storage(key: str = "0", count: int = 4, kind: str = "torch\nFloatStorage") -> bytes:
    return b"(" + text("storage") + f"c{kind}\n".encode() + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(
    shape: tuple[int, ...] = (4,), strides: tuple[int, ...] = (1,), offset: int = 0, held: bytes | None = None
) -> bytes:
    """The opcodes that rebuild a tensor, as torch.save writes them."""
    hooks = called("collections.OrderedDict", b")")
    arguments = (held or storage()) + number(offset) + numbers(*shape) + numbers(*strides) + b"\x89" + hooks
    return called("torch._utils._rebuild_tensor_v2", b"(" + arguments + b"t")


def state(*values: bytes) -> bytes:
    """A pickled dict of x0, x1, ... with these values."""
    return b"\x80\x02}(" + b"".join(text(f"x{i}") + value for i, value in enumerate(values)) + b"u."


def archive(pickled: bytes, data: dict[str, bytes] | None = None, packed: str = "") -> bytes:
    """A zip archive as torch.save writes it; entries whose name contains `packed` are."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in {"data.pkl": pickled, **({"data/0": FOUR} if data is None else data)}.items():
            how = zipfile.ZIP_DEFLATED if packed and packed in name else zipfile.ZIP_STORED
            file.writestr(f"a/{name}", content, how)
    return stream.getvalue()


def legacy(
    pickled: bytes, storages: bytes, keys: bytes = b"\x80\x02](" + text("0") + b"e.", little: bool = True
) -> bytes:
    """The format before zip archives: magic number, protocol, system, state, keys, storages."""
    magic = b"\x80\x02" + number(0x1950A86A20F9469CFC6C) + b"."
    system = b"\x80\x02}" + text("little_endian") + (b"\x88" if little else b"\x89") + b"s."
    return magic + b"\x80\x02" + number(1001) + b"." + system + pickled + keys + storages


def binary(data: bytes) -> Make:
    """pytorch_model.bin of exactly these bytes."""
    return lambda folder: (folder / "pytorch_model.bin").write_bytes(data)


def code(pickled: bytes) -> Make:
    return binary(archive(pickled))


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


GOOD = archive(state(tensor()))
RUN = called("os.system", b"(" + text(COMMAND) + b"t")
POSIX = called("posix.system", b"(" + text(COMMAND) + b"t")
LEGACY_DATA = (4).to_bytes(8, "little") + FOUR
ENCRYPTED = changed(GOOD, b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0")
DOUBLING = b"\x80\x02}" + text("x") + b")" + b"2\x86" * 100 + b"s."

UNSAFE: dict[str, Make] = {
    "runs a command": code(b"\x80\x02" + RUN + b"."),
    "runs a command among tensors": code(state(tensor(), RUN)),
    "runs a command by another name": code(state(POSIX)),
    "runs a command in protocol 0": code(f'cos\nsystem\n(S"{COMMAND}"\ntR.'.encode()),
    "runs a command in protocol 4": code(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R."),
    "runs a command before its state": code(RUN + b"0" + state(tensor())),
    "runs a command by INST": code(f'(S"{COMMAND}"\nios\nsystem\n.'.encode()),
    "makes an object by INST": code(b"(ios\nsystem\n."),
    "makes an object by OBJ": code(b"(No."),
    "makes an object by NEWOBJ": code(b"\x80\x02ccollections\nOrderedDict\n)\x81."),
    "an extension code": code(b"\x80\x02\x82\x01."),
    "evaluates": code(state(called("builtins.eval", b"(" + text("1") + b"t"))),
    "a pickle in a pickle": code(state(called("torch.storage._load_from_bytes", b"(C\x01.t"))),
    "a function beside a known one": code(state(called("torch._utils._import_dotted_name", b"(" + text("os") + b"t"))),
    "calls what is no function": code(state(storage() + b")R")),
    "sets a tensor's state": code(state(tensor() + b"}b")),
    "a name built on the stack": code(b"\x80\x04NN\x93."),
    "legacy, runs a command": binary(legacy(state(RUN), LEGACY_DATA)),
    "legacy, runs a command first": binary(b"\x80\x02" + RUN + b"."),
    "legacy, runs a command among keys": binary(legacy(state(tensor()), LEGACY_DATA, keys=b"\x80\x02" + RUN + b".")),
}

CONJUGATED = b"(" + storage() + number(0) + numbers(4) + numbers(1) + b"\x89}}" + text("conj") + b"\x88st"
PICKLES: dict[str, Make] = {
    "empty": code(b""),
    "cut": code(state(tensor())[:40]),
    "no opcode": code(b"\x80\x02\xff."),
    "opcode out of place": code(b"\x80\x04\x8f."),
    "stack underflow": code(b"\x80\x02a."),
    "values are left": code(b"\x80\x02NN."),
    "mark underflow": code(b"\x80\x02u."),
    "mark bomb": code(b"\x80\x02" + b"(" * 10**6 + b"."),
    "stack bomb": code(b"\x80\x02" + b"N" * (2 * 10**6 + 1)),
    "memo bomb": code(b"\x80\x02Nr\xff\xff\xff\xffN."),
    "memo never kept": code(b"\x80\x02h\x05."),
    "doubling bomb": code(DOUBLING),
    "a list in itself": code(b"\x80\x02]q\0h\0a."),
    "a dict in itself": code(b"\x80\x02}q\0" + text("x") + b"h\0s."),
    "number bomb": code(b"\x80\x02\x8b\xff\xff\xff\x7f."),
    "long text": code(b"\x80\x02X\xff\xff\xff\x7fa."),
    "text not UTF-8": code(b"\x80\x02X\1\0\0\0\xff."),
    "long name": code(b"\x80\x02c" + b"a" * 2000 + b"\n."),
    "list as a key": code(b"\x80\x02}]Ns."),
    "storage with a long name": code(state(tensor(held=storage("k" * 2000)))),
    "axes without end": code(state(tensor((1,) * 65, (1,) * 65))),
    "odd dict": code(b"\x80\x02}(Nu."),
    "name twice": code(b"\x80\x02}(" + 2 * (text("x") + tensor()) + b"u."),
    "item of a number": code(b"\x80\x02K\1NNs."),
    "append to a number": code(b"\x80\x02K\1Na."),
    "persistent id no storage": code(state(b"NQ")),
    "storage below zero": code(state(tensor(held=storage(count=-4)))),
    "tensor without storage": code(state(tensor(held=b"N"))),
    "tensor without anything": code(state(called("torch._utils._rebuild_tensor_v2", b")"))),
    "negative shape": code(state(tensor((-2, -2), (1, 1)))),
    "negative stride": code(state(tensor(strides=(-1,)))),
    "negative offset": code(state(tensor(offset=-1))),
    "strides of other rank": code(state(tensor(strides=(1, 1)))),
    "shape beyond the storage": code(state(tensor((5,)))),
    "offset beyond the storage": code(state(tensor(offset=1))),
    "strides beyond the storage": code(state(tensor((2, 2), (3, 1)))),
    "huge without bytes": code(state(tensor((2**40, 2**20), (0, 0)))),
    "shape overflows": code(state(tensor((2**62, 2**62, 0), (1, 1, 1)))),
    "shape bomb": code(state(tensor((2,) * 9999, (0,) * 9999))),
    "one storage, two types": code(state(tensor(), tensor(held=storage(kind="torch\nIntStorage")))),
    "conjugated": code(state(called("torch._utils._rebuild_tensor_v2", CONJUGATED))),
}

ARCHIVES: dict[str, Make] = {
    "nothing at all": binary(b""),
    "something else": binary(b"ABCD" * 9),
    "another format": binary(b"GGUF" * 9),
    "TensorFlow's": binary(b"\x89HDF\r\n\x1a\n" * 9),
    "a git lfs pointer": binary(b"version https://git-lfs/spec/v1\n"),
    "cut": binary(GOOD[:-30]),
    "cut at the front": binary(b"PK\3\4" + GOOD[40:]),
    "directory beyond the file": binary(GOOD[:-10] + b"\xff\xff\xff\0" + GOOD[-6:]),
    "no entry": binary(b"PK\3\4PK\5\6" + bytes(18)),
    "no data.pkl": binary(changed(GOOD, b"data.pkl", b"data.bkl")),
    "two data.pkl": binary(archive(state(tensor()), {"b/data.pkl": b"N.", "data/0": FOUR})),
    "no data": binary(archive(state(tensor()), {})),
    "short data": binary(archive(state(tensor()), {"data/0": b"1"})),
    "packed data": binary(archive(state(tensor()), packed="data/")),
    "packed pickle, a bomb": lambda folder: binary(archive(b"\x80\x02" + b"N" * 10**7, packed="pkl"))(folder),
    "pickle too large": lambda folder: binary(archive(b"N" * 32_000_001))(folder),
    "encrypted": binary(ENCRYPTED),
    "another checksum": binary(changed(GOOD, b"x0", b"x1")),
    "local header elsewhere": binary(b"PK\3\4" + changed(GOOD, b"PK\3\4", b"PK\3\5")[4:]),
    "the other byte order": binary(archive(state(tensor()), {"data/0": FOUR, "byteorder": b"big"})),
    "a program": binary(archive(state(tensor()), {"data/0": FOUR, "constants.pkl": b"N."})),
    "legacy, cut": binary(legacy(state(tensor()), LEGACY_DATA)[:-3]),
    "legacy, longer": binary(legacy(state(tensor()), LEGACY_DATA + b"1")),
    "legacy, cut in the pickle": binary(legacy(state(tensor())[:60], b"", b"")),
    "legacy, another count": binary(legacy(state(tensor()), (5).to_bytes(8, "little") + FOUR)),
    "legacy, other keys": binary(legacy(state(tensor()), LEGACY_DATA, keys=b"\x80\x02](" + text("1") + b"e.")),
    "legacy, no keys": binary(legacy(state(tensor()), LEGACY_DATA, keys=b"\x80\x02N.")),
    "legacy, the other byte order": binary(legacy(state(tensor()), LEGACY_DATA, little=False)),
    "legacy, only a pickle": binary(state(tensor())),
}


TABLES: dict[str, tuple[dict[str, Make], type[Exception]]] = {
    "header": (HEADERS, CheckpointError),
    "index": (INDEXES, CheckpointError),
    "config": (CONFIGS, ConfigError),
    "unsafe": (UNSAFE, UnsafeError),
    "pickle": (PICKLES, CheckpointError),
    "archive": (ARCHIVES, CheckpointError),
}
"""Attacks, and the kind of error that all but a few raise."""

NOT_READ = ("doubling bomb", "a list in itself", "a dict in itself")
NOT_READ += ("the other byte order", "a program", "legacy, the other byte order")
OTHERS: dict[str, type[Exception]] = {
    "a folder of that name": NotFoundError,
    "runs a command by INST": CheckpointError,
    **dict.fromkeys(NOT_READ, UnsupportedError),
}

ATTACKS = {
    f"{table}: {name}": (make, OTHERS.get(name, kind))
    for table, (attacks, kind) in TABLES.items()
    for name, make in attacks.items()
}

"""A symbolic reader of pickles: a small stack machine that builds values and tensor descriptions, and runs no code.

Names are looked up in short tables, never imported, and functions are never called; any other name raises UnsafeError.
Every opcode does an amount of work that is bounded by the length of the pickle, and shared values stay shared.

The standard pickle.Unpickler has no such bound, even if find_class is restricted: a pickle of 9 bytes that stores its
value under memo index 2**26 (LONG_BINPUT) makes it allocate 1 GB, and so does one of 12 bytes that claims to contain
2**30 bytes (BINBYTES8); index 2**32 - 1 would take 64 GB (measured with CPython 3.11). The pure-Python
pickle._Unpickler keeps its memo in a dict, but it is private, and a BYTEARRAY8 of 12 bytes takes the same 1 GB.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

from headscope.checkpoint.entry import DTYPES, natural
from headscope.checkpoint.json_text import shown
from headscope.errors import CheckpointError, UnsafeError

STORAGES = {f"{dtype.storage}Storage": name for name, dtype in DTYPES.items() if dtype.storage}
NAMES = {f"torch.{dtype.torch}": name for name, dtype in DTYPES.items() if dtype.torch}
"""Torch's classes of storages, and its dtypes -> safetensors' name of the dtype."""

MOST_AXES = 64
"""Maximum number of axes of a tensor in torch."""

LONGEST_KEY = 1000
"""Maximum length of a storage's key, far more than real keys have."""


class MalformedError(Exception):
    """A pickle is not the pickle of a state dict."""


class ForbiddenError(Exception):
    """A pickle requests an operation that no state dict needs."""


@dataclass(frozen=True, slots=True)
class StorageType:
    """A torch storage class, by the dtype of its elements; "U8" for the untyped storage, which counts bytes."""

    dtype: str


@dataclass(frozen=True, slots=True)
class Dtype:
    """A torch dtype such as torch.float32, by safetensors' name."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function or a class, by its full name. It is never called."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of elements outside the pickle, identified by its key."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A view of a storage; offset and strides in elements of dtype."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def look_up(module: object, name: object) -> Function | StorageType | Dtype:
    """Return the symbol for a name.

    Raises:
        ForbiddenError: the name is not in the tables.
    """
    full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""
    storage = full.removeprefix("torch.").removeprefix("cuda.").removeprefix("storage.")
    if full in FUNCTIONS:
        return Function(full)
    if full.startswith("torch.") and storage in STORAGES:
        return StorageType(STORAGES[storage])
    if full == "torch.storage.UntypedStorage":
        return StorageType("U8")
    if full in NAMES:
        return Dtype(NAMES[full])
    raise ForbiddenError(f"imports {shown(full) if full else 'a function whose name is not a string'}")


def describe_storage(value: object) -> Storage:
    """Return a storage from its persistent id: ("storage", type, key, location, count), in old files with a view.

    Raises:
        MalformedError: it is not a storage's id, or it has a view other than None.
    """
    if not isinstance(value, tuple) or len(value) not in (5, 6) or value[0] != "storage":
        raise MalformedError("a persistent id that is not a storage")
    _, kind, key, _, count = value[:5]
    if not isinstance(kind, StorageType) or not isinstance(key, str) or len(key) > LONGEST_KEY or not natural(count):
        raise MalformedError("a storage without its type, key or count")
    if value[5:] not in ((), (None,)):
        raise MalformedError("a storage that is a view of another storage")
    return Storage(key, kind.dtype, count)


def set_item(target: dict[object, object], key: object, value: object) -> None:
    """Set target[key] = value for a new key.

    Raises:
        MalformedError: the key already exists, or its type or size doesn't occur in a state dict.
    """
    if not isinstance(key, str | bytes | int | float | None):
        raise MalformedError(f"a {type(key).__name__} as a key")
    if key in target:
        raise MalformedError(f"the name {shown(str(key))} occurs twice")
    target[key] = value


def _ordered_dict(arguments: tuple[object, ...]) -> dict[object, object]:
    ordered: dict[object, object] = {}
    pairs = arguments[0] if arguments else []
    if len(arguments) > 1 or not isinstance(pairs, list):
        raise MalformedError("an OrderedDict of something other than pairs")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise MalformedError("an OrderedDict of something other than pairs")
        set_item(ordered, pair[0], pair[1])
    return ordered


def _parameter(arguments: tuple[object, ...]) -> PickledTensor:
    if not arguments or not isinstance(arguments[0], PickledTensor):
        raise MalformedError("a parameter without its tensor")
    return arguments[0]


def _size(arguments: tuple[object, ...]) -> tuple[object, ...]:
    if len(arguments) != 1 or not isinstance(arguments[0], list | tuple):
        raise MalformedError("a torch.Size of something other than a list")
    return tuple(arguments[0])


def _tensor(arguments: tuple[object, ...], *, has_dtype: bool = False) -> PickledTensor:
    if len(arguments) < 4:
        raise MalformedError("a tensor without storage, offset, shape and strides")
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, Storage) or not natural(offset) or not _naturals(shape) or not _naturals(strides):
        raise MalformedError("a tensor with an invalid storage, offset, shape or strides")
    if len(shape) != len(strides):
        raise MalformedError(f"a tensor with {len(shape)} axes and {len(strides)} strides")
    if len(shape) > MOST_AXES:
        raise MalformedError(f"a tensor of {len(shape)} axes")
    dtype, flags = storage.dtype, arguments[6:7]
    if has_dtype:
        if len(arguments) < 7 or not isinstance(arguments[6], Dtype):
            raise MalformedError("a tensor without its dtype")
        dtype, flags = arguments[6].name, arguments[7:8]
    if flags and flags[0]:
        raise MalformedError("a tensor with a lazy conjugation or negation")
    return PickledTensor(storage, dtype, offset, shape, strides)


def _naturals(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(map(natural, value))


FUNCTIONS: dict[str, Callable[[tuple[object, ...]], object]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": partial(_tensor, has_dtype=True),
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": _size,
    "torch.device": lambda arguments: None,
}
"""The functions and classes that a state dict's pickle calls -> what stands for their result.

Each raises MalformedError for arguments that don't occur in a state dict.
"""

INTEGER_BYTES = 16

SAFER = (
    "download the model as model.safetensors; a pickle that runs code can do anything to this machine, so don't load "
    "it. If it is your own, save model.state_dict() instead of the model"
)


class TruncatedPickleError(CheckpointError):
    """The bytes end inside the pickle; with more bytes of the file, it may be complete."""


MARK = object()
"""The value that a MARK opcode pushes."""


def read_pickle(data: bytes, position: int, where: str) -> tuple[object, int]:
    """Return the value of the pickle that begins at position, and the position after its end.

    Raises:
        UnsafeError: it names a function or class outside the tables, or creates an object.
        TruncatedPickleError: the bytes end inside the pickle.
        CheckpointError: it is not a pickle, or not the pickle of a state dict.
    """
    machine = _Machine(data, position, where)
    return machine.run(), machine.position


class _Machine:
    def __init__(self, data: bytes, position: int, where: str) -> None:
        self.data = data
        self.position = position
        self.where = where
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        try:
            while True:
                code = self.take(1)[0]
                if code == 0x2E:  # STOP
                    value = self.pop()
                    if self.stack:
                        raise MalformedError("values are left on its stack at its end")
                    return value
                handler = HANDLERS.get(code)
                if handler is None:
                    raise unsupported_opcode(code)
                handler(self)
        except MalformedError as error:
            raise CheckpointError(
                f"the pickle can't be read: {error} (before byte {self.position})",
                where=self.where,
                advice="the file is damaged or not a PyTorch checkpoint: download it again, or get model.safetensors",
            ) from error
        except ForbiddenError as error:
            raise UnsafeError(
                f"the pickle {error}; headscope ran none of it", where=self.where, advice=SAFER
            ) from error

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise TruncatedPickleError(
                f"the pickle is truncated: it needs {end} bytes and has {len(self.data)}",
                where=self.where,
                advice="download or copy the file again",
            )
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + 1000)
        if end < 0:
            if len(self.data) - self.position < 1000:
                self.take(1000)
            raise MalformedError("a name of more than 1000 bytes")
        return self.text(self.take(end + 1 - self.position)[:-1])

    def text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedError("a string that is not UTF-8") from error

    def pop(self) -> object:
        if not self.stack or self.stack[-1] is MARK:
            raise MalformedError("it pops a value from an empty stack")
        return self.stack.pop()

    def top(self) -> object:
        value = self.pop()
        self.stack.append(value)
        return value

    def since_mark(self) -> list[object]:
        items: list[object] = []
        while self.stack:
            value = self.stack.pop()
            if value is MARK:
                items.reverse()
                return items
            items.append(value)
        raise MalformedError("it closes a mark that is not open")

    def several(self, count: int) -> tuple[object, ...]:
        values = [self.pop() for _ in range(count)]
        return tuple(reversed(values))

    def integer(self, count: int) -> int:
        if count > INTEGER_BYTES:
            raise MalformedError(f"an integer of {count} bytes")
        return int.from_bytes(self.take(count), "little", signed=True)

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise MalformedError(f"it gets memo entry {index}, which doesn't exist")
        self.stack.append(self.memo[index])

    def put(self, index: int) -> None:
        self.memo[index] = self.top()

    def extend(self, items: list[object]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise MalformedError(f"it appends to a {type(target).__name__}")
        target.extend(items)

    def set_items(self, items: list[object]) -> None:
        target = self.top()
        if not isinstance(target, dict):
            raise MalformedError(f"it sets an item of a {type(target).__name__}")
        if len(items) % 2:
            raise MalformedError("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            set_item(target, key, value)

    def dictionary(self) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.set_items(items)

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Function) or not isinstance(arguments, tuple):
            raise ForbiddenError(f"calls a {type(function).__name__}")
        self.stack.append(FUNCTIONS[function.name](arguments))

    def build(self) -> None:
        """Ignore an object's state: attributes of an OrderedDict (torch's _metadata), which no tensor depends on."""
        state, target = self.pop(), self.top()
        if not isinstance(target, dict) or not isinstance(state, dict):
            raise ForbiddenError(f"sets the state of a {type(target).__name__}")


def unsupported_opcode(code: int) -> Exception:
    """Return the error for an opcode without a handler."""
    from pickletools import opcodes

    name = next((opcode.name for opcode in opcodes if opcode.code == chr(code)), None)
    if name is None:
        return MalformedError(f"0x{code:02x} is not an opcode")
    if name in ("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID"):
        return ForbiddenError(f"creates an object ({name})")
    return MalformedError(f"the opcode {name} doesn't occur in a state dict")


def _push(make: Callable[[_Machine], object]) -> Callable[[_Machine], None]:
    def handler(machine: _Machine) -> None:
        machine.stack.append(make(machine))

    return handler


HANDLERS: dict[int, Callable[[_Machine], object]] = {
    0x80: lambda m: m.number(1),  # PROTO
    0x95: lambda m: m.number(8),  # FRAME
    ord("("): _push(lambda m: MARK),
    ord("0"): _Machine.pop,
    ord("1"): _Machine.since_mark,
    ord("2"): _push(_Machine.top),
    ord("N"): _push(lambda m: None),
    0x88: _push(lambda m: True),
    0x89: _push(lambda m: False),
    ord("J"): _push(lambda m: m.integer(4)),
    ord("K"): _push(lambda m: m.number(1)),
    ord("M"): _push(lambda m: m.number(2)),
    0x8A: _push(lambda m: m.integer(m.number(1))),
    0x8B: _push(lambda m: m.integer(m.number(4))),
    ord("G"): _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    ord("X"): _push(lambda m: m.text(m.take(m.number(4)))),
    0x8C: _push(lambda m: m.text(m.take(m.number(1)))),
    0x8D: _push(lambda m: m.text(m.take(m.number(8)))),
    ord("T"): _push(lambda m: m.text(m.take(m.number(4)))),
    ord("U"): _push(lambda m: m.text(m.take(m.number(1)))),
    ord("B"): _push(lambda m: m.take(m.number(4))),
    ord("C"): _push(lambda m: m.take(m.number(1))),
    0x8E: _push(lambda m: m.take(m.number(8))),
    ord("]"): _push(lambda m: []),
    ord("l"): _push(_Machine.since_mark),
    ord("a"): lambda m: m.extend([m.pop()]),
    ord("e"): lambda m: m.extend(m.since_mark()),
    ord(")"): _push(lambda m: ()),
    ord("t"): _push(lambda m: tuple(m.since_mark())),
    0x85: _push(lambda m: m.several(1)),
    0x86: _push(lambda m: m.several(2)),
    0x87: _push(lambda m: m.several(3)),
    ord("}"): _push(lambda m: {}),
    ord("d"): _Machine.dictionary,
    ord("s"): lambda m: m.set_items(list(m.several(2))),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("q"): lambda m: m.put(m.number(1)),
    ord("r"): lambda m: m.put(m.number(4)),
    0x94: lambda m: m.put(len(m.memo)),
    ord("h"): lambda m: m.get(m.number(1)),
    ord("j"): lambda m: m.get(m.number(4)),
    ord("c"): _push(lambda m: look_up(m.line(), m.line())),
    0x93: _push(lambda m: look_up(*m.several(2))),
    ord("R"): _Machine.reduce,
    ord("b"): _Machine.build,
    ord("Q"): _push(lambda m: describe_storage(m.pop())),
}
"""Code of each opcode -> its handler (pickle protocols 2 to 5)."""

"""A pickle read symbolically: a small stack machine that builds plain values and tensor descriptions, and runs nothing.

Globals are looked up by name in a short table, never imported. What is not in the table is refused by name. Time and
memory are bounded by the length of the pickle: every opcode is a fixed amount of work, and shared values stay shared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from headscope.checkpoint.entry import LARGEST
from headscope.checkpoint.json_text import shown
from headscope.errors import CheckpointError, UnsafeError

STEP_LIMIT = 2_000_000
MARK_LIMIT = 500
INTEGER_BYTES = 16

STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
}
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
SAFER = "get the model as model.safetensors; a pickle that runs code can do anything to this machine, so don't load it"


@dataclass(frozen=True, slots=True)
class StorageType:
    """A torch storage class, by the dtype of its elements; "U8" for the untyped one, which counts bytes."""

    dtype: str


@dataclass(frozen=True, slots=True)
class Dtype:
    """torch.float32 and its like, by safetensors' name."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function of torch's or a class, by its full name. It is never called."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of elements that lies outside the pickle, named by its key."""

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


class TruncatedPickleError(CheckpointError):
    """The bytes end inside the pickle: with more of the file it might go on."""


class _Mark:
    """Stands on the stack where a MARK opcode put it."""


MARK = _Mark()
FUNCTIONS = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch.Size",
    "torch.device",
}


def read_pickle(data: bytes, position: int, where: str) -> tuple[object, int]:
    """The value of the pickle that begins at position, and the position just after it.

    Raises:
        UnsafeError: it names a function or class outside the table, or asks for an object to be made.
        TruncatedPickleError: the bytes end before it does.
        CheckpointError: it is not a pickle, or not one that a state dict needs.
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
        self.marks = 0

    def run(self) -> object:
        for _ in range(STEP_LIMIT):
            code = self.take(1)[0]
            if code == 0x2E:  # STOP
                value = self.pop()
                if self.stack:
                    raise self.fault("it stops with values left on its stack")
                return value
            handler = HANDLERS.get(code)
            if handler is None:
                raise self.refused(code)
            handler(self)
        raise self.fault(f"it has more than {STEP_LIMIT} steps")

    def fault(self, found: str) -> CheckpointError:
        return CheckpointError(
            f"the pickle can't be read: {found} (before byte {self.position})",
            where=self.where,
            advice="the file is damaged or not a PyTorch checkpoint: download it again, or get model.safetensors",
        )

    def unsafe(self, found: str) -> UnsafeError:
        return UnsafeError(f"the pickle {found}: refused, nothing was run", where=self.where, advice=SAFER)

    def refused(self, code: int) -> CheckpointError:
        from pickletools import opcodes

        known = next((opcode.name for opcode in opcodes if opcode.code == chr(code)), None)
        if known is None:
            return self.fault(f"0x{code:02x} is no opcode of a pickle")
        if known in ("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID"):
            return self.unsafe(f"asks for an object to be made ({known})")
        return self.fault(f"the opcode {known} does not occur in a state dict")

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise TruncatedPickleError(
                f"the pickle is truncated: byte {end} is needed, it has {len(self.data)}",
                where=self.where,
                advice="download or copy the file again",
            )
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + 1000)
        if end < 0:
            if len(self.data) - self.position < 1000:
                self.take(1000)
            raise self.fault("a name of more than 1000 bytes")
        return self.text(self.take(end + 1 - self.position)[:-1])

    def text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault("a text that is not UTF-8") from error

    def pop(self) -> object:
        if not self.stack or isinstance(self.stack[-1], _Mark):
            raise self.fault("it takes a value where its stack has none")
        return self.stack.pop()

    def top(self) -> object:
        value = self.pop()
        self.stack.append(value)
        return value

    def mark(self) -> None:
        self.marks += 1
        if self.marks > MARK_LIMIT:
            raise self.fault(f"more than {MARK_LIMIT} marks are open")
        self.stack.append(MARK)

    def since_mark(self) -> list[object]:
        items: list[object] = []
        while self.stack:
            value = self.stack.pop()
            if isinstance(value, _Mark):
                self.marks -= 1
                items.reverse()
                return items
            items.append(value)
        raise self.fault("it closes a mark that was not opened")

    def several(self, count: int) -> tuple[object, ...]:
        values = [self.pop() for _ in range(count)]
        return tuple(reversed(values))

    def integer(self, count: int) -> int:
        if count > INTEGER_BYTES:
            raise self.fault(f"a number of {count} bytes")
        return int.from_bytes(self.take(count), "little", signed=True)

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise self.fault(f"it recalls value {index}, which it never kept")
        self.stack.append(self.memo[index])

    def put(self, index: int) -> None:
        self.memo[index] = self.top()

    def extend(self, items: list[object]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise self.fault(f"it appends to a {type(target).__name__}")
        target.extend(items)

    def set_items(self, items: list[object]) -> None:
        target = self.top()
        if not isinstance(target, dict):
            raise self.fault(f"it sets an item of a {type(target).__name__}")
        if len(items) % 2:
            raise self.fault("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.set_item(target, key, value)

    def set_item(self, target: dict[object, object], key: object, value: object) -> None:
        if not isinstance(key, str | bytes | int | float | None):
            raise self.fault(f"a {type(key).__name__} as a key")
        if key in target:
            raise self.fault(f"the name {shown(str(key))} occurs twice")
        target[key] = value

    def dictionary(self) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.set_items(items)

    def look_up(self, module: object, name: object) -> None:
        full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""
        storage = full.removeprefix("torch.").removeprefix("cuda.").removeprefix("storage.")
        if full in FUNCTIONS:
            self.stack.append(Function(full))
        elif full.startswith("torch.") and storage in STORAGES:
            self.stack.append(StorageType(STORAGES[storage]))
        elif full == "torch.storage.UntypedStorage":
            self.stack.append(StorageType("U8"))
        elif full.startswith("torch.") and full.removeprefix("torch.") in DTYPES:
            self.stack.append(Dtype(DTYPES[full.removeprefix("torch.")]))
        else:
            raise self.unsafe(f"asks for {shown(full) if full else 'something that is not a name'}")

    def persistent(self) -> None:
        """A storage: ("storage", type, key, location, count), and in old files None, or a view."""
        value = self.pop()
        if not isinstance(value, tuple) or len(value) not in (5, 6) or value[0] != "storage":
            raise self.fault("a persistent id that is not a storage")
        _, kind, key, _, count = value[:5]
        if not isinstance(kind, StorageType) or not isinstance(key, str) or not natural(count):
            raise self.fault("a storage without its type, key or count")
        if value[5:] not in ((), (None,)):
            raise self.fault("a storage that is a view of another one")
        self.stack.append(Storage(key, kind.dtype, count))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Function) or not isinstance(arguments, tuple):
            raise self.unsafe(f"calls a {type(function).__name__}")
        self.stack.append(self.call(function.name, arguments))

    def call(self, name: str, arguments: tuple[object, ...]) -> object:
        if name == "collections.OrderedDict":
            ordered: dict[object, object] = {}
            pairs = arguments[0] if arguments else []
            if len(arguments) > 1 or not isinstance(pairs, list):
                raise self.fault("an OrderedDict of something other than pairs")
            for pair in pairs:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise self.fault("an OrderedDict of something other than pairs")
                self.set_item(ordered, pair[0], pair[1])
            return ordered
        if name == "torch._utils._rebuild_parameter":
            if not arguments or not isinstance(arguments[0], PickledTensor):
                raise self.fault("a parameter without its tensor")
            return arguments[0]
        if name == "torch.Size":
            if len(arguments) != 1 or not isinstance(arguments[0], list | tuple):
                raise self.fault("a torch.Size that is not one list")
            return tuple(arguments[0])
        if name == "torch.device":
            return None
        return self.tensor(name, arguments)

    def tensor(self, name: str, arguments: tuple[object, ...]) -> PickledTensor:
        if len(arguments) < 4:
            raise self.fault("a tensor without storage, offset, shape and strides")
        storage, offset, shape, strides = arguments[:4]
        if not isinstance(storage, Storage) or not natural(offset) or not naturals(shape) or not naturals(strides):
            raise self.fault("a tensor whose storage, offset, shape or strides are none")
        if len(shape) != len(strides):
            raise self.fault(f"a tensor with {len(shape)} axes and {len(strides)} strides")
        dtype, flags = storage.dtype, arguments[6:7]
        if name.endswith("_v3"):
            if len(arguments) < 7 or not isinstance(arguments[6], Dtype):
                raise self.fault("a tensor without its dtype")
            dtype, flags = arguments[6].name, arguments[7:8]
        if flags and flags[0]:
            raise self.fault("a tensor that is to be conjugated or negated when it is read")
        return PickledTensor(storage, dtype, offset, shape, strides)

    def build(self) -> None:
        """State for an object: an OrderedDict's own attributes (torch's _metadata), which no tensor depends on."""
        state, target = self.pop(), self.top()
        if not isinstance(target, dict) or not isinstance(state, dict):
            raise self.unsafe(f"sets the state of a {type(target).__name__}")


def natural(value: object) -> TypeGuard[int]:
    """Whether this is a whole number that a file can count."""
    return type(value) is int and 0 <= value <= LARGEST


def naturals(value: object) -> TypeGuard[tuple[int, ...]]:
    """Whether this is a tuple of such numbers."""
    return isinstance(value, tuple) and all(natural(item) for item in value)


def _push(make: Callable[[_Machine], object]) -> Callable[[_Machine], None]:
    def handler(machine: _Machine) -> None:
        machine.stack.append(make(machine))

    return handler


HANDLERS: dict[int, Callable[[_Machine], object]] = {
    0x80: lambda m: m.number(1),  # PROTO
    0x95: lambda m: m.number(8),  # FRAME
    ord("("): _Machine.mark,
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
    ord("c"): lambda m: m.look_up(m.line(), m.line()),
    0x93: lambda m: m.look_up(*m.several(2)),
    ord("R"): _Machine.reduce,
    ord("b"): _Machine.build,
    ord("Q"): _Machine.persistent,
}
"""What each opcode does, by its code (pickle protocols 2 to 5)."""

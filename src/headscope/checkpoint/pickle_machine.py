"""A symbolic reader of pickles: a small stack machine that builds values and tensor descriptions, and runs no code.

Names are looked up in the tables of pickle_torch.py; any other name raises UnsafeError. Time and memory are bounded by
the length of the pickle: every opcode does a fixed amount of work, shared values stay shared, and the arguments of
calls are counted.

The standard pickle.Unpickler has no such bound, even if find_class is restricted: a pickle of 9 bytes that stores its
value under memo index 2**26 (LONG_BINPUT) makes it allocate 1 GB, and so does one of 12 bytes that claims to contain
2**30 bytes (BINBYTES8); index 2**32 - 1 would take 64 GB (measured with CPython 3.11). The pure-Python
pickle._Unpickler keeps its memo in a dict, but it is private, and a BYTEARRAY8 of 12 bytes takes the same 1 GB.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from headscope.checkpoint.pickle_torch import (
    ForbiddenError,
    Function,
    MalformedError,
    describe_call,
    describe_storage,
    look_up,
    set_item,
)
from headscope.errors import CheckpointError, UnsafeError

STEP_LIMIT = 2_000_000
MARK_LIMIT = 500
INTEGER_BYTES = 16

SAFER = (
    "download the model as model.safetensors; a pickle that runs code can do anything to this machine, so don't load "
    "it. If it is your own, save model.state_dict() instead of the model"
)


class TruncatedPickleError(CheckpointError):
    """The bytes end inside the pickle; with more bytes of the file, it may be complete."""


class _Mark:
    """The value that a MARK opcode pushes."""


MARK = _Mark()


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
        self.marks = 0
        self.items = 0

    def run(self) -> object:
        try:
            for _ in range(STEP_LIMIT):
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
            raise MalformedError(f"it has more than {STEP_LIMIT} steps")
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
        if not self.stack or isinstance(self.stack[-1], _Mark):
            raise MalformedError("it pops a value from an empty stack")
        return self.stack.pop()

    def top(self) -> object:
        value = self.pop()
        self.stack.append(value)
        return value

    def mark(self) -> None:
        self.marks += 1
        if self.marks > MARK_LIMIT:
            raise MalformedError(f"more than {MARK_LIMIT} marks are open")
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

    def look_up(self, module: object, name: object) -> None:
        self.stack.append(look_up(module, name))

    def persistent(self) -> None:
        self.stack.append(describe_storage(self.pop()))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Function) or not isinstance(arguments, tuple):
            raise ForbiddenError(f"calls a {type(function).__name__}")
        # The memo makes arguments free in bytes: many calls with one long list would take quadratic time.
        self.items += sum(len(argument) for argument in arguments if isinstance(argument, list | tuple))
        if self.items > STEP_LIMIT:
            raise MalformedError(f"its calls have more than {STEP_LIMIT} items as arguments")
        self.stack.append(describe_call(function.name, arguments))

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
"""Code of each opcode -> its handler (pickle protocols 2 to 5)."""

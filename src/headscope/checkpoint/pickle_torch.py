"""The names that a state dict's pickle may use, and their results: descriptions of storages and tensors.

Names are looked up in short tables, never imported; functions are represented by name, never called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from headscope.checkpoint.entry import LARGEST
from headscope.checkpoint.json_text import shown

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
FUNCTIONS = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch.Size",
    "torch.device",
}
"""The functions and classes that a state dict's pickle calls."""

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
    if full.startswith("torch.") and full.removeprefix("torch.") in DTYPES:
        return Dtype(DTYPES[full.removeprefix("torch.")])
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


def describe_call(name: str, arguments: tuple[object, ...]) -> object:
    """Return the result of calling one of `FUNCTIONS`: a dict, a tuple, a tensor's description, or None for a device.

    Raises:
        MalformedError: the arguments don't occur in a state dict.
    """
    if name == "collections.OrderedDict":
        return _ordered_dict(arguments)
    if name == "torch._utils._rebuild_parameter":
        if not arguments or not isinstance(arguments[0], PickledTensor):
            raise MalformedError("a parameter without its tensor")
        return arguments[0]
    if name == "torch.Size":
        if len(arguments) != 1 or not isinstance(arguments[0], list | tuple):
            raise MalformedError("a torch.Size of something other than a list")
        return tuple(arguments[0])
    if name == "torch.device":
        return None
    return _tensor(name, arguments)


def set_item(target: dict[object, object], key: object, value: object) -> None:
    """Set target[key] = value for a new key.

    Raises:
        MalformedError: the key already exists, or its type or size doesn't occur in a state dict.
    """
    if not isinstance(key, str | bytes | int | float | None):
        raise MalformedError(f"a {type(key).__name__} as a key")
    # Longer integers can be chosen to have equal hashes, so that a dict of them takes quadratic time.
    if isinstance(key, int) and abs(key) > LARGEST:
        raise MalformedError("an integer of more than 64 bits as a key")
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


def _tensor(name: str, arguments: tuple[object, ...]) -> PickledTensor:
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
    if name.endswith("_v3"):
        if len(arguments) < 7 or not isinstance(arguments[6], Dtype):
            raise MalformedError("a tensor without its dtype")
        dtype, flags = arguments[6].name, arguments[7:8]
    if flags and flags[0]:
        raise MalformedError("a tensor with a lazy conjugation or negation")
    return PickledTensor(storage, dtype, offset, shape, strides)


def natural(value: object) -> TypeGuard[int]:
    """Return True for an integer from 0 to `LARGEST`."""
    return type(value) is int and 0 <= value <= LARGEST


def _naturals(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(natural(item) for item in value)

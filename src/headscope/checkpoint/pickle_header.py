"""The header of a pytorch_model.bin: what its pickle says of each tensor, and where in the file the tensor's bytes are.

Two formats: the zip archive that torch.save writes since 1.6 (data.pkl, and a stored entry per storage), and the older
one, five pickles in a row followed by the storages. Neither is unpickled: pickle_machine.py reads them symbolically.
"""

from __future__ import annotations

from zlib import crc32

from headscope.checkpoint.entry import DTYPE_BITS, TensorEntry, contiguous_strides, element_count
from headscope.checkpoint.formats import check_first_bytes
from headscope.checkpoint.json_text import shown
from headscope.checkpoint.pickle_machine import TruncatedPickleError, read_pickle
from headscope.checkpoint.pickle_torch import PickledTensor, Storage
from headscope.checkpoint.source import Source
from headscope.checkpoint.zip_directory import data_start, read_zip_directory
from headscope.errors import CheckpointError, UnsupportedError

PICKLE_LIMIT = 32_000_000
FIRST_WINDOW = 64 * 1024
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
PICKLE_START = b"\x80"
LEGACY_PROTOCOL = 1001
NESTS = ("state_dict", "model_state_dict", "model", "module")
DAMAGED = "the file is truncated or damaged: download or copy it again"
RESAVE = "load it with torch and save it as model.safetensors"


def read_pickle_header(source: Source) -> dict[str, TensorEntry]:
    """Every tensor of a PyTorch checkpoint, in the order of its state dict. No weights are read, nothing is run.

    Raises:
        UnsafeError: the pickle asks for anything but tensors and plain containers.
        CheckpointError: the file is damaged, or contradicts itself.
        UnsupportedError: not a state dict, or of a machine with the other byte order.
    """
    start = source.read(0, min(source.size, 8))
    if start.startswith(b"PK\3\4"):
        return _read_zip(source)
    if start.startswith(PICKLE_START):
        return _read_legacy(source)
    check_first_bytes(source, "what torch.save writes")
    raise CheckpointError(
        f"neither of torch.save's two formats begins with {start[:8]!r}", where=source.where, advice=DAMAGED
    )


def _read_zip(source: Source) -> dict[str, TensorEntry]:
    entries = read_zip_directory(source)
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError(
            f"the archive has {len(pickles)} data.pkl, a checkpoint has one", where=source.where, advice=DAMAGED
        )
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in entries:
        raise UnsupportedError(
            "this is a TorchScript program, not a state dict", where=source.where, advice=f"{RESAVE}: its state_dict()"
        )

    def content(name: str, limit: int) -> bytes:
        entry = entries[root + name]
        if entry.size > limit:
            raise CheckpointError(
                f"{name} has {entry.size} bytes, {limit} are allowed", where=source.where, advice=RESAVE
            )
        start = data_start(source, entry)
        data = source.read(start, start + entry.size)
        if crc32(data) != entry.crc:
            raise CheckpointError(f"the checksum of {name} does not match", where=source.where, advice=DAMAGED)
        return data

    if f"{root}byteorder" in entries and (order := content("byteorder", 16)) != b"little":
        raise UnsupportedError(
            f"its numbers are in byte order {order!r}, headscope reads little", where=source.where, advice=RESAVE
        )
    state, _ = read_pickle(content("data.pkl", PICKLE_LIMIT), 0, source.where)
    _storages(state, source)
    starts: dict[str, int] = {}

    def begin(storage: Storage) -> int:
        if storage.key not in starts:
            entry = entries.get(f"{root}data/{storage.key}")
            size = storage.count * DTYPE_BITS[storage.dtype] // 8
            if entry is None or entry.size != size:
                found = "is missing" if entry is None else f"has {entry.size} bytes, {size} are needed"
                raise CheckpointError(
                    f"the data of storage {shown(storage.key)} {found}", where=source.where, advice=DAMAGED
                )
            starts[storage.key] = data_start(source, entry)
        return starts[storage.key]

    return {
        name: _entry(name, tensor, begin(tensor.storage), source) for name, tensor in _tensors(state, source).items()
    }


def _read_legacy(source: Source) -> dict[str, TensorEntry]:
    """Magic number, protocol, system, state dict, storage keys: five pickles. Then each storage, after its count."""
    data = source.read(0, min(FIRST_WINDOW, source.size))
    while True:
        try:
            values: list[object] = []
            position = 0
            while len(values) < 5:
                value, position = read_pickle(data, position, source.where)
                if not values and value != LEGACY_MAGIC:
                    raise CheckpointError(
                        "a pickle, but not one of torch.save's two formats", where=source.where, advice=RESAVE
                    )
                values.append(value)
            break
        except TruncatedPickleError:
            if len(data) >= min(source.size, PICKLE_LIMIT):
                raise
            data += source.read(len(data), min(2 * len(data), source.size))
    _, protocol, system, state, keys = values
    if protocol != LEGACY_PROTOCOL or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise UnsupportedError(
            "its numbers are in another byte order, or of another protocol than 1001",
            where=source.where,
            advice=RESAVE,
        )
    tensors = _tensors(state, source)
    storages = _storages(state, source)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise CheckpointError("the list of storages is not one of different keys", where=source.where, advice=DAMAGED)
    if set(keys) != set(storages):
        odd = sorted(set(keys) ^ set(storages))[0]
        raise CheckpointError(
            f"storage {shown(odd)} is listed but no tensor has it, or the other way round",
            where=source.where,
            advice=f"{DAMAGED}, or {RESAVE}",
        )
    starts: dict[str, int] = {}
    for key in keys:
        starts[key] = position + 8
        count = storages[key].count
        position += 8 + count * DTYPE_BITS[storages[key].dtype] // 8
        if position > source.size:
            break
        if not source.remote and source.read(starts[key] - 8, starts[key]) != count.to_bytes(8, "little"):
            raise CheckpointError(
                f"storage {shown(key)} has another count than its {count} elements", where=source.where, advice=DAMAGED
            )
    if position != source.size:
        raise CheckpointError(
            f"its tensors need {position} bytes or more, the file has {source.size}", where=source.where, advice=DAMAGED
        )
    return {name: _entry(name, tensor, starts[tensor.storage.key], source) for name, tensor in tensors.items()}


def _tensors(state: object, source: Source) -> dict[str, PickledTensor]:
    """The state dict of a pickle: what it keeps under one of the usual names, or itself."""
    if not isinstance(state, dict):
        kind = "tensor" if isinstance(state, PickledTensor) else type(state).__name__
        raise UnsupportedError(f"this holds a {kind}, not a state dict", where=source.where, advice=RESAVE)
    nests = [state[name] for name in NESTS if isinstance(state.get(name), dict)]
    candidates = [*nests, state]
    found = next((one for one in candidates if _holds_tensors(one)), candidates[0])
    tensors: dict[str, PickledTensor] = {}
    for name, value in found.items():
        if isinstance(value, PickledTensor):
            if not isinstance(name, str):
                raise UnsupportedError("a tensor whose name is not a text", where=source.where, advice=RESAVE)
            tensors[name] = value
        elif isinstance(value, dict | list | tuple) and value:
            raise UnsupportedError(
                f"{shown(str(name))} is a {type(value).__name__} inside the state dict; names of tensors are needed",
                where=source.where,
                advice=f"{RESAVE}: one flat state dict",
            )
    if not tensors:
        raise UnsupportedError("this holds no tensors", where=source.where, advice=RESAVE)
    return tensors


def _holds_tensors(state: dict[object, object]) -> bool:
    return any(isinstance(value, PickledTensor) for value in state.values())


def _storages(state: object, source: Source) -> dict[str, Storage]:
    """Every storage by its key, those of tensors outside the state dict (an optimizer's) included."""
    found: dict[str, Storage] = {}
    seen: set[int] = set()
    left = [state]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, PickledTensor):
            left.append(value.storage)
        elif isinstance(value, Storage) and found.setdefault(value.key, value) != value:
            raise CheckpointError(
                f"storage {shown(value.key)} is described in two ways", where=source.where, advice=DAMAGED
            )
    return found


def _entry(name: str, tensor: PickledTensor, begin: int, source: Source) -> TensorEntry:
    """The bytes of a tensor, checked to lie inside its storage and to need no more room than the file has."""
    bits = DTYPE_BITS[tensor.dtype]
    count = element_count(tensor.shape)
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.strides, strict=True))
    reached = 0 if count == 0 else tensor.offset + last + 1
    room = tensor.storage.count * DTYPE_BITS[tensor.storage.dtype]
    if count is None or reached * bits > room or count * bits > 8 * source.size:
        raise CheckpointError(
            f"tensor {shown(name)} of shape {_short(tensor.shape)} reaches beyond its storage of {room // 8} bytes",
            where=source.where,
            advice=DAMAGED,
        )
    start = begin + (tensor.offset * bits // 8 if count else 0)
    natural = contiguous_strides(tensor.shape)
    # The step along an axis of one element is never taken: torch writes any number there.
    steps = tuple(n if length == 1 else s for length, s, n in zip(tensor.shape, tensor.strides, natural, strict=True))
    strides = None if count == 0 or steps == natural else steps
    return TensorEntry(
        name, tensor.dtype, tensor.shape, source.name, start, start + (last + 1 if count else 0) * bits // 8, strides
    )


def _short(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 8 else f"{shape[:8]} and {len(shape) - 8} more axes"

"""The header of a pytorch_model.bin: its pickle's description of each tensor, and the position of the tensor's bytes.

There are two formats: the zip archive of torch.save since 1.6 (data.pkl and one stored entry per storage), and the
older one, five consecutive pickles followed by the storages. Neither is unpickled: pickle_machine.py reads both
symbolically.
"""

from __future__ import annotations

from zlib import crc32

from headscope.checkpoint.entry import DTYPE_BITS, TensorEntry, contiguous_strides, element_count
from headscope.checkpoint.formats import check_first_bytes, of_safetensors
from headscope.checkpoint.json_text import brief, shown
from headscope.checkpoint.pickle_machine import PickledTensor, Storage, TruncatedPickleError, read_pickle
from headscope.checkpoint.raw_files import Source
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
    """Return the tensors of a PyTorch checkpoint, in the order of its state dict. Reads no weights and runs no code.

    Raises:
        UnsafeError: the pickle requests anything but tensors and plain containers.
        CheckpointError: the file is damaged or contradicts itself.
        UnsupportedError: it is not a state dict, or it is big-endian.
    """
    start = source.read(0, min(source.size, 9))
    if start.startswith(b"PK\3\4"):
        return _read_zip(source)
    if start.startswith(PICKLE_START) and not of_safetensors(start):
        return _read_legacy(source)
    check_first_bytes(source, "what torch.save writes")
    raise CheckpointError(
        f"the file begins with {start[:8]!r}, which is neither of torch.save's formats",
        where=source.where,
        advice=DAMAGED,
    )


def _read_zip(source: Source) -> dict[str, TensorEntry]:
    entries = read_zip_directory(source)
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError(
            f"the archive has {len(pickles)} files named data.pkl, expected one", where=source.where, advice=DAMAGED
        )
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in entries:
        raise UnsupportedError(
            "this is a TorchScript program, not a state dict",
            where=source.where,
            advice="load it with torch.jit.load and save its state_dict() as model.safetensors",
        )

    def content(name: str, limit: int) -> bytes:
        entry = entries[root + name]
        if entry.size > limit:
            raise CheckpointError(
                f"{name} has {entry.size} bytes, the limit is {limit}", where=source.where, advice=RESAVE
            )
        start = data_start(source, entry)
        data = source.read(start, start + entry.size)
        if crc32(data) != entry.crc:
            raise CheckpointError(f"the checksum of {name} does not match", where=source.where, advice=DAMAGED)
        return data

    if f"{root}byteorder" in entries and (order := content("byteorder", 16)) != b"little":
        raise UnsupportedError(
            f"its byte order is {order!r}, headscope reads only little", where=source.where, advice=RESAVE
        )
    state, _ = read_pickle(content("data.pkl", PICKLE_LIMIT), 0, source.where)
    _storages(state, source)
    starts: dict[str, int] = {}

    def begin(storage: Storage) -> int:
        if storage.key not in starts:
            entry = entries.get(f"{root}data/{storage.key}")
            size = storage.count * DTYPE_BITS[storage.dtype] // 8
            if entry is None or entry.size != size:
                problem = "is missing" if entry is None else f"has {entry.size} bytes, expected {size}"
                raise CheckpointError(
                    f"the data of storage {shown(storage.key)} {problem}", where=source.where, advice=DAMAGED
                )
            starts[storage.key] = data_start(source, entry)
        return starts[storage.key]

    return {
        name: _entry(name, tensor, begin(tensor.storage), source) for name, tensor in _tensors(state, source).items()
    }


def _read_legacy(source: Source) -> dict[str, TensorEntry]:
    """Read five pickles (magic number, protocol, system, state dict, storage keys), then each storage's count."""
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
            f"it is not little-endian, or its protocol is not {LEGACY_PROTOCOL}",
            where=source.where,
            advice=RESAVE,
        )
    tensors = _tensors(state, source)
    storages = _storages(state, source)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise CheckpointError("the list of storages is not a list of unique keys", where=source.where, advice=DAMAGED)
    if set(keys) != set(storages):
        mismatch = sorted(set(keys) ^ set(storages))[0]
        raise CheckpointError(
            f"storage {shown(mismatch)} is listed but has no tensor"
            if mismatch in keys
            else f"storage {shown(mismatch)} has a tensor but is not listed",
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
                f"storage {shown(key)} should have {count} elements, but its own count differs",
                where=source.where,
                advice=DAMAGED,
            )
    if position != source.size:
        raise CheckpointError(
            f"its tensors need at least {position} bytes, the file has {source.size}",
            where=source.where,
            advice=DAMAGED,
        )
    return {name: _entry(name, tensor, starts[tensor.storage.key], source) for name, tensor in tensors.items()}


def _tensors(state: object, source: Source) -> dict[str, PickledTensor]:
    """Return the tensors of the state dict: the pickled dict itself, or its item under one of the usual names."""
    if not isinstance(state, dict):
        kind = "tensor" if isinstance(state, PickledTensor) else type(state).__name__
        raise UnsupportedError(f"the file contains a {kind}, not a state dict", where=source.where, advice=RESAVE)
    nests = [state[name] for name in NESTS if isinstance(state.get(name), dict)]
    candidates = [*nests, state]
    state_dict = next((candidate for candidate in candidates if _has_tensors(candidate)), candidates[0])
    tensors: dict[str, PickledTensor] = {}
    for name, value in state_dict.items():
        if isinstance(value, PickledTensor):
            if not isinstance(name, str):
                raise UnsupportedError(
                    f"the name of a tensor is {brief(name)}, expected a string", where=source.where, advice=RESAVE
                )
            tensors[name] = value
        elif isinstance(value, dict | list | tuple) and value:
            raise UnsupportedError(
                f"{shown(str(name))} is a {type(value).__name__} inside the state dict, expected a tensor",
                where=source.where,
                advice=f"{RESAVE}: one flat state dict",
            )
    if not tensors:
        raise UnsupportedError("the file contains no tensors", where=source.where, advice=RESAVE)
    return tensors


def _has_tensors(state: dict[object, object]) -> bool:
    return any(isinstance(value, PickledTensor) for value in state.values())


def _storages(state: object, source: Source) -> dict[str, Storage]:
    """Return all storages by key, including those outside the state dict (such as an optimizer's)."""
    storages: dict[str, Storage] = {}
    seen: set[int] = set()
    pending = [state]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, PickledTensor):
            pending.append(value.storage)
        elif isinstance(value, Storage) and storages.setdefault(value.key, value) != value:
            raise CheckpointError(
                f"storage {shown(value.key)} has two contradictory descriptions", where=source.where, advice=DAMAGED
            )
    return storages


def _entry(name: str, tensor: PickledTensor, begin: int, source: Source) -> TensorEntry:
    """Return a tensor's entry, after checking that the tensor fits into its storage and into the file."""
    bits = DTYPE_BITS[tensor.dtype]
    count = element_count(tensor.shape)
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.strides, strict=True))
    end = 0 if count == 0 else tensor.offset + last + 1
    capacity = tensor.storage.count * DTYPE_BITS[tensor.storage.dtype]
    if count is None or end * bits > capacity or count * bits > 8 * source.size:
        raise CheckpointError(
            f"tensor {shown(name)} of shape {_short(tensor.shape)} exceeds its storage of {capacity // 8} bytes",
            where=source.where,
            advice=DAMAGED,
        )
    start = begin + (tensor.offset * bits // 8 if count else 0)
    natural = contiguous_strides(tensor.shape)
    # The stride of an axis of length 1 has no effect: torch writes any number there.
    steps = tuple(n if length == 1 else s for length, s, n in zip(tensor.shape, tensor.strides, natural, strict=True))
    strides = None if count == 0 or steps == natural else steps
    return TensorEntry(
        name, tensor.dtype, tensor.shape, source.name, start, start + (last + 1 if count else 0) * bits // 8, strides
    )


def _short(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 8 else f"{shape[:8]} and {len(shape) - 8} more axes"

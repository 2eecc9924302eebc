"""The header of a pytorch_model.bin: its pickle's description of each tensor, and the position of the tensor's bytes.

There are two formats: the zip archive of torch.save since 1.6 (data.pkl and one stored entry per storage), and the
older one, five consecutive pickles followed by the storages. Neither is unpickled: pickle_machine.py reads both
symbolically. Of a zip archive the directory is read, for the positions of its uncompressed entries.
"""

from __future__ import annotations

import struct
from functools import cache
from io import BytesIO
from operator import attrgetter
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile, ZipInfo
from zlib import crc32

from headscope.checkpoint.entry import DTYPES, TensorEntry, contiguous_strides, element_count
from headscope.checkpoint.formats import DAMAGED, check_first_bytes, damaged, of_safetensors
from headscope.checkpoint.json_text import brief, shown
from headscope.checkpoint.pickle_machine import PickledTensor, Storage, TruncatedPickleError, read_pickle
from headscope.checkpoint.raw_files import Source
from headscope.errors import CheckpointError, UnsupportedError

LOCAL = b"PK\3\4"
END = b"PK\5\6"
TAIL = 65_557
DIRECTORY_LIMIT = 16_777_216
TORCH_ALIGNMENT = 64
DESCRIPTOR_BYTES = (16, 24, 12, 20)
ENCRYPTED, DESCRIPTOR_FOLLOWS, UTF8 = 0x1, 0x8, 0x800
RESAVE = "load it with torch and save it as model.safetensors"


class ZipEntry(NamedTuple):
    """One entry of the directory.

    Attributes:
        info: as `zipfile` reads it; its header_offset is the byte at which its local header begins.
        following: the byte at which the next entry, or the directory, begins.
        start: the byte at which its data begins; None if it can't be computed: see `data_start`.
    """

    info: ZipInfo
    following: int
    start: int | None = None

    @property
    def raw(self) -> bytes:
        """Its path as the archive has it."""
        return self.info.orig_filename.encode("utf-8" if self.info.flag_bits & UTF8 else "cp437")


def read_zip_directory(source: Source) -> dict[str, ZipEntry]:
    """Return the entries of a zip archive by name. Reads only the end of the file.

    Raises:
        CheckpointError: the directory is damaged.
    """
    size = min(source.size, TAIL)
    while True:
        start = source.size - size
        data = source.read(start, source.size)
        try:
            with ZipFile(BytesIO(data)) as archive:
                infos = sorted(archive.infolist(), key=attrgetter("header_offset"))
            break
        except (BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
            if END not in data or size == min(source.size, DIRECTORY_LIMIT):
                raise _fault(source, f"the directory of the zip archive can't be read: {error}") from error
            size = min(source.size, 16 * size, DIRECTORY_LIMIT)  # the directory may begin before these bytes
    return _entries(source, start, infos, start + archive.start_dir)


def data_start(source: Source, entry: ZipEntry) -> int:
    """Return the byte at which a stored entry's data begins.

    On disk, it is read from the entry's local header. Over the network, it is computed, to save a request for each
    entry: torch writes entries without gaps and aligns their data to 64 bytes, so the data ends at the next entry,
    minus a descriptor, and at most one possible length of the descriptor leaves the data aligned. If for some entry of
    the archive none does, another program wrote it, and local headers are read.

    Raises:
        CheckpointError: the entry is compressed or encrypted, its local header is missing, or its data is not between
            that header and the next entry.
    """
    info, raw, name = entry.info, entry.raw, shown(entry.info.filename)
    if info.flag_bits & ENCRYPTED or info.compress_type or info.compress_size != info.file_size:
        packed = "encrypted" if info.flag_bits & ENCRYPTED else "compressed"
        found = f"the entry {name} is {packed}; torch.save stores its entries unchanged"
        raise damaged(source, found, "load it with torch and save it again, preferably as model.safetensors")
    if source.remote and entry.start is not None:
        return entry.start
    named = info.header_offset + 30 + len(raw)
    header = source.read(info.header_offset, min(named, source.size))
    if header[:4] != LOCAL or header[30:] != raw:
        raise _fault(source, f"the directory places entry {name} at byte {info.header_offset}, but it is not there")
    name_length, extra_length = struct.unpack_from("<HH", header, 26)
    start = named + int(extra_length)
    if name_length != len(raw) or start + info.file_size > entry.following:
        raise _fault(source, f"the entry {name} reaches into the one after it")
    return start


def _entries(source: Source, start: int, infos: list[ZipInfo], directory: int) -> dict[str, ZipEntry]:
    """The entries of an archive whose end, from byte `start` on, `zipfile` has read as a file of its own."""
    entries: dict[str, ZipEntry] = {}
    for info in infos:
        info.header_offset += start
    for info, following in zip(infos, [*(info.header_offset for info in infos[1:]), directory], strict=False):
        entry, name = ZipEntry(info, following), shown(info.filename)
        if info.header_offset < 0 or info.header_offset + 30 + len(entry.raw) + info.compress_size > directory:
            raise _fault(source, f"the entry {name} of {info.file_size} bytes doesn't fit before the directory")
        if info.filename in entries:
            raise _fault(source, f"the name {name} occurs twice in the zip archive")
        entries[info.filename] = entry
    starts = {name: _aligned_start(entry) for name, entry in entries.items()}
    if None in starts.values():
        return entries
    return {name: entry._replace(start=starts[name]) for name, entry in entries.items()}


def _aligned_start(entry: ZipEntry) -> int | None:
    """The byte at which an entry's data begins if torch wrote it; None if it didn't."""
    named = entry.info.header_offset + 30 + len(entry.raw)
    descriptors = DESCRIPTOR_BYTES if entry.info.flag_bits & DESCRIPTOR_FOLLOWS else (0,)
    starts = (entry.following - descriptor - entry.info.file_size for descriptor in descriptors)
    return next((start for start in starts if start % TORCH_ALIGNMENT == 0 and start >= named), None)


def _fault(source: Source, problem: str) -> CheckpointError:
    return damaged(source, f"not a complete PyTorch checkpoint: {problem}")


def _unsupported(source: Source, problem: str, advice: str = RESAVE) -> UnsupportedError:
    return UnsupportedError(problem, where=source.where, advice=advice)


PICKLE_LIMIT = 32_000_000
FIRST_WINDOW = 64 * 1024
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
PICKLE_START = b"\x80"
LEGACY_PROTOCOL = 1001
NESTS = ("state_dict", "model_state_dict", "model", "module")


def read_pickle_header(source: Source) -> dict[str, TensorEntry]:
    """Return the tensors of a PyTorch checkpoint, in the order of its state dict. Reads no weights and runs no code.

    Raises:
        UnsafeError: the pickle requests anything but tensors and plain containers.
        CheckpointError: the file is damaged or contradicts itself.
        UnsupportedError: it is not a state dict, or it is big-endian.
    """
    start = source.read(0, min(source.size, 9))
    if start.startswith(LOCAL):
        return _read_zip(source)
    if start.startswith(PICKLE_START) and not of_safetensors(start):
        return _read_legacy(source)
    check_first_bytes(source, "what torch.save writes")
    raise damaged(source, f"the file begins with {start[:8]!r}, which is neither of torch.save's formats")


def _read_zip(source: Source) -> dict[str, TensorEntry]:
    entries = read_zip_directory(source)
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise damaged(source, f"the archive has {len(pickles)} files named data.pkl, expected one")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in entries:
        advice = "load it with torch.jit.load and save its state_dict() as model.safetensors"
        raise _unsupported(source, "this is a TorchScript program, not a state dict", advice)

    def content(name: str, limit: int) -> bytes:
        info = entries[root + name].info
        if info.file_size > limit:
            raise damaged(source, f"{name} has {info.file_size} bytes, the limit is {limit}", RESAVE)
        start = data_start(source, entries[root + name])
        data = source.read(start, start + info.file_size)
        if crc32(data) != info.CRC:
            raise damaged(source, f"the checksum of {name} does not match")
        return data

    if f"{root}byteorder" in entries and (order := content("byteorder", 16)) != b"little":
        raise _unsupported(source, f"its byte order is {order!r}, headscope reads only little")
    state, _ = read_pickle(content("data.pkl", PICKLE_LIMIT), 0, source.where)
    _storages(state, source)

    @cache
    def begin(storage: Storage) -> int:
        entry = entries.get(f"{root}data/{storage.key}")
        size = storage.count * DTYPES[storage.dtype].bits // 8
        if entry is None or entry.info.file_size != size:
            problem = "is missing" if entry is None else f"has {entry.info.file_size} bytes, expected {size}"
            raise damaged(source, f"the data of storage {shown(storage.key)} {problem}")
        return data_start(source, entry)

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
                    raise damaged(source, "a pickle, but not one of torch.save's two formats", RESAVE)
                values.append(value)
            break
        except TruncatedPickleError:
            if len(data) >= min(source.size, PICKLE_LIMIT):
                raise
            data += source.read(len(data), min(2 * len(data), source.size))
    _, protocol, system, state, keys = values
    if protocol != LEGACY_PROTOCOL or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise _unsupported(source, f"it is not little-endian, or its protocol is not {LEGACY_PROTOCOL}")
    tensors = _tensors(state, source)
    storages = _storages(state, source)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise damaged(source, "the list of storages is not a list of unique keys")
    if set(keys) != set(storages):
        mismatch = sorted(set(keys) ^ set(storages))[0]
        problem = "is listed but has no tensor" if mismatch in keys else "has a tensor but is not listed"
        raise damaged(source, f"storage {shown(mismatch)} {problem}", f"{DAMAGED}, or {RESAVE}")
    starts: dict[str, int] = {}
    for key in keys:
        starts[key] = position + 8
        count = storages[key].count
        position += 8 + count * DTYPES[storages[key].dtype].bits // 8
        if position > source.size:
            break
        if not source.remote and source.read(starts[key] - 8, starts[key]) != count.to_bytes(8, "little"):
            raise damaged(source, f"storage {shown(key)} should have {count} elements, but its own count differs")
    if position != source.size:
        raise damaged(source, f"its tensors need at least {position} bytes, the file has {source.size}")
    return {name: _entry(name, tensor, starts[tensor.storage.key], source) for name, tensor in tensors.items()}


def _tensors(state: object, source: Source) -> dict[str, PickledTensor]:
    """Return the tensors of the state dict: the pickled dict itself, or its item under one of the usual names."""
    if not isinstance(state, dict):
        kind = "tensor" if isinstance(state, PickledTensor) else type(state).__name__
        raise _unsupported(source, f"the file contains a {kind}, not a state dict")
    nests = [state[name] for name in NESTS if isinstance(state.get(name), dict)]
    candidates = [*nests, state]
    with_tensors = (one for one in candidates if any(isinstance(value, PickledTensor) for value in one.values()))
    state_dict = next(with_tensors, candidates[0])
    tensors: dict[str, PickledTensor] = {}
    for name, value in state_dict.items():
        if isinstance(value, PickledTensor):
            if not isinstance(name, str):
                raise _unsupported(source, f"the name of a tensor is {brief(name)}, expected a string")
            tensors[name] = value
        elif isinstance(value, dict | list | tuple) and value:
            found = f"{shown(str(name))} is a {type(value).__name__} inside the state dict, expected a tensor"
            raise _unsupported(source, found, f"{RESAVE}: one flat state dict")
    if not tensors:
        raise _unsupported(source, "the file contains no tensors")
    return tensors


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
            raise damaged(source, f"storage {shown(value.key)} has two contradictory descriptions")
    return storages


def _entry(name: str, tensor: PickledTensor, begin: int, source: Source) -> TensorEntry:
    """Return a tensor's entry, after checking that the tensor fits into its storage and into the file."""
    bits = DTYPES[tensor.dtype].bits
    count = element_count(tensor.shape)
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.strides, strict=True))
    end = 0 if count == 0 else tensor.offset + last + 1
    capacity = tensor.storage.count * DTYPES[tensor.storage.dtype].bits
    if count is None or end * bits > capacity or count * bits > 8 * source.size:
        raise damaged(
            source, f"tensor {shown(name)} of shape {_short(tensor.shape)} exceeds its storage of {capacity // 8} bytes"
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

"""A zip archive's directory and the positions of its uncompressed entries, as torch.save writes them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headscope.checkpoint.json_text import shown
from headscope.checkpoint.raw_files import Source
from headscope.errors import CheckpointError

END, END64, LOCATOR64, CENTRAL, LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"
DIRECTORY_LIMIT = 16_000_000
TORCH_ALIGNMENT = 64
DESCRIPTOR_BYTES = (16, 24, 12, 20)
ENCRYPTED, DESCRIPTOR_FOLLOWS = 0x1, 0x8


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One entry of the directory.

    Attributes:
        name: its path in the archive.
        size: its length in bytes.
        crc: the CRC-32 of its bytes.
        flags: the format's general purpose bits.
        header: the byte at which its local header begins.
        following: the byte at which the next entry, or the directory, begins.
        packed: "compressed" or "encrypted"; None if its bytes are stored unchanged.
    """

    name: str
    size: int
    crc: int
    flags: int
    header: int
    following: int
    packed: str | None


def read_zip_directory(source: Source) -> dict[str, ZipEntry]:
    """Return the entries of a zip archive by name. Reads only the end of the file.

    Raises:
        CheckpointError: the directory is damaged.
    """
    tail_start = max(0, source.size - 65_557)
    tail = source.read(tail_start, source.size)
    at = tail.rfind(END)
    if at < 0 or at + 22 > len(tail):
        raise _fault(source, "a zip archive without its directory at the end")
    count, size, start = struct.unpack_from("<HII", tail, at + 10)
    if at >= 20 and tail[at - 20 : at - 16] == LOCATOR64:
        (end64,) = struct.unpack_from("<Q", tail, at - 12)
        record = source.read(end64, end64 + 56) if end64 + 56 <= source.size else b""
        if record[:4] != END64:
            raise _fault(source, "a zip64 archive without its end record")
        count, size, start = struct.unpack_from("<QQQ", record, 32)
    if size > DIRECTORY_LIMIT or start + size > source.size or count > size // 46:
        raise _fault(source, f"a zip directory of {count} entries in {size} bytes at byte {start}")
    directory = tail[start - tail_start :][:size] if start >= tail_start else source.read(start, start + size)
    return _parse_directory(source, directory, count, start)


def data_start(source: Source, entry: ZipEntry) -> int:
    """Return the byte at which a stored entry's data begins.

    On disk, it is read from the entry's local header. Over the network, it is computed, to save a request for each
    entry: torch writes entries without gaps and aligns their data to 64 bytes, so the data ends at the next entry,
    minus a descriptor, and at most one possible length of the descriptor leaves the data aligned. If none does, the
    local header is read.

    Raises:
        CheckpointError: the entry is compressed or encrypted, its local header is missing, or its data is not between
            that header and the next entry.
    """
    if entry.packed is not None:
        raise CheckpointError(
            f"the entry {shown(entry.name)} is {entry.packed}; torch.save stores its entries unchanged",
            where=source.where,
            advice="load it with torch and save it again, preferably as model.safetensors",
        )
    name = entry.name.encode()
    if source.remote:
        descriptors = DESCRIPTOR_BYTES if entry.flags & DESCRIPTOR_FOLLOWS else (0,)
        for descriptor in descriptors:
            start = entry.following - descriptor - entry.size
            if start % TORCH_ALIGNMENT == 0 and start >= entry.header + 30 + len(name):
                return start
    header = source.read(entry.header, min(entry.header + 30 + len(name), source.size))
    if len(header) < 30 + len(name) or header[:4] != LOCAL or header[30:] != name:
        raise _fault(
            source, f"the directory places entry {shown(entry.name)} at byte {entry.header}, but it is not there"
        )
    name_length, extra_length = struct.unpack_from("<HH", header, 26)
    start = entry.header + 30 + int(name_length) + int(extra_length)
    if name_length != len(name) or start + entry.size > entry.following:
        raise _fault(source, f"the entry {shown(entry.name)} reaches into the one after it")
    return start


def _parse_directory(source: Source, directory: bytes, count: int, directory_start: int) -> dict[str, ZipEntry]:
    records: list[tuple[str, int, int, int, int, str | None]] = []
    at = 0
    for _ in range(count):
        if at + 46 > len(directory) or directory[at : at + 4] != CENTRAL:
            raise _fault(source, "a zip directory that ends too early")
        flags, method = struct.unpack_from("<HH", directory, at + 8)
        crc, packed, size, name_length, extra_length, comment_length = struct.unpack_from("<IIIHHH", directory, at + 16)
        (header,) = struct.unpack_from("<I", directory, at + 42)
        after_name = at + 46 + name_length
        raw, extra = directory[at + 46 : after_name], directory[after_name : after_name + extra_length]
        at = after_name + extra_length + comment_length
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _fault(source, "an entry of the zip archive whose name is not UTF-8") from error
        size, packed, header = _wide(source, name, extra, size, packed, header)
        if header + 30 + len(raw) + packed > directory_start:
            raise _fault(source, f"the entry {shown(name)} of {size} bytes doesn't fit before the directory")
        encoding = "encrypted" if flags & ENCRYPTED else "compressed" if method or packed != size else None
        records.append((name, size, crc, flags, header, encoding))
    records.sort(key=lambda record: record[4])
    ends = [*(record[4] for record in records[1:]), directory_start][: len(records)]
    entries: dict[str, ZipEntry] = {}
    for (name, size, crc, flags, header, encoding), following in zip(records, ends, strict=True):
        if name in entries:
            raise _fault(source, f"the name {shown(name)} occurs twice in the zip archive")
        entries[name] = ZipEntry(name, size, crc, flags, header, following, encoding)
    return entries


def _wide(source: Source, name: str, extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """Return the three fields, from the zip64 extra field if they exceed 32 bits."""
    fields = [size, packed, header]
    wide = [index for index, value in enumerate(fields) if value == 0xFFFFFFFF]
    at = 0
    while wide and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1 and length >= 8 * len(wide) and at + 4 + length <= len(extra):
            for index, value in zip(wide, struct.unpack_from(f"<{len(wide)}Q", extra, at + 4), strict=True):
                fields[index] = value
            wide = []
        at += 4 + length
    if wide:
        raise _fault(source, f"the entry {shown(name)} lacks its zip64 sizes")
    return fields[0], fields[1], fields[2]


def _fault(source: Source, problem: str) -> CheckpointError:
    return CheckpointError(
        f"not a complete PyTorch checkpoint: {problem}",
        where=source.where,
        advice="the file is truncated or damaged: download or copy it again",
    )

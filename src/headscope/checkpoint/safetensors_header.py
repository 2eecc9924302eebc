"""The safetensors header: 8 bytes of length, then JSON. Read and checked by the format's own rules.

The format: a little-endian 64-bit length n of at most 100 MB, then n bytes of a JSON object that maps each name to
`{"dtype", "shape", "data_offsets": [start, stop]}` counted from the header's end, and `__metadata__` to an object of
strings. The spans cover the rest of the file exactly: no gap, no overlap, nothing left over.
"""

from __future__ import annotations

from typing import Any

from headscope.checkpoint.entry import DTYPE_BITS, LARGEST, TensorEntry, element_count
from headscope.checkpoint.formats import LONGEST_HEADER, TRACE_FORMAT, check_first_bytes
from headscope.checkpoint.json_text import JsonError, kind_of, parse_object, shown
from headscope.checkpoint.source import Source
from headscope.errors import CheckpointError

DAMAGED = "the file is truncated or damaged: download or copy it again"
MALFORMED = "the file was not written by the safetensors library: save it again with it"


def read_safetensors_header(source: Source) -> dict[str, TensorEntry]:
    """Every tensor of a checkpoint's safetensors file, in the order of its bytes. Only the header is read.

    Raises:
        CheckpointError: the header is not what the format asks for, or disagrees with the file's length; or the file
            is a trace.
    """
    entries, metadata = read_entries_and_metadata(source)
    if metadata.get("format") == TRACE_FORMAT:
        raise CheckpointError(
            "this is a trace that headscope saved, not a checkpoint",
            where=source.where,
            advice="hs.load(…) reads it, and `headscope view FILE` shows it",
        )
    return entries


def read_entries_and_metadata(source: Source) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Every tensor of a safetensors file, in the order of its bytes, and the header's `__metadata__`.

    Raises:
        CheckpointError: the header is not what the format asks for, or disagrees with the file's length.
    """
    where, size = source.where, source.size
    values, metadata, begin = _read_header(source)
    entries = [_entry(name, value, begin, source.name, where) for name, value in values.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    reached = begin
    for entry in entries:
        if entry.start != reached:
            kind = "overlaps the tensor before it" if entry.start < reached else "leaves a gap before it"
            raise CheckpointError(
                f"the span of {shown(entry.name)} {kind}: it begins at byte {entry.start - begin}, "
                f"the one before ends at {reached - begin}",
                where=where,
                advice=MALFORMED,
            )
        reached = entry.stop
    if reached != size:
        fault = "is truncated" if reached > size else "holds bytes that belong to no tensor"
        raise CheckpointError(
            f"the file {fault}: its header describes {reached} bytes, it has {size}", where=where, advice=DAMAGED
        )
    return {entry.name: entry for entry in entries}, metadata


def read_metadata(source: Source) -> dict[str, str]:
    """A header's `__metadata__` alone; nothing is said about the tensors.

    Raises:
        CheckpointError: the header is damaged.
    """
    return _read_header(source)[1]


def _read_header(source: Source) -> tuple[dict[str, Any], dict[str, str], int]:
    """The header's values but for `__metadata__`, that, and the byte at which the tensors begin."""
    where = source.where
    if source.size < 8:
        raise CheckpointError(
            f"the file has {source.size} bytes, too few for a safetensors header", where=where, advice=DAMAGED
        )
    length = int.from_bytes(source.read(0, 8), "little")
    if length > LONGEST_HEADER or 8 + length > source.size:
        check_first_bytes(source, "a safetensors file")
        limit = (
            f"the format allows {LONGEST_HEADER}" if length > LONGEST_HEADER else f"the file has {source.size} bytes"
        )
        raise CheckpointError(
            f"its header says it is {length} bytes long, but {limit}",
            where=where,
            advice="the file is truncated, or not a safetensors file: download or copy it again",
        )
    header = source.read(8, 8 + length)
    try:
        if not header.startswith(b"{"):
            raise JsonError("a header begins with '{'")
        values = parse_object(header, unique=True)
    except JsonError as error:
        raise CheckpointError(f"the safetensors header is damaged: {error}", where=where, advice=DAMAGED) from error
    metadata = values.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError("__metadata__ is not an object of strings", where=where, advice=MALFORMED)
    return values, metadata, 8 + length


def _entry(name: str, value: Any, begin: int, file: str, where: str) -> TensorEntry:
    def fault(found: str) -> CheckpointError:
        return CheckpointError(f"tensor {shown(name)}: {found}", where=where, advice=MALFORMED)

    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise fault("its name is not Unicode text") from error
    if not isinstance(value, dict):
        raise fault(f"an object was expected, this is {kind_of(value)}")
    for key in ("dtype", "shape", "data_offsets"):
        if key not in value:
            raise fault(f"no {key!r}")
    dtype, shape, span = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        known = shown(dtype) if isinstance(dtype, str) else kind_of(dtype)
        raise fault(f"its dtype is {known}; safetensors knows {', '.join(DTYPE_BITS)}")
    if not _naturals(shape):
        raise fault("its shape is not a list of whole numbers from 0")
    if not _naturals(span) or len(span) != 2 or span[0] > span[1]:
        raise fault("its data_offsets are not two whole numbers, the first not above the second")
    count = element_count(shape)
    if count is None:
        raise fault("its shape multiplies to more elements than a file can hold")
    bits = count * DTYPE_BITS[dtype]
    start, stop = span
    if bits != 8 * (stop - start):
        raise fault(f"shape {tuple(shape)} of {dtype} takes {bits / 8:g} bytes, but its span has {stop - start}")
    return TensorEntry(name, dtype, tuple(shape), file, begin + start, begin + stop)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= LARGEST for item in value)

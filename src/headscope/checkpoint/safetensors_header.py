"""The safetensors header, read and checked by the rules of the format.

The format: a little-endian 64-bit length n of at most 100 MB, then n bytes of a JSON object. It maps each name to
`{"dtype", "shape", "data_offsets": [start, stop]}`, with offsets from the end of the header, and `__metadata__` to an
object of strings. The spans cover the rest of the file exactly, without gaps or overlaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.entry import DTYPES, TensorEntry, element_count, natural
from headscope.checkpoint.formats import LONGEST_HEADER, TRACE_FORMAT, check_first_bytes, damaged
from headscope.checkpoint.json_text import JsonError, kind_of, parse_object, shown
from headscope.checkpoint.raw_files import Source
from headscope.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Shaped

MALFORMED = "the safetensors library didn't write this file: save it again with that library"


def read_safetensors_header(source: Source) -> dict[str, TensorEntry]:
    """Return the tensors of a checkpoint's safetensors file, in byte order. Reads only the header.

    Raises:
        CheckpointError: the header violates the format or contradicts the file's length, or the file is a trace.
    """
    entries, metadata = read_entries_and_metadata(source)
    if metadata.get("format") == TRACE_FORMAT:
        advice = "load it with hs.load(…), or show it with `headscope view FILE`"
        raise damaged(source, "this is a trace that headscope saved, not a checkpoint", advice)
    return entries


def read_entries_and_metadata(source: Source) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Return the tensors of a safetensors file, in byte order, and the header's `__metadata__`.

    Raises:
        CheckpointError: the header violates the format or contradicts the file's length.
    """
    values, metadata, begin = _read_header(source)
    entries = [_entry(name, value, begin, source) for name, value in values.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    end = begin
    for entry in entries:
        if entry.start != end:
            kind = "overlaps the tensor before it" if entry.start < end else "leaves a gap before it"
            begins = f"it begins at byte {entry.start - begin}, the one before ends at {end - begin}"
            raise damaged(source, f"the span of {shown(entry.name)} {kind}: {begins}", MALFORMED)
        end = entry.stop
    if end != source.size:
        fault = "is truncated" if end > source.size else "has bytes that belong to no tensor"
        raise damaged(source, f"the file {fault}: its header describes {end} bytes, it has {source.size}")
    return {entry.name: entry for entry in entries}, metadata


def safetensors_bytes(tensors: Mapping[str, Shaped[np.ndarray, "..."]], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file, the same for the same contents: its library shuffles the metadata."""
    import numpy as np
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, dict(metadata))
    begin = 8 + int.from_bytes(data[:8], "little")
    header = {**json.loads(data[8:begin]), "__metadata__": metadata}
    packed = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    packed += b" " * (-len(packed) % 8)
    return b"".join((len(packed).to_bytes(8, "little"), packed, memoryview(data)[begin:]))


def read_metadata(source: Source) -> dict[str, str]:
    """Return a header's `__metadata__`, without checking its tensors.

    Raises:
        CheckpointError: the header is damaged.
    """
    return _read_header(source)[1]


def _read_header(source: Source) -> tuple[dict[str, Any], dict[str, str], int]:
    """Return the header's entries, its `__metadata__`, and the byte at which the tensors begin."""
    if source.size < 8:
        raise damaged(source, f"the file has {source.size} bytes, too few for a safetensors header")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > LONGEST_HEADER or 8 + length > source.size:
        check_first_bytes(source, "a safetensors file")
        limit = (
            f"the format allows {LONGEST_HEADER}" if length > LONGEST_HEADER else f"the file has {source.size} bytes"
        )
        advice = "the file is truncated, or not a safetensors file: download or copy it again"
        raise damaged(source, f"the header claims to have {length} bytes, but {limit}", advice)
    header = source.read(8, 8 + length)
    try:
        if not header.startswith(b"{"):
            raise JsonError("it doesn't begin with '{'")
        values = parse_object(header, unique=True)
    except JsonError as error:
        raise damaged(source, f"the safetensors header is damaged: {error}") from error
    metadata = values.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(source, "__metadata__ is not an object of strings", MALFORMED)
    return values, metadata, 8 + length


def _entry(name: str, value: Any, begin: int, source: Source) -> TensorEntry:
    def fault(problem: str) -> CheckpointError:
        return damaged(source, f"tensor {shown(name)}: {problem}", MALFORMED)

    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise fault("its name is not Unicode text") from error
    if not isinstance(value, dict):
        raise fault(f"expected an object, got {kind_of(value)}")
    for key in ("dtype", "shape", "data_offsets"):
        if key not in value:
            raise fault(f"no {key!r}")
    dtype, shape, span = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        actual = shown(dtype) if isinstance(dtype, str) else kind_of(dtype)
        raise fault(f"its dtype is {actual}; safetensors has {', '.join(DTYPES)}")
    if not _naturals(shape):
        raise fault("its shape is not a list of non-negative 64-bit integers")
    if not _naturals(span) or len(span) != 2 or span[0] > span[1]:
        raise fault("its data_offsets are not two non-negative 64-bit integers in ascending order")
    count = element_count(shape)
    if count is None:
        raise fault("its shape has more elements than a file can hold")
    bits = count * DTYPES[dtype].bits
    start, stop = span
    if bits != 8 * (stop - start):
        raise fault(f"shape {tuple(shape)} of {dtype} takes {bits / 8:g} bytes, but its span has {stop - start}")
    return TensorEntry(name, dtype, tuple(shape), source.name, begin + start, begin + stop)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(map(natural, value))

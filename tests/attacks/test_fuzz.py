"""The two header readers on any bytes: a result that keeps the rules, or an error of ours; never another exception."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.pickle_files import GOOD, LEGACY_DATA, legacy, state, storage, tensor
from headscope.checkpoint.entry import DTYPE_BITS, TensorEntry
from headscope.checkpoint.pickle_header import read_pickle_header
from headscope.checkpoint.pickle_machine import read_pickle
from headscope.checkpoint.safetensors_header import read_safetensors_header
from headscope.checkpoint.source import check_span
from headscope.errors import CheckpointError, HeadscopeError


@dataclass
class InMemory:
    """A Source of these bytes."""

    data: bytes
    remote: bool = False
    name: str = "x.safetensors"
    where: str = "memory"

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        check_span(self, start, stop)
        return self.data[start:stop]

    def view(self, start: int, stop: int) -> memoryview:
        return memoryview(self.read(start, stop))


def keeps_the_rules(entries: dict[str, TensorEntry], size: int) -> None:
    for name, entry in entries.items():
        assert entry.name == name
        assert 0 <= entry.start <= entry.stop <= size
        assert entry.dtype in DTYPE_BITS
        if entry.strides is None:
            assert entry.nbytes == entry.stop - entry.start


def check_safetensors(data: bytes) -> None:
    try:
        entries = read_safetensors_header(InMemory(data))
    except CheckpointError:
        return
    keeps_the_rules(entries, len(data))
    assert sum(entry.nbytes for entry in entries.values()) == len(data) - 8 - int.from_bytes(data[:8], "little")


def check_pickle(data: bytes) -> None:
    for remote in (False, True):
        with suppress(HeadscopeError):
            keeps_the_rules(read_pickle_header(InMemory(data, remote)), len(data))


numbers = st.integers(-2, 9) | st.sampled_from([2**31, 2**62, 2**63, 2**64]) | st.floats() | st.booleans()
values = st.recursive(
    st.none() | numbers | st.text(max_size=4) | st.sampled_from(sorted(DTYPE_BITS)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(sorted(DTYPE_BITS)) | values,
        "shape": st.lists(st.integers(0, 4), max_size=3) | values,
        "data_offsets": st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted) | values,
    },
)
headers = st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), entries | values, max_size=4)


@given(st.binary(max_size=300))
def test_any_bytes_as_safetensors(data: bytes) -> None:
    check_safetensors(data)


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_any_header_bytes(text: bytes, data: bytes) -> None:
    check_safetensors(len(text).to_bytes(8, "little") + b"{" + text + data)


@given(headers, st.integers(0, 80))
def test_any_header_object(header: dict[str, object], size: int) -> None:
    text = json.dumps(header).encode()
    check_safetensors(len(text).to_bytes(8, "little") + text + bytes(size))


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BITS)), st.lists(st.integers(0, 4), max_size=3)), max_size=5))
def test_any_good_header_is_read(tensors: list[tuple[str, list[int]]]) -> None:
    reached, header = 0, {}
    for index, (dtype, shape) in enumerate(tensors):
        count = 1
        for length in shape:
            count *= length
        if count * DTYPE_BITS[dtype] % 8 == 0:
            size = count * DTYPE_BITS[dtype] // 8
            header[f"{index}"] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, reached + size]}
            reached += size
    text = json.dumps(header).encode()
    found = read_safetensors_header(InMemory(len(text).to_bytes(8, "little") + text + bytes(reached)))
    assert {name: [entry.dtype, list(entry.shape)] for name, entry in found.items()} == {
        name: [value["dtype"], value["shape"]] for name, value in header.items()
    }


opcodes = st.sampled_from(
    [bytes([code]) for code in b"(0129]}).)tueadsbRQNKMJXqrhjc" + b"\x80\x81\x85\x86\x87\x88\x89"]
)
pieces = st.sampled_from(
    [
        storage(),
        tensor(),
        tensor((2, 2), (2, 1)),
        b"ccollections\nOrderedDict\n",
        b"cos\nsystem\n",
        b"}(X\1\0\0\0x",
        b"K\1",
    ]
)


@given(st.binary(max_size=200))
def test_any_bytes_as_pickle(data: bytes) -> None:
    with suppress(CheckpointError):
        read_pickle(data, 0, "memory")


@given(st.lists(opcodes | pieces | st.binary(max_size=3), max_size=40).map(b"".join))
def test_any_opcodes(data: bytes) -> None:
    check_pickle(legacy(b"\x80\x02" + data + b".", LEGACY_DATA))


@settings(max_examples=300)
@given(st.sampled_from([GOOD, legacy(state(tensor()), LEGACY_DATA)]), st.data())
def test_any_change_to_a_checkpoint(good: bytes, draw: st.DataObject) -> None:
    data = bytearray(good)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at : at + draw.draw(st.integers(0, 4))] = draw.draw(st.binary(max_size=4))
    check_pickle(bytes(data))

"""The header readers on any bytes: a result that keeps the rules, or an error of ours; never another exception."""

from __future__ import annotations

import gc
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attacks import fuzz, readers
from attacks.hostile import LEGACY_DATA, legacy, storage, tensor
from attacks.mutations import mutate_bytes
from headscope.checkpoint.entry import DTYPES
from headscope.checkpoint.safetensors_header import read_safetensors_header
from headscope.errors import HeadscopeError, InputError

COMMAND = [sys.executable, str(Path(__file__).parent / "fuzz.py")]
DEAR = {"survey by a stranger": 30}
"""Mutations of the readers for which 100 take seconds: that reads a whole survey each time."""


@pytest.fixture(scope="module")
def watched() -> Iterator[None]:
    """This process watches for code that is run, and has no memory for a file that asks for gigabytes."""
    gc.collect()  # what other tests left is not removed while a reader is watched
    limits = resource.getrlimit(resource.RLIMIT_AS)
    fuzz.watch()
    fuzz.limit_memory()
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
    fuzz.forget()


@pytest.fixture(params=readers.READERS)
def reader(request: pytest.FixtureRequest, watched: None) -> str:
    """The name of a reader whose whole files are made."""
    fuzz.prepared(request.param)
    return str(request.param)


def test_damaged_files_of_every_kind_are_read_or_refused(reader: str) -> None:
    """The short form of the fuzz run: no exception that is not ours, no code run."""
    count = DEAR.get(reader, 100)
    counts = fuzz.fuzz(reader, range(count), 0)
    assert not counts.findings
    assert (counts.mutations, counts.read + counts.refused, counts.foreign, counts.code) == (count, count, 0, 0)


def test_code_and_gigabytes_are_findings(watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(data: bytes, folder: Path) -> None:
        (folder / "file").write_bytes(data)
        (folder / "file").unlink()
        if data != b"whole":
            np.empty(fuzz.MOST_MEMORY, np.uint8)

    monkeypatch.setitem(readers.READERS, "removes", readers.Reader(lambda _: [b"whole"], (mutate_bytes,), remove))
    counts = fuzz.fuzz("removes", range(10), 1)
    assert counts.code == 10
    assert "code: os.remove" in counts.findings
    assert any("MemoryError" in kind for kind in counts.findings)


def test_the_command_prints_a_row_for_each_reader() -> None:
    names = ["safetensors", "index"]
    options = [text for name in names for text in ("--reader", name)]
    done = subprocess.run([*COMMAND, "--mutations", "3", "--jobs", "1", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("│") for line in done.stdout.splitlines() if line.count("│") == 7]
    assert {row[1].strip(): row[2].strip() for row in rows} == dict.fromkeys(names, "3")


def test_the_documentation_names_every_reader() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "trust.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S[^|]*) \| [\d,]+ \| [\d,]+ \| [\d,]+ \| 0 \| 0 \|$", text, re.MULTILINE)
    assert sorted(rows) == sorted(readers.READERS)
    assert f"({len(rows)} readers)" in text


def broken(data: bytes, _: Path) -> None:
    """A reader with faults."""
    if data == b"whole":
        return
    if not data.startswith(b"w"):
        raise InputError("refused", where="here", advice="none")
    if len(data) % 3 == 1:
        raise type("PanicException", (BaseException,), {})("panic")


def test_what_a_run_finds_is_counted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = readers.Reader(lambda _: [b"whole"], (mutate_bytes,), broken)
    monkeypatch.setitem(readers.READERS, "broken", reader)
    counts = fuzz.fuzz("broken", range(300), 1, tmp_path)
    files = [fuzz.mutation("broken", index, 1, [b"whole"]) for index in range(300)]
    panics = [index for index, data in enumerate(files) if data[:1] == b"w" and len(data) % 3 == 1]
    assert len(panics) > 5
    assert counts.foreign == len(panics)
    assert counts.refused == sum(data[:1] != b"w" for data in files)
    assert (counts.mutations, counts.read) == (300, 300 - counts.refused - len(panics))
    assert {finding.index for finding in counts.findings.values()} == {panics[0]}
    assert {path.name for path in tmp_path.iterdir()} == {f"broken-{index}" for index in panics}


def check(read: Callable[[bytes, Path], object], data: bytes) -> None:
    with suppress(HeadscopeError):
        read(data, Path())


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)), max_size=5))
def test_any_good_header_is_read(tensors: list[tuple[str, list[int]]]) -> None:
    reached, header = 0, {}
    for index, (dtype, shape) in enumerate(tensors):
        count = 1
        for length in shape:
            count *= length
        if count * DTYPES[dtype].bits % 8 == 0:
            size = count * DTYPES[dtype].bits // 8
            header[f"{index}"] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, reached + size]}
            reached += size
    text = json.dumps(header).encode()
    entries = read_safetensors_header(readers.InMemory(len(text).to_bytes(8, "little") + text + bytes(reached)))
    assert {name: [entry.dtype, list(entry.shape)] for name, entry in entries.items()} == {
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


@given(st.lists(opcodes | pieces | st.binary(max_size=3), max_size=40).map(b"".join))
def test_any_opcodes(data: bytes) -> None:
    check(readers.read_pickle, legacy(b"\x80\x02" + data + b".", LEGACY_DATA))

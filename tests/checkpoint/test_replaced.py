"""Files that another program replaces or rewrites while they are read: the one or the other, never parts of both."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import headscope as hs
from headscope.checkpoint import open_checkpoint
from headscope.errors import CheckpointError, TraceError
from headscope.traces import Trace, file
from making import write_safetensors
from small_bert import small_bert


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Two traces of equal length: "cat" with queries of 0, and "mat" with queries of 1."""
    folder = tmp_path_factory.mktemp("traces")
    model = hs.open(small_bert(folder))
    contents = []
    for number, text in enumerate(("the cat sat", "the mat sat")):
        trace = model.trace(text)
        layers = [replace(record, q=np.full_like(record.q, number), lse=None) for record in trace.layers]
        contents.append(trace.replaced(layers=layers).save(folder / "t.safetensors").read_bytes())
    assert len(contents[0]) == len(contents[1])
    return contents


def queries(trace: Trace) -> set[float]:
    return {float(number) for record in trace.layers for number in np.unique(record.q)}


def replaced(path: Path, content: bytes) -> None:
    """Put another file in its place, as headscope and most programs write."""
    (path.parent / "new").write_bytes(content)
    os.replace(path.parent / "new", path)


@pytest.fixture
def restless(tmp_path: Path, files: list[bytes]) -> Iterator[Path]:
    """A trace that another thread replaces by another one, again and again."""
    path, stop = tmp_path / "t.safetensors", threading.Event()
    path.write_bytes(files[0])

    def loop() -> None:
        number = 0
        while not stop.is_set():
            number = 1 - number
            replaced(path, files[number])

    thread = threading.Thread(target=loop)
    thread.start()
    yield path
    stop.set()
    thread.join()


def test_a_trace_that_is_replaced_again_and_again(restless: Path) -> None:
    """Tokens of one text with the queries of the other came in one of ten loads."""
    for _ in range(300):
        trace = hs.load(restless)
        assert queries(trace) == ({0.0} if "cat" in trace.tokens else {1.0})


def after_the_header(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Let another program act between a trace's header and its arrays."""
    read = file.read_entries_and_metadata

    def then_change(source):  # type: ignore[no-untyped-def]
        entries = read(source)
        change()
        return entries

    monkeypatch.setattr(file, "read_entries_and_metadata", then_change)


def test_a_trace_that_is_replaced_after_its_header(
    tmp_path: Path, files: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(files[0])
    after_the_header(monkeypatch, lambda: replaced(path, files[1]))
    trace = hs.load(path)
    assert "cat" in trace.tokens
    assert queries(trace) == {0.0}


@pytest.mark.parametrize("length", [None, 100])
def test_a_trace_that_is_rewritten_in_place(
    tmp_path: Path, files: list[bytes], monkeypatch: pytest.MonkeyPatch, length: int | None
) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(files[0])
    os.utime(path, ns=(0, 0))
    after_the_header(monkeypatch, lambda: path.write_bytes(files[1][:length]) and None)
    with pytest.raises(TraceError, match=r"has been written to|and has 100 now"):
        hs.load(path)


def safetensors(path: Path, number: float) -> None:
    write_safetensors(path, {"x": np.full((2, 3), number, dtype=np.float32)})


def binary(path: Path, number: float) -> None:
    torch.save({"x": torch.full((2, 3), number)}, path)


@pytest.mark.parametrize(("name", "write"), [("model.safetensors", safetensors), ("pytorch_model.bin", binary)])
@pytest.mark.parametrize("read_before", [False, True])
def test_weights_are_those_of_the_header(
    tmp_path: Path, name: str, write: Callable[[Path, float], None], read_before: bool
) -> None:
    path = tmp_path / name
    write(path, 1.0)
    os.utime(path, ns=(0, 0))
    checkpoint = open_checkpoint(tmp_path)
    if read_before:
        checkpoint.read("x")
    other = tmp_path / "other"
    write(other, 2.0)
    os.replace(other, path)
    assert checkpoint.read("x").tolist() == [[1.0] * 3] * 2
    assert open_checkpoint(tmp_path).read("x").tolist() == [[2.0] * 3] * 2
    os.utime(path, ns=(0, 0))
    checkpoint = open_checkpoint(tmp_path)
    if read_before:
        checkpoint.read("x")
    write(path, 3.0)
    with pytest.raises(CheckpointError, match=r"(when|since) it was opened"):
        checkpoint.read("x")


def test_threads_and_forks_read_one_open_file(tmp_path: Path) -> None:
    """One position that all share would give each of them the bytes of another."""
    arrays = {f"x{at}": np.full(4096, at, dtype=np.int32) for at in range(64)}
    write_safetensors(tmp_path / "model.safetensors", arrays)
    source = open_checkpoint(tmp_path)._weights.sources["model.safetensors"]
    entries = open_checkpoint(tmp_path).tensors
    wrong: list[str] = []

    def read() -> None:
        for _ in range(20):
            wrong.extend(
                name
                for name, entry in entries.items()
                if set(np.frombuffer(source.read(entry.start, entry.stop), "<i4")) != {int(name[1:])}
            )

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

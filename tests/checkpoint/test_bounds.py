"""Files that are too large, too deep, not regular, or replaced while they are read; links that lead nowhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import headscope as hs
from commands import run
from headscope.checkpoint import open_checkpoint
from headscope.checkpoint.json_text import JsonError, parse_object, read_object
from headscope.checkpoint.resolve import BUNDLED
from headscope.checkpoint.tokenizer import load_tokenizer
from headscope.errors import CheckpointError, HeadscopeError, InputError, NotFoundError, TraceError
from headscope.traces import file, is_trace
from making import header_bytes, write_safetensors
from small_bert import VOCABULARY, small_bert
from tokenizer_folders import Folder, wordpiece_json, write_json


def open_tokenizer(folder: Path) -> None:
    load_tokenizer(Folder(folder, {"model_type": "roberta" if (folder / "vocab.json").exists() else "bert"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 3_000_000, "nested too deeply"),
        ("[" * 50_000 + "]" * 50_000, "nested too deeply"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested too deeply: more than 100 levels"),
        ('{"a":' * 100 + "1" + "}" * 100, None),
        ('{"a":' * 50_000, "nested too deeply"),
        ('"[[[' + "[" * 200 + '"', "a string"),
        ('{"a": ' + "9" * 5000 + "}", "an integer of 5000 digits"),
        ('{"a": -' + "9" * 5000 + "}", "an integer of 5001 digits"),
        ('{"a": ' + "9" * 5000 + ".5}", None),
        ('{"a": NaN, "b": -Infinity, "c": 1e999}', None),
    ],
)
def test_odd_texts(text: str, message: str | None) -> None:
    for data in (text, text.encode()):
        if message is None:
            parse_object(data, unique=True)
        else:
            with pytest.raises(JsonError, match=message):
                parse_object(data, unique=True)


def test_a_trace_that_could_not_be_read_again_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = hs.open(small_bert(tmp_path / "model")).trace("the cat sat")
    monkeypatch.setattr("headscope.traces.file.MOST_BYTES", 20)
    with pytest.raises(InputError, match="a trace of 5 tokens can't be saved: they take"):
        trace.save(tmp_path / "t.safetensors")
    assert not (tmp_path / "t.safetensors").exists()


@pytest.fixture(params=["pipe", "socket", "zero", "folder"])
def special(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Something at tmp_path/special that is no regular file. Whoever waits for it is interrupted, in the end."""
    path = tmp_path / "special"
    monkeypatch.chdir(tmp_path)

    def hung(*_: object) -> None:
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(120)
    with socket.socket(socket.AF_UNIX) as server:
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "socket":
            server.bind("special")  # its path is short
        elif request.param == "zero":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
        yield path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


KINDS = "a pipe|a socket|a device|a folder"


def test_a_trace_is_a_regular_file(special: Path) -> None:
    with pytest.raises(TraceError, match=KINDS) as refused:
        hs.load(special)
    assert str(special) in refused.value.where
    if special.is_dir():
        assert not is_trace(special)
    else:
        with pytest.raises(TraceError, match=KINDS):
            is_trace(special)


FILES = ("config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


@pytest.mark.parametrize("name", [*FILES, "vocab.json"])
def test_every_file_of_a_checkpoint_is_a_regular_file(special: Path, name: str, tmp_path: Path) -> None:
    """Before, a pipe by the name of config.json counted as no config.json at all."""
    folder = small_bert(tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    if "index" in name:
        (folder / "model.safetensors").unlink()
    if name == "vocab.json":
        (folder / "vocab.txt").unlink()
        (folder / "merges.txt").write_text("a b\n")
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    special.rename(folder / name)
    with pytest.raises(HeadscopeError, match=KINDS) as refused:
        hs.open(folder).trace("the cat")
    assert name in f"{refused.value.where} {refused.value.found}"


def test_a_model_is_a_regular_file_or_a_folder(special: Path) -> None:
    if special.is_dir():
        special.rmdir()
        special.symlink_to("/dev/null")
    for command in (["view", "special"], ["attend", "special"], ["attend", "special", "text"], ["shapes", "special"]):
        done = run(*command, code=2)
        assert isinstance(done.exception, SystemExit)
        assert re.search(KINDS, done.stderr), done.stderr


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a" * 300])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    assert not is_trace(tmp_path / name)
    with pytest.raises(TraceError, match="can't be read"):
        hs.load(tmp_path / name)


def test_no_more_is_read_than_the_file_has(tmp_path: Path) -> None:
    """Files of /proc are regular and say that they are empty."""
    with pytest.raises(JsonError, match="not JSON"):
        read_object(Path("/proc/self/maps"), unique=True)
    (tmp_path / "x").write_bytes(b"{}" + b" " * 100)
    with pytest.raises(JsonError, match="it has 102 bytes, at most 50 are read"):
        read_object(tmp_path / "x", unique=True, most=50)


def test_a_number_of_brain_floats_and_eight_bits_is_an_array(tmp_path: Path) -> None:
    """NumPy's arithmetic makes a bare number of an array without axes."""
    for dtype, code, expected in (("BF16", b"\x80\x3f", 1.0), ("F8_E4M3", b"\x38", 1.0), ("F8_E5M2", b"\x3c", 1.0)):
        (tmp_path / "x.safetensors").write_bytes(header_bytes({"x": (dtype, ())}) + code)
        array = hs.open(tmp_path / "x.safetensors").checkpoint.read("x")
        assert isinstance(array, np.ndarray)
        assert (array.shape, array.dtype, float(array)) == ((), np.float32, expected)
        assert not array.flags.writeable


def test_ids_beyond_any_vocabulary_are_refused(tmp_path: Path) -> None:
    """To copy such a tokenizer, the library walks over every id up to the largest."""
    vocabulary = {piece: index for index, piece in enumerate(VOCABULARY)}
    write_json(tmp_path, "tokenizer.json", wordpiece_json({**vocabulary, "x": 2**31}))
    with pytest.raises(HeadscopeError, match=f"the id of 'x' is {2**31}"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps({"<s>": 0, "</s>": 1, "x": 2**31}))
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(HeadscopeError, match=f"the id of 'x' is {2**31}"):
        open_tokenizer(tmp_path)


def test_weights_are_read_where_config_and_tokenizer_are_links(tmp_path: Path) -> None:
    """As in the hub's cache."""
    small_bert(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert hs.open(tmp_path / "snapshot").trace("the cat").tokens[1] == "the"
    write_safetensors(tmp_path / "y.safetensors", {"y": np.ones(2)})
    (tmp_path / "link.safetensors").symlink_to("y.safetensors")
    assert hs.open(tmp_path / "link.safetensors").checkpoint.read("y").tolist() == [1, 1]


# Links that lead nowhere, or to themselves, beside a checkpoint: what they stand for is missing, and not left out.

NOWHERE = {"itself": "{name}", "a missing blob": "../../blobs/abc"}
TEXT = "The cat sat."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "model"))


@pytest.mark.parametrize("target", NOWHERE)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "modules.json"]
)
def test_a_file_that_is_a_link_to_nowhere_is_named(folder: Path, name: str, target: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(NOWHERE[target].format(name=name))
    with pytest.raises(CheckpointError, match=r"it is a link to '.*', which leads nowhere") as raised:
        hs.match(folder, TEXT, TEXT)
    assert str(raised.value.where).endswith(name)


@pytest.mark.parametrize("target", NOWHERE)
def test_a_model_that_is_a_link_to_nowhere(tmp_path: Path, target: str) -> None:
    (tmp_path / "model").symlink_to(NOWHERE[target].format(name="model"))
    with pytest.raises(NotFoundError, match=r"is a link to .*, which leads nowhere"):
        hs.open(tmp_path / "model")


def test_a_borrowed_tokenizer_that_is_a_link_to_nowhere(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").symlink_to("tokenizer.json")
    with pytest.raises(CheckpointError, match="leads nowhere"):
        hs.open(folder, tokenizer=tmp_path / "words").trace(TEXT)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The file of a trace, written long ago."""
    path = hs.open(small_bert(tmp_path / "model")).trace("the cat sat").save(tmp_path / "t.safetensors")
    os.utime(path, ns=(0, 0))
    return path


def after_the_header(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Let another program act between a trace's header and its arrays."""
    read = file.read_entries_and_metadata

    def then_change(source):  # type: ignore[no-untyped-def]
        entries = read(source)
        change()
        return entries

    monkeypatch.setattr(file, "read_entries_and_metadata", then_change)


def test_a_trace_that_is_replaced_after_its_header(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As headscope and most programs write: another file takes its place."""
    before = hs.load(saved)
    other = saved.with_name("other")
    other.write_bytes(bytes(saved.stat().st_size))
    after_the_header(monkeypatch, lambda: other.replace(saved) and None)
    for ours, kept in zip(hs.load(saved).layers, before.layers, strict=True):
        for name in ("q", "k", "v", "lse"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(kept, name))


@pytest.mark.parametrize("length", [None, 100])
def test_a_trace_that_is_rewritten_in_place(saved: Path, monkeypatch: pytest.MonkeyPatch, length: int | None) -> None:
    size = length or saved.stat().st_size
    after_the_header(monkeypatch, lambda: saved.write_bytes(bytes(size)) and None)
    with pytest.raises(TraceError, match=r"has been written to|and has 100 now"):
        hs.load(saved)


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
    size = path.stat().st_size
    write(path, 3.0)
    with pytest.raises(CheckpointError, match=r"(when|since) it was opened"):
        checkpoint.read("x")
    os.truncate(path, size - 8)
    with pytest.raises(CheckpointError, match=f"had {size} bytes when it was opened, and has {size - 8} now"):
        checkpoint.read("x")


def test_threads_and_forks_read_one_open_file(tmp_path: Path) -> None:
    """One position that all share would give each of them the bytes of another."""
    arrays = {f"x{at}": np.full(4096, at, dtype=np.int32) for at in range(64)}
    write_safetensors(tmp_path / "model.safetensors", arrays)
    source = open_checkpoint(tmp_path)._sources["model.safetensors"]
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

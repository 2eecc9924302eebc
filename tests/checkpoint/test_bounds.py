"""Hostile sizes are refused before they are parsed, and what is not a regular file is not read at all.

Memory is counted, time is not: a bound that holds for memory holds on every machine, and for time with it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_folders import Folder

import headscope as hs
from headscope.checkpoint.json_text import (
    MOST_ITEMS,
    MOST_LEVELS,
    JsonError,
    check_structure,
    parse_object,
    read_object,
)
from headscope.checkpoint.tokenizer import load_tokenizer
from headscope.errors import HeadscopeError, InputError, TraceError
from headscope.traces import is_trace
from making import header_bytes, write_safetensors
from small_bert import VOCABULARY, small_bert

MANY = 5_500_000
"""Items of a text that is too long for every reader; 16 MB of empty lists."""


def lists(count: int = MANY) -> str:
    return f'{{"x":[{"[]," * (count - 1)}[]]}}'


def names(count: int = MANY // 2) -> str:
    return "{" + ",".join(f'"{index}":0' for index in range(count)) + "}"


def header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


def trace_about(text: str) -> bytes:
    metadata = {"format": "headscope.trace", "headscope": text}
    return header_bytes({"layers.0.q": ("F32", ())}, metadata) + bytes(4)


def open_tokenizer(folder: Path) -> None:
    load_tokenizer(Folder(folder, {"model_type": "roberta" if (folder / "vocab.json").exists() else "bert"}))


LARGE: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], object]]] = {
    "header": ("model.safetensors", lambda: header(lists()), hs.open),
    "header of names": ("model.safetensors", lambda: header(names()), hs.open),
    "index": ("model.safetensors.index.json", lambda: f'{{"weight_map":{names()}}}'.encode(), hs.open),
    "config": ("config.json", lambda: lists(4_000_000).encode(), hs.open),
    "trace's header": ("t", lambda: header(lists()), lambda folder: hs.load(folder / "t")),
    "trace's metadata": ("t", lambda: trace_about(lists()), lambda folder: hs.load(folder / "t")),
    "tokenizer.json": ("tokenizer.json", lambda: lists().encode(), open_tokenizer),
    "tokenizer_config.json": ("tokenizer_config.json", lambda: lists().encode(), open_tokenizer),
    "special_tokens_map.json": ("special_tokens_map.json", lambda: lists().encode(), open_tokenizer),
    "added_tokens.json": ("added_tokens.json", lambda: names().encode(), open_tokenizer),
    "vocab.json": ("vocab.json", lambda: names().encode(), open_tokenizer),
    "vocab.txt": ("vocab.txt", lambda: b"a\n" * MANY, open_tokenizer),
    "merges.txt": ("merges.txt", lambda: b"a b\n" * MANY, open_tokenizer),
}


@pytest.mark.parametrize("kind", LARGE)
def test_what_would_take_gigabytes_is_refused_at_the_price_of_its_bytes(tmp_path: Path, kind: str) -> None:
    name, make, use = LARGE[kind]
    small_bert(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    if name == "merges.txt":
        (tmp_path / "vocab.json").write_text('{"<s>": 0, "</s>": 1}')
    if name == "vocab.json":
        (tmp_path / "merges.txt").write_text("a b\n")
    if "index" in name:
        (tmp_path / "model.safetensors").unlink()
    data = make()
    (tmp_path / name).write_bytes(data)
    size = len(data)
    del data
    tracemalloc.start()
    try:
        with pytest.raises(HeadscopeError, match=r"items|lines") as refused:
            use(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * size
    assert refused.value.where
    assert refused.value.advice


def test_the_bounds_leave_room_for_the_largest_files() -> None:
    """The largest indexes have some 100,000 tensors, the largest vocabularies a million pieces."""
    tensors = {f"model.layers.{index}.mlp.experts.weight": ("F32", (0, 7)) for index in range(150_000)}
    check_structure(header_bytes(tensors)[8:])
    check_structure(names(900_000).encode())


def count_of(value: Any) -> int:
    """Values and names of a JSON value."""
    if isinstance(value, dict):
        return 1 + sum(1 + count_of(inner) for inner in value.values())
    return 1 + sum(map(count_of, value)) if isinstance(value, list) else 1


def levels_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels_of, inner), default=0)


odd_text = st.text(alphabet='[]{},:"\\a\té\u2028', max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | odd_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_text, inner, max_size=4),
    max_leaves=30,
)


@given(json_values, st.booleans())
def test_items_and_levels_are_counted_as_a_parser_counts_them(value: Any, ascii_only: bool) -> None:
    text = json.dumps({"x": value}, ensure_ascii=ascii_only).encode()
    items = count_of({"x": value})
    check_structure(text, 2 * items + 1)  # an empty list or object may count twice
    with pytest.raises(JsonError, match="items"):
        check_structure(text, items - 1)
    deep = MOST_LEVELS - levels_of(value)
    for closed, opened in ((b"]", b"["), (b"}", b'{"[":')):
        check_structure(opened * deep + json.dumps(value, ensure_ascii=ascii_only).encode() + closed * deep)
        with pytest.raises(JsonError, match="nested too deeply"):
            check_structure(opened * (deep + 1) + json.dumps(value).encode() + closed * (deep + 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"[",' * (MOST_ITEMS + 1), "items"),
        ('"' * (2 * MOST_ITEMS), "not JSON"),
        ("[" * 3_000_000, "items"),
        ("[" * 50_000 + "]" * 50_000, "nested too deeply"),
        ('{"a":' * 50_000, "nested too deeply"),
        ('"\\"[[[' + "[" * 200 + '"', "a string"),
        ('\\"' + "[" * 200, "nested too deeply"),
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


def test_nesting_is_refused_whatever_the_recursion_limit() -> None:
    """A program that raises the limit must not be ended by a file (a C stack that overflows is no exception)."""
    code = "import sys; sys.setrecursionlimit(10**9)\nfrom headscope.checkpoint.json_text import *\n"
    code += "try: parse_object(b'{\"a\":' * 400_000, unique=True)\nexcept JsonError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("nested too deeply")


def test_a_trace_that_could_not_be_read_again_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = hs.open(small_bert(tmp_path / "model")).trace("the cat sat")
    check = "headscope.traces.file.check_structure"
    monkeypatch.setattr(check, lambda data: check_structure(data, 20))
    with pytest.raises(InputError, match="a trace of 5 tokens can't be saved: it has"):
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


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "vocab.json",
    ],
)
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
        done = subprocess.run(
            [sys.executable, "-m", "headscope", *command], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 2
        assert re.search(KINDS, done.stderr), done.stderr
        assert "Traceback" not in done.stderr


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
    model = {"type": "WordPiece", "vocab": {**vocabulary, "x": 2**31}, "unk_token": "[UNK]"}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
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

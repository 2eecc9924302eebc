"""Hostile and damaged files: each raises a HeadscopeError with place and advice, no code runs, and no file changes."""

from __future__ import annotations

import gc
import io
import json
import pickle
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import headscope as hs
from attacks import fuzz, readers
from attacks.hostile import ATTACKS, GOOD, LEGACY_DATA, RUN, SENTINEL, UNSAFE, binary, legacy, state, storage, tensor
from attacks.mutations import mutate_bytes
from attacks.readers import READERS, read_config
from headscope.checkpoint import open_checkpoint
from headscope.checkpoint.entry import DTYPES
from headscope.checkpoint.safetensors_header import read_safetensors_header
from headscope.errors import CheckpointError, ConfigError, HeadscopeError, InputError, UnsafeError, UnsupportedError
from headscope.live import modules_of_checkpoint
from headscope.live.built import configured
from headscope.page.trace import page_file
from making import change_json
from products import in_turn
from small_bert import small_bert


@pytest.mark.parametrize(("make", "kind"), ATTACKS.values(), ids=ATTACKS)
def test_attack_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make, kind) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(HeadscopeError) as caught:
        open_checkpoint(tmp_path)
    assert isinstance(caught.value, kind)
    assert isinstance(caught.value, UnsafeError) == (kind is UnsafeError)
    assert str(tmp_path) in str(caught.value.where)
    assert caught.value.advice
    assert len(str(caught.value)) < 2000
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_command_runs_where_a_pickle_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control experiment: without headscope, the command creates its sentinel file."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(b"\x80\x02" + RUN + b".")
    assert Path(SENTINEL).exists()


@pytest.mark.parametrize("data", [GOOD, legacy(state(tensor()), LEGACY_DATA)], ids=["zip", "legacy"])
def test_the_makers_make_good_files_too(tmp_path: Path, data: bytes) -> None:
    """The control experiment: the functions that make the attacks make valid files, too."""
    binary(data)(tmp_path)
    assert open_checkpoint(tmp_path).read("x0").tolist() == [0, 0, 0, 0]


# Files that fuzzing found, each as the code that makes it: a result or a HeadscopeError, and no other output.


EXTREMES = [float("nan"), float("inf"), -float("inf"), 10**99, -(10**99), 0, -1, 0.5, True, None, "", "x" * 300]
EXTREMES += [[], [[]], [None], ["a", 1], {}, {"a": {"b": []}}, {"": None}]


@pytest.mark.parametrize(("value", "part"), in_turn(EXTREMES, range(3)), ids=lambda value: repr(value)[:20])
def test_any_value_of_any_field_of_a_config(tmp_path: Path, value: Any, part: int) -> None:
    """NaN for architectures ended `headscope summary` in a TypeError. Each value in a third of the fields, or slow."""
    whole = json.loads(READERS["config"].prepare(tmp_path)[-1])
    for name in [*whole][part::3]:
        (tmp_path / "config.json").write_text(json.dumps({**whole, name: value}))
        with suppress(HeadscopeError):
            read_config(tmp_path)


MECAB = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
EPSILON: tuple[dict[str, Any], type[HeadscopeError], str] = ({"layer_norm_eps": 1e308}, ConfigError, "layer_norm_eps")
LONG = {"never_split": [{"a": "x" * 9000}], "mecab_kwargs": "x" * 9000, "do_lower_case": ["x" * 9000]}
SETTINGS: list[tuple[dict[str, Any], type[HeadscopeError], str | None]] = [
    *(({**MECAB, option: value}, HeadscopeError, option) for option, value in LONG.items()),
    *(
        ({**MECAB, "mecab_kwargs": {"mecab_dic": dictionary}}, UnsupportedError, "mecab_dic is")
        for dictionary in (["ipadic"], {"a": 1}, 5, "other")
    ),
    ({**MECAB, "mecab_kwargs": {"mecab_option": "\ud800", "mecab_dic": None}}, HeadscopeError, None),
    ({"tokenizer_class": "BertTokenizer", "added_tokens_decoder": {"9" * 5000: 5}}, CheckpointError, None),
]


@pytest.mark.parametrize(
    ("file", "settings", "kind", "message"),
    [("config.json", *EPSILON), *(("tokenizer_config.json", *row) for row in SETTINGS)],
)
def test_any_settings(
    tmp_path: Path, file: str, settings: dict[str, Any], kind: type[HeadscopeError], message: str | None
) -> None:
    """An epsilon may be beyond float32, a long value makes a short message, and a dictionary may have any type."""
    change_json(small_bert(tmp_path) / file, **settings)
    model = hs.open(tmp_path)
    with pytest.raises(kind, match=message) as refused:
        model.trace("the cat")
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("model", ["half \ud800 of a pair", "x" * 5000, "a\0b", "./" + "x" * 5000])
def test_a_trace_whose_model_is_called_anything(tmp_path: Path, model: str) -> None:
    """The page's header was not UTF-8, and the name was looked up as a folder."""
    trace = hs.open(small_bert(tmp_path)).trace("the cat").replaced(model=model)
    again = hs.load(trace.save(tmp_path / "t.safetensors"))
    assert again.model == model
    assert page_file(again)[0]


# No code of a file runs.


REPOSITORY = Path(__file__).parent.parent.parent
CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import BertConfig, BertModel, BertTokenizer
class Config(BertConfig): model_type = "foreign"
class Model(BertModel): config_class = Config
class Tokenizer(BertTokenizer): pass
"""
CLASSES = {"AutoConfig": "mod.Config", "AutoModel": "mod.Model", "AutoModelForCausalLM": "mod.Model"}
TOKENIZER = {"AutoTokenizer": ["mod.Tokenizer", None]}


def hostile(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> Path:
    """A checkpoint whose code leaves a file called `mark`, with these fields in its two configs."""
    folder.mkdir()
    small_bert(folder)
    change_json(folder / "config.json", **config)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "mod.py").write_text(CODE.format(mark=str(folder / "mark")))
    return folder


ACTING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "unknown type": ({"model_type": "foreign", "auto_map": CLASSES}, {}),
    "no type": ({"model_type": None, "auto_map": CLASSES}, {}),
    "known type": ({"auto_map": CLASSES}, {}),
    "tokenizer": ({}, {"auto_map": TOKENIZER, "tokenizer_class": "Tokenizer"}),
    "tokenizer, as a list": ({}, {"auto_map": TOKENIZER["AutoTokenizer"], "tokenizer_class": "Tokenizer"}),
    "both": ({"model_type": "foreign", "auto_map": {**CLASSES, **TOKENIZER}}, {"auto_map": TOKENIZER}),
    "kernel": ({"attn_implementation": "foreign/kernel"}, {}),
    "kernel, as transformers keeps it": ({"_attn_implementation": {"": "foreign/kernel"}}, {}),
    "kernel of experts": ({"experts_implementation": "foreign/kernel"}, {}),
    "patches": ({"fusion_config": {"patch": True}}, {}),
}


@pytest.fixture
def yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input that agrees to everything, as a corpus on standard input may."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 99))


@pytest.mark.usefixtures("yes")
def test_the_code_runs_where_transformers_loads_it(tmp_path: Path) -> None:
    """The control experiment: with this standard input, transformers runs the checkpoint's code."""
    folder = hostile(tmp_path / "model", *ACTING["unknown type"])
    transformers.AutoModel.from_pretrained(folder)
    assert (folder / "mark").exists()


@pytest.mark.usefixtures("yes")
@pytest.mark.parametrize("name", ACTING)
@pytest.mark.parametrize(
    "use",
    [
        lambda folder: hs.survey(folder, ["the cat sat"], statistics="same", report=False),
        lambda folder: hs.open(folder).trace("the cat sat").verify(),
        lambda folder: hs.open(folder).attribute("the cat [MASK]"),
        lambda folder: modules_of_checkpoint(json.loads((folder / "config.json").read_text())),
    ],
    ids=["survey", "verify", "attribute", "modules"],
)
def test_no_code_runs_and_nobody_is_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, use: Callable[[Path], object]
) -> None:
    folder = hostile(tmp_path / "model", *ACTING[name])
    with suppress(HeadscopeError):
        use(folder)
    assert not (folder / "mark").exists()
    assert "trust" not in "".join(capfd.readouterr())
    assert sys.stdin.read() == "y\n" * 99


NOT_RUN = {"unknown type": "auto_map", "tokenizer": "tokenizer", "kernel": "attn_implementation"}
NOT_RUN["patches"] = "fusion_config"


@pytest.mark.parametrize(("name", "word"), NOT_RUN.items())
def test_a_survey_says_what_it_does_not_run(tmp_path: Path, name: str, word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        hs.survey(hostile(tmp_path / "model", *ACTING[name]), ["the cat sat"], statistics="same", report=False)


@pytest.mark.parametrize("name", UNSAFE)
def test_a_survey_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Weights of a `.bin` come from headscope's own reader; torch's unpickler never sees the file."""
    monkeypatch.chdir(tmp_path)
    small_bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    make, kind = ATTACKS[f"unsafe: {name}"]
    make(tmp_path)
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("torch.load was called"))
    with pytest.raises(kind):
        hs.survey(tmp_path, ["the cat sat"], statistics="same", report=False)
    assert not Path(SENTINEL).exists()


def test_a_survey_of_a_binary_is_that_of_its_safetensors(tmp_path: Path) -> None:
    model = hs.open(small_bert(tmp_path))
    expected = hs.survey(tmp_path, ["the cat sat"], statistics="same", report=False)
    state = {name: torch.from_numpy(np.array(model.checkpoint.read(name))) for name in model.checkpoint.tensors}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    result = hs.survey(tmp_path, ["the cat sat"], statistics="same", report=False)
    np.testing.assert_array_equal(result["same"], expected["same"])
    assert result.manifest["model"]["sha256"] == expected.manifest["model"]["sha256"]


def test_configs_inside_a_config_bring_no_code(tmp_path: Path) -> None:
    """Classes of several towers build the inner ones by `from_config`, which asks, too."""
    inner = {"model_type": "gpt2", "n_layer": 1, "auto_map": CLASSES}
    config = configured(transformers.LlavaConfig, {"text_config": inner, "auto_map": CLASSES}, where=str(tmp_path))
    assert not hasattr(config, "auto_map")
    assert not hasattr(config.text_config, "auto_map")
    with pytest.raises(UnsupportedError, match="attn_implementation"):
        configured(transformers.LlavaConfig, {"text_config": {**inner, "attn_implementation": "a/b"}}, where="here")


AUTO = re.compile(r"Auto\w+\.from_pretrained\((?!…|\.\.\.)[^()]*\)?")


def test_the_project_loads_nothing_that_may_ask() -> None:
    """transformers' auto classes run a checkpoint's code once somebody says yes; the named classes never do."""
    folders = [REPOSITORY / name for name in ("src", "benchmarks", "docs", "examples", "training")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md", ".ipynb")]
    calls = [call for path in files for call in AUTO.findall(path.read_text(encoding="utf-8"))]
    assert len(files) > 300
    assert calls
    assert [call for call in calls if "trust_remote_code=False" not in call] == []


# The fuzz run itself.


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


def test_damaged_files_of_every_kind_are_read_or_refused(
    reader: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """No exception that is not ours, no code run. `--mutations 100000` is the long run, `-rP` prints its counts."""
    count = pytestconfig.getoption("--mutations")
    counts = fuzz.fuzz(reader, range(count), 0, tmp_path)
    print(counts)
    assert not counts.findings, f"the files are in {tmp_path}"
    assert (counts.mutations, counts.read + counts.refused, counts.foreign, counts.code) == (count, count, 0, 0)


def test_code_and_gigabytes_are_findings(watched: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def remove(data: bytes, folder: Path) -> None:
        (folder / "file").write_bytes(data)
        (folder / "file").unlink()
        if data != b"whole":
            np.empty(2 * fuzz.MOST_MEMORY, np.uint8)

    monkeypatch.setitem(readers.READERS, "removes", readers.Reader(lambda _: [b"whole"], (mutate_bytes,), remove))
    counts = fuzz.fuzz("removes", range(10), 1, tmp_path)
    assert counts.code == 10
    assert "code: os.remove" in counts.findings
    assert any("MemoryError" in kind for kind in counts.findings)


def test_the_documentation_names_every_reader() -> None:
    text = (REPOSITORY / "docs" / "trust.md").read_text(encoding="utf-8")
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


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)), max_size=5))
def test_any_good_header_is_read(tensors: list[tuple[str, list[int]]]) -> None:
    reached, header = 0, {}
    for index, (dtype, shape) in enumerate(tensors):
        size, left = divmod(prod(shape) * DTYPES[dtype].bits, 8)
        if not left:
            header[f"{index}"] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, reached + size]}
            reached += size
    text = json.dumps(header).encode()
    entries = read_safetensors_header(readers.InMemory(len(text).to_bytes(8, "little") + text + bytes(reached)))
    assert {name: [entry.dtype, list(entry.shape)] for name, entry in entries.items()} == {
        name: [value["dtype"], value["shape"]] for name, value in header.items()
    }


OPCODES = [bytes([code]) for code in b"(0129]}).)tueadsbRQNKMJXqrhjc" + b"\x80\x81\x85\x86\x87\x88\x89"]
PIECES = [storage(), tensor(), tensor((2, 2), (2, 1)), b"ccollections\nOrderedDict\n", b"cos\nsystem\n"]
PIECES += [b"}(X\1\0\0\0x", b"K\1"]


@given(st.lists(st.sampled_from(OPCODES) | st.sampled_from(PIECES) | st.binary(max_size=3), max_size=40).map(b"".join))
def test_any_opcodes(data: bytes) -> None:
    with suppress(HeadscopeError):
        readers.read_pickle(legacy(b"\x80\x02" + data + b".", LEGACY_DATA), Path())

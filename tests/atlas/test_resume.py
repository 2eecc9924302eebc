"""Killed and run again: not a byte differs. Before a power cut: a file is synced before its name is."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from surveying import ALICE, OPTIONS, contents, dying
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
)

import headscope as hs
from headscope import files
from headscope.atlas.folder import Folder
from headscope.atlas.loading import tokenizer_record
from headscope.atlas.survey_data import DamageWarning
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError
from known_heads import VOCABULARY, known_treebank
from small_bert import small_bert

EVERYTHING: dict[str, Any] = {
    **OPTIONS,
    "length": 24,
    "part_size": 1700,
    "statistics": ["entropy"],
    "labels": True,
    "examples": 3,
    "effects": 2,
    "writes": 12,
    "report": True,
}


def test_died_at_random_moments_and_run_again(corpus: Path, whole: hs.Survey, tmp_path: Path) -> None:
    out = tmp_path / "out"
    moments = random.Random(6)
    total = len(whole.manifest["parts"])
    for target in (0, 1, 2, 3, total - 2, total - 1, total):
        done = len(list(out.glob("parts/part-*.parquet")))
        with dying("part-", target - done, moments.randrange(8)):
            hs.survey("-", corpus, out=out, head_distances=2, **OPTIONS)
        finished = {path: path.stat().st_ino for path in out.glob("parts/part-*.parquet")}
    (out / "parts" / ".part-00001.parquet.0123456789abcdef.partial").write_bytes(b"half a part")
    hs.survey("-", corpus, out=out, head_distances=2, **OPTIONS)
    assert contents(out) == contents(whole.folder)
    assert all(path.stat().st_ino == inode for path, inode in finished.items())


@pytest.mark.slow
def test_died_with_everything_on_and_run_again(tmp_path: Path) -> None:
    """Examples, labels, lines, relations, effects, writes, the site: each is byte for byte what it would be."""
    corpus = known_treebank(tmp_path / "known.conllu", documents=8)
    model = small_bert(tmp_path, vocabulary=(*VOCABULARY, "horses"))
    whole = hs.survey(model, corpus, out=tmp_path / "whole", **EVERYTHING)
    assert len(whole.manifest["parts"]) > 2
    out = tmp_path / "out"
    moments, kept = random.Random(8), {}
    for name, times in (
        *(("part-", 1), ("part-", 2), ("sample.parquet", 1)),
        *(("effects.parquet", 1), ("round-", 3), ("removal.parquet", 1)),
        *(("choosing-", 1), ("writes.parquet", 1), ("syntax.parquet", 1), ("relations.parquet", 1)),
        *(("distributions.parquet", 1), ("labels.parquet", 1), ("examples.parquet", 1), ("lines.parquet", 1)),
        *(("manifest.json", 1), ("index.html", 1), ("head-", 3)),
    ):
        with dying(name, times, moments.randrange(4)):
            hs.survey(model, corpus, out=out, **EVERYTHING)
        if name in ("round-", "writes.parquet"):
            kept[name] = {path: path.stat().st_ino for path in (*out.glob("effects/round-*"), *out.glob("writes/*-*"))}
    hs.survey(model, corpus, out=out, **EVERYTHING)
    assert 2 <= len(kept["round-"]) < len(kept["writes.parquet"])
    assert all(path.stat().st_ino == inode for paths in kept.values() for path, inode in paths.items())
    expected = contents(whole.folder)
    tables = "sample labels examples lines distributions syntax relations effects removal writes"
    assert {f"{name}.parquet" for name in tables.split()} | {"site/index.html", "site/head-1-1.html"} <= {*expected}
    result = contents(out)
    assert {*result} == {*expected}
    assert [name for name in expected if result[name] != expected[name]] == []


@pytest.fixture
def begun(corpus: Path, tmp_path: Path) -> Path:
    """A survey that was stopped after two parts."""

    def stop(tally) -> None:
        if tally.parts == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hs.survey("-", corpus, out=tmp_path / "out", head_distances=2, progress=stop, **OPTIONS)
    assert len(contents(tmp_path / "out")) == 3
    return tmp_path / "out"


def test_what_was_stopped_goes_on_and_parts_that_are_done_are_not_made_again(begun, corpus, whole):
    done = {path: path.stat().st_ino for path in (begun / "parts").iterdir()}
    tallies = []
    options = {**OPTIONS, "progress": lambda tally: tallies.append((tally.kept_parts, tally.parts))}
    hs.survey("-", corpus, out=begun, head_distances=2, **options)
    assert contents(begun) == contents(whole.folder)
    assert all(path.stat().st_ino == inode for path, inode in done.items())
    assert tallies[-1] == (2, len(whole.manifest["parts"]))
    again = hs.survey("-", corpus, out=begun, head_distances=2, **OPTIONS)
    assert contents(begun) == contents(whole.folder)
    assert again.manifest == whole.manifest


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"length": 16}, "the folder holds a survey with other settings: length was 32, is 16"),
        ({"statistics": ["cls"]}, "the folder holds a survey with other settings: statistics was"),
        ({"examples": 5}, "examples was null, is 5"),
    ],
)
def test_other_settings_are_refused(begun, corpus, other, message):
    before = contents(begun)
    with pytest.raises(InputError, match=message):
        hs.survey("-", corpus, out=begun, **{**OPTIONS, "head_distances": 2, **other})
    assert contents(begun) == before


def test_another_corpus_is_refused(begun, corpus, tmp_path):
    copy = tmp_path / corpus.name
    copy.mkdir()
    for path in corpus.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "0.txt").write_bytes(b"X" + (copy / "0.txt").read_bytes()[1:])
    with pytest.raises(InputError, match=r"the corpus has changed .* part 0 was made from other texts"):
        hs.survey("-", copy, out=begun, head_distances=2, **OPTIONS)
    (copy / "0.txt").unlink()
    with pytest.raises(InputError, match="the folder holds a survey with another corpus"):
        hs.survey("-", copy, out=begun, head_distances=2, **OPTIONS)


def test_two_surveys_do_not_write_to_one_folder(corpus, tmp_path):
    def second(tally) -> None:
        hs.survey("-", corpus, out=tmp_path / "out", **OPTIONS)

    with pytest.raises(InputError, match="another survey is writing to this folder"):
        hs.survey("-", corpus, out=tmp_path / "out", progress=second, **OPTIONS)


def test_no_folder_is_opened_on_windows(tmp_path, monkeypatch):
    """The system refuses to; and it has no locks of this kind."""

    def refusing(path, *flags):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("headscope.files.sync_folder", lambda path: None)
    monkeypatch.setattr("os.open", refusing)
    with pytest.raises(InputError, match="Permission denied"), Folder(tmp_path / "out").locked():
        pass
    monkeypatch.setattr("sys.platform", "win32")
    with Folder(tmp_path / "out").locked():
        assert (tmp_path / "out" / "parts").is_dir()


def test_a_finished_survey_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there and undamaged is read; what is missing, a table or an array, is made again, and is the same."""
    import headscope.atlas.collect as collect

    model, out = small_bert(tmp_path / "model"), tmp_path / "out"
    texts = ["the cat sat on the mat", "a dog ran home", "she took off her hat", "it was late"]
    everything = {"labels": True, "examples": 2, "effects": 4, "writes": 4, "head_distances": 1, "report": False}
    first = hs.survey(model, texts, out=out, **everything)
    whole = contents(out)
    gathered: list[int] = []
    own = collect.gather
    monkeypatch.setattr(collect, "gather", lambda *given: (gathered.append(1), own(*given)))
    again = hs.survey(model, texts, out=out, **everything)
    assert gathered == []
    assert again.labels.equals(first.labels)
    arrays = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.npy"))
    assert sorted(first.manifest["arrays"]) == arrays
    assert {name.partition("/")[0] for name in arrays} == {"effects", "writes", "similarity"}
    gone = [f"{name}.parquet" for name in ("labels", "sample", "examples", "lines", "distributions")]
    for times, name in enumerate((*gone, "effects/round-00001.npy", "similarity/window-00000.npy"), 1):
        (out / name).unlink()
        hs.survey(model, texts, out=out, **everything)
        assert len(gathered) == times
        assert contents(out) == whole
    for name in ("sample.parquet", max(name for name in arrays if name.startswith("writes/"))):
        (out / name).write_bytes((out / name).read_bytes()[:-9])
        with pytest.warns(DamageWarning, match=name.replace(".", r"\.")):
            hs.survey(model, texts, out=out, **everything)
        assert contents(out) == whole


def identity(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The calls that sync and name files, in their order: name, file, size and absolute path."""
    calls: list[list[Any]] = []

    def fsync(handle: int, real: Callable[[int], None] = os.fsync) -> None:
        status = os.fstat(handle)
        real(handle)
        calls.append(["fsync", identity(status), status.st_size])

    def logged(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *args: Any, **named: Any) -> None:
            status = None if name == "mkdir" else os.stat(path)
            real(path, *args, **named)
            where = path if status is None else args[0]
            calls.append([name, identity(status or os.stat(path)), status.st_size if status else 0, absolute(where)])

        return call

    absolute = os.path.abspath
    monkeypatch.setattr(os, "fsync", fsync)
    for call, name in (("replace", "rename"), ("rename", "rename"), ("mkdir", "mkdir")):
        monkeypatch.setattr(os, call, logged(name, getattr(os, call)))
    if accessor := getattr(pathlib, "_NormalAccessor", None):  # Python 3.10's paths keep os.mkdir from their import
        monkeypatch.setattr(accessor, "mkdir", staticmethod(os.mkdir))
    return calls


def test_every_file_is_on_disk_before_its_name_and_its_name_before_anything_follows(
    log: list[list[Any]], corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    hs.survey("-", corpus, out=out, head_distances=2, **OPTIONS)
    mine = [at for at, (call, _, _, *where) in enumerate(log) if where and Path(where[0]).is_relative_to(out.parent)]
    named = []
    for at in mine:
        call, inode, size, where = log[at]
        # Nothing that needs the name comes before the folder that holds it is synced: the very next call is that.
        assert log[at + 1][:2] == ["fsync", identity(Path(where).parent.stat())], where
        if call == "rename":
            synced = [before for before in log[:at] if before[:2] == ["fsync", inode]]
            assert synced == [["fsync", inode, size]], where  # once, when all of it was written
            named.append(where)
    assert set(named) == {str(path) for path in out.rglob("*") if path.is_file()}  # no file came there another way
    assert named[-1] == str(out / "manifest.json")  # what says that it is complete comes last
    assert named[0] == named[-1]  # and what says what it will be comes first
    assert {log[at][3] for at in mine if log[at][0] == "mkdir"} == {
        str(folder) for folder in (out.parent, out, out / "parts", out / "similarity")
    }


def test_a_disk_that_fails_is_an_error_and_one_that_cannot_sync_folders_is_none(tmp_path, monkeypatch):
    real = os.fsync

    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", failing)
    number = errno.EIO
    with pytest.raises(InputError, match=r"may not survive a power cut: Input/output error"):
        files.write_durably(tmp_path / "a", b"x")
    number = errno.EINVAL
    files.write_durably(tmp_path / "b", b"x")


def failing_disk(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make every call that writes raise this error, as a read-only or full disk does."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    opening = os.open

    def only_reading(path: str, flags: int, *rest: int, **named: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse()
        return opening(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", only_reading)
    for name in ("mkdir", "unlink", "remove", "rename", "replace", "rmdir", "fsync"):
        monkeypatch.setattr(os, name, refuse)


def test_a_finished_survey_on_a_read_only_disk_is_read_by_running_it_again(tmp_path, monkeypatch):
    out, options = tmp_path / "out", OPTIONS | {"head_distances": 2, "examples": 2, "report": True}
    corpus = [ALICE[:300], ALICE[300:500]]
    first = hs.survey("-", corpus, out=out, **options)
    before = contents(out)
    assert "site/index.html" in before
    failing_disk(monkeypatch, errno.EROFS)
    again = hs.survey("-", corpus, out=out, **options)
    assert again.manifest == first.manifest
    assert len(again.examples[0, 0]) > 0
    assert contents(out) == before
    with pytest.raises(InputError, match=r"the folder can't be made: the disk is read-only"):
        hs.survey("-", corpus, out=tmp_path / "other", **options)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_called_one(corpus, tmp_path, monkeypatch, number):
    failing_disk(monkeypatch, number)
    for action in (
        lambda: files.write_durably(tmp_path / "a", b"x"),
        lambda: files.make_folder(tmp_path / "b" / "c"),
        lambda: hs.survey("-", corpus, out=tmp_path / "out", **OPTIONS),
        lambda: hs.survey("-", corpus, **OPTIONS),
        lambda: hs.open("-").trace("the cat").save(tmp_path / "t.safetensors"),
    ):
        with pytest.raises(InputError, match="the disk is full") as caught:
            action()
        assert "free some space" in caught.value.advice


# Resumed by the model that began it and by no other: everything that changes a number is compared.


TEXTS = [ALICE[at : at + 300] for at in range(0, 1500, 300)]
SMALL: dict[str, Any] = {"length": 32, "part_size": 500, "threads": 1, "report": False}


def stop(tally) -> None:
    if tally.parts == 1:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with the bundled model's tokenizer, and the beginning of its survey beside it."""
    folder = tmp_path_factory.mktemp("identity") / "small"
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=4096, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED / name, folder / name)
    # A class that takes every section of tokenizer.json as it stands: BertTokenizer makes its own from the vocabulary.
    edited("tokenizer_config.json", lambda it: it.update(tokenizer_class="PreTrainedTokenizerFast"))(folder)
    with pytest.raises(KeyboardInterrupt):
        hs.survey(folder, TEXTS, out=folder.parent / "out", progress=stop, **SMALL)
    return folder


def edited(name: str, edit: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        record = json.loads((folder / name).read_text(encoding="utf-8"))
        edit(record)
        (folder / name).write_text(json.dumps(record), encoding="utf-8")

    return change


def swap_two_words(record: dict[str, Any]) -> None:
    vocabulary = record["model"]["vocab"]
    vocabulary["the"], vocabulary["of"] = vocabulary["of"], vocabulary["the"]


CHANGES = {
    "activation": (edited("config.json", lambda it: it.update(hidden_act="relu")), r'hidden_act was "gelu", is "relu"'),
    "lower-casing": (
        edited("tokenizer.json", lambda it: it["normalizer"].update(lowercase=False)),
        r"tokenizer\.normalizer\.lowercase was true, is false",
    ),
    "vocabulary": (edited("tokenizer.json", swap_two_words), r'tokenizer\.model was "sha256 \w+", is "sha256 \w+"'),
    "special tokens": (
        edited("tokenizer.json", lambda it: it["post_processor"]["single"].pop()),
        r'tokenizer\.post_processor was "sha256',
    ),
    "side": (
        edited("tokenizer_config.json", lambda it: it.update(truncation_side="left")),
        r'tokenizer\.truncation_side was "right", is "left"',
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_weights_with_something_else_changed(small, tmp_path, change):
    folder = shutil.copytree(small, tmp_path / "small")
    edit, message = CHANGES[change]
    edit(folder)
    before = contents(small.parent / "out")
    with pytest.raises(InputError, match=rf"(?s)the folder holds a survey with another model: .*{message}"):
        hs.survey(folder, TEXTS, out=small.parent / "out", **SMALL)
    assert contents(small.parent / "out") == before


def test_the_way_matrices_are_multiplied(small):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(InputError, match=r'running\.matmul was "highest", is "medium"'):
            hs.survey(small, TEXTS, out=small.parent / "out", **SMALL)
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_same_model_elsewhere_goes_on(small, tmp_path):
    """Where it lies, the names of classes and an unused pooler change no number."""
    folder = shutil.copytree(small, tmp_path / "small")
    out = shutil.copytree(small.parent / "out", tmp_path / "out")
    edited("config.json", lambda it: it.update(id2label={"0": "no", "1": "yes"}, _name_or_path="elsewhere"))(folder)
    hs.survey(folder, TEXTS, out=out, **SMALL)
    whole = hs.survey(small, TEXTS, out=tmp_path / "whole", **SMALL)
    assert contents(out) == contents(whole.folder)


def changed_weight(model: Any) -> None:
    model.encoder.layer[1].attention.self.query.weight.data[0, 0] += 1


def changed_config(model: Any) -> None:
    model.config.layer_norm_eps = 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [(changed_weight, r"model\.sha256 was"), (changed_config, r"model\.config\.layer_norm_eps was 1e-12, is 0.1")],
)
def test_a_live_model_that_was_changed_in_memory(tmp_path, change, message):
    model, tokenizer = AutoModel.from_pretrained(BUNDLED), AutoTokenizer.from_pretrained(BUNDLED)
    with pytest.raises(KeyboardInterrupt):
        hs.survey(model, TEXTS, tokenizer=tokenizer, out=tmp_path / "out", progress=stop, **SMALL)
    with pytest.raises(KeyboardInterrupt):  # it was not changed by being run: this goes on
        hs.survey(model, TEXTS, tokenizer=tokenizer, out=tmp_path / "out", progress=stop, **SMALL)
    change(model)
    with pytest.raises(InputError, match=message):
        hs.survey(model, TEXTS, tokenizer=tokenizer, out=tmp_path / "out", **SMALL)


def test_rotations_are_compared(tmp_path):
    """They are buffers that no checkpoint holds."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model, tokenizer = LlamaModel(config), AutoTokenizer.from_pretrained(BUNDLED)
    requested = {**SMALL, "tokenizer": tokenizer, "out": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt):
        hs.survey(model, TEXTS, progress=stop, **requested)
    model.rotary_emb.inv_freq *= 2
    with pytest.raises(InputError, match=r"model\.sha256 was"):
        hs.survey(model, TEXTS, **requested)


def test_lower_casing_of_a_tokenizer_that_makes_its_own_sections():
    """A BertTokenizer goes by tokenizer_config.json, or by what it is called with."""
    plain, cased = (
        tokenizer_record(AutoTokenizer.from_pretrained(BUNDLED, **requested))
        for requested in ({}, {"do_lower_case": False})
    )
    assert plain["normalizer"]["lowercase"]
    assert not cased["normalizer"]["lowercase"]
    assert {name for name in plain if plain[name] != cased[name]} == {"normalizer"}


def test_a_tokenizer_that_cannot_be_saved_is_told_apart_all_the_same():
    """A pre-tokenizer written in Python."""

    class Spaces:
        def pre_tokenize(self, text: Any) -> None:
            text.split(lambda at, one: one.split(" ", "removed"))

    def custom(swapped: bool) -> PreTrainedTokenizerFast:
        record = json.loads((BUNDLED / "tokenizer.json").read_text(encoding="utf-8"))
        if swapped:
            swap_two_words(record)
        result = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(record)))
        result.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Spaces())
        return result

    assert tokenizer_record(custom(False)) == tokenizer_record(custom(False))
    assert tokenizer_record(custom(False)) != tokenizer_record(custom(True))

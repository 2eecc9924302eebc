"""Killed and run again: finished parts stay, nothing is lost or counted twice, and not a byte differs."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from surveying import OPTIONS, contents

import headscope as hs
from headscope._survey.folder import Folder
from headscope._survey.seal import DamageWarning
from headscope.errors import InputError
from known_heads import known_treebank
from patience import PATIENCE

FORKING = """
import os, signal, sys
import torch, transformers, transformers.models.bert.modeling_bert
import headscope as hs
import headscope._survey.run, headscope._survey.replica, headscope._survey.aggregates
corpus, out, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
print("ready", flush=True)

def killed(name, renames, events):
    def count(event, args):
        nonlocal renames, events
        if event == "os.rename" and os.path.basename(args[1]).startswith(name):
            renames -= 1
        if renames <= 0 and event in ("open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.scandir"):
            events -= 1
            if events < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    return count

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        if line.split():
            name, renames, events = line.split()
            sys.addaudithook(killed(name, int(renames), int(events)))
        try:
            hs.survey("-", corpus, out=out, **options)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""A process that has imported everything, and makes a process of its own for each survey: importing takes longest.

A line that it reads begins one, and says when it dies: how files begin, after how many of them to count, and how many
calls that touch files to let pass. An empty line: never."""

EVERYTHING: dict[str, Any] = {
    **OPTIONS,
    "part_size": 1700,
    "statistics": ["entropy"],
    "labels": True,
    "examples": 3,
    "effects": 2,
    "report": True,
}


class Surveys:
    """Surveys in processes that can be killed."""

    def __init__(self, corpus: Path, out: Path, options: dict[str, Any]) -> None:
        self.out = out
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKING, str(corpus), str(out), repr(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._line() == "ready"

    def run(self, name: str = "", renames: int = 1, events: int = 0) -> int:
        """The status with which a survey ends; when it dies: after so many files that begin so, and calls more."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {renames} {events}\n" if name else "\n")
        return int(self._line())

    def parts(self) -> int:
        return len(list(self.out.glob("parts/part-*.parquet")))

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def surveys(corpus: Path, tmp_path: Path) -> Iterator[Surveys]:
    built = Surveys(corpus, tmp_path / "out", {"head_distances": 2, **OPTIONS})
    yield built
    built.close()


def test_killed_at_random_moments_and_run_again(surveys, whole):
    moments = random.Random(6)
    total = len(whole.manifest["parts"])
    for target in (0, 1, 2, 3, total - 2, total - 1, total):
        assert surveys.run("part-", target - surveys.parts(), moments.randrange(8)) == signal.SIGKILL
        finished = {path: path.stat().st_ino for path in surveys.out.glob("parts/part-*.parquet")}
    (surveys.out / "parts" / ".part-00001.parquet.x7k2").write_bytes(b"half a part")
    assert surveys.run() == 0
    assert contents(surveys.out) == contents(whole.folder)
    assert all(path.stat().st_ino == inode for path, inode in finished.items())


def test_killed_with_everything_on_and_run_again(tmp_path):
    """Examples, labels, lines, distributions, relations, effects, the site: each is byte for byte what it would be."""
    corpus = known_treebank(tmp_path / "known.conllu", documents=8)
    whole = hs.survey("-", corpus, out=tmp_path / "whole", **EVERYTHING)
    assert len(whole.manifest["parts"]) > 2
    surveys = Surveys(corpus, tmp_path / "out", EVERYTHING)
    moments = random.Random(8)
    for name, renames in (
        *(("part-", 1), ("texts-", 1), ("round-", 3), ("relations.parquet", 1), ("distributions.parquet", 1)),
        *(("labels.parquet", 1), ("examples.parquet", 1), ("lines.parquet", 1), ("index.html", 1), ("head-", 3)),
    ):
        assert surveys.run(name, renames, moments.randrange(4)) == signal.SIGKILL, name
    assert surveys.run() == 0
    surveys.close()
    expected = contents(whole.folder)
    names = ("labels", "examples", "lines", "distributions", "syntax", "relations", "effects", "removal")
    assert {f"{name}.parquet" for name in names} | {"site/index.html", "site/head-3-3.html"} <= {*expected}
    result = contents(surveys.out)
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
    hs.survey(
        "-",
        corpus,
        out=begun,
        head_distances=2,
        progress=lambda tally: tallies.append((tally.kept_parts, tally.parts)),
        **OPTIONS,
    )
    assert contents(begun) == contents(whole.folder)
    assert all(path.stat().st_ino == inode for path, inode in done.items())
    assert tallies[-1] == (2, len(whole.manifest["parts"]))
    again = hs.survey("-", corpus, out=begun, head_distances=2, **OPTIONS)
    assert contents(begun) == contents(whole.folder)
    assert again.manifest == whole.manifest


def test_a_damaged_part_is_made_anew(begun, corpus, whole):
    part = begun / "parts" / "part-00001.parquet"
    part.write_bytes(broken := part.read_bytes()[:-20])
    with pytest.warns(DamageWarning, match=r"parts/part-00001\.parquet: its bytes do not match .* kept as damaged/"):
        hs.survey("-", corpus, out=begun, head_distances=2, **OPTIONS)
    result = contents(begun)
    assert result.pop("damaged/parts-part-00001.parquet") == broken
    assert result == contents(whole.folder)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"length": 16}, "the folder holds a survey with other settings: length was 32, is 16"),
        ({"head_distances": 0}, "head_distances was 2, is 0"),
        ({"statistics": ["cls"]}, "the folder holds a survey with other settings: statistics was"),
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


def test_a_folder_with_other_things_is_refused(corpus, tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match=r"holds other files: thesis\.tex"):
        hs.survey("-", corpus, out=tmp_path, **OPTIONS)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="expected a manifest with format"):
        hs.survey("-", corpus, out=tmp_path, **OPTIONS)


def test_two_surveys_do_not_write_to_one_folder(corpus, tmp_path):
    def second(tally) -> None:
        hs.survey("-", corpus, out=tmp_path / "out", **OPTIONS)

    with pytest.raises(InputError, match="another survey is writing to this folder"):
        hs.survey("-", corpus, out=tmp_path / "out", progress=second, **OPTIONS)


def test_no_folder_is_opened_on_windows(tmp_path, monkeypatch):
    """The system refuses to; and it has no locks of this kind."""

    def refusing(path, *flags):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("headscope._survey.durable.sync_folder", lambda path: None)
    monkeypatch.setattr("os.open", refusing)
    with pytest.raises(InputError, match="Permission denied"), Folder(tmp_path / "out").locked():
        pass
    monkeypatch.setattr("sys.platform", "win32")
    with Folder(tmp_path / "out").locked():
        assert (tmp_path / "out" / "parts").is_dir()

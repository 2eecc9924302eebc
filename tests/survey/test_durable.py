"""A survey's promises about power cuts, checked by its system calls: a file is synced before its name is."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from surveying import OPTIONS, contents

import headscope as hs
from headscope import files
from headscope.errors import InputError


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


def test_a_disk_that_fails_is_an_error(tmp_path, monkeypatch):
    real = os.fsync

    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(5, "Input/output error")
        real(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(InputError, match=r"may not survive a power cut: Input/output error"):
        files.write_durably(tmp_path / "a", b"x")


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


WRITTEN = {
    "site/index.html": {"head_distances": 2, "examples": 2, "report": True},
}
"""A file -> the options with which a survey writes it."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_finished_survey_on_a_read_only_disk_is_read_by_running_it_again(corpus, tmp_path, monkeypatch, name):
    out, options = tmp_path / "out", OPTIONS | WRITTEN[name]
    first = hs.survey("-", corpus, out=out, **options)
    before = contents(out)
    assert name in before
    failing_disk(monkeypatch, errno.EROFS)
    again = hs.survey("-", corpus, out=out, **options)
    assert again.manifest == first.manifest
    if "examples" in options:
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


def test_a_file_system_that_cannot_sync_folders_is_no_error(tmp_path, monkeypatch):
    def unable(handle: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unable)
    files.sync_folder(tmp_path)

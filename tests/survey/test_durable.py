"""A survey's promises about power cuts, checked by its system calls: a file is synced before its name is."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from surveying import OPTIONS

from headscope._survey import durable
from headscope.errors import InputError
from patience import PATIENCE

TRACED = """
import json, os, sys

log = []


def kind(status):
    return [status.st_dev, status.st_ino]


def fsync(handle, real=os.fsync):
    status = os.fstat(handle)
    real(handle)
    log.append(["fsync", kind(status), status.st_size])


def replace(source, target, real=os.replace):
    status = os.stat(source)
    real(source, target)
    log.append(["rename", kind(status), status.st_size, os.path.abspath(target)])


def rename(source, target, real=os.rename):
    status = os.stat(source)
    real(source, target)
    log.append(["rename", kind(status), status.st_size, os.path.abspath(target)])


def mkdir(path, *args, real=os.mkdir, **named):
    real(path, *args, **named)
    log.append(["mkdir", kind(os.stat(path)), 0, os.path.abspath(path)])


os.fsync, os.replace, os.rename, os.mkdir = fsync, replace, rename, mkdir
import headscope as hs

corpus, out, options, trace = sys.argv[1], sys.argv[2], eval(sys.argv[3]), sys.argv[4]
hs.survey("-", corpus, out=out, head_distances=2, **options)
with open(trace, "w") as file:
    json.dump(log, file)
"""
"""A survey in a process of its own, whose calls are written down in their order."""


def identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, status.st_ino]


def test_every_file_is_on_disk_before_its_name_and_its_name_before_anything_follows(corpus, tmp_path):
    out, trace = tmp_path / "new" / "out", tmp_path / "trace.json"
    subprocess.run(
        [sys.executable, "-c", TRACED, str(corpus), str(out), repr(OPTIONS), str(trace)], check=True, timeout=PATIENCE
    )
    log = json.loads(trace.read_text())
    mine = [at for at, (call, _, _, *where) in enumerate(log) if where and Path(where[0]).is_relative_to(out.parent)]
    named = []
    for at in mine:
        call, inode, size, where = log[at]
        # Nothing that needs the name comes before the folder that holds it is synced: the very next call is that.
        assert log[at + 1][:2] == ["fsync", identity(Path(where).parent)], where
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
        durable.write_durably(tmp_path / "a", b"x")


def test_a_file_system_that_cannot_sync_folders_is_no_error(tmp_path, monkeypatch):
    def unable(handle: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unable)
    durable.sync_folder(tmp_path)

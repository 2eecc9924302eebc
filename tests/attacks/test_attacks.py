"""Every hostile file raises a HeadscopeError with place and advice; no code runs and no file changes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from attacks.hostile import ATTACKS, GOOD, LEGACY_DATA, RUN, SENTINEL, binary, legacy, state, tensor
from headscope.checkpoint import open_checkpoint
from headscope.errors import HeadscopeError, UnsafeError


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

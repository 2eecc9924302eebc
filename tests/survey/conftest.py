"""A small corpus and one uninterrupted survey of it, shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from surveying import ALICE, OPTIONS

import headscope as hs
from headscope._survey.result import Survey


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of many lengths, some of them bad."""
    folder = tmp_path_factory.mktemp("corpus")
    start = 0
    for number, size in enumerate((700, 40, 300, 1500, 90, 15, 400, 500)):
        (folder / f"{number}.txt").write_text(ALICE[start : start + size], encoding="utf-8")
        start += size
    (folder / "bad.txt").write_bytes(b"\xff\xfe\x00")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "invisible.txt").write_text("\u200b\u0001\u200b", encoding="utf-8")
    (folder / "long.txt").write_text("long " * 3000, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """The survey of that corpus, uninterrupted."""
    return hs.survey("-", corpus, out=tmp_path_factory.mktemp("whole") / "out", head_distances=2, **OPTIONS)

"""A small corpus and one uninterrupted survey of it, shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from surveying import ALICE, OPTIONS, SENTENCES, TREEBANK, Looks, Naive, bundled_eager, read_trees

import headscope as hs
from headscope.atlas.result import Survey


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


@pytest.fixture(scope="session")
def treebank_survey(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """A survey of twenty sentences with their trees, with examples, in many parts."""
    return hs.survey("-", TREEBANK, out=tmp_path_factory.mktemp("sentences") / "out", **SENTENCES)


@pytest.fixture(scope="session")
def naive() -> Naive:
    """What the bundled model's heads look at in the treebank."""
    model, tokenizer = bundled_eager()
    return {
        (f"{TREEBANK.name}#{document}", number): (tree, Looks(model, tokenizer, tree[0]))
        for document, trees in enumerate(read_trees(TREEBANK), 1)
        for number, tree in enumerate(trees)
    }


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """One Ray for all tests: starting takes longest."""
    from clusters import running_cluster

    with running_cluster() as cluster:
        yield cluster

"""The sample: drawn by content, whatever files are called, and large enough; what is measured over it holds."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from surveying import ALICE, OPTIONS

import headscope as hs
from headscope.atlas.documents import Document, parts
from headscope.atlas.sample import DOCUMENTS, Drawing
from known_heads import VOCABULARY, known_heads, known_treebank
from small_bert import small_bert

ALL: dict[str, Any] = {
    **OPTIONS,
    "statistics": "entropy",
    "length": 24,
    "part_size": 900,
    "labels": True,
    "examples": 3,
    "effects": 6,
    "writes": 12,
    "head_distances": 3,
}
TABLES = ("sample", "labels", "examples", "lines", "distributions", "effects", "removal", "writes", "similarity")


def texts() -> list[str]:
    """Thirty documents of one or more windows."""
    return [ALICE[at : at + 60 + at % 400] for at in range(0, 12_000, 400)]


def rows_of(survey: hs.Survey, name: str, names: dict[str, str]) -> list[dict[str, Any]]:
    """A table, documents by their other names."""
    rows = parquet.read_table(survey.folder / f"{name}.parquet").to_pylist()
    return [{**row, **({"document": names[row["document"]]} if "document" in row else {})} for row in rows]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert(tmp_path_factory.mktemp("model"), vocabulary=(*VOCABULARY, "horses"))


def test_names_and_order_of_files_change_nothing(model: Path, tmp_path: Path) -> None:
    """Files renamed, so that they are read in another order and into other parts; and an iterator, read once."""
    drawn = np.random.default_rng(4).permutation(len(texts())).tolist()
    for name, numbers in (("one", range(30)), ("two", drawn)):
        (tmp_path / name).mkdir()
        for number, text in zip(numbers, texts(), strict=True):
            (tmp_path / name / f"{number:03}.txt").write_text(text, encoding="utf-8")
    one, two = (hs.survey(model, tmp_path / name, out=tmp_path / f"{name}-out", **ALL) for name in ("one", "two"))
    three = hs.survey(model, iter(texts()), out=tmp_path / "three-out", **{**ALL, "part_size": 10**6})
    for other, names in (
        (two, {f"{number:03}.txt": f"{at:03}.txt" for at, number in enumerate(drawn)}),
        (three, {str(at): f"{at:03}.txt" for at in range(30)}),
    ):
        for name in TABLES:
            assert rows_of(other, name, names) == rows_of(one, name, {of: of for of in names.values()}), name


def test_the_sample_is_what_loops_draw(model: Path, tmp_path: Path) -> None:
    """Documents by the hash of their text, windows by that and their number, until there are enough words."""
    whole = hs.survey(model, texts(), out=tmp_path / "whole", **ALL)
    every = parquet.read_table(whole.folder / "sample.parquet").to_pylist()
    digests = {str(at): hashlib.sha256(text.encode()).hexdigest() for at, text in enumerate(texts())}
    assert [row["rank"] for row in every] == list(range(len(every)))
    ranks = sorted(digests, key=digests.__getitem__)
    assert all(ranks[row["number"]] == row["document"] for row in every)
    assert all(row["worded"] for row in every)
    assert len(every) == whole.manifest["counts"]["windows"]
    lots = [hashlib.sha256(f"{digests[row['document']]}\0{row['window']}".encode()).digest() for row in every]
    assert lots == sorted(lots)
    few = hs.survey(model, texts(), out=tmp_path / "few", **{**ALL, "sample": 150, "writes": 40})
    assert few.manifest["settings"]["sample"] == 150
    assert "sample" not in whole.manifest["settings"]
    rows = parquet.read_table(few.folder / "sample.parquet").to_pylist()
    assert [row["words"] for row in rows] == [row["words"] for row in every[:40]]  # writes need more
    sizes = np.cumsum([len(row["words"]) for row in rows])
    assert sum(row["worded"] for row in rows) == int((sizes < 150).sum()) + 1


def test_long_documents_and_short_ones() -> None:
    """However long documents are, there are enough of them; of short ones, enough words and hardly more."""

    def drawn(words: int, count: int, length: int) -> list[Document]:
        drawing = Drawing(words)
        every = [Document(str(at), f"{at} " + "word " * (length - 1)) for at in range(count)]
        assert len([*drawing.passing(parts(every, 1000))]) > 1
        kept = drawing.documents()
        assert kept == sorted(every, key=lambda document: document.digest)[: len(kept)]
        return kept

    assert len(drawn(1000, 50, 5000)) == DOCUMENTS
    assert len(drawn(1000, 500, 10)) == 100
    assert len(drawn(1000, 30, 10)) == 30


@pytest.mark.slow
def test_two_samples_agree_within_their_intervals(tmp_path: Path) -> None:
    """A fifth of a treebank against another: labels are the same, shares within the intervals of both."""
    treebank = known_treebank(tmp_path / "known.conllu", documents=400)
    known_heads(tmp_path)
    options = {**OPTIONS, "statistics": "entropy", "labels": True, "length": 32, "part_size": 100_000}
    blocks = treebank.read_text(encoding="utf-8").split("# newdoc")[1:]
    surveys = []
    for half in (0, 1):
        path = tmp_path / f"{half}.conllu"
        path.write_text("".join("# newdoc" + block for block in blocks[half::2]), encoding="utf-8")
        surveys.append(hs.survey(tmp_path, path, out=tmp_path / str(half), **options, sample=6000))
        words = [row["words"] for row in parquet.read_table(surveys[-1].folder / "sample.parquet").to_pylist()]
        assert 6000 <= sum(map(len, words)) < 6040
        assert len(words) < surveys[-1].manifest["counts"]["windows"] / 1.4
    labels = [survey.labels.to_pylist() for survey in surveys]
    assert [row["label"] for row in labels[0][:5]] == [row["label"] for row in labels[1][:5]]
    for tables in (labels, [survey.relations.to_pylist() for survey in surveys]):
        pairs = [pair for pair in zip(*tables, strict=True) if pair[0]["score"] and pair[1]["score"]]
        agree = [max(a["low"], b["low"]) <= min(a["high"], b["high"]) for a, b in pairs]
        assert len(agree) >= 5
        assert np.mean(agree) > 0.95

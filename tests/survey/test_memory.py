"""Memory of a survey with labels, examples and the site: the same however many documents there are."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
from surveying import ALICE

import headscope as hs
from headscope.atlas.labels import choices
from small_bert import small_bert

SENTENCES = 16
"""Documents: in twice as many, every head's lists of pairs are full, and every example has its window."""


def peak_of(model: str, documents: list[str], out: Path) -> tuple[int, int]:
    """The most bytes that Python and NumPy held at once, beyond what they held before; and how many parts it made."""
    gc.collect()  # what earlier tests left is collected when enough has been made since: not in one of two runs
    tracemalloc.start()
    try:
        survey = hs.survey(
            model,
            documents,
            out=out,
            length=24,
            part_size=2_000,
            threads=1,
            labels=True,
            examples=3,
            statistics=["entropy", "first"],
        )
        return tracemalloc.get_traced_memory()[1], len(survey.manifest["parts"])
    finally:
        tracemalloc.stop()


DOCUMENTS = [ALICE[at : at + 110] for at in range(0, 110 * SENTENCES, 110)]


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model that has been surveyed, which imports much and keeps some for good."""
    folder = str(small_bert(tmp_path / "model"))
    hs.survey(folder, DOCUMENTS[:9], length=24, labels=True, examples=3, threads=1)
    return folder


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "SAMPLE_WORDS", 150)  # so that the samples of words, too, are full at once
    twice, parts = peak_of(model, DOCUMENTS * 2, tmp_path / "twice")
    thrice, more_parts = peak_of(model, DOCUMENTS * 3, tmp_path / "thrice")
    assert more_parts > parts
    assert thrice <= 1.2 * twice  # 0.92 to 1.08 by what ran before; 1.27 where the samples have no bound

"""Memory of a survey with labels, examples and the site: the same however many documents there are."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from surveying import ALICE

import headscope as hs
from headscope.atlas import choices
from small_bert import small_bert

SENTENCES = 30
"""Documents: enough for every head's lists of pairs to be full, and for every example to have its window."""


def peak_of(model: str, documents: list[str], out: Path) -> tuple[int, int]:
    """The most bytes that Python and NumPy held at once, beyond what they held before; and how many parts it made."""
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


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "SAMPLE_WORDS", 150)  # so that the samples of words, too, are full at once
    documents = [ALICE[at : at + 110] for at in range(0, 110 * SENTENCES, 110)]
    model = str(small_bert(tmp_path / "model"))
    hs.survey(model, documents[:9], length=24, labels=True, examples=3, threads=1)  # imports, and what is kept for good
    once, parts = peak_of(model, documents, tmp_path / "once")
    four_times, more_parts = peak_of(model, documents * 4, tmp_path / "four")
    assert more_parts == 4 * parts
    assert four_times <= 2 * once  # 1.1 to 1.3 times by what ran before; 3.3 times where the samples have no bound

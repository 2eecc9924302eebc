"""The bundled model: a survey with everything, and the packed trace of a page.

Its heads' margins are a real model's, not as wide as those of models.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from safetensors.numpy import load

import headscope as hs
from golden.keeping import TABLES, keep, steady
from headscope.page.trace import page_bytes

TREEBANK = Path(__file__).parents[1] / "data" / "treebank" / "en_pud-first20.conllu"
EVERYTHING: dict[str, Any] = {"labels": True, "examples": 1, "effects": 6, "writes": 12, "head_distances": 4}
CLOSE = 2e-4
"""Most that a number may differ, of its size or of 1: fp32 through all layers, a softmax and a logarithm."""
TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> hs.Survey:
    folder = tmp_path_factory.mktemp("bundled") / "out"
    return hs.survey("-", TREEBANK, out=folder, length=96, threads=1, report=False, **EVERYTHING)


@pytest.mark.parametrize("name", [*TABLES, "writes"])
def test_the_tables(name: str, survey: hs.Survey, request: pytest.FixtureRequest) -> None:
    keep(request, f"bundled-{name}", getattr(survey, name), close=CLOSE)


def test_the_statistics_and_distances(survey: hs.Survey, request: pytest.FixtureRequest) -> None:
    value = {
        "statistics": {name: survey[name] for name in survey},
        "distances": parquet.read_table(survey.folder / "similarity.parquet"),
        "manifest": steady(survey.manifest),
    }
    keep(request, "bundled-survey", value, close=CLOSE)


def test_the_packed_trace_of_a_page(request: pytest.FixtureRequest) -> None:
    """Every tensor, and all that the header says of it."""
    raw = page_bytes(hs.open("-").trace(TEXT), dtype="fp32")
    size = int.from_bytes(raw[:8], "little")
    about = json.loads(raw[8 : 8 + size])["__metadata__"]
    header = {name: json.loads(said) if said[:1] in "{[" else said for name, said in sorted(about.items())}
    keep(request, "bundled-page", {"header": header, "tensors": dict(sorted(load(raw).items()))}, close=CLOSE)

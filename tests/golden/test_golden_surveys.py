"""Surveys with everything, of the golden model and of the bundled one: files, tables, pages, screens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from safetensors.numpy import load

import headscope as hs
from golden.keeping import TABLES, keep, page_data, printed, steady
from golden.models import MORE, OPTIONS
from headscope.page.trace import page_bytes


def test_the_files(surveyed: Path, request: pytest.FixtureRequest) -> None:
    folder = surveyed / "survey-base"
    survey = hs.Survey(folder)
    value = {
        "files": sorted(str(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file()),
        "manifest": steady(survey.manifest),
        "repr": repr(survey).replace(str(folder), "FOLDER"),
    }
    keep(request, "survey-files", value)
    machine = json.loads((surveyed / "survey-base.json").read_text(encoding="utf-8"))
    assert {**survey.aggregates, "schema": "headscope/survey", "version": 1} == machine


@pytest.mark.parametrize("name", TABLES)
def test_the_tables(name: str, surveyed: Path, request: pytest.FixtureRequest) -> None:
    keep(request, f"survey-{name}", getattr(hs.Survey(surveyed / "survey-base"), name))


def test_the_numbers(surveyed: Path, request: pytest.FixtureRequest) -> None:
    survey = hs.Survey(surveyed / "survey-base")
    rows = survey.windows()
    value = {
        "means": {name: survey[name] for name in survey},
        "q95": survey.measure("entropy", "q95"),
        "rows": {name: rows[name].to_numpy() for name in rows.column_names if name not in ("document", "file")},
        "schema": {field.name: str(field.type) for field in rows.schema},
        "examples": {f"{layer}.{head}": repr(survey.examples[layer, head]) for layer in range(2) for head in range(5)},
        "similarity": parquet.read_table(survey.folder / "similarity.parquet"),
    }
    keep(request, "survey-numbers", value)


def test_the_pages(surveyed: Path, request: pytest.FixtureRequest) -> None:
    site = surveyed / "survey-base" / "site"
    pages = {name: page_data(site / name) for name in ("index.html", "head-0-3.html")}
    for line in pages["head-0-3.html"]["hs-heads"][0]["lines"]:
        line["ink"] = [ink / 1000 for ink in line["ink"]]
    keep(request, "survey-pages", steady(pages), close=2e-3)  # pages have rounded numbers


def test_the_screen(surveyed: Path, request: pytest.FixtureRequest) -> None:
    """Of the finished survey, which is not made again."""
    words = ("survey", "base", "known.conllu", "--out", "survey-base", *OPTIONS, *MORE)
    screen = printed(surveyed, *words, "--set", "report=false")
    machine = json.loads((surveyed / "survey-base.json").read_text(encoding="utf-8"))
    keep(request, "answer-survey", {"screen": screen, "json": steady(machine)})


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
def test_the_tables_of_the_bundled_model(name: str, survey: hs.Survey, request: pytest.FixtureRequest) -> None:
    """Its heads' margins are a real model's, not as wide as those of models.py."""
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

"""`headscope compare`: what it prints for people, for JSON, CSV and Markdown, and as a page."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import commands
import headscope as hs
from compare.models import edited, scaled
from headscope.screens.labels import width

LINES = ["She took off her hat.", "He sat down on the mat, and slept.", "The cat looked at the dog!"]
QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bundled model with layer 1, head 2 changed."""
    return str(edited(tmp_path_factory.mktemp("models") / "b", {QUERY: scaled(slice(96, 144), 1.5)}))


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"body": line}) + "\n" for line in LINES), encoding="utf-8")
    return str(path)


run = partial(commands.run, "compare")


def test_the_screen_begins_with_the_finding(other: str, corpus: str) -> None:
    text = run("-", other, corpus, "--field", "body", "--top", "3").stdout
    lines = text.splitlines()
    assert lines[0].startswith("what differs")
    assert "from the bundled model to" in text
    assert "What changed most: layer 1, head 2, its QK by 50%" in " ".join(lines)
    assert "on 3 documents" in " ".join(lines)
    assert next(line for line in lines if line.startswith("layer  1")).split()[2:] == ["·", "·", "+100", "·"]
    assert f"next: headscope head {other} 1.2" in text
    assert max(width(line) for line in lines if not line.startswith("next")) <= 80


def test_json_and_csv_hold_what_python_has(other: str, corpus: str) -> None:
    found = json.loads(run("-", other, corpus, "--field", "body", "--statistic", "entropy, first", "--json").stdout)
    result = hs.compare("-", other, LINES, statistics=["entropy", "first"])
    assert list(found) == [
        *(
            "schema",
            "version",
            "a",
            "b",
            "differs",
            "findings",
            "outside",
            "left_out",
            "layers",
            "documents",
            "effects",
        ),
        *("heads", "notes"),
    ]
    assert found["differs"] is True
    assert found["findings"] == list(result.sentences())
    assert found["heads"] == result.rows()
    assert found["documents"] == 3
    assert [row["attention"] for row in found["layers"]] == result.parts["attention"].tolist()
    rows = list(csv.DictReader(io.StringIO(run("-", other, "--csv").stdout)))
    assert len(rows) == 16
    assert [float(row["qk"]) for row in rows] == result.qk.ravel().tolist()
    assert "entropy_a" not in rows[0]


def test_markdown_has_a_line_for_each_head(other: str) -> None:
    lines = run("-", other, "--markdown").stdout.splitlines()
    assert len(lines) == 2 + 16
    assert lines[0].startswith("| layer | head | change | qk | ov |")


def test_a_table_of_the_heads_that_changed_most(other: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run("-", other, "--csv", "--top", "1").stdout)))
    assert [(row["layer"], row["head"]) for row in rows] == [("1", "2")]


def test_a_model_and_itself(tmp_path: Path) -> None:
    text = run("-", "-").stdout
    assert "Nothing differs" in text
    assert "layer  0" not in text
    assert json.loads(run("-", "-", "--json").stdout)["differs"] is False


def test_a_change_outside_of_heads_is_named(tmp_path: Path) -> None:
    edits = {
        "word_embeddings.weight": scaled(slice(None), 1.25),
        "encoder.layer.3.output.LayerNorm.bias": scaled(slice(None), 2.0),
    }
    folder = str(edited(tmp_path / "b", edits))
    text = " ".join(run("-", folder).stdout.split())
    assert "No head's QK or OV changed; what changed: embeddings.word, norms." in text
    assert "embeddings.word 25.00%" in text
    assert "layer 0 ·" not in text
    found = json.loads(run("-", folder, "--json").stdout)
    assert found["outside"]["embeddings.word"] == pytest.approx(0.25, rel=1e-3)
    assert [row["norms"] > 0 for row in found["layers"]] == [False, False, False, True]


def test_a_page_is_written(other: str, tmp_path: Path) -> None:
    page = tmp_path / "what.html"
    assert "wrote" in run("-", other, "--html", str(page)).stderr
    text = page.read_text(encoding="utf-8")
    assert "What changed most" in text
    assert "<script" not in text


def test_two_surveys(other: str, tmp_path: Path) -> None:
    for name, model in (("one", "-"), ("two", other)):
        hs.survey(model, LINES, out=tmp_path / name, statistics=["entropy", "first"], report=False)
    text = run(str(tmp_path / "one"), str(tmp_path / "two")).stdout
    assert "in the surveys" in text
    found = json.loads(run(str(tmp_path / "one"), str(tmp_path / "two"), "--json").stdout)
    assert np.isclose(
        found["heads"][6]["entropy_change"], found["heads"][6]["entropy_b"] - found["heads"][6]["entropy_a"]
    )
    assert found["layers"] == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("-", "no-such-folder/at/all"), "no-such-folder"),
        (("-", "-", "--top", "0"), "--top 0"),
        (("-", "-", "--statistic", "entropy"), "statistics need texts"),
        (("-", "-", "no-such-corpus"), "no such file or folder"),
        (("-", "-", "--json", "--csv"), "exclude each other"),
    ],
)
def test_what_is_wrong_is_said(args: tuple[str, ...], says: str) -> None:
    assert says in run(*args, code=2).stderr

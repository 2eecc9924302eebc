"""`headscope parity`: what it prints, its exit codes, its files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headscope as hs
from compare.models import edited, scaled
from headscope.cli import app
from headscope.results.json_schemas import json_schema
from headscope.screens.labels import width

LINES = ["She took off her hat.", "He sat down on the mat, and slept.", "The cat looked at the dog!"]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bundled model with other queries in layer 1, head 2."""
    name = "encoder.layer.1.attention.self.query.weight"
    return str(edited(tmp_path_factory.mktemp("models") / "b", {name: scaled(slice(96, 144), 1.5)}))


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES), encoding="utf-8")
    return str(path)


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["parity", *args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_the_screen_begins_with_the_answer(other: str, texts: str, tmp_path: Path) -> None:
    found = run("-", other, texts, "--html", str(tmp_path / "p.html"), "--top", "2", code=1)
    lines = found.stdout.splitlines()
    assert " ".join(lines[:2]).startswith("part at layer 1, attention; head 1.2 changes most: ")
    assert "cosine of a text's vectors: worst" in found.stdout
    assert f"next: headscope compare - {other}" in found.stdout
    assert max(width(line) for line in lines if not line.startswith("next") and other not in line) <= 80
    assert "part at layer 1, attention" in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_a_tolerance_decides_the_exit_code(other: str, texts: str) -> None:
    assert "the same, bit for bit" in run("-", "-", texts).stdout
    assert "the same to" in run("-", other, texts, "--tolerance", "10").stdout


def test_json_csv_and_parquet_hold_what_python_has(other: str, texts: str, tmp_path: Path) -> None:
    from pyarrow import parquet

    found = json.loads(run("-", other, texts, "--json", "--parquet", str(tmp_path / "p.parquet"), code=1).stdout)
    result = hs.parity("-", other, LINES)
    assert found["sentence"] == result.sentence()
    assert found["agrees"] is False
    assert [check["name"] for check in found["checks"]] == [check.name for check in result.checks]
    assert len(found["heads"]["rows"]) == 16
    assert parquet.read_table(tmp_path / "p.parquet").num_rows == result.arrow().num_rows
    rows = list(csv.DictReader(io.StringIO(run("-", other, texts, "--csv", code=1).stdout)))
    assert [row["name"] for row in rows] == [check.name for check in result.checks]


def test_the_json_of_a_diagnosis_and_of_what_parts(other: str, texts: str, tmp_path: Path) -> None:
    """As their schema says: vectors alone, tokens, heads, and lines that were not compared."""
    import jsonschema

    np.save(tmp_path / "v.npy", np.stack([hs.open("-").trace(line).outputs["last_hidden_state"][0] for line in LINES]))
    for b in (other, str(tmp_path / "v.npy")):
        record = json.loads(run("-", b, texts, "--json", code=1).stdout)
        jsonschema.Draft202012Validator(json_schema("parity")).validate(record)
    assert record["diagnosis"]["explanations"][0]["name"] == "pools the first token"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("-", "no-such-folder/at/all"), "no-such-folder"),
        (("-", "-", "no-such-texts"), "no such file or folder"),
        (("-", "-", "--tolerance", "x"), "not a number"),
        (("-", "-", "--top", "0"), "--top 0"),
        (("-", "-", "--set", "max_length=2"), "max_length is 2"),
        (("-",), "B is missing"),
        (("-", "-", "--json", "--csv"), "exclude each other"),
    ],
)
def test_what_is_wrong_is_said(args: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """And nothing is written."""
    files = ("--html", str(tmp_path / "p.html"), "--parquet", str(tmp_path / "p.parquet"))
    assert says in " ".join(run(*args, *files, code=2).stderr.split())
    assert list(tmp_path.iterdir()) == []

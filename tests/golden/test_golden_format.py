"""A finished survey of format 2, as headscope 0.1.0 wrote it: it opens, and gives what it was made with.

data/survey-format-2.zip is `headscope survey base known.conllu --length 32 --threads 1 --labels --effects 5 --examples
1 --head-distances 2 --statistics entropy,previous,next,first --no-report`, of the model of models.py and the treebank
of known_heads.py. It is kept as it is: nothing writes it again.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope as hs
from golden.keeping import TABLES, keep, page_data
from headscope.atlas.site import write_site
from headscope.errors import InputError

PACKED = Path(__file__).parents[1] / "data" / "survey-format-2.zip"
LABELS = (
    ("previous word", "next word", "same word elsewhere", "nsubj: from the dependent to its head", "none"),
    ("the first token", "[SEP]", "broad", "the same words for all", "2 words to the right"),
)
"""What each head was built to do."""
LARGE = ("relations", "distributions", "lines")
"""Tables of which only the number of rows is kept."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(PACKED) as packed:
        packed.extractall(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["format"] == "headscope survey 2"
    return tmp_path


def test_everything_in_it_is_read(folder: Path, request: pytest.FixtureRequest) -> None:
    survey = hs.Survey(folder)
    rows = survey.windows()
    value = {
        "repr": repr(survey).replace(str(folder), "FOLDER"),
        "means": {name: survey[name] for name in survey},
        "rows": {name: rows[name].to_numpy() for name in rows.column_names if name not in ("document", "file")},
        "examples": {f"{layer}.{head}": repr(survey.examples[layer, head]) for layer in range(2) for head in range(5)},
        **{name: getattr(survey, name) for name in TABLES if name not in LARGE},
        **{name: len(getattr(survey, name)) for name in LARGE},
    }
    keep(request, "format-2", value)


def test_it_says_what_its_heads_were_built_to_do(folder: Path) -> None:
    """Against the model's design and the manifest's JSON, not against what was kept."""
    survey = hs.Survey(folder)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for row in survey.labels.to_pylist():
        assert row["label"].startswith(LABELS[row["layer"]][row["head"]])
    assert survey["entropy"].array.argmax() == 7  # the broad head
    assert survey["previous"].array.argmax() == 0
    rows = survey.windows()
    assert len(rows) == 10 * manifest["counts"]["windows"]
    for name in manifest["statistics"]:
        values = rows[name].to_numpy().reshape(-1, 2, 5)
        np.testing.assert_allclose(survey[name].array, np.nanmean(values.astype(np.float64), axis=0), rtol=1e-6)
    assert sorted((row["layer"], row["head"]) for row in survey.removal.to_pylist()) == sorted(np.ndindex(2, 5))
    subjects = [row for row in survey.syntax.to_pylist() if row["relation"] == "nsubj"]
    assert {(row["layer"], row["head"]) for row in subjects} >= {(0, 3)}
    assert repr(survey).startswith("survey of base: 9 documents, 54 windows")


def test_two_of_them_are_compared(folder: Path) -> None:
    """With what lies beside its tables: the windows and numbers of effects, which pair the intervals."""
    result = hs.compare(folder, folder)
    assert not result.differs
    assert result.effects is not None
    np.testing.assert_array_equal(result.effects.low, np.zeros((2, 5)))
    np.testing.assert_array_equal(result.effects.high, np.zeros((2, 5)))


def test_its_site_is_written(folder: Path) -> None:
    home = page_data(write_site(folder))
    survey = hs.Survey(folder)
    labels = [label["label"] for label in home["hs-survey"]["labels"]]
    assert labels == [row["label"] for row in survey.labels.to_pylist()]
    heads: list[Any] = page_data(folder / "site" / "head-0-3.html")["hs-heads"]
    assert len(list((folder / "site").glob("head-*.html"))) == 10
    assert len(heads) == 1
    assert all(head["lines"] and head["relations"] for head in heads)


@pytest.mark.parametrize("name", ["labels.parquet", "aggregates.json", "parts/part-00000.parquet"])
def test_damage_is_named(name: str, folder: Path) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(InputError, match=name.rpartition("/")[2]):
        hs.Survey(folder)

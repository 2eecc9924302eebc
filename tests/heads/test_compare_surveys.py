"""Two surveys joined by head: statistics, labels and effects, each against a join written out here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

import headscope as hs
from commands import answer, run
from heads.compared_models import edited, scaled
from headscope.atlas.result import Survey
from headscope.errors import InputError
from known_heads import known_heads, known_treebank, noise_scores, wanted_scores

SETTINGS: dict[str, Any] = {"length": 32, "threads": 1, "report": False, "statistics": ["entropy", "first"]}
SENTENCES = [
    f"The {noun} {verb} the {other}, and then the {noun} {verb} it again."
    for noun, verb, other in [
        *(("horse", "saw", "man"), ("child", "took", "box"), ("man", "left", "house"), ("girl", "had", "book")),
        *(("king", "knew", "horse"), ("boy", "found", "child"), ("dog", "heard", "girl"), ("book", "made", "king")),
    ]
]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Survey, Survey]:
    """Surveys of heads that do known things, and of those with two heads changed, with labels."""
    folder = tmp_path_factory.mktemp("known")
    corpus = known_treebank(folder / "known.conllu", documents=20)
    noise = noise_scores(1, 13)
    first = [*wanted_scores()[:-1], noise[0]]
    other = [noise[0], first[2], *first[2:]]  # head 0 no longer does anything, head 1 looks further right
    surveys = []
    for name, scores in (("a", [first, noise[1:]]), ("b", [other, noise[1:]])):
        (folder / name).mkdir()
        model = known_heads(folder / name, scores)
        surveys.append(hs.survey(str(model), corpus, out=folder / f"survey-{name}", labels=True, **SETTINGS))
    return surveys[0], surveys[1]


@pytest.fixture(scope="module")
def silenced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Survey, Survey]:
    """Surveys of the bundled model and of a changed one, with effects."""
    folder = tmp_path_factory.mktemp("silenced")
    other = edited(folder / "b", {"encoder.layer.1.attention.self.value.weight": scaled(slice(96, 144), 3.0)})
    return tuple(
        hs.survey(model, SENTENCES, out=folder / f"survey-{at}", effects=len(SENTENCES), **SETTINGS)
        for at, model in enumerate(("-", str(other)))
    )


def first_of(surveys: tuple[Survey, Survey]) -> dict[str, Any]:
    return rows_of(surveys[0], "effects")[0, 0]


def rows_of(survey: Survey, name: str) -> dict[tuple[int, int], dict[str, Any]]:
    rows = parquet.read_table(survey.folder / f"{name}.parquet").to_pylist()
    return {(row["layer"], row["head"]): row for row in rows}


def test_labels_are_joined_by_head(labelled: tuple[Survey, Survey]) -> None:
    result = hs.compare(*labelled)
    first, other = (rows_of(survey, "labels") for survey in labelled)
    assert [(row["layer"], row["head"]) for row in result.labels] == sorted(first)
    for row in result.rows():
        place = (row["layer"], row["head"])
        assert row["label_changed"] == (first[place]["label"] != other[place]["label"])
        for side, rows in (("a", first), ("b", other)):
            assert row[f"label_{side}"] == rows[place]["label"]
            for name in ("kind", "score", "low", "high", "baseline", "coverage", "note"):
                assert row[f"label_{name}_{side}"] == rows[place][name]
    rows = [row for row in result.labels if row["label_changed"]]
    changed = {(row["layer"], row["head"]): (row["label_a"], row["label_b"]) for row in rows}
    assert changed[0, 0] == ("the previous word", "none")
    assert changed[0, 1] == ("the next word", "the word 2 ahead")
    assert {place for place in changed if place[0] == 0} == {(0, 0), (0, 1)}
    assert f"{len(changed)} of 24 heads have another label" in repr(result)
    assert result.effects is None
    assert not any("not compared" in note for note in result.notes)


def test_labels_of_one_survey_alone_are_named(labelled: tuple[Survey, Survey], tmp_path: Path) -> None:
    corpus = known_treebank(tmp_path / "known.conllu", documents=2)
    (tmp_path / "model").mkdir()
    plain = hs.survey(str(known_heads(tmp_path / "model")), corpus, out=tmp_path / "plain", **SETTINGS)
    result = hs.compare(labelled[0], plain)
    assert result.labels == []
    assert "labels are not compared: the second survey has none (--labels)" in result.notes
    assert "labels are not compared: the first survey has none (--labels)" in hs.compare(plain, labelled[0]).notes
    assert "label_a" not in result.rows()[0]
    assert labelled[0].table().facts["label"][0, 0] == "the previous word"


def test_a_survey_and_itself_have_the_same_labels(labelled: tuple[Survey, Survey]) -> None:
    same = hs.compare(labelled[0], labelled[0])
    assert not same.differs
    assert "2 statistics, labels of 24 heads are the same in both" in repr(same)


def test_effects_are_joined_with_their_intervals(silenced: tuple[Survey, Survey]) -> None:
    result = hs.compare(*silenced)
    assert result.effects is not None
    first, other = (rows_of(survey, "effects") for survey in silenced)
    for row in result.rows():
        place = (row["layer"], row["head"])
        for side, rows in (("a", first), ("b", other)):
            assert row[f"effect_{side}"] == rows[place]["change"]
            assert row[f"effect_{side}_low"] == rows[place]["low"]
            assert row[f"effect_{side}_high"] == rows[place]["high"]
        assert row["effect_change"] == pytest.approx(other[place]["change"] - first[place]["change"])
    assert (result.effects.measure.meaning, result.effects.measure.unit) == (
        first[0, 0]["output"],
        first[0, 0]["unit"],
    )
    assert result.effects[1, 2] != 0
    assert "The effect of silencing a head changed most in layer" in repr(result)


def test_a_change_of_effects_has_an_interval_paired_by_window(silenced: tuple[Survey, Survey]) -> None:
    """Every resample drawn in a loop."""
    effects = hs.compare(*silenced).effects
    assert effects is not None
    rounds = [np.load(survey.folder / "effects/round-00000.npy") for survey in silenced]
    apart = (rounds[1][:, 1:] - rounds[1][:, :1]) - (rounds[0][:, 1:] - rounds[0][:, :1])
    draws = np.random.Generator(np.random.PCG64(0)).integers(0, len(SENTENCES), size=(2000, len(SENTENCES)))
    windows = parquet.read_table(silenced[0].folder / "sample.parquet").to_pylist()
    windows.sort(key=lambda window: (window["number"] % 2, window["rank"]))
    place = {window["number"]: at for at, window in enumerate(windows)}  # every document is one window
    means = np.array([np.mean([apart[place[document]] for document in draw], axis=0) for draw in draws])
    np.testing.assert_allclose(effects.low.ravel(), np.percentile(means, 2.5, axis=0), atol=1e-12)
    np.testing.assert_allclose(effects.high.ravel(), np.percentile(means, 97.5, axis=0), atol=1e-12)
    np.testing.assert_allclose(effects.array.ravel(), apart.mean(0), atol=1e-12)


def test_effects_that_cannot_be_paired_have_no_interval(silenced: tuple[Survey, Survey], tmp_path: Path) -> None:
    other = hs.survey("-", SENTENCES, out=tmp_path / "few", effects=3, **SETTINGS)
    result = hs.compare(silenced[0], other)
    assert result.effects is not None
    assert result.effects.low is None
    assert np.isnan(result.rows()[0]["effect_low"])
    assert np.isfinite(result.effects.array).all()
    assert any("the surveys silenced heads in other windows" in note for note in result.notes)
    mean = hs.survey("-", SENTENCES, out=tmp_path / "mean", effects=3, effects_method="mean", **SETTINGS)
    result = hs.compare(other, mean)
    assert result.effects is None
    assert any("effects are not compared: one is of the" in note for note in result.notes)
    (other.folder / "effects/round-00000.npy").unlink()
    assert any("few/effects is missing" in note for note in hs.compare(other, silenced[0]).notes)
    damaged = other.folder / "sample.parquet"
    for name in ("effects/round-00000.npy", "sample.parquet"):
        (other.folder / name).write_bytes((mean.folder / name).read_bytes())
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"sample\.parquet: its bytes do not match"):
        hs.compare(other, silenced[0])


def test_screen_json_and_parquet_have_both(silenced: tuple[Survey, Survey], tmp_path: Path) -> None:
    table = tmp_path / "what.parquet"
    page = tmp_path / "what.html"
    folders = [str(survey.folder) for survey in silenced]
    done = run("compare", *folders, "--parquet", table, "--html", page)
    assert "effects of silencing a head on the" in done.stdout
    assert "with 95 % intervals" in page.read_text(encoding="utf-8")
    result = hs.compare(*silenced)
    assert parquet.read_table(table).to_pylist() == [
        {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in row.items()}
        for row in result.rows()
    ]
    found = answer("compare", *folders)
    assert found["effects"] == {"output": first_of(silenced)["output"], "unit": first_of(silenced)["unit"]}
    assert found["heads"][6]["effect_a_low"] == result.rows()[6]["effect_a_low"]

"""Of a survey: how far its heads are apart, as a matrix, clusters and a figure; the way back to one's own rows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from surveying import OPTIONS

import headscope as hs
from headscope.errors import InputError
from headscope.results.head_values import HeadDistances

TEXTS = ["The cat sat.", "", "A dog ran home to the old house.", "She reads."]


def average_linkage(distances: np.ndarray, count: int) -> set[frozenset[int]]:
    """Sokal and Michener 1958, as it reads: join the two groups whose members are nearest on average."""
    groups = [frozenset([at]) for at in range(len(distances))]
    while len(groups) > count:
        a, b = min(
            itertools.combinations(groups, 2), key=lambda two: distances[np.ix_(sorted(two[0]), sorted(two[1]))].mean()
        )
        groups = [group for group in groups if group not in (a, b)] + [a | b]
    return set(groups)


def test_the_similarity_of_a_survey_is_the_mean_over_its_windows(tmp_path: Path) -> None:
    texts = [text for text in TEXTS if text]
    survey = hs.survey("-", texts, out=tmp_path / "out", head_distances=10, **OPTIONS)
    found = survey.similarity
    model = hs.open("-")
    expected = np.mean([model.trace(text).head_distances().array for text in texts], axis=0)
    np.testing.assert_allclose(found.array, expected, atol=2e-4)
    assert found.heads == tuple((layer, head) for layer in range(4) for head in range(4))
    frame = found.to_pandas()
    assert frame.loc["1.2", "3.0"] == found[6, 12]
    for count in (1, 3, 7, 16, 99):
        groups = found.clusters(count)
        members = {frozenset(found.heads.index(head) for head in group) for group in groups}
        assert members == average_linkage(found.array, count)
        assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)
    axes = found.plot(save=tmp_path / "heads.svg")
    assert {text.get_text() for text in axes.texts} <= {f"{layer}.{head}" for layer, head in found.heads}
    assert len(axes.texts) > 8
    assert "<svg" in (tmp_path / "heads.svg").read_text(encoding="utf-8")


def test_a_trace_s_distances_have_the_same(bert: hs.Model) -> None:
    found = bert.trace("the cat sat on the mat.").head_distances()
    assert isinstance(found, HeadDistances)
    assert sorted(itertools.chain(*found.clusters(2))) == sorted(found.heads)
    assert HeadDistances.of(np.zeros((1, 1)), [(0, 0)]).clusters(3) == [[(0, 0)]]
    with pytest.raises(InputError, match="there can't be 0 clusters"):
        found.clusters(0)


def test_a_survey_without_distances_says_how_to_have_them(tmp_path: Path) -> None:
    survey = hs.survey("-", ["The cat sat."], out=tmp_path / "out", **OPTIONS)
    with pytest.raises(InputError, match="the survey has no similarity") as caught:
        _ = survey.similarity
    assert "--set head_distances=20" in str(caught.value)


def files_of(folder: Path) -> dict[str, tuple[Any, pd.DataFrame]]:
    """A corpus in each form, and its rows as pandas reads them."""
    frame = pd.DataFrame({"text": TEXTS, "stars": [4, 1, 3, 5]})
    frame.to_csv(folder / "a#b.csv", index=False)
    frame.to_parquet(folder / "rows.parquet")
    frame.to_json(folder / "rows.jsonl", orient="records", lines=True)
    return {
        "csv": (folder / "a#b.csv", pd.read_csv(folder / "a#b.csv")),
        "parquet": (folder / "rows.parquet", frame),
        "jsonl": (folder / "rows.jsonl", pd.read_json(folder / "rows.jsonl", lines=True)),
        "texts": (TEXTS, frame),
    }


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "texts"])
def test_rows_join_back_to_one_s_own(form: str, tmp_path: Path) -> None:
    """By pandas' own merge: each text's number of tokens beside its stars; an empty text was refused."""
    corpus, frame = files_of(tmp_path)[form]
    windows = hs.survey("-", corpus, out=tmp_path / "out", **OPTIONS).windows().to_pandas()
    assert set(windows["file"].dropna()) == (set() if form == "texts" else {Path(corpus).name})
    joined = windows[(windows["layer"] == 0) & (windows["head"] == 0)].merge(frame, left_on="row", right_index=True)
    assert joined["stars"].tolist() == [4, 3, 5]
    tokens = [len(hs.open("-").trace(text).tokens) for text in joined["text"]]
    assert joined["tokens"].tolist() == tokens


def test_files_of_their_own_have_no_row_and_blank_lines_count(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a#1.txt").write_text("The cat sat on the mat.\n\nIt slept.", encoding="utf-8")
    lines = [json.dumps({"text": "A dog ran."}), "", json.dumps({"text": "She reads."})]
    (folder / "b.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for pieces in (1, 2):
        survey = hs.survey("-", folder, out=tmp_path / f"out{pieces}", pieces=pieces, **OPTIONS)
        places = set(
            map(tuple, survey.windows().select(["file", "row"]).to_pandas().astype(object).itertuples(index=False))
        )
        found = {(file, None if row != row else row) for file, row in places}
        assert found == {("a#1.txt", None), ("b.jsonl", 0), ("b.jsonl", 2)}

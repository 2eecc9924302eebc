"""The report of a survey: its numbers, its size, its names, and the plane of the heads."""

from __future__ import annotations

import inspect
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from surveying import ALICE

import headscope as hs
from finished_survey import finished
from golden.keeping import page_data
from headscope.atlas.layout_2d import classical_scaling, layer_ticks, leader, place_labels, round_up
from headscope.atlas.result import Survey
from headscope.atlas.site import FIGURES, site_words, write_site
from headscope.atlas.site_data import extremes
from headscope.atlas.wording import rounded
from headscope.errors import InputError
from headscope.heads import CATALOG
from headscope.results.head_values import HeadValues
from headscope.runs.window_readouts import Readout
from headscope.screens.survey_sheet import survey_sheet
from headscope.screens.terminal import put


def data_of(path: Path) -> dict[str, Any]:
    return page_data(path)["hs-survey"]


def test_every_text_of_the_data_has_its_languages(tmp_path: Path) -> None:
    words = site_words()
    texts = {text for of in CATALOG.values() for text in (of.described, of.unit, *of.most[:1], *of.least[:1])}
    texts |= {text for title, axis, _, panels in FIGURES for text in (title, axis, *panels.values())}
    texts |= {str(Readout(kind)) for kind in ("loss", "class", "embedding", "embedding_distance")}
    sources = "".join(
        path.read_text(encoding="utf-8") for path in Path(inspect.getfile(write_site)).parent.glob("*.py")
    )
    reasons = set(re.findall(r'Refused\(\s*[^",]*(?:"[^"]*")?[^",]*, "([^"]+)"', sources))
    assert {"empty", "packed", "no window", "too long", "not UTF-8"} <= reasons
    texts |= reasons | {data_of(write_site(finished(tmp_path)))["plane"]["title"]}
    assert texts - {*words} == set()
    for english, others in words.items():
        assert len(list(filter(None, others))) == 2, english
        assert not re.search("[A-Za-z]{2,} [a-z]{2,}", " ".join(others)), english


def test_the_numbers_are_the_aggregates(tmp_path: Path) -> None:
    path = write_site(finished(tmp_path))
    page, aggregates = data_of(path), json.loads((tmp_path / "aggregates.json").read_text())
    assert [one["name"] for one in page["statistics"]] == list(aggregates["statistics"])
    for one in page["statistics"]:
        for field in ("mean", "deviation", "min", "q05", "q25", "q50", "q75", "q95", "max", "count"):
            expected = [value for row in aggregates["statistics"][one["name"]][field] for value in row]
            if None in expected:
                assert one[field] == expected
            else:
                np.testing.assert_allclose(one[field], expected, rtol=1e-8)
    assert {one["name"]: one["unit"] for one in page["statistics"]} == {
        name: statistic.unit for name, statistic in CATALOG.items()
    }
    assert [one["name"] for one in page["statistics"] if one["signed"]] == ["offset"]
    assert {one["name"] for one in page["statistics"] if one["short"] == "tokens"} == {
        "effective_tokens", "offset", "distance",
    }  # fmt: skip


def test_a_statistic_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(tmp_path)
    older = {name: statistic for name, statistic in CATALOG.items() if name != "entropy"}
    monkeypatch.setattr("headscope.atlas.survey_data.CATALOG", older)
    with pytest.raises(InputError, match=r"entropy.*, a statistic that this version"):
        Survey(folder)


def test_heads_keep_their_numbers_where_layers_differ(tmp_path: Path) -> None:
    """The survey and its report read the aggregates alike: by head number, where a layer lacks heads 0 and 1."""
    folder = finished(tmp_path, missing=((1, 0), (1, 1), (0, 3), (2, 3)))
    contents = json.loads((tmp_path / "aggregates.json").read_text())["statistics"]["distance"]
    survey = Survey(folder)
    for field in ("mean", "q95", "count"):
        expected = np.full((3, 4), np.nan)
        expected[0, :3], expected[1, 2:], expected[2, :3] = contents[field]
        np.testing.assert_array_equal(survey.measure("distance", field).array, expected)


@pytest.mark.parametrize(
    ("means", "ahead", "back"),
    [
        ([[-3.0, -0.5], [-1.0, -2.0]], [], [-3.0, -2.0, -1.0]),
        ([[2.0, -0.5], [0.0, 1.0]], [2.0, 1.0], [-0.5]),
        ([[0.5, 0.25], [0.75, 1.0]], [1.0, 0.75, 0.5], []),
    ],
)
def test_only_heads_that_look_ahead_are_said_to(
    means: list[list[float]], ahead: list[float], back: list[float]
) -> None:
    offsets = np.array(means)
    values = HeadValues.of(CATALOG["offset"], offsets)
    found: Any = SimpleNamespace(measure=lambda *_: values, layers=(0, 1), across=(0, 1))
    listed = {one.says: [value for *_, value in one.heads] for one in extremes(found, "offset")}
    statistic = CATALOG["offset"]
    assert listed == {says[0]: heads for says, heads in ((statistic.most, ahead), (statistic.least, back)) if heads}


def test_the_heads_most_alike_are_the_nearest(tmp_path: Path) -> None:
    page = data_of(write_site(finished(tmp_path, missing=((1, 2),))))
    found = Survey(tmp_path).similarity
    assert page["nearest"][6] == []
    row = found.heads.index((2, 1))
    others = sorted((distance, at) for at, distance in enumerate(found[row]) if at != row)[:5]
    expected = [found.heads[at][0] * 4 + found.heads[at][1] for _, at in others]
    assert [cell for cell, _ in page["nearest"][9]] == expected
    np.testing.assert_allclose([apart for _, apart in page["nearest"][9]], [apart for apart, _ in others], rtol=1e-6)


def test_heads_lie_on_the_plane_at_their_distances(tmp_path: Path) -> None:
    """The distances are those of points on a plane: the drawing has them all, in its scale."""
    folder = finished(tmp_path, missing=((1, 2),))
    plane, found = data_of(write_site(folder))["plane"], Survey(folder).similarity
    points = np.array([[head["x"], head["y"]] for head in plane["heads"]])
    drawn = np.linalg.norm(points[:, None] - points[None], axis=-1)
    scale = plane["unit"]["length"] / plane["unit"]["distance"]
    np.testing.assert_allclose(drawn / scale, found, atol=2e-3)
    assert plane["kept"] == pytest.approx(1, abs=1e-6)
    assert points.min() > 0
    assert (points < [plane["width"], plane["height"]]).all()
    names = np.array([head["name"] for head in plane["heads"]], dtype=float)
    assert np.abs(names - points).max() < plane["width"] / 4


def test_numbers_and_axes_are_rounded() -> None:
    values = {0.5: "0.500", -12.345: "-12.35", 123.45: "123.5", 4567.8: "4568", float("nan"): "-"}
    assert [*map(rounded, values)] == [*values.values()]
    assert [round_up(value) for value in (0, 0.013, 0.2, 3.1, 7, 10)] == [1, 0.02, 0.2, 5, 10, 10]
    assert layer_ticks(tuple(range(12))) == tuple(range(12))
    assert layer_ticks(tuple(range(24))) == tuple(range(0, 24, 2))


def test_a_model_of_one_head_has_numbers_too(tmp_path: Path) -> None:
    """No head stands out where there is one; that is not the same as nothing to measure."""
    sheet = survey_sheet(Survey(finished(tmp_path, layers=1, heads=1)))
    screen = io.StringIO()
    put(sheet.drawings, screen)
    assert re.findall(r"nothing to measure in this corpus: (.*)", screen.getvalue()) == ["other_sentence"]


def test_a_file_that_is_no_survey_is_refused(tmp_path: Path) -> None:
    for text, message in ((None, r"there is no manifest\.json"), ("[]", "no JSON object"), ("{", "can't be read")):
        if text is not None:
            (tmp_path / "manifest.json").write_text(text)
        for read in (Survey, write_site):
            with pytest.raises(InputError, match=message):
                read(tmp_path)


def test_the_site_of_bert_base_is_below_30_mb(tmp_path: Path) -> None:
    """144 pages of heads as large as the largest of a real one, whose windows have half as many tokens."""
    texts = [ALICE[at : at + 1500] for at in range(0, 12_000, 1500)]
    options = {"labels": True, "examples": 12, "statistics": "entropy", "threads": 1, "max_document": 10_000}
    site = hs.survey("-", texts, out=tmp_path / "out", length=256, **options).folder / "site"
    heads = [path.stat().st_size for path in site.glob("head-*.html")]
    rest = sum(path.stat().st_size for path in site.iterdir()) - sum(heads)
    print(f"largest page {max(heads):,}, the rest {rest:,}")
    assert 2 * (144 * max(heads) + rest) < 30_000_000


@pytest.mark.parametrize(("size", "share"), [(1, 1), (2, 1), (4, 2 / 3)])
def test_scaling_says_what_a_plane_cannot_hold(size: int, share: float) -> None:
    """A regular tetrahedron has three equal axes, of which a plane holds two."""
    points, kept = classical_scaling(np.ones((size, size)) - np.eye(size))
    assert (points.shape, kept) == ((size, 2), pytest.approx(share))
    assert (points**2).sum() == pytest.approx(share * (size - 1) / 2)
    with pytest.raises(InputError, match="not a number"):
        classical_scaling(np.full((size, size), np.nan))


@pytest.mark.parametrize(("heads", "spread"), [(1, 0), (4, 0), (12, 30), (144, 90), (384, 150)])
def test_no_name_covers_another_or_a_point(heads: int, spread: float) -> None:
    """Boxes of names and discs of points, held against each other pair by pair; near its point where there is room."""
    points = np.random.default_rng(heads).normal(size=(heads, 2)) * spread + 500
    widths = np.random.default_rng(1).uniform(8, 20, heads)
    middles = place_labels(points, widths, 6, radius=3, low=(0, 0), high=(1000, 1000))
    assert np.isfinite(middles).all()
    halves = np.stack([widths, np.full(heads, 6)], -1) / 2
    for at in range(heads):
        gaps = np.abs(middles[at] - points) - halves[at]
        assert (np.linalg.norm(np.maximum(gaps, 0), axis=-1) >= 3).all()
        others = np.arange(heads) != at
        apart = np.abs(middles[at] - middles[others]) - halves[at] - halves[others]
        assert (apart.max(-1) >= 0).all()
        line = leader(points[at], middles[at], widths[at], 6, 3)
        near = np.linalg.norm(np.maximum(np.abs(middles[at] - points[at]) - halves[at], 0)) < 3 + 6
        assert near if line is None else np.linalg.norm(line[0] - points[at]) == pytest.approx(3)
    result = place_labels(np.full((2, 2), 5.0), np.array([4.0, 11.0]), 3, radius=1, low=(0, 0), high=(10, 10))
    assert np.isfinite(result).tolist() == [[True, True], [False, False]]

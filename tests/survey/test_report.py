"""The survey's report: its numbers are the aggregates', hostile names stay text, and the page runs and repeats."""

from __future__ import annotations

import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from finished_survey import finished
from headscope._survey.colours import diverging, luminance, sequential
from headscope._survey.findings import read_findings
from headscope._survey.report import write_report
from headscope._survey.result import Survey
from headscope._survey.wording import shown, telling
from headscope.errors import InputError
from headscope.statistics import CATALOG
from headscope.view.survey_sheet import survey_sheet
from headscope.view.terminal import put

HOSTILE = ("</script><img src=x onerror=alert(1)>", "<!--<script>", "&lt;b&gt;", '"><svg onload=alert(1)>', "\u202eabc")


class Elements(HTMLParser):
    """What a browser would see: elements with attributes, text, and the data block."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(found[1])


def test_the_numbers_are_the_aggregates(tmp_path: Path) -> None:
    path = write_report(finished(tmp_path))
    page, aggregates = data_of(path), json.loads((tmp_path / "aggregates.json").read_text())
    assert [one["name"] for one in page["statistics"]] == list(aggregates["statistics"])
    for one in page["statistics"]:
        for field in ("mean", "deviation", "min", "q05", "q25", "q50", "q75", "q95", "max", "count"):
            expected = [value for row in aggregates["statistics"][one["name"]][field] for value in row]
            if None in expected:
                assert one[field] == expected
            else:
                np.testing.assert_allclose(one[field], expected, rtol=1e-6)
    cells = re.findall(r'<td><button type="button">([^<]+)</button></td>', path.read_text(encoding="utf-8"))
    entropies = [value for row in aggregates["statistics"]["entropy"]["mean"] for value in row]
    np.testing.assert_allclose([float(cell) for cell in cells], entropies, atol=6e-4)


def test_documents_are_counted_as_the_survey_counts_them(whole: Survey, tmp_path: Path) -> None:
    """Eight were read, four refused, as tests/survey/conftest.py writes them."""
    folder = shutil.copytree(whole.folder, tmp_path / "copy")
    text = "".join(Elements(write_report(folder).read_text(encoding="utf-8")).texts)
    assert "documents8windows" in text
    assert "4 of 12 documents were refused and are in no number here: 2 empty, 1 not UTF-8, 1 too long." in text


def test_heads_keep_their_numbers_where_layers_differ(tmp_path: Path) -> None:
    """The survey and its report read the aggregates alike: by head number, where a layer lacks heads 0 and 1."""
    folder = finished(tmp_path, missing=((1, 0), (1, 1), (0, 3), (2, 3)))
    held = json.loads((tmp_path / "aggregates.json").read_text())["statistics"]["distance"]
    survey, found = Survey(folder), read_findings(folder)
    for field in ("mean", "q95", "count"):
        expected = np.full((3, 4), np.nan)
        expected[0, :3], expected[1, 2:], expected[2, :3] = held[field]
        np.testing.assert_array_equal(survey.measure("distance", field).array, expected)
        np.testing.assert_array_equal(found.values("distance", field), expected)


def test_the_heads_that_stand_out_are_the_extremes(tmp_path: Path) -> None:
    found = read_findings(finished(tmp_path))
    means = json.loads((tmp_path / "aggregates.json").read_text())["statistics"]["entropy"]["mean"]
    by_value = sorted((value, layer, head) for layer, row in enumerate(means) for head, value in enumerate(row))
    widest, focused = telling(found, "entropy")
    assert [(value, layer, head) for layer, head, value in widest.heads] == by_value[:-4:-1]
    assert [(value, layer, head) for layer, head, value in focused.heads] == by_value[:3]
    assert focused.middle == pytest.approx(np.median(means))
    assert telling(found, "other_sentence") == []
    value, layer, head = by_value[0]
    text = "".join(Elements(write_report(tmp_path).read_text(encoding="utf-8")).texts)
    assert f"{layer}.{head} is the most focused: {value:.3f} nats" in text
    assert "Nothing to measure in this model and corpus: other_sentence." in text


def test_the_heads_most_alike_are_the_nearest(tmp_path: Path) -> None:
    page = data_of(write_report(finished(tmp_path, missing=((1, 2),))))
    found = read_findings(tmp_path)
    assert found.distances is not None
    assert page["nearest"][6] == []
    row = found.named.index((2, 1))
    others = sorted((distance, at) for at, distance in enumerate(found.distances[row]) if at != row)[:5]
    expected = [found.named[at][0] * 4 + found.named[at][1] for _, at in others]
    assert [cell for cell, _ in page["nearest"][9]] == expected
    np.testing.assert_allclose([apart for _, apart in page["nearest"][9]], [apart for apart, _ in others], rtol=1e-6)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_show_as_themselves(tmp_path: Path, hostile: str) -> None:
    plain = Elements(write_report(finished(tmp_path / "plain")).read_text(encoding="utf-8"))
    folder = finished(tmp_path / "hostile", name=hostile, corpus=hostile, refused=(hostile,))
    text = write_report(folder).read_text(encoding="utf-8")
    found = Elements(text)
    assert found.tags == plain.tags
    assert [key for key, _ in found.attributes] == [key for key, _ in plain.attributes]
    assert not any(key.startswith("on") for key, _ in found.attributes)
    assert "\u202e" not in text
    assert sum(hostile.replace("\u202e", "\\u202e") in one for one in found.texts) >= 4


@pytest.mark.parametrize(
    ("layers", "heads", "unmeasured", "similarity"),
    [(1, 1, ("cls", "sep", "norm"), False), (24, 16, ("sep",), True), (2, 3, tuple(CATALOG), False)],
)
def test_every_size_is_drawn_and_repeats_to_the_byte(
    tmp_path: Path, layers: int, heads: int, unmeasured: tuple[str, ...], similarity: bool
) -> None:
    folder = finished(tmp_path, layers=layers, heads=heads, unmeasured=unmeasured, similarity=similarity, refused=())
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert str(tmp_path).encode() not in first
    text = first.decode()
    assert "NaN" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    drawings = re.findall(r"<svg class=.*?</svg>", text, re.S)
    assert len(drawings) == 4 + similarity
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    points = sum(drawing.count('class="point"') for drawing in drawings)
    shown_in_figures = {"cls", "sep", "punctuation", "previous", "same", "next", "entropy"}
    assert points == layers * heads * len(shown_in_figures - set(unmeasured))
    assert text.count(' head"') == (layers * heads if similarity else 0)


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    text = write_report(finished(tmp_path)).read_text(encoding="utf-8")
    found = Elements(text)
    assert not {"link", "img", "iframe", "object", "base"} & set(found.tags)
    assert [value for key, value in found.attributes if key in ("src", "href")] == ["#refused"]
    assert "default-src 'none'; script-src 'sha256-" in text
    assert "unsafe" not in text
    assert not any(key == "style" for key, _ in found.attributes)


def test_the_colours_are_the_pages() -> None:
    """Bytes that web/src/colour.ts gives."""
    light = [(247, 251, 252), (118, 202, 243), (21, 138, 222), (27, 25, 75)]
    dark = [(21, 23, 30), (4, 77, 104), (19, 142, 133), (251, 244, 196)]
    for n, bright, dim in zip((0, 64, 128, 255), light, dark, strict=True):
        assert sequential(n / 255, dark=False) == bright
        assert sequential(n / 255, dark=True) == dim
    signed = [(5, 92, 178), (129, 174, 232), (255, 255, 255), (221, 152, 114), (147, 68, 4)]
    assert [diverging((n - 255) / 255) for n in (0, 128, 255, 383, 510)] == signed
    assert luminance((255, 255, 255)) == pytest.approx(1)
    assert luminance((0, 0, 0)) == 0


def test_every_statistic_has_a_unit_and_a_sentence() -> None:
    assert all(statistic.unit.name and statistic.most for statistic in CATALOG.values())
    assert [shown(value) for value in (0.5, -12.345, 123.45, 4567.8, float("nan"))] == [
        "0.500", "-12.35", "123.5", "4568", "-",
    ]  # fmt: skip


def test_a_model_of_one_head_has_numbers_too(tmp_path: Path) -> None:
    """No head stands out where there is one; that is not the same as nothing to measure."""
    sheet = survey_sheet(Survey(finished(tmp_path, layers=1, heads=1)))
    screen = io.StringIO()
    put(sheet.drawings, screen)
    assert re.findall(r"nothing to measure in this corpus: (.*)", screen.getvalue()) == ["other_sentence"]


def test_a_file_that_is_no_survey_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no manifest\.json"):
        Survey(tmp_path)
    with pytest.raises(InputError, match=r"there is no manifest\.json"):
        write_report(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(InputError, match="no JSON object"):
        write_report(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="can't be read"):
        write_report(tmp_path)

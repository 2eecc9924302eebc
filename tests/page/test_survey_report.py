"""A survey's site in a real browser: the grid, a head's numbers, keys, languages, widths, no request beyond it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fonts import ODD, brought
from looking import HOSTILE, Watch, inaccessible, unreadable, until

from finished_survey import finished
from headscope.atlas.site import write_site
from headscope.heads import CATALOG

if TYPE_CHECKING:
    from playwright.sync_api import Page

BESIDE = ("report.css", "report.js")
IN_FIGURES = {"cls", "sep", "punctuation", "previous", "same", "next", "entropy"}


def statistics_of(folder: Path) -> dict[str, Any]:
    statistics: dict[str, Any] = json.loads((folder / "aggregates.json").read_text())["statistics"]
    return statistics


def colour_of(page: Page, selector: str) -> str:
    colour: str = page.locator(selector).evaluate("(element) => getComputedStyle(element).backgroundColor")
    return colour


def test_the_report_shows_the_aggregates_and_asks_for_nothing(tmp_path: Path, watch: Watch) -> None:
    folder = finished(tmp_path, missing=((1, 2),), name=HOSTILE[0], corpus=HOSTILE[1], refused=HOSTILE)
    path = write_site(folder)
    aggregates = statistics_of(folder)
    watched = watch()
    page = watched.open(path.as_uri())
    assert page.title().startswith(f"{HOSTILE[0]} over {HOSTILE[1]}")
    assert HOSTILE[0] in page.locator("h1").inner_text()

    page.select_option("[data-test=statistic]", label="mean offset")
    cells = page.locator("[data-test=cells] a")
    means = aggregates["offset"]["mean"]
    assert float(cells.nth(10).inner_text()) == round(means[2][3], 3 if abs(means[2][3]) < 10 else 2)
    assert page.locator("[data-test=cells] [data-cell='6']").count() == 0
    strongest = max(range(3), key=lambda layer: max(map(abs, means[layer])))
    head = max(range(len(means[strongest])), key=lambda at: abs(means[strongest][at]))
    column = head if strongest != 1 or head < 2 else head + 1
    colour = colour_of(page, f"[data-test=cells] [data-cell='{4 * strongest + column}']")
    assert colour == ("rgb(0, 128, 74)" if means[strongest][head] > 0 else "rgb(138, 63, 157)")

    page.locator("[data-statistic=sep]").first.click()
    page.wait_for_selector("[data-test=page]")
    page.go_back()
    page.locator("[data-test=cells] [data-cell='1']").click()
    page.wait_for_selector("html[data-painted] [data-test=head]")
    assert page.locator("[data-test=head]").inner_text() == "0.1"
    page.locator("summary").click()
    row = page.locator("[data-test=numbers] tr", has_text="entropy").first.locator("td").all_inner_texts()
    fields = ("mean", "deviation", "q05", "q25", "q50", "q75", "q95")
    assert row == [f"{aggregates['entropy'][field][0][1]:.3f}" for field in fields]
    assert page.locator("[data-test=alike] a").count() == 5
    assert {asked.rpartition("/")[0] for asked in watched.asked} == {path.parent.as_uri()}


def test_every_cell_has_its_mean_and_its_place_on_the_scale(tmp_path: Path, watch: Watch) -> None:
    folder = finished(tmp_path)
    page = watch().open(write_site(folder).as_uri())
    entropies = [value for row in statistics_of(folder)["entropy"]["mean"] for value in row]
    texts = page.locator("[data-test=cells] a").all_inner_texts()
    np.testing.assert_allclose([float(text) for text in texts], entropies, atol=6e-4)
    order = np.argsort(entropies)
    assert page.locator("[data-test=low]").inner_text() == "0.000"
    assert colour_of(page, f"[data-test=cells] [data-cell='{order[-1]}']") == "rgb(19, 34, 61)"
    page.select_option("[data-test=scale]", "range")
    assert page.locator("[data-test=low]").inner_text() == f"{min(entropies):.3f}"
    assert colour_of(page, f"[data-test=cells] [data-cell='{order[0]}']") == "rgb(255, 255, 255)"


def test_the_heads_that_stand_out_and_what_was_refused_in_words(tmp_path: Path, watch: Watch) -> None:
    folder = finished(tmp_path, refused=("a.txt", "b.txt"))
    page = watch().open(write_site(folder).as_uri())
    means = statistics_of(folder)["entropy"]["mean"]
    by_value = sorted((value, layer, head) for layer, row in enumerate(means) for head, value in enumerate(row))
    (value, layer, head), *others = by_value[:3]
    sentences = page.locator("[data-test=standing]").inner_text()
    field = {name: statistics_of(folder)["entropy"][name][layer][head] for name in ("q25", "q75")}
    assert (
        f"{layer}.{head} is the most focused: {value:.3f} nats, in half of the windows "
        f"{field['q25']:.3f} to {field['q75']:.3f}. Then "
        + ", ".join(f"{layer}.{head} ({value:.3f})" for value, layer, head in others)
        + f". Median of all heads: {np.median(means):.3f}. entropy"
    ) in sentences
    assert "Nothing to measure in this model and corpus: other text of the pair." in sentences
    counts = page.locator("[data-test=counts]")
    assert list(zip(counts.locator("dd").all_inner_texts(), counts.locator("dt").all_inner_texts(), strict=True)) == [
        ("3", "documents"),
        ("9", "windows"),
        ("4,321", "tokens"),
        ("3", "layers"),
        ("12", "heads"),
        ("109,482,240", "parameters"),
    ]
    assert "2 of 5 documents were refused and are not included in any number: 2 empty." in (
        page.locator("[data-test=refusals]").inner_text()
    )
    page.locator("[data-test=refusals] button").click()
    assert page.locator("#refused td").all_inner_texts() == ["it has no text"] * 2


@pytest.mark.parametrize(
    ("layers", "heads", "unmeasured", "similarity"),
    [(1, 1, ("cls", "sep", "norm"), False), (24, 16, ("sep",), True), (2, 3, tuple(CATALOG), False)],
)
def test_every_size_is_drawn(
    tmp_path: Path, watch: Watch, layers: int, heads: int, unmeasured: tuple[str, ...], similarity: bool
) -> None:
    folder = finished(tmp_path, layers=layers, heads=heads, unmeasured=unmeasured, similarity=similarity, refused=())
    page = watch().open(write_site(folder).as_uri())
    assert "NaN" not in page.locator("#page").inner_html()
    assert "undefined" not in page.locator("#page").inner_text()
    assert page.locator("[data-test=panel]").count() == 7
    assert page.locator("[data-test=plane]").count() == similarity
    points = layers * heads * len(IN_FIGURES - set(unmeasured))
    assert page.locator("circle.point").count() == points
    assert page.locator("[data-test=plane] circle").count() == (layers * heads if similarity else 0)
    assert page.locator("[data-test=refusals], #refused").count() == 0


def test_points_stand_where_their_means_are(tmp_path: Path, watch: Watch) -> None:
    """Heights on the screen against the axis's own ticks: 0 and the highest."""
    folder = finished(tmp_path)
    page = watch().open(write_site(folder).as_uri())
    panel = page.locator("[data-test=panel]", has=page.locator("text.title", has_text=re.compile("^entropy$")))
    means = np.ravel(statistics_of(folder)["entropy"]["mean"])
    ticks = panel.locator("text.end").all_text_contents()
    rules = [line.get_attribute("y1") for line in panel.locator("line.rule").all()]
    bottom, top = float(rules[0] or 0), float(rules[-1] or 0)
    heights = [float(point.get_attribute("cy") or 0) for point in panel.locator("circle").all()]
    expected = bottom - (bottom - top) * means / float(ticks[-1])
    np.testing.assert_allclose(heights, expected, atol=1e-3)
    assert float(ticks[-1]) >= means.max()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_without_labels(tmp_path: Path, watch: Watch, scheme: Any) -> None:
    watched = watch()
    watched.page.emulate_media(color_scheme=scheme)
    assert inaccessible(watched.open(write_site(finished(tmp_path, refused=("a.txt",))).as_uri())) == []


def test_hostile_names_are_text(tmp_path: Path, watch: Watch) -> None:
    watched = watch()
    elements = "[...document.querySelectorAll('#page *')].map((one) => one.localName).join(' ')"
    expected = watched.open(write_site(finished(tmp_path / "plain")).as_uri()).evaluate(elements)
    for number, hostile in enumerate((*HOSTILE, '"><svg onload=alert(1)>', "=1+1")):
        folder = finished(tmp_path / str(number), name=hostile, corpus=hostile, refused=(hostile,))
        path = write_site(folder)
        watched.asked.clear()
        page = watched.open(path.as_uri())
        assert page.evaluate(elements) == expected, hostile
        printed = hostile.replace("\u202e", "\\u202e")
        for place in ("h2 bdi", "[data-test=made] .facts", "#refused th"):
            assert printed in page.locator(place).first.inner_text()
        assert page.title() == f"{printed} over {printed} · headscope survey"
        assert watched.asked == [path.as_uri(), *((path.parent / name).as_uri() for name in BESIDE)]
        assert watched.said == [], hostile


def test_a_link_shows_the_same_picture_and_back_again(tmp_path: Path, watch: Watch) -> None:
    path = write_site(finished(tmp_path, missing=((1, 2),)))
    page = watch().open(f"{path.as_uri()}#by=distance&scale=range&theme=dark&lang=en")
    assert page.locator("[data-test=statistic]").input_value() == "distance"
    assert page.locator("[data-test=scale]").input_value() == "range"
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.locator("[data-test=cells] [data-cell='0']").click()
    page.wait_for_selector("html[data-painted] [data-test=head]")
    assert page.locator("[data-test=head]").inner_text() == "0.0"
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.go_back()
    page.wait_for_selector("html[data-painted] [data-test=statistic]")
    assert page.locator("[data-test=statistic]").input_value() == "distance"
    page.goto(f"{path.as_uri()}#by=nonsense")
    until(page, "document.querySelector('[data-test=statistic]').value === 'entropy'")


def test_the_grid_is_one_stop_of_the_tab_key(tmp_path: Path, watch: Watch) -> None:
    page = watch().open(write_site(finished(tmp_path)).as_uri())
    page.locator("[data-test=csv]").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.cell") == "0"
    for key, cell in (
        ("ArrowRight", "1"),
        ("ArrowDown", "5"),
        ("ArrowLeft", "4"),
        ("ArrowLeft", "4"),
        ("ArrowUp", "0"),
    ):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.cell") == cell
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[data-test=cells]')") is None


def test_dark_is_a_palette_of_its_own_and_paper_is_light(tmp_path: Path, watch: Watch) -> None:
    folder = finished(tmp_path)
    entropies = np.ravel(statistics_of(folder)["entropy"]["mean"])
    strongest = f"[data-test=cells] [data-cell='{entropies.argmax()}']"
    page = watch(color_scheme="dark", viewport={"width": 1000, "height": 700}).open(write_site(folder).as_uri())
    assert colour_of(page, "body") == "rgb(16, 19, 24)"
    assert colour_of(page, strongest) == "rgb(230, 243, 255)"
    page.emulate_media(media="print")
    assert colour_of(page, strongest) == "rgb(19, 34, 61)"
    assert page.locator("[data-test=statistic]").is_hidden()
    page.emulate_media(media="screen")
    for theme in ("light", "dark", "dark"):
        page.locator("[data-test=theme]").click()
        assert page.locator("html").get_attribute("data-theme") == theme


def test_words_are_the_reader_s(tmp_path: Path, watch: Watch) -> None:
    page = watch(locale="ja").open((write_site(finished(tmp_path)).parent / "head-0-0.html").as_uri())
    assert page.locator("html").get_attribute("lang") == "ja"
    assert page.locator("[data-test=title]").inner_text() == "ヘッド 0.0"
    page.select_option("[data-test=language]", "zh")
    assert page.locator("[data-test=title]").inner_text() == "头 0.0"
    assert "{" not in page.locator("#page").inner_text()


def test_a_statistic_is_saved_as_csv(tmp_path: Path, watch: Watch) -> None:
    folder = finished(tmp_path, missing=((1, 2),), name="a/=b:c")
    page = watch(accept_downloads=True).open(f"{write_site(folder).as_uri()}#by=offset")
    with page.expect_download() as started:
        page.locator("[data-test=csv]").click()
    assert started.value.suggested_filename == "-b-c-offset.csv"
    started.value.save_as(tmp_path / "offset.csv")
    with (tmp_path / "offset.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    contents = statistics_of(folder)["offset"]
    assert [(row["layer"], row["head"]) for row in rows] == [
        (str(layer), str(head)) for layer in range(3) for head in range(4) if (layer, head) != (1, 2)
    ]
    for field in ("mean", "q05", "max"):
        np.testing.assert_allclose([float(row[field]) for row in rows], np.concatenate(contents[field]), rtol=1e-8)
    assert {row["windows"] for row in rows} == {"9"}


@pytest.mark.parametrize(("kind", "language"), ODD)
def test_it_holds_at_every_width(tmp_path: Path, watch: Watch, kind: str, language: str) -> None:
    long = "an-organisation-with-a-long-name/a-model-with-an-even-longer-name-without-any-space-in-it"
    path = write_site(finished(tmp_path, layers=6, heads=12, name=long, corpus=long, refused=(long * 2,)))
    watched = watch(locale=language)
    watched.page.add_init_script(brought(kind, "report"))
    page = watched.open(path.as_uri())
    until(page, "[...document.fonts].every((face) => face.status === 'loaded')")
    complaints = []
    for width in (1440, 1000, 640, 390, 360, 320):
        page.set_viewport_size({"width": width, "height": 720})
        complaints += [f"{width} px: {one}" for one in unreadable(page)]
    assert complaints == []


def test_a_page_without_data_says_so(tmp_path: Path, watch: Watch) -> None:
    path = write_site(finished(tmp_path))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('id="hs-survey"', 'id="other"'), encoding="utf-8")
    page = watch().page
    page.goto(path.as_uri())
    until(page, "document.getElementById('page').textContent !== ''")
    assert page.locator("#page").inner_text() == "The report can't be shown: there is no survey in this page"

"""A survey's site in a real browser: the grid, each number, keys, languages, widths, no request beyond it."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fonts import FACTORS, ODD, brought
from looking import DRAWN, HOSTILE, Watch, go, inaccessible, number, unreadable, until
from pyarrow import parquet
from transformers import AutoTokenizer, BertConfig, BertModel

import headscope as hs
from finished_survey import finished
from golden.keeping import page_data
from headscope.atlas.site import write_site
from headscope.heads import CATALOG
from products import pairwise
from small_bert import VOCABULARY, small_bert

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


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


def test_every_cell_and_point_has_its_mean_and_its_place_on_the_scale(tmp_path: Path, watch: Watch) -> None:
    """The grid is one stop of the Tab key; dark is a palette of its own, and paper is light."""
    folder = finished(tmp_path)
    entropies = [value for row in statistics_of(folder)["entropy"]["mean"] for value in row]
    order = np.argsort(entropies)
    strongest = f"[data-test=cells] [data-cell='{order[-1]}']"
    page = watch(color_scheme="dark", viewport={"width": 1000, "height": 700}).open(write_site(folder).as_uri())
    assert colour_of(page, "body") == "rgb(16, 19, 24)"
    assert colour_of(page, strongest) == "rgb(230, 243, 255)"
    page.emulate_media(media="print")
    assert colour_of(page, strongest) == "rgb(19, 34, 61)"
    assert page.locator("[data-test=statistic]").is_hidden()
    page.emulate_media(media="screen")
    for theme in ("light", "dark", "dark", "light"):
        page.locator("[data-test=theme]").click()
        assert page.locator("html").get_attribute("data-theme") == theme
    texts = page.locator("[data-test=cells] a").all_inner_texts()
    np.testing.assert_allclose([float(text) for text in texts], entropies, atol=6e-4)
    assert page.locator("[data-test=low]").inner_text() == "0.000"
    assert colour_of(page, strongest) == "rgb(19, 34, 61)"
    page.select_option("[data-test=scale]", "range")
    assert page.locator("[data-test=low]").inner_text() == f"{min(entropies):.3f}"
    assert colour_of(page, f"[data-test=cells] [data-cell='{order[0]}']") == "rgb(255, 255, 255)"
    # heights on the screen against the axis's own ticks: 0 and the highest
    panel = page.locator("[data-test=panel]", has=page.locator("text.title", has_text=re.compile("^entropy$")))
    ticks = panel.locator("text.end").all_text_contents()
    rules = [line.get_attribute("y1") for line in panel.locator("line.rule").all()]
    bottom, top = float(rules[0] or 0), float(rules[-1] or 0)
    heights = [float(point.get_attribute("cy") or 0) for point in panel.locator("circle").all()]
    np.testing.assert_allclose(heights, bottom - (bottom - top) * np.array(entropies) / float(ticks[-1]), atol=1e-3)
    assert float(ticks[-1]) >= max(entropies)
    page.locator("[data-test=csv]").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.cell") == "0"
    for key, cell in (("Right", 1), ("Down", 5), ("Left", 4), ("Left", 4), ("Up", 0)):
        page.keyboard.press(f"Arrow{key}")
        assert page.evaluate("document.activeElement.dataset.cell") == str(cell)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[data-test=cells]')") is None


def test_the_heads_that_stand_out_and_what_was_refused_in_words(tmp_path: Path, watch: Watch) -> None:
    folder = finished(tmp_path, refused=("a.txt", "b.txt"))
    page = watch().open(write_site(folder).as_uri())
    means = statistics_of(folder)["entropy"]["mean"]
    by_value = sorted((value, layer, head) for layer, row in enumerate(means) for head, value in enumerate(row))
    sentences = page.locator("[data-test=standing]").inner_text()
    for says, some in (("is the most focused", by_value[:3]), ("spreads its weight widest", by_value[:-4:-1])):
        (value, layer, head), *others = some
        field = {name: statistics_of(folder)["entropy"][name][layer][head] for name in ("q25", "q75")}
        assert (
            f"{layer}.{head} {says}: {value:.3f} nats, in half of the windows "
            f"{field['q25']:.3f} to {field['q75']:.3f}. Then "
            + ", ".join(f"{layer}.{head} ({value:.3f})" for value, layer, head in others)
            + f". Median of all heads: {np.median(means):.3f}. entropy"
        ) in sentences
    assert "Nothing to measure in this model and corpus: other text of the pair." in sentences
    counts = page.locator("[data-test=counts]")
    numbers, names = (counts.locator(one).all_inner_texts() for one in ("dd", "dt"))
    assert numbers == ["3", "9", "4,321", "3", "12", "109,482,240"]
    assert names == ["documents", "windows", "tokens", "layers", "heads", "parameters"]
    assert "2 of 5 documents were refused and are not included in any number: 2 empty." in (
        page.locator("[data-test=refusals]").inner_text()
    )
    page.locator("[data-test=refusals] button").click()
    assert page.locator("#refused td").all_inner_texts() == ["it has no text"] * 2


@pytest.mark.parametrize(
    ("layers", "heads", "unmeasured", "similarity"),
    [(1, 1, ("cls", "sep", "norm"), False), (24, 16, ("sep",), True), (2, 3, tuple(CATALOG), False)],
)
def test_every_size_is_drawn_and_repeats_to_the_byte(
    tmp_path: Path, watch: Watch, layers: int, heads: int, unmeasured: tuple[str, ...], similarity: bool
) -> None:
    folder = finished(tmp_path, layers=layers, heads=heads, unmeasured=unmeasured, similarity=similarity, refused=())
    path = write_site(folder)
    first = path.read_bytes()
    assert str(tmp_path).encode() not in first
    # the plane of a survey with distances: test_pages_are_small_and_the_same_every_time
    assert similarity or write_site(folder).read_bytes() == first
    page = watch().open(path.as_uri())
    assert "NaN" not in page.locator("#page").inner_html()
    assert "undefined" not in page.locator("#page").inner_text()
    assert page.locator("[data-test=panel]").count() == 7
    assert page.locator("[data-test=plane]").count() == similarity
    points = layers * heads * len(IN_FIGURES - set(unmeasured))
    assert page.locator("circle.point").count() == points
    assert page.locator("[data-test=plane] circle").count() == (layers * heads if similarity else 0)
    assert page.locator("[data-test=refusals], #refused").count() == 0


def test_hostile_names_are_text(tmp_path: Path, watch: Watch) -> None:
    """One name with all that would act."""
    watched, hostile = watch(), " ".join(('"><svg onload=alert(1)>', "=1+1", *HOSTILE))
    elements = "[...document.querySelectorAll('#page *')].map((one) => one.localName).join(' ')"
    expected = watched.open(write_site(finished(tmp_path / "plain")).as_uri()).evaluate(elements)
    path = write_site(finished(tmp_path / "hostile", name=hostile, corpus=hostile, refused=(hostile,)))
    watched.asked.clear()
    page = watched.open(path.as_uri())
    assert page.evaluate(elements) == expected
    printed = hostile.replace("\u202e", "\\u202e")
    for place in ("h2 bdi", "[data-test=made] .facts", "#refused th"):
        assert printed in page.locator(place).first.inner_text()
    assert page.title() == f"{printed} over {printed} · headscope survey"
    data = page_data(path)["hs-survey"]
    assert data["corpus"]["name"] == data["model"]["file"] == printed
    assert watched.asked == [path.as_uri(), *((path.parent / name).as_uri() for name in BESIDE)]


def test_a_link_shows_the_same_picture_and_back_again(tmp_path: Path, watch: Watch) -> None:
    """And a statistic is saved as CSV."""
    folder = finished(tmp_path, missing=((1, 2),), name="a/=b:c")
    page = watch().open(f"{write_site(folder).as_uri()}#by=distance&scale=range&theme=dark&lang=en")
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
    go(page, "by=nonsense")
    until(page, "document.querySelector('[data-test=statistic]').value === 'entropy'")
    go(page, "by=offset")
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


SAID = """[...document.querySelectorAll("#page *")].flatMap((one) => {
  if (one.closest("bdi, code, [data-test=language], [data-test=command]")) return [];
  const own = [...one.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data);
  return [...own, one.localName === "li" ? "" : one.title, one.getAttribute("aria-label")].filter(Boolean);
})"""
"""What a page says in its own words: text, tooltips and names for screen readers, without names and texts of others."""
ENGLISH = re.compile(r"[A-Za-z][a-z]+ [a-z]{2,}")
OTHERS = re.compile(r"Clark et al\. 2019(, (figure|section) [\d.]+)?|--\w+ \w+")
"""A citation, an option."""


def test_no_sentence_stays_english(known_survey: Path, small: Path, tmp_path: Path, watch: Watch) -> None:
    """In the reader's language, and in each that an address asks for."""
    bare = write_site(finished(tmp_path, refused=("a.txt", "b.txt"))).parent
    (_, layer, head), *_ = sorted(
        (-value, layer, head)
        for layer, row in enumerate(statistics_of(tmp_path)["entropy"]["mean"])
        for head, value in enumerate(row)
    )
    of_bare = {"ja": (" は重みを最も広く分散させる：", "空 2 件"), "zh": (" 权重分布最广：", "空文档 2 个")}
    watched = watch(locale="ja")
    pages = [(site, name) for site in (known_survey / "site", small / "site") for name in ("index", "head-0-3")]
    for site, name in [*pages, (bare, "index"), (bare, "head-0-0")]:
        page = watched.open(f"{(site / name).as_uri()}.html")
        assert page.locator("html").get_attribute("lang") == "ja"
        statistics = ("norm_special", "label_score", "effect", "") if name == "index" else ("",)
        for language, statistic in itertools.product(of_bare, statistics):
            go(page, f"lang={language}&by={statistic}")
            said = [OTHERS.sub("", text) for text in page.evaluate(SAID)]
            assert [text for text in said if ENGLISH.search(text)] == []
            if (site, name, statistic) == (bare, "index", ""):
                widest, empty = of_bare[language]
                first = page.locator("[data-test=standing] li").first.inner_text()
                assert first.startswith(f"{layer}.{head}{widest}")
                assert empty in page.locator("[data-test=refusals]").inner_text()
    go(page, "")
    assert page.locator("[data-test=title]").inner_text() == "ヘッド 0.0"
    page.select_option("[data-test=language]", "zh")
    assert page.locator("[data-test=title]").inner_text() == "头 0.0"
    assert "{" not in page.locator("#page").inner_text()


def test_of_one_head_nothing_is_said_beside_others(tmp_path: Path, watch: Watch) -> None:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, "intermediate_size": 8}
    model = BertModel(BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=128, **shape))
    tokenizer = AutoTokenizer.from_pretrained(small_bert(tmp_path))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "one")
    options: dict[str, Any] = {"labels": True, "examples": 2, "effects": 4}
    site = hs.survey(tmp_path / "one", TREEBANK, out=tmp_path / "out", **options).folder / "site"
    page = watch().open((site / "head-0-0.html").as_uri())
    for there in ("places", "distance", "effect", "relations"):
        assert page.locator(f"[data-test={there}]").count() == 1
    assert page.locator("[data-test=ranks], [data-test=alike], .places .mark, line.middle").count() == 0
    said = page.locator("#page").inner_text()
    for other in ("of 1", "median", "compare heads", "best head", "Heads most alike"):
        assert other not in said
    home = watch().open((site / "index.html").as_uri())
    assert "followed by the next heads" not in home.locator("#page").inner_text()
    for button in home.locator(".contents button").all():
        assert home.locator("h2", has_text=button.inner_text()).or_(home.locator("#grid")).count() > 0


def test_how_much_of_a_label_the_other_half_chooses(known_survey: Path, tmp_path: Path, watch: Watch) -> None:
    site, watched = shutil.copytree(known_survey / "site", tmp_path / "site"), watch()
    text = re.sub(r'"clauses":\d+', '"clauses":3', (site / "head-0-3.html").read_text(encoding="utf-8"))
    for stable, says in enumerate(("chooses none of it.", "chooses 1 of its 3 clauses, too.", "", "chooses the same.")):
        changed, places = re.subn(r'"stable":\d+', f'"stable":{stable}', text)
        assert places == 1
        (site / f"{stable}.html").write_text(changed, encoding="utf-8")
        if says:
            verdict = watched.open((site / f"{stable}.html").as_uri()).locator(".verdict").inner_text()
            assert f"The other half of the documents {says}" in verdict


def test_a_page_without_data_says_so(tmp_path: Path, watch: Watch) -> None:
    path = write_site(finished(tmp_path))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('id="hs-survey"', 'id="other"'), encoding="utf-8")
    page = watch().page
    page.goto(path.as_uri())
    until(page, "document.getElementById('page').textContent !== ''")
    assert page.locator("#page").inner_text() == "The report can't be shown: there is no survey in this page"


TREEBANK = Path(__file__).parent.parent / "data" / "treebank" / "en_pud-first20.conllu"
LONGEST = 150_000
"""Bytes of a head's page: 144 of them are well below 30 MB."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A survey of the bundled model with effects, and with few labels."""
    options: dict[str, Any] = {"labels": True, "examples": 3, "effects": 4, "threads": 1}
    return hs.survey("-", TREEBANK, out=tmp_path_factory.mktemp("small") / "out", **options).folder


@cache
def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(folder / f"{table}.parquet").to_pylist()
    return found


def of_head(folder: Path, table: str, layer: int, head: int) -> list[dict[str, Any]]:
    return [row for row in rows(folder, table) if (row["layer"], row["head"]) == (layer, head)]


def percent(share: float | None) -> str:
    return "–" if share is None else f"{int(100 * share + 0.5)}%"


def rounded(value: float) -> str:
    size = abs(value)
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0}f}"


def mean_of(folder: Path, statistic: str, layer: int, head: int) -> float:
    (row,) = (row for row in of_head(folder, "aggregates", layer, head) if row["statistic"] == statistic)
    mean: float = row["mean"]
    return mean


def number_in(text: str) -> float:
    match = re.search(r"-?\d+(\.\d+)?", text.replace("−", "-"))
    assert match is not None, text
    return float(match[0])


def body(table: Locator) -> list[list[str]]:
    rows: list[list[str]] = table.locator("tbody tr").evaluate_all(
        "(rows) => rows.map(({ cells }) => [...cells].map((cell) => cell.innerText))"
    )
    return rows


def test_every_number_of_the_home_page_is_in_a_table(known_survey: Path, watch: Watch) -> None:
    watched = watch()
    page = watched.open((known_survey / "site" / "index.html").as_uri())
    labels = rows(known_survey, "labels")
    for width, height in ((1440, 900), (1280, 720)):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate(DRAWN)
        bottoms = "[...document.querySelectorAll('.card')].map((one) => one.getBoundingClientRect().bottom)"
        assert max(page.evaluate(bottoms)) < height  # every head is on the first screen
    first_screen(page, labels)
    cards = page.locator("[data-test=cells] a").all_inner_texts()
    assert len(cards) == len(labels) == 24
    for card, row in zip(cards, labels, strict=True):
        first, *_ = card.split("\n")
        assert card.startswith(f"{row['layer']}.{row['head']}")
        # the first clause stands with its own share, and says how many more there are
        assert ([percent(row["alone"][0])] if row["alone"] else []) == re.findall(r"\d+%", card), first
        more = len(row["alone"]) - 1
        assert (f"or {more} more" in card) == (more > 0)
    special = sum(row["special"] for row in labels) / len(labels)
    assert page.locator("[data-test=on-special]").inner_text() == percent(special)
    unlabelled = sum(row["label"] == "none" for row in labels)
    assert number_in(page.locator("[data-test=unlabelled]").inner_text()) == unlabelled
    assert number_in(page.locator("[data-test=labelled]").inner_text()) == 24 - unlabelled
    clauses = page.locator("[data-clause]").all()
    assert clauses
    for clause in clauses:
        row = labels[int(clause.get_attribute("data-clause") or -1)]
        said = clause.inner_text()
        assert f"{row['layer']}.{row['head']}" in said
        assert percent(row["score"]) in said
        assert row["baseline"] is None or f"({percent(row['baseline'])})" in said
        assert clause.locator("a").get_attribute("href") == f"head-{row['layer']}-{row['head']}.html"
    for cells, row in zip(body(page.locator("[data-test=heads]")), labels, strict=True):
        layer, head = row["layer"], row["head"]
        assert cells[0] == f"{layer}.{head}"
        assert cells[2] == ("" if row["score"] is None else percent(row["score"]))
        assert cells[3] == ("" if row["coverage"] is None else str(row["coverage"]))
        assert cells[4:6] == [rounded(row["first"]), rounded(1 - row["special"])]
        means = [mean_of(known_survey, name, layer, head) for name in ("entropy", "distance")]
        assert [float(cell) for cell in cells[6:8]] == pytest.approx(means, abs=6e-3)
    syntax = {(row["relation"], row["direction"]): row for row in rows(known_survey, "syntax")}
    drawn = page.locator("[data-relation]").all()
    assert len(drawn) == len(syntax)
    for line in drawn:
        relation, way = (line.get_attribute("data-relation") or "").split()
        row = syntax[relation, "dependent->head" if way == "up" else "head->dependent"]
        cells = line.locator("th, td").all_inner_texts()
        assert cells[1:4] == [f"{row['count']:,}", f"{row['layer']}.{row['head']}", percent(row["accuracy_held_out"])]
        assert cells[5].split("%")[0] == percent(row["offset_accuracy"]).split("%")[0]
        assert number_in(cells[5].rpartition("%")[2].replace("−", "-").replace("+", "")) == row["offset"]
        spoken = line.locator("svg title").text_content() or ""
        assert f"{percent(row['low'])} to {percent(row['high'])}" in spoken
    assert all(asked.startswith((known_survey / "site").as_uri()) for asked in watched.asked)


@pytest.mark.parametrize(("layer", "head"), [(0, 3), (0, 10), (1, 4)])
def test_every_number_of_a_head_s_page_is_in_a_table(known_survey: Path, watch: Watch, layer: int, head: int) -> None:
    watched = watch()
    page = watched.open((known_survey / "site" / f"head-{layer}-{head}.html").as_uri())
    cell = 12 * layer + head
    (label,) = of_head(known_survey, "labels", layer, head)
    assert page.locator("[data-test=head]").inner_text() == f"{layer}.{head}"
    if label["score"] is None:
        assert page.locator("[data-test=title]").inner_text() == "No label"
    else:
        evidence = page.locator("[data-test=evidence]").inner_text()
        assert evidence.startswith(percent(label["score"]))
        assert f"{label['count']:,}" in evidence
        assert f"interval {percent(label['low'])} to {percent(label['high'])}" in evidence
        assert f"{percent(label['baseline'])} by chance" in evidence
        gain = page.locator("[data-test=gain]").inner_text()
        assert f"{label['bits']:.1f} bits" in gain
        assert f"in {percent(label['accuracy'])}, by chance in {percent(label['accuracy_chance'])}" in gain
    beside = page.locator("[data-test=beside]").inner_text()
    assert all(percent(label[name]) in beside for name in ("special", "first", "sep", "stop"))

    lines, examples = of_head(known_survey, "lines", layer, head), of_head(known_survey, "examples", layer, head)
    for kind in ("best", "other", "random"):
        drawn = page.locator(f"[data-test={kind}] > li").all()
        wanted = [pair for pair in zip(examples, lines, strict=True) if pair[0]["kind"] == kind]
        assert len(drawn) == len(wanted)
        for line, (example, numbers) in zip(drawn, wanted, strict=True):
            looks, seen = line.locator(".looks"), line.locator(".seen")
            assert (looks.inner_text(), seen.inner_text()) == (example["query_word"], example["key_word"])
            assert number_in((seen.get_attribute("title") or "").rpartition(" ")[2]) == pytest.approx(
                example["weight"], abs=6e-4
            )
            for name in ("first", "sep"):
                special = line.locator(f".at-{name}")
                assert special.inner_text() == numbers[f"{name}_token"]
                assert number_in((special.get_attribute("title") or "").rpartition(" ")[2]) == pytest.approx(
                    numbers[name], abs=6e-4
                )
            strongest = max(example["weight"], numbers["first"], numbers["sep"])
            weight = strongest if kind == "random" else example["weight"]
            assert float(line.locator("[data-test=weight]").inner_text()) == pytest.approx(weight, abs=6e-3)
            words = dict(zip(numbers["numbers"], numbers["words"], strict=True))
            inks = dict(zip(numbers["numbers"], numbers["weights"], strict=True))
            beside = line.locator(".after bdi").all()
            for at, word in enumerate(beside[1:], 1):
                if line.locator(".after .skip").count():
                    break
                assert word.inner_text() == words[example["query"] + at]
                assert number_in((word.get_attribute("title") or "").rpartition(" ")[2]) == pytest.approx(
                    inks[example["query"] + at], abs=6e-4
                )

    bars = page.locator("svg[data-test=distance] rect.bar").all()
    values = [row["value"] for row in of_head(known_survey, "distributions", layer, head) if row["value"] is not None]
    assert [float(bar.get_attribute("data-value") or -1) for bar in bars] == pytest.approx(values, rel=1e-5)
    heights = [float(bar.get_attribute("height") or 0) for bar in bars]
    top = max(range(len(values)), key=lambda at: values[at])
    shares = [height / heights[top] for height in heights]
    assert shares == pytest.approx([(value / values[top]) ** 0.5 for value in values], abs=1e-3)

    relations = sorted(
        of_head(known_survey, "relations", layer, head),
        key=lambda row: (row["baseline"] - row["score"], row["relation"], row["way"]),
    )[:12]
    every = rows(known_survey, "relations")
    for cells, row in zip(body(page.locator("[data-test=relations]")), relations, strict=True):
        assert cells[0].endswith(row["relation"])
        assert cells[1:3] == [f"{row['count']:,}", percent(row["score"])]
        assert cells[4].startswith(percent(row["baseline"]))
        same = [other for other in every if (other["relation"], other["way"]) == (row["relation"], row["way"])]
        best = max(other["score"] for other in same)
        assert cells[5].startswith("best of all") == (
            row is max(same, key=lambda other: other["score"]) or cells[5][0] == "b"
        )
        assert "best of all" in cells[5] or percent(best) in cells[5]

    catalog = {statistic.names[0]: name for name, statistic in CATALOG.items()}
    for title, _, value, rank in body(page.locator("[data-test=ranks]")):
        if title.startswith("label"):
            continue
        means = {at: mean_of(known_survey, catalog.get(title, title), *divmod(at, 12)) for at in range(24)}
        assert number(value) == pytest.approx(means[cell], abs=6e-3)
        higher = sum(mean > means[cell] for mean in means.values())
        equal = sum(abs(mean - means[cell]) < 1e-3 * abs(means[cell]) + 1e-12 for mean in means.values())
        assert higher - equal <= int(rank) - 1 <= higher + equal
    nearest = sorted(
        (row["distance"], 12 * row["layer_b"] + row["head_b"])
        for row in rows(known_survey, "similarity")
        if (row["layer_a"], row["head_a"]) == (layer, head) and (row["layer_b"], row["head_b"]) != (layer, head)
    )[:5]
    alike = body(page.locator("[data-test=alike]"))
    assert [float(cells[-1]) for cells in alike] == pytest.approx([distance for distance, _ in nearest], abs=6e-3)
    assert {asked.rpartition("/")[2] for asked in watched.asked} == {
        f"head-{layer}-{head}.html",
        "report.js",
        "report.css",
    }


def test_effects_are_those_of_the_tables(small: Path, watch: Watch) -> None:
    """Below them, names of settings are not broken within words."""
    page = watch().open((small / "site" / "index.html").as_uri())
    effects = {(row["layer"], row["head"]): row for row in rows(small, "effects")}
    felt = sorted(effects.values(), key=lambda row: -abs(row["change"]))[:6]
    for cells, row in zip(body(page.locator("[data-test=felt]")), felt, strict=True):
        assert cells[0] == f"{row['layer']}.{row['head']}"
        assert number(cells[-1]) == pytest.approx(row["change"], rel=0.06, abs=6e-4)
    removal = rows(small, "removal")
    points = page.locator("[data-test=removal] circle").all()
    assert [float(point.get_attribute("data-cost") or 9) for point in points] == pytest.approx(
        [row["cost"] for row in removal], rel=1e-5
    )
    assert [float(point.get_attribute("data-held") or 9) for point in points] == pytest.approx(
        [row["cost_held_out"] for row in removal], rel=1e-5
    )
    order = page.locator("[data-test=order] a").all_inner_texts()
    assert order == [f"{row['layer']}.{row['head']}" for row in removal][:24]
    page.select_option("[data-test=statistic]", "effect")
    shown = [number(text) for text in page.locator("[data-test=cells] a").all_inner_texts()]
    assert shown == pytest.approx([row["change"] for row in effects.values()], abs=6e-4)
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate(DRAWN)
    broken = """[...document.querySelectorAll(".facts th bdi")].flatMap((one) => {
      const range = document.createRange();
      return [...one.textContent.matchAll(/[a-z]+/g)].filter(({ 0: word, index }) => {
        range.setStart(one.firstChild, index);
        range.setEnd(one.firstChild, index + word.length);
        return new Set([...range.getClientRects()].map(({ top }) => top)).size > 1;
      }).map(([word]) => word);
    })"""
    assert page.locator(".facts th").count() > 9
    assert page.evaluate(broken) == []
    assert "null" not in page.locator("[data-test=made]").inner_text()


def test_small_effects_are_whole_numbers_with_their_sign(small: Path, tmp_path: Path, watch: Watch) -> None:
    """Beside the curve of their sum, and in the ranks of a head."""
    site = tmp_path / "site"
    shutil.copytree(small / "site", site)
    for name in ("index.html", "head-0-0.html"):
        text = (site / name).read_text(encoding="utf-8")
        (found,) = re.findall(r'<script type="application/json" id="hs-survey">(.*?)</script>', text)
        survey = json.loads(found)
        effects = survey["effects"]
        effects["change"] = [-1e-5 * (1 + at) for at in range(len(effects["change"]))]
        for step in effects["removal"]:
            step.update({one: -1e-3 * abs(step[one] or 1) for one in ("cost", "costHeldOut", "low", "high")})
        (site / name).write_text(text.replace(found, json.dumps(survey)), encoding="utf-8")
    page = watch().open((site / "index.html").as_uri())
    frame = page.locator("[data-test=removal]").bounding_box()
    ticks = [tick.bounding_box() for tick in page.locator("[data-test=removal] .end").all()]
    assert len(ticks) == 5
    assert min(tick["x"] for tick in ticks if tick) >= frame["x"]  # type: ignore[index]
    page.goto((site / "head-0-0.html").as_uri())
    effect = page.locator("[data-test=effect] b").inner_text()
    assert number(effect) == pytest.approx(-1e-5)
    assert page.locator("[data-test=ranks] tbody tr:last-child td").nth(1).inner_text() == effect


def test_written_tokens_are_those_of_the_table(tmp_path: Path, watch: Watch) -> None:
    """Named only where that is sure, with their bits and the interval."""
    text = (Path(__file__).parent.parent / "data" / "alice.txt").read_text(encoding="utf-8")
    texts = [text[start : start + 1000] for start in range(0, 40_000, 1000)]
    small = hs.survey("-", texts, out=tmp_path, statistics="entropy", length=64, threads=1, writes=200).folder
    written = sorted(rows(small, "writes"), key=lambda row: row["bits"])
    page = watch().page
    for row in (written[0], written[-1]):
        page.goto((small / "site" / f"head-{row['layer']}-{row['head']}.html").as_uri())
        line = page.locator("[data-test=written]")
        assert line.locator("bdi").all_inner_texts() == (row["tokens"] if row["sure"] else [])
        numbers = [float(n) for n in re.findall(r"-?\d+\.\d{3}", line.inner_text().replace("−", "-"))]
        bits = [row["bits"], row["low"], row["high"]] if row["sure"] else []
        assert numbers == pytest.approx(bits, abs=6e-4)
        assert f"{row['windows']} windows" in line.inner_text()
    assert [row["sure"] for row in (written[0], written[-1])] == [False, True]


def first_screen(page: Page, labels: list[dict[str, Any]]) -> None:
    """Whole words in every tile, a bar as long as its number, a mark at chance; grey where a label says little."""
    described = [row for row in labels if row["label"] != "none"]
    strong = sum(row["coverage"] >= 80 and row["bits"] >= 0.5 for row in described)
    weak = [row["label"] == "none" or row["bits"] < 0.5 for row in labels]
    headline = f"{len(described)} of 24 heads can be described; for {strong} the words explain 80 of 100 pairs or more"
    assert page.locator("h1").inner_text() == headline
    assert f"grey: {sum(weak) - 24 + len(described)} that say next to nothing" in page.locator("h1 + p").inner_text()
    for row, tile, grey in zip(labels, page.locator("[data-test=cells] a").all(), weak, strict=True):
        drawn = [float(bar.get_attribute("width") or 0) for bar in tile.locator("svg rect").all()]
        marks = [float(mark.get_attribute("x") or 0) for mark in tile.locator("rect.mark").all()]
        assert drawn[1:2] == pytest.approx([100 * share for share in row["alone"][:1]], abs=0.1)
        assert marks == pytest.approx([100 * share for share in row["alone_chance"][:1]], abs=0.1)
        assert ("weak" in (tile.get_attribute("class") or "").split()) == grey
        clause = tile.locator(".says").evaluate("(one) => one.firstChild?.data ?? ''")
        assert row["label"] == "none" or (clause and clause in row["label"])
    page.locator("[data-cell='0'].card").hover()
    under = page.locator("[data-test=under]").inner_text()
    label: str = labels[0]["label"]
    assert under.startswith(f"0.0 {label[:1].upper()}{label[1:]}")
    assert f"{percent(labels[0]['score'])} of its {labels[0]['count']} strongest pairs" in under


def test_the_legend_and_the_box_filter_the_table(known_survey: Path, watch: Watch) -> None:
    """Then from the grid to a head, on to the next, home again; in the reader's theme and language, never elsewhere."""
    watched = watch()
    page = watched.open(f"{(known_survey / 'site' / 'index.html').as_uri()}#find=previous")
    found = [row for row in rows(known_survey, "labels") if "previous" in row["label"]]
    assert page.locator("h1").inner_text() == f"{len(found)} of 24 heads: “previous”"
    assert page.locator("[data-test=cells] a:not(.faded)").count() == len(found)
    assert set(page.locator("mark").all_inner_texts()) == {"previous"}
    go(page, f"find={'%20' * 79}%F0%9F%90%88")
    assert page.locator("[data-test=find]").input_value() == 79 * " "  # not half of a letter
    page.locator("[data-test=find]").fill("")
    heads = page.locator("[data-test=heads] tbody tr")
    assert heads.count() == 24
    page.locator("[data-group=position]").first.scroll_into_view_if_needed()
    page.locator("button[data-group=position]").click()
    wanted = [f"{row['layer']}.{row['head']}" for row in rows(known_survey, "labels") if row["kind"] == "position"]
    assert {"0.0", "0.1", "0.2"} <= {*wanted}
    assert heads.locator("th").all_inner_texts() == wanted
    faded = page.locator("[data-test=cells] a.faded").count()
    assert faded == 24 - len(wanted)
    page.locator("[data-test=all]").click()
    page.keyboard.press("/")
    page.keyboard.type("same word")
    assert heads.locator("th").all_inner_texts() == ["0.3"]
    page.locator("[data-test=find]").fill("0.")
    page.locator("[data-sort=score]").click()
    scores = [row["score"] for row in of_layer(known_survey) if row["score"] is not None]
    shown = [cells[2] for cells in body(page.locator("[data-test=heads]")) if cells[2]]
    assert shown == [percent(score) for score in sorted(scores, reverse=True)]
    assert heads.last.locator("th").inner_text() == "0.11"
    go(page, "")
    page.locator("[data-test=theme]").click()
    page.locator("[data-test=theme]").click()
    page.select_option("[data-test=language]", "zh")
    page.locator("[data-test=cells] a[data-cell='3']").click()
    page.wait_for_selector("html[data-painted] [data-test=title]")
    assert page.locator("[data-test=title]").inner_text().startswith("别处的同一个词")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.locator("a[rel=next]").click()
    page.wait_for_selector("main[data-cell='4']")
    page.locator("nav.map a").nth(10).click()
    page.wait_for_selector("main[data-cell='10']")
    page.locator("[data-test=home]").click()
    page.wait_for_selector("[data-test=story]")
    assert page.locator("html").get_attribute("lang") == "zh"
    folder = (known_survey / "site").as_uri()
    assert all(asked.startswith(folder) for asked in watched.asked)


def of_layer(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder, "labels") if row["layer"] == 0]


def test_a_window_opens_by_a_command_that_gives_its_very_tokens(small: Path, watch: Watch) -> None:
    """The command, split as a shell does, traced: its ids, and the pair where the state says. And the head's effect."""
    page = watch().open((small / "site" / "head-0-0.html").as_uri())
    (effect,) = of_head(small, "effects", 0, 0)
    said = page.locator("[data-test=effect]").inner_text().replace("−", "-")
    assert float(re.findall(r"-?\d+\.[\de-]+", said)[0]) == pytest.approx(effect["change"], rel=0.06, abs=6e-4)
    order = [(step["layer"], step["head"]) for step in rows(small, "removal")]
    assert f"as number {1 + order.index((0, 0))} of" in said
    model = hs.open("-")
    for at, (line, example) in enumerate(
        zip(of_head(small, "lines", 0, 0), of_head(small, "examples", 0, 0), strict=True)
    ):
        page.locator("button.open").nth(at).click()
        command = shlex.split(page.locator("[data-test=command]").nth(at).inner_text())
        assert command[:2] == ["headscope", "view"]
        options = command[4:]
        ids = list(map(int, command[3].split())) if "ids=true" in options else None
        trace = model.trace(command[3]) if ids is None else model.trace(ids=ids)
        assert list(trace.ids) == line["ids"]
        state = dict(part.split("=") for part in options[options.index("--open") + 1].split("&"))
        assert (int(state["l"]), int(state["h"])) == (0, 0)
        for at, word in (("q", example["query_word"]), ("k", example["key_word"])):
            token = trace.tokens[int(state[at])].strip("#").lower()
            assert token in word.lower() or token == "[unk]"


def test_the_words_of_a_pair_are_whole_and_begin_at_one_place(known_survey: Path, watch: Watch) -> None:
    page = watch(viewport={"width": 390, "height": 800}).open((known_survey / "site" / "head-0-3.html").as_uri())
    for width in (390, 900, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate(DRAWN)
        until(page, "document.querySelector('.arc path').getAttribute('d') !== ''")
        places = page.evaluate(
            "[...document.querySelectorAll('.looks')].map((one) => one.getBoundingClientRect().left)"
        )
        assert max(places) - min(places) < 1
        cut = page.evaluate(
            """[...document.querySelectorAll('.line')].filter((line) => {
              const frame = line.querySelector('.words').getBoundingClientRect();
              return [...line.querySelectorAll('.looks, .seen')].some((one) => {
                const box = one.getBoundingClientRect();
                return box.left < frame.left - 1 || box.right > frame.right + 1;
              });
            }).length"""
        )
        assert cut == 0
    # forced colours and paper: the word that looks keeps its frame, what can be pressed goes
    page.emulate_media(forced_colors="active")
    assert page.locator(".looks").first.evaluate("(one) => getComputedStyle(one).outlineStyle") == "solid"
    assert "underline" in page.locator(".seen").first.evaluate("(one) => getComputedStyle(one).textDecorationLine")
    page.emulate_media(forced_colors="none", media="print")
    assert page.locator("button.open").first.is_hidden()
    assert page.locator("[data-test=language]").is_hidden()


ARABIC = "لم يعبر الحيوان الشارع لأنه كان متعبا جدا ثم جلس على السجادة"
LONG = "pneumono" * 11
STANDING = """[...document.querySelectorAll(".line")].map((line) => {
  const x = (of) => [...line.querySelectorAll(of)].map((one) => one.getBoundingClientRect().x);
  return [[...x(".before bdi"), ...x(".after bdi")], x(".words bdi"), x(".at-first"), x(".at-sep")];
})"""
"""Of each line, where words stand in their order, and where both special tokens do."""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A survey of one layer of 20 heads: texts from right to left, one with long words, none with a full stop."""
    folder = tmp_path_factory.mktemp("odd")
    shape = {"num_hidden_layers": 1, "num_attention_heads": 20, "hidden_size": 40, "intermediate_size": 8}
    model = BertModel(BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=64, **shape)).eval()
    tokenizer = AutoTokenizer.from_pretrained(small_bert(folder))
    texts = [ARABIC, " ".join(reversed(ARABIC.split())), f" {LONG} ".join(VOCABULARY[5:10])]
    options: dict[str, Any] = {"labels": True, "examples": 6, "length": 64}
    return hs.survey(model, texts, tokenizer=tokenizer, out=folder / "out", **options).folder


def test_lines_run_in_the_direction_of_their_words(odd: Path, watch: Watch) -> None:
    """A long word is cut, and its pair is in sight; nothing is said of a full stop, of which there is none."""
    page = watch(viewport={"width": 390, "height": 800}).open((odd / "site" / "head-0-0.html").as_uri())
    frames = """[...document.querySelectorAll(".line")].map((line) => ["words", "looks", "seen"].map((name) => {
      const box = line.querySelector(`.${name}`)?.getBoundingClientRect();
      return box && [box.left, box.right];
    }))"""
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate(DRAWN)
        until(page, "document.querySelector('.arc path').getAttribute('d') !== ''")
        for words, *pair in page.evaluate(frames):
            for left, right in filter(None, pair):
                assert words[0] - 1 <= left < right <= words[1] + 1
        assert page.locator(f".side bdi[title^={LONG}]").count() > 0
        assert unreadable(page) == []
    directions = set()
    for (words, _, (first,), (sep,)), line in zip(page.evaluate(STANDING), page.locator(".line").all(), strict=True):
        leftwards = any("\u0600" <= letter <= "\u06ff" for letter in line.locator(".looks").inner_text())
        directions.add(leftwards)
        assert words == sorted(words, reverse=leftwards)
        assert (min(words) > sep, max(words) < first) == (leftwards, leftwards)
    assert directions == {True, False}
    beside = page.locator("[data-test=beside]").inner_text()
    assert re.fullmatch(r"On average .* on \u2068\[CLS\]\u2069, \d+% on \[SEP\]\.", beside)


def test_many_heads_stand_beside_each_other(odd: Path, watch: Watch) -> None:
    """They scroll, on a screen; on paper and on a phone they stand in rows. No label of theirs explains much."""
    page = watch(viewport={"width": 1000, "height": 800}).open((odd / "site" / "index.html").as_uri())
    assert page.locator("h1").inner_text() == "0 of 20 heads can be described"
    cards = "[...document.querySelectorAll('.card')].map((one) => one.getBoundingClientRect().toJSON())"
    for width, media in ((1000, "screen"), (390, "screen"), (700, "print")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(media=media)  # type: ignore[arg-type]
        page.evaluate(DRAWN)
        assert unreadable(page) == []
        boxes = page.evaluate(cards)
        assert min(box["width"] for box in boxes) >= 60
        for a, b in itertools.combinations(boxes, 2):
            assert (
                a["right"] <= b["left"] or b["right"] <= a["left"] or a["bottom"] <= b["top"] or b["bottom"] <= a["top"]
            )
        if width < 1000:
            assert max(box["right"] for box in boxes) <= width


def test_few_heads_leave_room_for_what_follows(small: Path, watch: Watch) -> None:
    """Their tiles are as high as labels of that width need; on a phone four of a layer stand two by two."""
    page = watch(viewport={"width": 1440, "height": 900}).open((small / "site" / "index.html").as_uri())
    cards = "[...document.querySelectorAll('.card')].map((one) => one.getBoundingClientRect().toJSON())"
    assert max(box["height"] for box in page.evaluate(cards)) <= 80
    assert page.evaluate("document.getElementById('kinds').getBoundingClientRect().bottom") < 900
    page.set_viewport_size({"width": 390, "height": 844})
    assert list(Counter(box["left"] for box in page.evaluate(cards)).values()) == [8, 8]


def test_numbers_stand_behind_a_label_from_right_to_left(known_survey: Path, tmp_path: Path, watch: Watch) -> None:
    site = tmp_path / "site"
    shutil.copytree(known_survey / "site", site)
    text = (site / "index.html").read_text(encoding="utf-8")
    (survey,) = (data for data in page_data(site / "index.html").values() if "labels" in data)
    labels = {label["says"]["en"] for label in survey["labels"] if label and label["kind"] != "none"}
    for label in labels:
        text = text.replace(json.dumps(label)[1:-1], f"Words such as {ARABIC}")
    (site / "index.html").write_text(text, encoding="utf-8")
    page = watch(viewport={"width": 1440, "height": 900}).open((site / "index.html").as_uri())
    beside = """(selector) => [...document.querySelectorAll(selector)].map((one) => {
      const range = document.createRange();
      range.setStart(one.nextElementSibling?.firstChild ?? one.parentElement.nextElementSibling.firstChild, 0);
      range.setEnd(range.startContainer, 1);
      const last = [...one.getClientRects()].at(-1);
      const number = range.getBoundingClientRect();
      return Math.abs(last.top - number.top) > 9 || number.left >= last.right - 1;
    })"""
    for selector in ("[data-test=under] bdi", "[data-clause] > bdi"):
        found = page.evaluate(beside, selector)
        assert found
        assert all(found)


def test_the_names_of_axes_leave_numbers_their_room(tmp_path: Path, watch: Watch) -> None:
    path = write_site(finished(tmp_path))
    text, ends = re.subn(r'"highest": ?[\d.]+', '"highest":0.1', path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    assert ends == 3
    page = watch().open(path.as_uri())
    boxes = """[...document.querySelectorAll("[data-test=panel]")].map((panel) => [".axis", ".tick"].map((kind) =>
      [...panel.querySelectorAll(kind)].map((one) => one.getBoundingClientRect().toJSON())))"""
    for axes, ticks in page.evaluate(boxes):
        for axis, tick in itertools.product(axes, ticks):
            assert axis["right"] <= tick["left"] or axis["top"] >= tick["bottom"]


def test_pages_are_small_and_the_same_every_time(known_survey: Path) -> None:
    files = {path.name: path.read_bytes() for path in (known_survey / "site").iterdir()}
    assert max(len(content) for name, content in files.items() if name.startswith("head-")) < LONGEST
    (known_survey / "site" / "head-9-9.html").write_text("of another survey")
    write_site(known_survey)
    assert {path.name: path.read_bytes() for path in (known_survey / "site").iterdir()} == files
    for name, content in files.items():
        if name.endswith(".html"):
            text = content.decode()
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in text
            assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["report.css", "report.js"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose words would act, if anything took them for markup or for a command."""
    text = "<img src=x onerror=alert(1)> </script><script>alert(2)</script> $(reboot) `reboot` ' \" \u202eabc. " * 6
    folder = tmp_path_factory.mktemp("hostile")
    return hs.survey("-", [text, text + "The cat."], out=folder / "out", labels=True, examples=5, length=64).folder


def test_a_corpus_is_never_markup(hostile: Path, watch: Watch) -> None:
    watched = watch()
    for path in sorted((hostile / "site").glob("*.html"))[:3]:
        assert path.read_text(encoding="utf-8").count("<script") == 3
        page = watched.open(path.as_uri())
        assert page.locator("#page img, #page script").count() == 0


NAMES = ("index.html#group=position", "index.html#by=offset&group=position", "head-0-10.html")


def test_axe_finds_nothing(known_survey: Path, tmp_path: Path, watch: Watch) -> None:
    """In the home page with labels, some of them faded, with a statistic, and without; in a head's page, unfolded."""
    watched, complaints = watch(), []
    plain = write_site(finished(tmp_path, refused=("a.txt",))).as_uri()
    known = [f"{(known_survey / 'site').as_uri()}/{name}" for name in NAMES]
    for name in (*known, plain):
        page = watched.open(name)
        for control in page.locator("summary, .line:first-child .open").all():
            control.click()
        for scheme, width in (("light", 390), ("light", 1440), ("dark", 1440)):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(DRAWN)
            assert page.locator("html").get_attribute("data-theme") == scheme
            complaints += [f"{name}, {scheme}, {width}: {complaint}" for complaint in inaccessible(page)]
    assert complaints == []


ON_KNOWN = pairwise(("index.html", "head-0-10.html"), tuple(FACTORS), ("en", "ja"))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site without labels, whose names are long."""
    name = "an-organisation-with-a-long-name/a-model-with-an-even-longer-name-without-any-space-in-it"
    folder = tmp_path_factory.mktemp("long")
    write_site(finished(folder, layers=6, heads=12, name=name, corpus=name, refused=(name * 2,)))
    return folder


@pytest.mark.parametrize(
    ("folder", "name", "kind", "language"),
    [
        *(pytest.param("long", "index.html", *case.values, marks=case.marks) for case in ODD),
        *(pytest.param("known_survey", *case.values, marks=case.marks) for case in ON_KNOWN),
    ],
)
def test_it_holds_at_every_width(
    request: pytest.FixtureRequest, watch: Watch, folder: str, name: str, kind: str, language: str
) -> None:
    watched = watch(locale=language)
    watched.page.add_init_script(brought(kind, "report"))
    page = watched.open((request.getfixturevalue(folder) / "site" / name).as_uri())
    until(page, "[...document.fonts].every((face) => face.status === 'loaded')")
    complaints = []
    for width in (1440, 1000, 640, 390, 360, 320):
        page.set_viewport_size({"width": width, "height": 720})
        page.evaluate(DRAWN)
        complaints += [f"{width} px: {one}" for one in unreadable(page)]
    assert complaints == []

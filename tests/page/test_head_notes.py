"""A survey beside a trace: its numbers against its own tables, its refusals, its line on the page, its link."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from looking import SIZES, Watch, inaccessible, unreadable, until
from pyarrow import parquet
from serving import ask, serving

import headscope as hs
from finished_survey import add_table, write_manifest
from headscope.atlas.head_notes import OtherModelWarning, head_notes
from headscope.errors import InputError
from headscope.page import notebook
from headscope.results.schemas import EffectRow, columns

if TYPE_CHECKING:
    from playwright.sync_api import Page

LANGUAGES = ("en", "ja", "zh")
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def survey(known_survey: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The survey of known heads, with effects written beside its labels, and a corpus whose name would act as HTML."""
    folder = Path(shutil.copytree(known_survey, tmp_path_factory.mktemp("noted") / "out"))
    manifest = json.loads((folder / "manifest.json").read_text())
    heads = [(row["layer"], row["head"]) for row in parquet.read_table(folder / "labels.parquet").to_pylist()]
    changes = [(-1) ** n * (n + 1) / 400 for n in range(len(heads))]
    rows = [
        EffectRow(*at, "masked-LM loss", "nats", "zero", 2.0, change, change - 0.001, change + 0.001, 8, 6)
        for at, change in zip(heads, changes, strict=True)
    ]
    table = pa.table({name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in columns(EffectRow)})
    add_table(folder, manifest, "effects", table)
    manifest["corpus"]["name"] = HOSTILE
    write_manifest(folder, manifest)
    return folder


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> hs.Trace:
    from known_heads import known_heads

    folder = tmp_path_factory.mktemp("of") / "known"  # as the survey's model is called
    folder.mkdir()
    model = hs.open(known_heads(folder))
    return model.trace("the cat saw a dog .")


def rows(folder: Path, table: str) -> dict[tuple[int, int], dict[str, Any]]:
    return {(row["layer"], row["head"]): row for row in parquet.read_table(folder / f"{table}.parquet").to_pylist()}


def percent(share: float) -> str:
    return f"{100 * share:.{1 if share < 0.1 else 0}f}%"


def test_what_is_packed_is_in_the_survey_s_tables(survey: Path, trace: hs.Trace) -> None:
    stands = head_notes(survey, trace)
    labels, effects = rows(survey, "labels"), rows(survey, "effects")
    assert set(stands.heads) == {f"{layer}.{head}" for layer, head in labels}
    assert stands.notice is None
    order = sorted(effects, key=lambda at: -abs(effects[at]["change"]))
    for (layer, head), row in labels.items():
        said = stands.heads[f"{layer}.{head}"]
        title = "no label" if row["label"] == "none" else row["label"]
        assert said["en"][0] == title
        for language in LANGUAGES:
            numbers = said[language][1]
            if row["score"] is not None:
                for name in ("score", "high", "baseline"):
                    assert percent(row[name]) in numbers
            change = effects[layer, head]["change"]
            number = f"{change:+.3f}" if abs(change) >= 0.01 else f"{change:+.2g}"
            assert number.replace("-", "−") in numbers
            assert re.search(rf"\b{order.index((layer, head)) + 1}\b", numbers)
            assert f"{len(effects)} " in numbers or numbers.rstrip(".").find(f"of {len(effects)}") > 0
            assert said[language][2] == f"head-{layer}-{head}.html#lang={language}"
            assert "<" in numbers  # the corpus' name, as it is


def test_labels_in_common_are_groups(survey: Path, trace: hs.Trace, watch: Watch, file: Path) -> None:
    """Heads whose labels have a clause's relation in common are silenced together, in a file too."""
    stands = head_notes(survey, trace)
    labels = rows(survey, "labels")
    common = {said["en"]: heads for said, heads in stands.groups()}
    before = [at for at, row in labels.items() if "offset-1" in row["relation"]]
    assert common.get("the previous word", before[:1]) == before
    assert common
    for heads in common.values():
        assert len(heads) == len({*heads}) > 1
    assert head_notes(survey, trace.replaced(source=None, model="owner/other")).groups() == []
    page = watch().open(f"{file.as_uri()}#pane=causes&run=0-groups")
    told = page.locator(".groups table button").all_inner_texts()
    assert told[-len(common) :] == [f"the {len(heads)} heads of “{name}”" for name, heads in common.items()]


def test_a_survey_of_another_model_is_refused_or_named(
    survey: Path, trace: hs.Trace, cat: hs.Trace, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"layers × \d+ heads, and the trace 2 layers × 2 heads") as refused:
        head_notes(survey, cat)
    assert "own model" in str(refused.value)
    stranger = trace.replaced(source=None, model="owner/known")
    assert head_notes(survey, stranger).notice is None
    other = head_notes(survey, stranger.replaced(model="owner/other"))
    assert "owner/other" in other.notice
    assert all("not this model" in said["en"][0] for said in other.heads.values())
    with pytest.warns(OtherModelWarning, match="owner/other"):
        stranger.replaced(model="owner/other").to_html(tmp_path / "other.html", atlas=survey)


def test_other_sizes_and_a_survey_without_labels_and_effects_are_refused(
    survey: Path, trace: hs.Trace, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(survey, tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["model"]["config"]["vocab_size"] += 1
    write_manifest(copy, manifest)
    with pytest.raises(InputError, match="vocab_size"):
        head_notes(copy, trace)
    for table in ("labels", "effects"):
        del manifest["files"][f"{table}.parquet"]
    manifest["model"]["config"]["vocab_size"] -= 1
    write_manifest(copy, manifest)
    with pytest.raises(InputError, match="neither labels nor effects"):
        head_notes(copy, trace)


@pytest.fixture(scope="module")
def file(survey: Path, trace: hs.Trace) -> Path:
    folder = survey.parent / "a page #1"
    folder.mkdir()
    return trace.to_html(folder / "page.html", atlas=survey)


ROOM = """document.querySelector(".inspector").getBoundingClientRect().bottom -
  document.querySelector(".inspector .ranked li").getBoundingClientRect().bottom"""


def line(page: Page) -> str:
    return page.locator(".beside").inner_text()


def test_the_line_is_the_selected_head_s_and_leads_to_its_page(
    watch: Watch, survey: Path, trace: hs.Trace, file: Path
) -> None:
    """Nothing is clipped; and a laptop still shows where the word looks: the first key stands within the inspector."""
    state = "#l=0&h=0&q=2&k=1&by={}&lang={}"
    address = f"{file.as_uri()}{state.format('weight', 'en')}"
    page = watch(quiet=False, viewport={"width": 1440, "height": 900}).open(address)
    page.wait_for_selector(".inspector .ranked li[data-weight]")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        until(page, f"document.documentElement.dataset.theme === '{scheme}'")
        assert inaccessible(page) == []
    complaints = []
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for language in LANGUAGES:
            page.evaluate(f"location.hash = '{state.format('weight', language)}'")
            until(page, f"document.documentElement.lang === '{language}'")
            complaints += [f"{width}, {language}: {one}" for one in unreadable(page)]
            for asked in ("effect", "entropy", "mass", "weight") if width == 1280 else ():
                page.evaluate(f"location.hash = '{state.format(asked, language)}'")
                until(page, f"document.querySelector('[data-test=statistic]').value === '{asked}'")
                page.wait_for_selector(".inspector .ranked li[data-weight]")
                complaints += [f"no room: {language}, {asked}"] if page.evaluate(ROOM) < 0 else []
    assert complaints == []
    said = head_notes(survey, trace).heads
    for layer, head in ((0, 0), (0, 1)):
        page.evaluate(f"location.hash = '#l={layer}&h={head}'")
        expected = said[f"{layer}.{head}"]["en"]
        until(page, f"document.querySelector('.beside b').textContent === {json.dumps(expected[0])}")
        assert expected[1].strip() in line(page)
        # two effects of a head are of different texts, and say of which
        assert "silenced in the survey: " in line(page)
        assert "effect here" in page.locator(".facts").inner_text()
    for language in LANGUAGES:
        page.evaluate(f"location.hash = '#l=0&h=1&lang={language}'")
        until(page, f"document.querySelector('.beside b').textContent === {json.dumps(said['0.1'][language][0])}")
        assert said["0.1"][language][3] in line(page)
    page.evaluate("location.hash = '#l=0&h=1&lang=zh&theme=dark'")
    until(page, "document.documentElement.dataset.theme === 'dark'")
    until(page, "document.querySelector('.beside a').href.endsWith('dark')")
    page.goto(page.evaluate("document.querySelector('.beside a').href"))
    page.wait_for_selector("html[data-painted]")
    assert page.title().startswith("0.1 · ")
    assert page.evaluate("[document.documentElement.lang, document.documentElement.dataset.theme]") == ["zh", "dark"]


def test_without_a_survey_nothing_is_said_and_a_notebook_has_no_link(
    watch: Watch, survey: Path, trace: hs.Trace, tmp_path: Path
) -> None:
    plain = trace.to_html(tmp_path / "plain.html")
    assert '"atlas"' not in plain.read_text(encoding="utf-8").split('id="hs-trace-0"')[0].split('id="hs-about"')[1]
    page = watch().open(plain.as_uri())
    assert page.locator(".beside").count() == 0
    stands = head_notes(survey, trace)
    assert "&quot;site&quot;:null" in notebook.frame(trace, atlas=stands)


def test_the_server_shows_the_head_s_page_to_those_who_have_the_token(
    watch: Watch, survey: Path, trace: hs.Trace
) -> None:
    stands = head_notes(survey, trace)
    (survey / "site" / "stranger.html").write_text("<script>alert(1)</script>")
    with serving(trace) as served:
        served.session.atlas = stands
        page = watch().open(f"{served.session.address()}#l=0&h=1")
        page.goto(page.evaluate("document.querySelector('.beside a').href"))
        page.wait_for_selector("html[data-painted]")
        assert page.title().startswith("0.1 · ")
        page.goto("about:blank")
        for path, code in (("wrong/head-0-1.html", 403), (f"{served.session.token}/stranger.html", 404)):
            assert ask(served.session, path=f"/atlas/{path}", x_headscope_token="")[0] == code
        path = f"/atlas/{served.session.token}/head-0-1.html"
        assert ask(served.session, path=path, x_headscope_token="", host="evil.example")[0] == 421

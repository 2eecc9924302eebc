"""Exports of what is seen, and sharing: a file in which the page has written itself again, and a link."""

from __future__ import annotations

import csv
import io
import re
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
from looking import HOSTILE, Watch, Watched, eventually, go, lists, number, patiently, pixels, retype, saved, until
from serving import serving
from test_page_bytes import view_of
from test_room import made

import headscope as hs
from headscope.attention.scores import Mask
from headscope.page import html, notebook
from headscope.page.trace import page_bytes
from headscope.screens.tables import FORMULA, guarded
from small_bert import VOCABULARY, broken_bert, small_bert

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Frame, Page


CLOSE = 1e-3
SVG = "{http://www.w3.org/2000/svg}"
PIN = "#c2410c"
GREY = "#e6e8ec"
STATE = "#l=1&h=1&q=4&k=3"


def figure(page: Page) -> ElementTree.Element:
    return ElementTree.fromstring(saved(page, "SVG").decode())


def words(figure: ElementTree.Element) -> str:
    return " ".join(one.text or "" for one in figure.iter(f"{SVG}text"))


Box = tuple[float, float, float, float]
"""Left, top, width, height."""


def box(one: ElementTree.Element) -> Box:
    left, top, width, height = (float(one.get(name) or 0) for name in ("x", "y", "width", "height"))
    return left, top, width, height


def matrix(
    figure: ElementTree.Element, rows: int, columns: int
) -> tuple[ElementTree.Element, Callable[[int, int], Box]]:
    """The matrix, and where each of its cells is: (row, column) -> box."""
    (image,) = figure.iter(f"{SVG}image")
    left, top, width, height = box(image)
    cell = width / columns
    assert height == pytest.approx(rows * cell)
    return image, lambda row, column: (left + column * cell, top + row * cell, cell, cell)


def lightness(image: ElementTree.Element, rows: int) -> np.ndarray:
    """How light each cell of a square picture is, row by row."""
    drawn = pixels(image.get("href") or "")
    down, across = (((np.arange(rows) + 0.5) * size / rows).astype(int) for size in drawn.shape[:2])
    return drawn[np.ix_(down, across)][..., :3].sum(-1).ravel()


def frames(figure: ElementTree.Element) -> list[ElementTree.Element]:
    return [one for one in figure.iter(f"{SVG}rect") if one.get("stroke") == PIN]


def table(page: Page, name: str = "") -> tuple[str, list[str], np.ndarray, list[list[str]]]:
    """A saved CSV: its caption, the names of its columns, its numbers with NaN where it has none, and all of it."""
    first, *rest = lines = list(csv.reader(io.StringIO(saved(page, "CSV", name).decode())))
    return first[0], first[1:], np.array([[float(one or "nan") for one in line[1:]] for line in rest]), lines


def test_the_figure_marks_the_pinned_cell_and_says_what_it_shows(watch: Watch, cat: hs.Trace, cat_file: Path) -> None:
    """Its caption fits it in another language; numbers come with theirs."""
    page = watch().open(f"{cat_file.as_uri()}{STATE}&theme=dark")
    drawn = figure(page)
    size, weights = len(cat), np.asarray(cat[1, 1].weights)
    weight = weights[4, 3]
    image, cell = matrix(drawn, size, size)
    # the more a word looks, the darker: the order of all cells, but for those too light to tell apart
    light = lightness(image, size)
    order = np.argsort(weights.ravel())
    assert np.all(np.diff(light[order]) <= 3)
    assert light[order][-1] < light[order][0] - 200
    row, pinned = frames(drawn)
    assert box(pinned) == pytest.approx(cell(4, 3), abs=0.1)
    assert box(row) == pytest.approx((*cell(4, 0)[:2], size * cell(4, 0)[2], cell(4, 0)[3]), abs=0.1)
    bold = [one.text for one in drawn.iter(f"{SVG}text") if one.get("fill") in (PIN, "rgb(194, 65, 12)")]
    assert sorted(bold) == ["cat", "·ed"]
    (line,) = [one for one in drawn.iter(f"{SVG}path") if one.get("stroke") == PIN]
    assert float(line.get("stroke-width") or 0) == pytest.approx(0.6 + 3.4 * weight, abs=0.01)
    caption = re.sub("[\u2068\u2069]", "", drawn.findtext(f"{SVG}desc") or "")
    for part in ("layer 1, head 1", cat.text or "", cat.pair or "", f"“cat” (4) → “ed” (3): {weight:.3f}", "hold 70%"):
        assert part in caption
    assert f"{weight:.3f}" in words(drawn)
    assert "renormalised" not in caption
    png = saved(page, "PNG")
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == tuple(3 * int(drawn.get(name) or 0) for name in ("width", "height"))
    page.locator("[data-test=special]").check()
    assert "renormalised" in (figure(page).findtext(f"{SVG}desc") or "")
    go(page, f"{STATE[1:]}&words=1&scale=linear&theme=dark")
    page.wait_for_selector("[data-test=value]")
    caption, columns, numbers, lines = table(page, "layer1-head1")
    merged = cat[1, 1].by_words().array
    np.testing.assert_allclose(numbers, merged, atol=CLOSE)
    assert columns == [line[0] for line in lines[1:]]
    pinned = re.search(r"“(\w+)” \(([\d+]+)\) → “(\w+)” \(([\d+]+)\): ([\d.]*\d)", caption)
    assert pinned
    assert pinned.group(2, 4) == ("4", "2+3")  # “cat”, and “tired”
    assert float(pinned.group(5)) == pytest.approx(merged[3, 2], abs=CLOSE)
    for part in (cat.model.split("/")[-1], cat.text, cat.pair, "layer 1, head 1", "linear", "summed over a word"):
        assert str(part) in caption
    for language, weights in (("ja", "アテンション重み"), ("zh", "注意力权重")):
        go(page, f"{STATE[1:]}&lang={language}")
        drawn = figure(page)
        lines = [one.text or "" for one in drawn.iter(f"{SVG}text") if one.get("fill") == "#555"]
        for line in lines:
            assert sum(11 if letter > "\u2e7f" else 5.5 for letter in line) < int(drawn.get("width") or 0)
        assert weights in lines[0]


def test_a_hidden_key_has_no_number_in_any_export(watch: Watch, tmp_path: Path) -> None:
    trace = made(8, Mask(causal=True))
    page = watch().open(f"{trace.to_html(tmp_path / 'causal.html').as_uri()}#h=1&q=3&k=6")
    size, weights = len(trace), np.asarray(trace[0, 1].weights)
    caption, _, numbers, _ = table(page)
    later = np.triu(np.ones((size, size), bool), 1)
    assert np.isnan(numbers).tolist() == later.tolist()
    np.testing.assert_allclose(numbers[~later], weights[~later], atol=CLOSE)
    assert "(6): –" in caption
    drawn = figure(page)
    _, cell = matrix(drawn, size, size)
    boxes = [box(one) for one in drawn.iter(f"{SVG}rect") if one.get("fill") == GREY]
    grey = [any(one == pytest.approx(cell(*place), abs=0.1) for one in boxes) for place in np.ndindex(size, size)]
    assert grey == later.ravel().tolist()
    assert not [one for one in drawn.iter(f"{SVG}path") if one.get("stroke") == PIN]
    assert "the mask hides" in (drawn.findtext(f"{SVG}desc") or "")
    assert "hides" not in page.locator(".facts").inner_text()
    page.keyboard.press("t")
    shown = page.locator(".numbers tbody tr").first.locator("td")
    eventually(page, lambda: shown.all_inner_texts()[1:] == ["–"] * (size - 1), "a dash for each hidden key")


def test_a_zoomed_export_says_its_part(watch: Watch, tmp_path: Path) -> None:
    trace = made(40, Mask())
    page = watch().open(f"{trace.to_html(tmp_path / 'long.html').as_uri()}#h=1&q=12&k=14&box=10.12.6&mode=matrix")
    caption, _, numbers, _ = table(page)
    part = re.search(r"Rows 10 to 15, columns 12 to (\d+) of 40 × 40", caption)
    assert part
    last = int(part.group(1))  # as many as the screen has room for
    assert 17 <= last < 39
    np.testing.assert_allclose(numbers, np.asarray(trace[0, 1].weights)[10:16, 12 : last + 1], atol=CLOSE)
    assert "Lines:" not in caption
    drawn = figure(page)
    _, cell = matrix(drawn, 6, last - 11)
    assert box(frames(drawn)[-1]) == pytest.approx(cell(2, 2), abs=0.1)


def test_captions_of_hostile_and_long_texts(watch: Watch, hostile: hs.Trace, tmp_path: Path) -> None:
    text = '=HYPERLINK("x")\n</title></text><script>alert(1)</script><img src=x onerror=alert(2)>\uffff' + "🐈" * 900
    page = watch().open(hostile.replaced(text=text).to_html(tmp_path / "hostile.html").as_uri() + "#h=1&q=1&k=2")
    drawn = figure(page)
    assert [one.tag for one in drawn.iter() if "script" in one.tag or "img" in one.tag] == []
    assert text.replace("\uffff", "�") in (drawn.findtext(f"{SVG}desc") or "")
    assert saved(page, "PNG")[:4] == b"\x89PNG"  # cut between letters, never within one
    lines = [one for one in drawn.iter(f"{SVG}text") if one.get("fill") == "#555"]
    assert len(lines) <= 8
    assert (lines[-1].text or "").endswith("…")
    assert HOSTILE[0][:12] in " ".join(one.text or "" for one in lines)  # what is pinned comes before the text
    corner = table(page)[0]
    assert corner.startswith("Attention weights")
    assert "\n" not in corner
    assert HOSTILE[0][:20] in corner
    page.keyboard.press("t")
    page.wait_for_selector(".numbers td")
    assert page.locator("#page img, #page script").count() == 0


TEXT = "The cat sat on the mat."
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, bundled: hs.Model) -> tuple[Path, list[hs.Trace]]:
    """Two texts in one file, with the effects of each head of the first."""
    traces = [
        bundled.trace(text)
        for text in ("The unhappiness of a dog sat on the mat.", "The unhappiness of a cat sat on the mat.")
    ]
    return html.to_html(traces, tmp_path_factory.mktemp("two") / "two.html", runs=True), traces


def number_texts(drawn: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in drawn.iter(f"{SVG}text") if re.fullmatch(r"[+−]?[.\d]+", one.text or "")]


def test_all_heads_are_a_figure(watch: Watch, two: tuple[Path, list[hs.Trace]]) -> None:
    """Each head's picture and its number, in light colours in a dark page, too, which is as before afterwards.
    As are the difference of two texts, effects, a followed word and the chain; and Python has the pinned number.
    """
    path, traces = two
    trace, other = traces
    page = watch().open(f"{path.as_uri()}#theme=dark&by=weight&q=4&k=3")
    drawn = ElementTree.fromstring(saved(page, "SVG", "-heads", part="heads"))
    weights = [np.asarray(trace[layer, head].weights) for layer in trace.numbers for head in trace.head_numbers(layer)]
    assert len(list(drawn.iter(f"{SVG}image"))) == len(weights)
    pinned = {f"{rows[4, 3]:.2f}".removeprefix("0").replace(".00", "0") for rows in weights}
    assert pinned <= set(number_texts(drawn))
    assert trace.text in (drawn.findtext(f"{SVG}desc") or "")
    assert {one.get("fill") for one in drawn.iter(f"{SVG}text")} <= {None, "#14171c", "#555"} | LIGHT
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(GROUND) == [16, 19, 24]
    go(page, "pane=compare&vs=1&l=1&h=1&q=2&k=3")
    page.wait_for_selector(".moved canvas")
    drawn = ElementTree.fromstring(saved(page, "SVG", "-difference", part="difference"))
    moved = np.asarray(other[1, 1].weights) - np.asarray(trace[1, 1].weights)
    expected = sorted(f"{abs(x):.2f}".removeprefix("0") for x in moved.ravel() if abs(x) >= 0.0501)
    cells = sorted(text.lstrip("+−") for text in number_texts(drawn) if text[0] in "+−")
    assert [text for text in expected if text not in cells] == []
    assert saved(page, "PNG", "-difference", part="difference")[:4] == b"\x89PNG"
    go(page, "pane=causes")
    page.locator("[data-run]").first.click()
    headline = page.locator(".headline").inner_text()
    drawn = ElementTree.fromstring(saved(page, "SVG", "-effects", part="effects"))
    assert headline.replace(" ", "") in words(drawn).replace(" ", "")
    go(page, STATE[1:])
    page.keyboard.press("2")
    headline = page.locator(".follow h1").inner_text()
    drawn = ElementTree.fromstring(saved(page, "SVG", "-follow", part="follow"))
    assert headline.replace(" ", "") in words(drawn).replace(" ", "")
    page.keyboard.press("1")
    page.locator("[data-test=open-chain]").click()
    drawn = ElementTree.fromstring(saved(page, "SVG", "-chain", part="chain"))
    numbers = [float(one.replace("−", "-")) for one in re.findall(r"−?\d+\.\d{3}", words(drawn))]
    for expected in (trace[1, 1].weights[4, 3], trace[1, 1].scores[4, 3]):
        assert min(abs(one - expected) for one in numbers) < 5e-3
    for state in PINNED:
        go(page, f"l=1&h=1&{state}")
        if not page.locator(".save pre").count():
            page.locator(".save summary").click()
        patiently(page, partial(gives_the_number, page, traces, state))


LIGHT = {"#5a6370", "#c2410c", "rgb(20, 23, 28)", "rgb(90, 99, 112)", "rgb(194, 65, 12)", "rgb(47, 98, 181)"}
"""Colours of letters in the light theme."""
GROUND = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


PINNED = (
    *("q=4&k=3", "q=4", "q=4&k=3&words=1"),
    *("heads=4.5.6&blend=mean&q=2&k=2", "pane=follow&q=4", "pane=compare&vs=1&q=3&k=2"),
    "pane=compare&vs=1&heads=4.5.6&blend=mean&q=3&k=2",
)


def gives_the_number(page: Page, traces: list[hs.Trace], state: str) -> None:
    one, other = traces
    *lines, last = page.locator(".save pre").inner_text().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)  # what the page tells its reader to run
    found = eval(last, names)
    if "follow" in state:
        assert last == "trace.follow(4)"
        assert found.shares.shape[-1] == len(one)
        return
    assert (names["trace"].ids, names["trace"].text) == (one.ids, one.text)
    weights = np.mean([one[1, head].weights[:] for head in ((0, 1, 2) if "mean" in state else (1,))], axis=0)
    if "compare" in state:
        expected = np.asarray(other[1, 1].weights)[3, 2] - weights[3, 2]
    elif "mean" in state:
        expected = weights[2, 2]
    elif "words" in state:  # un·ha·pp·iness
        expected = weights[2:6, 2:6].sum(1).mean()
    else:
        expected = weights[4] if "k=" not in state else weights[4, 3]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def reds(page: Page) -> int:
    """How many pixels of the page's canvases have the colour of NaN."""
    urls = page.locator("canvas").evaluate_all("(all) => all.map((one) => one.toDataURL())")
    return sum(int((pixels(url)[..., :3] == [214, 0, 60]).all(-1).sum()) for url in urls if url != "data:,")


@pytest.mark.parametrize(("place", "broken"), [("query", 3), ("overflowing query", 3), ("value", 2)])
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_nan_is_said_and_drawn_as_nothing_else(watch: Watch, tmp_path: Path, place: str, broken: int) -> None:
    trace = hs.open(broken_bert(tmp_path / "model", place)).trace(TEXT)
    page = watch().open(trace.to_html(tmp_path / "page.html").as_uri() + "#l=1&h=1")
    assert page.locator("[data-test=broken]").inner_text().startswith(f"The weights of {broken} heads are not numbers")
    assert "not numbers" in page.locator(".inspector").inner_text()
    rows = list(csv.reader(saved(page, "CSV").decode().splitlines()))
    assert {cell for row in rows[1:] for cell in row[1:]} == {"NaN"}
    svg = saved(page, "SVG").decode()
    size = len(trace)
    image, _ = matrix(ElementTree.fromstring(svg), size, size)
    assert set(lightness(image, size)) == {214 + 0 + 60}
    assert "undefined" not in svg
    eventually(page, lambda: reds(page) > 1000, "the colour of NaN")
    if place == "query":  # a sound head beside it is as ever
        go(page, "h=1")
        assert reds(page) == 0
        assert "not numbers" not in page.locator(".inspector").inner_text()
        rows = list(csv.reader(saved(page, "CSV").decode().splitlines()))
        assert float(rows[1][1]) == pytest.approx(trace[0, 1].weights[0, 0], abs=1e-3)


def test_a_figure_s_title_is_on_top_and_its_bars_are_pale(watch: Watch, cat_file: Path) -> None:
    """What stands behind the letters on the screen doesn't hide them in the file; no line begins with a colon."""
    page = watch(viewport={"width": 1440, "height": 900}).open(f"{cat_file.as_uri()}#l=1&h=1&q=4&k=3")
    drawn = list(ElementTree.fromstring(saved(page, "SVG")))
    title = next(n for n, one in enumerate(drawn) if one.get("font-weight") == "600")
    assert str(drawn[title].text).endswith("Head 1.1")
    assert [one.tag.endswith("}text") for one in drawn[title + 1 :]] == [True] * len(drawn[title + 1 :])
    assert all(str(one.text)[0].isalnum() for one in drawn[title + 1 :])
    pale = [float(one.get("opacity", "1")) for one in drawn[title - 1].iter() if one.tag.endswith("}rect")]
    assert pale.count(0.28) >= 18  # one for each token that is looked at


def test_cells_are_guarded_alike_by_the_page_and_the_command_line(watch: Watch, tmp_path: Path) -> None:
    odd = ("=1+1", "+1", "-1", "@x", "'x", '"=x', "\uff1dx", "\uff0bx", "\uff0dx", "\uff20x", "1-1", "x=1")
    vocabulary = (*VOCABULARY[: -len(odd)], *odd)
    model = hs.open(small_bert(tmp_path, vocabulary=vocabulary))
    trace = model.trace(ids=[2, *range(len(vocabulary) - len(odd), len(vocabulary)), 3])
    page = watch().open(trace.to_html(tmp_path / "page.html").as_uri())
    header, *_ = csv.reader(saved(page, "CSV").decode().splitlines())
    assert header[2:-1] == [guarded(token) for token in odd]


def test_the_page_has_the_rule_of_the_command_line() -> None:
    source = (ROOT / "web" / "src" / "drawing" / "files.ts").read_text(encoding="utf-8")
    (rule,) = re.findall(r"\(/\^(\[.*?\])/\.test\(value\) \? `'\$\{value\}`", source)
    for code in (*range(0xD800), *range(0xE000, 0x11000)):
        assert bool(re.match(rule, chr(code))) == (chr(code) in FORMULA) == (guarded(chr(code)) != chr(code))


def shared(watched: Watched, folder: Path, place: Page | Frame | None = None) -> Path:
    """The file that the page saves, under its suggested name."""
    here = place or watched.page
    here.locator("[data-test=share]").click()
    with watched.page.expect_download() as download:
        here.locator("[data-test=share-save]").click()
    until(here, "document.querySelector('[data-test=share-done]').textContent.includes('saved')")
    here.locator("dialog[open] button").first.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def embedded(file: Path) -> list[bytes]:
    import base64

    return [
        base64.b64decode("".join(re.findall(rf'id="hs-trace-{n}(?:-\d+)?">([^<]*)<', text)))
        for text in [file.read_text(encoding="utf-8")]
        for n in range(len(set(re.findall(r'id="hs-trace-(\d+)', text))))
    ]


def test_a_file_saves_itself_with_what_is_seen_and_asks_for_nothing(
    watch: Watch, cat: hs.Trace, cat_file: Path, tmp_path: Path
) -> None:
    """With the page's own script; what is saved again is as good; an address wins over the saved state."""
    watched = watch()
    page = watched.open(f"{cat_file.as_uri()}#l=1&h=1&theme=dark&lang=ja")
    page.locator(".left .token").nth(4).click()
    page.locator(".right .token").nth(3).click()
    page.locator("[data-test=special]").check()
    page.select_option("[data-test=language]", "en")
    file = shared(watched, tmp_path)
    assert file.name.endswith("layer1-head1.html")
    assert embedded(file) == embedded(cat_file)
    before, after = (path.read_text(encoding="utf-8") for path in (cat_file, file))
    for pattern in (r"<script type=\"module\">.*?</script>", r"<style>.*?</style>", r"<noscript>.*?</noscript>"):
        (one,), (two,) = (re.findall(pattern, text, re.DOTALL) for text in (before, after))
        assert one == two
    policies = [re.findall(r'Content-Security-Policy" content="([^"]+)"', text) for text in (before, after)]
    assert policies[0] == policies[1]

    again = watch(color_scheme="light", locale="en", viewport={"width": 1280, "height": 800})
    page = again.open(file.as_uri())
    assert page.locator("[data-test=head]").inner_text() == "Head 1.1"
    until(page, "location.hash === '#l=1&h=1&q=4&k=3&special=0'")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"  # the reader's, not the sender's
    kept = ~np.array(cat.special)
    weights = np.asarray(cat[1, 1].weights)[4]
    page.wait_for_selector("[data-test=value]")
    assert number(page.locator("[data-test=value]").inner_text()) == pytest.approx(
        weights[3] / weights[kept].sum(), abs=CLOSE
    )
    assert page.title().startswith("The tired cat sat on the mat.")
    page.locator(".said-word").nth(2).click()  # without special tokens, the third of the text
    third = shared(again, tmp_path / "again")
    assert [url for url in again.asked if not url.startswith(("file:", "blob:"))] == []
    for path, address, state in (
        (third, "", "#l=1&h=1&q=3&k=3&special=0"),
        (file, "#l=1", "#l=1"),
        (file, "#theme=dark", "#l=1&h=1&q=4&k=3&special=0&theme=dark"),
    ):
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}{address}")
        until(page, f"location.hash === '{state}'")


def test_hostile_tokens_and_two_texts_go_into_a_file(
    watch: Watch, hostile: hs.Trace, cat: hs.Trace, tmp_path: Path
) -> None:
    text = "</title></script><img src=x onerror=alert(3)><!--<script>"
    traces = [hostile.replaced(text=text), cat]
    watched = watch()
    page = watched.open(html.to_html(traces, tmp_path / "two.html", title="two").as_uri() + "#h=1&q=1&vs=1")
    page.locator("[data-test=share]").click()
    assert "What is open (2)" in page.locator("dialog[open]").inner_text()
    page.keyboard.press("Escape")
    file = shared(watched, tmp_path)
    assert [view_of(raw)["labels"] for raw in embedded(file)] == [view_of(page_bytes(one))["labels"] for one in traces]
    page = watch(viewport={"width": 1280, "height": 800}).open(file.as_uri())
    assert page.locator(".left .token bdi").all_inner_texts()[1:4] == list(HOSTILE[:3])
    page.wait_for_selector("[data-test=tab] >> nth=1")
    until(page, "location.hash === '#vs=1&h=1&q=1'")
    assert page.locator("#page img, #page script").count() == 0
    assert page.title().startswith(text[:40])


def test_a_served_page_is_saved_without_its_token_and_its_link_says_who_can_open_it(
    watch: Watch, bert: hs.Model, tmp_path: Path
) -> None:
    with serving(bert.trace("The cat took off her [MASK].")) as served:
        watched = watch()
        page = watched.open(f"{served.session.address()}#h=1")
        retype(page, "The dog sat down!")
        until(page, "document.querySelector('.tab.on')?.textContent.includes('dog')")
        page.evaluate("location.hash = '#d=1&h=1'")
        until(page, "document.querySelector('[data-test=head]').textContent === 'Head 0.1'")
        page.locator(".left .token").nth(2).click()
        page.locator("[data-test=share]").click()
        link = page.locator("[data-test=share-link]").input_value()
        who = page.locator("[data-test=share-who]").inner_text()
        assert "on this machine only" in who
        assert "whoever has it can run texts" in who
        page.keyboard.press("Escape")
        file = shared(watched, tmp_path)
        assert served.session.token not in file.read_text(encoding="utf-8")
        assert re.fullmatch(re.escape(served.session.address()) + r"#d=1(&\w+=\w+)*&q=2(&\w+=\w+)*", link)
    expected = bert.trace("The dog sat down!")
    page = watch(viewport={"width": 1280, "height": 800}).open(file.as_uri())
    until(page, "document.querySelector('.tab.on')?.textContent.includes('dog')")
    weights = expected[0, 1].weights[2]
    lists(page, weights, CLOSE)
    assert page.locator("[data-test=text]").count() == 0


def test_the_link_is_copied_and_of_a_file_it_says_so(watch: Watch, cat_file: Path) -> None:
    watched = watch(viewport={"width": 1280, "height": 800}, permissions=["clipboard-read", "clipboard-write"])
    page = watched.open(f"{cat_file.as_uri()}#h=1&q=4&lang=en")
    page.keyboard.press("S")
    assert "a file on this machine" in page.locator("[data-test=share-who]").inner_text()
    page.locator("[data-test=share-copy]").click()
    until(page, "document.querySelector('[data-test=share-done]').textContent.includes('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == f"{cat_file.as_uri()}#h=1&q=4"


def test_a_notebook_s_frame_has_no_link_but_a_file(watch: Watch, cat: hs.Trace, tmp_path: Path) -> None:
    book = tmp_path / "book.html"
    book.write_text(f"<!doctype html><meta charset=utf-8><body>{notebook.frame([cat])}", encoding="utf-8")
    watched = watch()
    watched.page.goto(book.as_uri())
    frame = watched.page.frames[1]
    frame.wait_for_selector("html[data-painted]")
    frame.locator(".left .token").nth(4).click()
    frame.locator("[data-test=share]").click()
    assert "no address" in frame.locator("[data-test=share-who]").inner_text()
    assert frame.locator("[data-test=share-link]").count() == 0
    frame.locator("dialog[open] button").first.click()
    file = shared(watched, tmp_path, frame)
    page = watch(viewport={"width": 1280, "height": 800}).open(file.as_uri())
    until(page, "location.hash.includes('q=4')")


def test_a_large_trace_is_saved_in_pieces() -> None:
    """The size of a piece is web/src/share.ts's and headscope/page/html.py's alike, a multiple of three."""
    source = (ROOT / "web" / "src" / "share.ts").read_text(encoding="utf-8")
    (shift,) = re.findall(r"const CHUNK = (\d+ << \d+);", source)
    number, by = map(int, shift.split(" << "))
    assert number << by == html.CHUNK
    assert html.CHUNK % 3 == 0

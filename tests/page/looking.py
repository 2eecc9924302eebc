"""Shared by the page's tests: a watched page, and functions that read its numbers from the screen."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playwright.sync_api import Error

import headscope as hs
from by_hand import axis_of
from headscope.attention.scores import Mask, attend
from headscope.page.typed import packed
from headscope.traces import LayerRecord
from patience import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Frame, Page


HOSTILE = ("</script><img src=x onerror=alert(1)>", "<!--<script>", "&lt;b&gt;", "\u202eabc", "{{x}}", "e\u0301")
"""Tokens that would act, if anything took them for markup."""


OPTIONS = "try { localStorage.setItem('headscope.tools', '1'); } catch {}"
"""Opens the page with its options unfolded, as a reader leaves it who needs them."""


class Watched:
    """A page, and everything that it asked for or complained of."""

    def __init__(self, context: BrowserContext, *, tools: bool = False) -> None:
        context.set_default_timeout(PATIENCE * 1000)
        if tools:
            context.add_init_script(OPTIONS)
        self.page: Page = context.new_page()
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def open(self, address: str) -> Page:
        """The page, once its grid is painted."""
        self.page.goto(address)
        self.page.wait_for_selector("html[data-painted]")
        return self.page


Watch = Callable[..., Watched]
"""Opens a watched page with the options of a browser's context."""


def until(page: Page | Frame, expression: str) -> None:
    """Wait for something to be true. The page's policy forbids eval, which Playwright's own waiting would use."""
    eventually(page, lambda: page.evaluate(expression), expression)


def eventually(page: Page | Frame, condition: Callable[[], object], what: str) -> None:
    """Wait for something outside of the page to be true."""

    def holds() -> None:
        assert condition(), f"never: {what}"

    patiently(page, holds)


def patiently(page: Page | Frame, check: Callable[[], None]) -> None:
    """Repeat a check until it passes: numbers come from a worker, and after an act the old ones stand, or none."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return check()
        except (AssertionError, Error):
            if time.monotonic() > end:
                raise
        page.wait_for_timeout(20)


def made(size: int, mask: Mask, *, heads: int = 2, layers: int = 1) -> hs.Trace:
    """A trace of random heads, its tokens t0, t1, …"""
    generator = np.random.default_rng(7)
    axis = axis_of(size, words=tuple(range(size)))
    records = []
    for number in range(layers):
        q, k, v = (generator.normal(size=(heads, size, 8)).astype(np.float32) for _ in range(3))
        _, lse = attend(q, k, v, scale=1.0, mask=mask)
        records.append(LayerRecord(q, k, v, lse=lse, scale=1.0, mask=mask, number=number))
    return hs.Trace(model="/runs/ner/model", queries=axis, layers=records, outputs={})


def go(page: Page, address: str) -> None:
    """Change the address behind #, and wait until the page has been drawn."""
    page.evaluate(f"location.hash = '#{address}'")
    page.evaluate(DRAWN)


SIZES = ((1440, 900), (1280, 720), (828, 900), (390, 844))
"""Widths and heights that the page is drawn for."""

TYPE = """[...document.querySelectorAll("#page *:not(math *, option)")]
  .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && one.checkVisibility())
  .map((one) => getComputedStyle(one).fontSize)"""
"""The size of type of each text."""

TYPE_SIZES = {"12px", "14px", "18px", "24px", "28px"}

CLIPPED = """[...document.querySelectorAll("#page *:not(svg, svg *, math *, option, select, input)")]
  .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".unseen, .tucked, .skip, .said"))
  .filter((one) => getComputedStyle(one).overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1)
  .filter((one) => !one.closest("[title]"))
  .map((one) => `${one.className}: ${one.textContent.slice(0, 40)}`)"""
"""Texts that are wider than their place."""

UNREADABLE = Path(__file__).with_name("unreadable.js").read_text(encoding="utf-8")


def unreadable(page: Page | Frame) -> list[str]:
    """Text and controls that a reader can't read: they stick out, are cut off, or lie on one another."""
    complaints: list[str] = page.evaluate(UNREADABLE)
    return complaints


AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = "{ preload: false, rules: { 'label-content-name-mismatch': { enabled: true } } }"
"""Beside axe-core's usual rules: a control's name has the words that stand on it."""


def inaccessible(page: Page) -> list[str]:
    """All that axe-core finds wrong with a page."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run npm ci in web/ (.ci/run does, and then this test)")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(f"axe.run(document, {NAMES}).then(({{ violations }}) => violations)")
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in found]


def number(text: str | None) -> float:
    """A number as the page writes it, with a real minus."""
    return float(str(text).replace("−", "-"))


def head_of(page: Page) -> str:
    return page.locator("[data-test=head]").inner_text()


def box_of(page: Page, selector: str) -> dict[str, float]:
    """Where the first of some elements stands: x, y, width and height."""
    found = page.locator(selector).first.bounding_box()
    return dict(found)


def cells_of(page: Page, selector: str = ".matrix") -> tuple[float, float, float]:
    """Where the cells of a matrix begin inside of it, and the size of one: left, top, side."""
    until(page, f"document.querySelector('{selector}')?.dataset.cells")
    left, top, side = str(page.locator(selector).first.get_attribute("data-cells")).split()
    return float(left), float(top), float(side)


def pixels(url: str) -> np.ndarray:
    """(height, width, 4): the colours of a picture in a data URL, the last its opacity."""
    from matplotlib.image import imread

    found = (255 * imread(BytesIO(b64decode(url.partition(",")[2])))).round().astype(int)
    return found if found.shape[2] == 4 else np.dstack([found, np.full(found.shape[:2], 255)])


def canvas(page: Page, selector: str) -> np.ndarray:
    """The colours of the first canvas that is called so."""
    return pixels(page.locator(selector).first.evaluate("(one) => one.toDataURL()"))


RANKED = """[...document.querySelectorAll(".inspector .ranked li[data-weight]")]
  .map(({ dataset }) => [dataset.column, dataset.weight])"""


def ranked(page: Page) -> dict[int, float]:
    """The inspector's keys of the query that is looked at, and their weights."""
    page.wait_for_selector(".inspector .ranked li[data-weight]")
    return {int(column): float(weight) for column, weight in page.evaluate(RANKED)}


DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Two frames later: what a change of size sets off is on the screen."""
SETTLED = "document.querySelector('[data-test=grid-table]').getAttribute('aria-busy') === 'false'"
"""The grid has the numbers of what was asked last."""


def table(page: Page) -> list[float]:
    """The numbers of the grid's table, layer by layer."""
    until(page, SETTLED)
    return [number(cell) for cell in page.locator("[data-test=grid-table] tbody td").all_inner_texts()]


def lists(page: Page, row: Sequence[float] | np.ndarray, close: float) -> None:
    """Wait for the inspector's keys to be the strongest of a query's row, with their weights."""

    def same() -> None:
        shown = ranked(page)
        assert shown == pytest.approx({key: row[key] for key in shown}, abs=close)
        assert max(shown.values()) == pytest.approx(max(row), abs=close)

    patiently(page, same)


def retype(page: Page, text: str) -> None:
    """Another text in the box of a served page, which stands behind a button; and Enter."""
    if not page.locator("[data-test=text]").count():
        page.locator("[data-test=change-text]").click()
    page.fill("[data-test=text]", text)
    page.locator("[data-test=text]").press("Enter")


def saved(page: Page, kind: str, name: str = "", *, part: str = "head") -> bytes:
    """A file that the page saves, with the end of its name, of the head in view or of a part of the page."""
    with page.expect_download() as download:
        page.locator(".save summary").click()
        page.locator(f"[data-test=save-{part}-{kind}]").click()
    assert download.value.suggested_filename.endswith(f"{name}.{kind.lower()}")
    return Path(download.value.path()).read_bytes()


# The page's own encoder in a real browser, as a test calls it: one page for each model.


SCRIPT = Path(hs.__file__).parent / "page" / "static" / "encoder.js"
OPENED = """async (input) => {
    const plain = input.files[0].stream().pipeThrough(new DecompressionStream("gzip"));
    window.model = new encoder.Model(new Uint8Array(await new Response(plain).arrayBuffer()));
    window.wordpiece = new encoder.WordPiece(model.about.vocabulary);
    window.passed = (text, pair, edits) => {
        const { ids, segments } = wordpiece.encode(text, pair);
        const base = encoder.forward(model, ids, segments);
        return edits ? encoder.rerun(model, base, edits) : base;
    };
}"""


def page_with(browser: Browser, model: hs.Model) -> Page:
    """A page that has the model as `model`, its tokenizer as `wordpiece`, and `passed(text, pair, edits)`.

    It reads the model from a file: an argument goes through JSON, which takes 20 seconds for MiniLM.
    """
    page = browser.new_page()
    page.set_content("<input type=file>")
    page.evaluate(SCRIPT.read_text(encoding="utf-8") + "; window.encoder = encoder;")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model"
        file.write_bytes(packed(model))
        page.set_input_files("input", file)
        page.locator("input").evaluate(OPENED)
    return page


def answered(page: Page, function: str, argument: Any) -> Any:
    """What a function of the page returns, arrays as lists; both ways as JSON, which is quicker than value by value."""
    text = page.evaluate(
        f"(argument) => JSON.stringify(({function})(JSON.parse(argument)), (_, value) => "
        "ArrayBuffer.isView(value) ? Array.from(value) : value)",
        json.dumps(argument),
    )
    return json.loads(text)

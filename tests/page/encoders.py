"""The page's own encoder in a real browser, as a test calls it: one page for each model."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headscope as hs
from headscope.page.typed import packed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCRIPT = Path(hs.__file__).parent / "page" / "static" / "encoder.js"
OPENED = """async (base64) => {
    const gzip = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
    const plain = new Blob([gzip]).stream().pipeThrough(new DecompressionStream("gzip"));
    window.model = new encoder.Model(new Uint8Array(await new Response(plain).arrayBuffer()));
    window.wordpiece = new encoder.WordPiece(model.about.vocabulary);
    window.passed = (text, pair, edits) => {
        const { ids, segments } = wordpiece.encode(text, pair);
        const base = encoder.forward(model, ids, segments);
        return edits ? encoder.rerun(model, base, edits) : base;
    };
}"""


def page_with(browser: Browser, model: hs.Model) -> Page:
    """A page that has the model as `model`, its tokenizer as `wordpiece`, and `passed(text, pair, edits)`."""
    page = browser.new_page()
    page.goto("about:blank")
    page.evaluate(SCRIPT.read_text(encoding="utf-8") + "; window.encoder = encoder;")
    page.evaluate(OPENED, b64encode(packed(model)).decode())
    return page


def answered(page: Page, function: str, argument: Any) -> Any:
    """What a function of the page returns, arrays as lists."""
    return page.evaluate(
        f"(argument) => JSON.parse(JSON.stringify(({function})(argument), (_, value) => "
        "ArrayBuffer.isView(value) ? Array.from(value) : value))",
        argument,
    )

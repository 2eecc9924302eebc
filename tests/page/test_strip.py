"""The strip of the docs' home page: recorded answers are transformers' own, typed ones headscope's; pages as built."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from looking import DRAWN, Watch, inaccessible, until

import headscope as hs
from explain.tops import edited_pass
from headscope.runs.engine import Edit

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "tools"))

import strip  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHARE = 2e-5


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The strip on a bare page, in three languages and both colours, with the model beside it."""
    folder = tmp_path_factory.mktemp("strip")
    (folder / strip.MODEL).write_text(strip.model_script(), encoding="utf-8")
    style, script = ((DOCS / name).read_text(encoding="utf-8") for name in ("site.css", "strip.js"))
    for language in strip.WORDS:
        for scheme, colours in (("default", "#fff; color: #14171c"), ("slate", "#101318; color: #eceef2")):
            ground = f"* {{ box-sizing: border-box }} body {{ background: {colours} }}"
            head = f"<title>strip</title><style>{ground} {style}</style>"
            wide = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            shell = f'<html lang="{language}">{wide}{head}<body class="md-typeset" data-md-color-scheme="{scheme}">'
            body = strip.strip(language).replace("live:", "")
            page = f"<!doctype html>{shell}<main><h1>headscope</h1>{body}</main><script>{script}</script>"
            (folder / f"{language}-{scheme}.html").write_text(page, encoding="utf-8")
    return folder


def answer_of(page: Page) -> str:
    return page.inner_text(".strip-answer")


@pytest.mark.parametrize("number", range(9))
def test_recorded_answers_are_those_of_transformers(number: int) -> None:
    from transformers import BertForMaskedLM, BertTokenizer

    kept = strip.answers()[number]
    where = hs.open().checkpoint.where
    model = BertForMaskedLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager").eval()
    ids = BertTokenizer.from_pretrained(where)(kept["text"])["input_ids"]
    tokens, out = len(ids), edited_pass(model, ids, [Edit(*head) for head in kept["off"]])
    expected = torch.stack(out.attentions)[:, 0].reshape(16, tokens, tokens).numpy()
    raw = b64decode(kept["weights"])
    np.testing.assert_allclose(np.frombuffer(raw, "<u2").reshape(16, tokens, tokens) / 65535, expected, atol=SHARE)
    shares = out.logits[0, kept["mask"]].softmax(-1)
    best = shares.topk(len(kept["guess"]))
    np.testing.assert_allclose([share for _, share in kept["guess"]], best.values, atol=SHARE)
    assert len(kept["words"]) == len(kept["special"]) == tokens


def test_each_example_has_a_head_that_turns_it() -> None:
    for at, (text, (layer, head), _) in enumerate(strip.EXAMPLES):
        plain, silenced, swapped = strip.answers()[3 * at : 3 * at + 3]
        assert plain["text"] == silenced["text"] == text != swapped["text"]
        assert plain["without"][f"{layer}.{head}"][0] == silenced["guess"][0][0] != plain["guess"][0][0]


def test_it_opens_on_recorded_answers_and_a_head_is_silenced(watch: Watch, site: Path) -> None:
    """A typed sentence is answered by the model."""
    watched = watch()
    page = watched.page
    page.goto((site / "en-default.html").as_uri())
    page.wait_for_selector(".strip-heads")
    assert answer_of(page) == "The model guesses her"
    assert page.inner_text(".strip-chip").split() == ["3.3", "→", "his", ".62"]
    page.click("[data-head='3.3']")
    assert answer_of(page) == "Without 3.3 the guess turns from her to his"
    assert page.get_attribute("[data-head='3.3']", "aria-pressed") == "true"
    page.get_by_text("every head on").click()
    page.get_by_text("swap a word").click()
    assert page.input_value(".strip input") == "He said to [MASK] father that he was ill."
    assert answer_of(page) == "The model guesses his"
    assert [address for address in watched.asked if address.endswith(strip.MODEL)] == []
    text = "The tired dog <b>sat</b> down, and [MASK] slept."
    page.fill(".strip input", text)
    until(page, "document.querySelector('[role=status]').textContent.includes('ms')")
    until(page, "[...document.querySelectorAll('.strip-heads i')].every((one) => one.textContent)")
    model = hs.open()
    (mask,) = model.fill(text)
    rows = [row.split() for row in page.locator(".strip-guesses > div").all_inner_texts()]
    assert [word for word, _ in rows] == list(mask.tokens)
    shown = [float(share) for _, share in rows]
    np.testing.assert_allclose(shown, mask.probabilities, atol=0.0051)
    trace = model.trace(text)
    page.hover("[data-head='2.1']")
    row = trace[2, 1].weights[trace.tokens.index("[MASK]")]
    numbers = [
        0.0 if number == "·" else float(number) for number in page.locator(".strip-words small").all_inner_texts()
    ]
    np.testing.assert_allclose(numbers, row, atol=0.0051)
    page.click("[data-head='1.0']")
    until(page, "document.querySelector('.strip-answer').textContent.includes('1.0')")
    (without,) = model.fill(text, ablate=[(1, 0)])
    assert without.tokens[0] in answer_of(page)
    assert page.locator(".strip-words b").count() == 0
    assert {address.split(":")[0] for address in watched.asked} <= {"file", "data", "blob"}
    page.fill(".strip input", "  ")
    assert page.inner_text("[role=status]") == "Type some words."
    page.fill(".strip input", "no word is hidden here")
    until(page, "document.querySelector('.strip-answer').textContent.includes('Put [MASK]')")


def test_without_the_model_recorded_answers_stay(watch: Watch, site: Path, tmp_path: Path) -> None:
    (tmp_path / "en-default.html").write_bytes((site / "en-default.html").read_bytes())
    page = watch(quiet=False).page
    page.goto((tmp_path / "en-default.html").as_uri())
    page.fill(".strip input", "Another [MASK].")
    until(page, "document.querySelector('[role=status]').textContent.includes('recorded answers only')")
    page.get_by_text("he or it?").click()
    assert answer_of(page) == "The model guesses he"
    page.evaluate("delete window.DecompressionStream")
    page.goto((site / "en-default.html").as_uri())
    page.evaluate("delete window.DecompressionStream")
    page.fill(".strip input", "Another [MASK].")
    until(page, "document.querySelector('[role=status]').textContent.includes('no DecompressionStream')")


def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(watch: Watch, site: Path) -> None:
    page = watch().page
    for name in (f"{language}-{scheme}" for language in strip.WORDS for scheme in ("default", "slate")):
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_selector(".strip-heads")
        assert inaccessible(page) == []
        for width in (1440, 828, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


# Pages of the documentation as its theme shows them.


PAGES = ("zh", "statistics", "questions/head", "reference/trace")
"""The strip and a language; wide tables; code, a console and live pages; signatures."""
BUILD = """
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
config, site, *pages = sys.argv[1:]
others = "\\n".join(["*.md", "tools/", *map("!/{}".format, pages)])
build(load_config(config, site_dir=site, nav=pages, exclude_docs=others))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the theme is not installed: pip install -e '.[docs]' (.ci/run does)")
    folder = tmp_path_factory.mktemp("docs") / "site"
    pages = [f"{page}.md" for page in PAGES]
    subprocess.run([sys.executable, "-c", BUILD, str(DOCS.parent / "mkdocs.yml"), str(folder), *pages], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 1440), ("light", 390)])
def test_axe_finds_nothing_in_pages_that_are_built(built: Path, watch: Watch, scheme: Any, width: int) -> None:
    page, complaints = watch(quiet=False).page, []
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for name in PAGES:
        page.goto((built / f"{name}.html").as_uri())
        page.evaluate(DRAWN)
        complaints += [f"{name}: {complaint}" for complaint in inaccessible(page)]
    assert complaints == []

"""Models and texts of unusual shapes: what steps say of masks, biases and caps; very long words, very many heads."""

from __future__ import annotations

import importlib.util
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import Watch, box_of, go, made, number, patiently, unreadable, until

import headscope as hs
import random_models
from by_hand import by_definition
from headscope.attention.scores import Mask
from headscope.page.html import to_html
from small_bert import VOCABULARY, small_bert

if TYPE_CHECKING:
    from playwright.sync_api import Page

FIXTURE = Path(__file__).parents[2] / "web" / "tests" / "make_fixture.py"
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def kinds() -> hs.Trace:
    """A layer for each kind of mask, bias and score term, as the page's own tests have them."""
    spec = importlib.util.spec_from_file_location("make_fixture", FIXTURE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trace: hs.Trace = module.fixture()
    return trace


def test_the_steps_count_the_keys_that_the_query_sees_and_add_up(watch: Watch, kinds: hs.Trace, tmp_path: Path) -> None:
    """Numbers of the definition, in fp64: scores of the keys that are seen, and what is added to a product."""
    page = watch().open(kinds.to_html(tmp_path / "kinds.html", dtype="fp32", runs=False).as_uri())
    head = 1
    told: set[str] = set()
    for at, layer in enumerate(kinds.layers):
        bias = layer.mask.bias
        if bias is not None and np.abs(np.nan_to_num(bias, neginf=0)).max() > 100:
            continue  # shifted, to numbers whose exponentials are finite
        drawn = at
        scores, weights, *_ = by_definition(layer.q, layer.k, layer.v, layer.scale, layer.mask, layer.terms)
        seen = int(np.isfinite(scores[head, 7]).sum())
        if not seen:
            continue
        key, least = (int(place) for place in (weights[head, 7].argmax(), weights[head, 7].argmin()))
        go(page, f"l={at}&h={head}&q=7&k={key}")
        patiently(page, partial(line, page, weights[head, 7, key], seen, layer.terms.cap, told))
        shares = np.append(weights[head, 7], 1 - weights[head, 7].sum())  # of its keys and of a sink
        until(page, f"document.querySelector('.looks').textContent.includes('entropy {nats(shares):.2f} nats')")
        for other in (key, least):
            go(page, f"l={at}&h={head}&q=7&k={other}&chain=1")
            patiently(page, partial(chain, page, scores[head, 7], other, layer.terms.cap is not None))
        told |= {"sink"} if layer.terms.sinks is not None else set()
    assert told == {"seen", "added", "cap", "sink"}
    kept = weights[head, 7][np.asarray(kinds.keys.segments) == 0]  # of the last of these layers
    go(page, f"l={drawn}&h={head}&q=7&of=ba")
    until(page, f"document.querySelector('.looks').textContent.includes('entropy {nats(kept / kept.sum()):.2f} nats')")


def nats(shares: np.ndarray) -> float:
    """Their entropy."""
    return float(-sum(share * np.log(share) for share in shares if share > 1e-12))


def line(page: Page, expected: float, seen: int, cap: float | None, told: set[str]) -> None:
    """The numbers below the head: what is added to the product stands beside the score."""
    numbers, says = (page.locator(f".numbers5 li > {part}").all_text_contents() for part in ("b", "small"))
    assert len(numbers) >= 3
    dot, score, weight = map(number, numbers[:3])
    assert weight == pytest.approx(expected, abs=6e-4)
    assert f"over {seen} word" in says[2]
    how = re.fullmatch(r"÷ √16(?: ([+−]) (\S+?))?, the score", says[1])
    assert how, says
    sign, added = how.groups()
    total = dot / 4 + (number(added) * (1 if sign == "+" else -1) if added else 0)
    total = cap * np.tanh(total / cap) if cap else total
    assert score == pytest.approx(total, abs=6e-3)
    told |= {name for name, there in (("seen", seen < 12), ("added", added), ("cap", cap)) if there}


def chain(page: Page, scores: np.ndarray, key: int, capped: bool) -> None:
    """The steps: no key is listed that the query does not see, but the pinned one."""
    hidden, seen = not np.isfinite(scores[key]), int(np.isfinite(scores).sum())
    rest = page.locator(".steps .rest")
    assert rest.count()
    text, equation = rest.inner_text(), str(rest.locator("math").first.text_content())
    assert f"against {seen - 1 + hidden} other word" in text
    assert equation.endswith("→−∞" if hidden else f"{'→' if capped else '='}{scores[key]:.3f}".replace("-", "−"))
    rows = rest.locator("tr:has(td.bar)").all_inner_texts()
    more = re.search(r"(\d+) more", text)
    assert len(rows) + int(more[1] if more else 0) == seen + hidden
    assert sum("–" in row for row in rows) == hidden


def test_a_very_long_piece_pushes_no_number_out_of_sight(watch: Watch, tmp_path: Path) -> None:
    """Nor does it on a phone."""
    folder = tmp_path / "long"
    folder.mkdir()
    model = hs.open(small_bert(folder, vocabulary=(*VOCABULARY[:-1], "a" * 200)))
    last = len(VOCABULARY) - 1
    trace = model.trace(ids=[2, 5, last, last, 6, 3])
    page = watch().open(f"{trace.to_html(tmp_path / 'long.html').as_uri()}#q=2&k=3&l=1")
    page.wait_for_selector("[data-test=weight]")
    for panel, place in (
        (".picture", "[data-test=value]"),
        (".cell", "[data-test=weight]"),
        (".inspector", ".ranked b"),
    ):
        outer, inner = (page.locator(one).first.bounding_box() for one in (panel, place))
        assert outer["x"] <= inner["x"] <= inner["x"] + inner["width"] <= outer["x"] + outer["width"]
    assert page.locator("h2.looks").inner_text().split("\n")[0] == f"“\u2068{'a' * 20}…\u2069” looks at"
    page.keyboard.press("t")
    box = box_of(page, ".numbers td:not(thead td)")
    assert box["x"] < 700
    page.set_viewport_size(PHONE)
    compared = ("pane=compare&vs=0&lb=0&hb=0&q=2&k=1", "pane=compare&vs=0&q=2&k=1")
    for state in ("", "q=2&k=1", "q=1&k=2&chain=1", "pane=follow&q=2", *compared):
        go(page, state)
        page.wait_for_timeout(50)
        assert unreadable(page) == [], state


def test_very_many_heads_fit(watch: Watch, tmp_path: Path) -> None:
    """Their grid and their effects: none lies beyond the edge of a phone, where nobody could point at it."""
    shape = {"num_hidden_layers": 4, "num_attention_heads": 128, "hidden_size": 256}
    trace = hs.open(random_models.made(tmp_path, "Bert", **shape).folder).trace(ids=random_models.ids(8))
    page = watch(viewport=PHONE).open(trace.to_html(tmp_path / "many.html", runs=True).as_uri() + "#all=1")
    box = page.locator(".heads").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] - 4)
    until(page, "location.hash.includes('h=127') && location.hash.includes('l=3')")
    go(page, "pane=causes")
    page.wait_for_selector(".effects b")
    assert page.locator(".effects > span").count() == 4 * 128
    assert unreadable(page) == []
    # the frame of the second bar goes behind the name of the first
    layer, head = page.locator(".effects > span").nth(1).get_attribute("title").split(":")[0].split(".")
    go(page, f"pane=causes&l={layer}&h={head}")
    page.wait_for_selector(".effects > span:nth-child(2).here")
    framed = page.locator(".effects b").first.screenshot()
    page.evaluate("document.querySelector('.effects .here').style.outline = 'none'")
    assert page.locator(".effects b").first.screenshot() == framed


def test_how_a_long_text_is_drawn_is_said_in_full(watch: Watch, tmp_path: Path) -> None:
    file = made(512, Mask()).to_html(tmp_path / "long.html", runs=False)
    page = watch(viewport=PHONE).open(f"{file.as_uri()}#mode=matrix")
    for size, state in ((PHONE, "mode=matrix"), ({"width": 1440, "height": 900}, "mode=both")):
        page.set_viewport_size(size)
        go(page, state)
        until(page, "document.querySelector('.under .quiet')?.textContent.includes('per pixel')")
        assert unreadable(page) == []


def test_a_shorter_text_of_another_model_takes_nothing_over(watch: Watch, bert: hs.Model, tmp_path: Path) -> None:
    """Neither the rows, nor what is pointed at, nor the pinned token of the longer one."""
    long, short = (made(size, Mask(causal=True), heads=n, layers=n) for size, n in ((12, 4), (5, 2)))
    page = watch().open(f"{to_html([long, short], tmp_path / 'two.html', runs=False).as_uri()}#q=11&k=4&l=3&h=3")
    for _ in range(2):
        page.wait_for_selector(".inspector .ranked li[data-weight]")
        box = page.locator(".heads").bounding_box()
        page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 40)
        until(page, "document.querySelector('.reading b')")
        page.keyboard.press("]")
        until(page, "document.querySelectorAll('.left .token').length === 5")
        page.keyboard.press("[")
        until(page, "document.querySelectorAll('.left .token').length === 12")
    texts = [bert.trace("the tired cat sat on the mat ."), bert.trace("the cat")]
    page = watch().open(f"{to_html(texts, tmp_path / 'follow.html', runs=False).as_uri()}#pane=follow&q=9")
    until(page, "document.querySelector('.ways .looking')?.dataset.label === '.'")
    page.keyboard.press("]")
    until(page, "document.querySelectorAll('.ways [data-label]').length === 4")
    until(page, "document.querySelector('.follow').ariaBusy === 'false' && document.querySelector('.ways .looking')")
    assert "NaN" not in page.locator(".follow").inner_html()


@pytest.mark.parametrize(
    ("stem", "config", "norms", "told"),
    [
        ("Bert", {}, ["+ add · LayerNorm"] * 2, ""),
        ("Albert", {}, ["+ add · LayerNorm"] * 2, ""),
        ("DebertaV2", {}, ["+ add · LayerNorm"] * 2, "D: distance of tokens"),
        ("ModernBert", {}, ["LayerNorm · feed-forward"], "q, k rotated by position"),
        ("Esm", {"position_embedding_type": "absolute"}, ["LayerNorm", "LayerNorm · feed-forward"], ""),
        ("EuroBert", {}, ["RMSNorm", "RMSNorm · feed-forward"], "q, k rotated by position"),
    ],
)
def test_a_layer_is_drawn_as_its_family_computes_it(
    watch: Watch, tmp_path: Path, stem: str, config: dict[str, Any], norms: list[str], told: str
) -> None:
    """Norms before or after the sums; the scale of its scores; one key head for several heads; its own parameters."""
    model = hs.open(random_models.made(tmp_path, stem, **config).folder)
    trace = model.trace(ids=random_models.ids(8))
    page = watch().open(f"{trace.to_html(tmp_path / 'page.html', runs=False).as_uri()}#pane=anatomy")
    said = page.locator(".drawing text").all_text_contents()
    assert [text for text in said if "Norm" in text] == norms
    distances = " + D" if told.startswith("D") else ""
    assert [text for text in said if "√" in text] == [f"q kᵀ / √{1 / trace.layers[0].scale ** 2:.0f}{distances}"]
    assert [text for text in said if text.startswith(("D", "q, k"))] == [told] * bool(told)
    head = model.layers[0].heads[0]
    for name in ("W_Q", "W_K", "W_V"):
        width = head.W_Q.shape[1] * len(trace.layers[0].q if name == "W_Q" else trace.layers[0].k)
        assert said[said.index(name) + 1] == f"({head.W_Q.shape[0]}, {width})"
    shown = page.locator(".anatomy table").last.locator("tr")
    own = {row.stored: row.count for row in model.parameters if row.layer == 0}
    assert [int(text.split("\t")[-1].replace(",", "")) for text in shown.all_inner_texts()] == list(own.values())
    alike = "all layers have the same shapes" in page.locator(".anatomy h2").inner_text()
    assert alike == (stem != "ModernBert")  # its first layer has no norm before its heads

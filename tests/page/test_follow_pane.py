"""A word followed through the layers: every share against `trace.follow`, the headline, the keyboard, every size."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from looking import DRAWN, SIZES, TYPE, TYPE_SIZES, Watch, eventually, go, inaccessible, number, unreadable, until
from looking import made as made_up
from safetensors.numpy import load as read
from serving import serving

import headscope as hs
from headscope.attention.scores import Mask
from headscope.page.html import to_html
from headscope.page.trace import page_bytes
from headscope.results.explained import Followed
from naive_layers import minilm
from products import in_turn
from random_models import ids, made

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "The animal did not cross the street because it was too tired."
IT, ANIMAL = 9, 2
ANIMALS = (".09 by 3.1", ".09 by 4.4", ".22 by 5.11")
"""What it brings to “it” in the last three layers."""
HALF = 2e-3
"""What fp16 leaves of a share: of q and k in its weight, of v and the reader in their product."""

CELLS = """[...document.querySelectorAll("[data-share]")]
  .map(({ id, dataset }) => [...id.match(/^way-([0-9]+)-(-?[0-9]+)$/).slice(1), dataset.share].map(Number))"""
"""Layer, token (-1 for all others) and share of each cell."""


def deep(folder: Path, layers: int, tokens: int) -> tuple[hs.Trace, Path]:
    """A random BERT of so many layers, and the page of so many tokens; some of them stand out."""
    shape = {"num_hidden_layers": layers, "num_attention_heads": 12, "hidden_size": 48}
    trace = hs.open(made(folder, "Bert", **shape).folder).trace(ids=ids(tokens))
    return trace, trace.to_html(folder / "deep.html", runs=False)


def drawn(page: Page) -> np.ndarray:
    """(layers, tokens), the shares of the cells; what is kept at the word itself."""
    until(page, "document.querySelector('.follow')?.ariaBusy === 'false' && document.querySelector('[data-share]')")
    cells = page.evaluate(CELLS)
    size = 1 + max(at for _, at, _ in cells)
    return np.array([share for *_, share in cells]).reshape(-1, size)


def expected(followed: Followed) -> np.ndarray:
    shares = np.array(followed)
    shares[:, followed.token] = followed.kept
    return shares


MODELS: dict[str, Callable[[Any], hs.Trace]] = {
    "MiniLM": lambda request: request.getfixturevalue("minilm").trace(TEXT),
    "bundled": lambda request: request.getfixturevalue("bundled").trace(TEXT),
    "pair": lambda request: request.getfixturevalue("cat"),
    "DistilBert": lambda request: hs.open(made(request.getfixturevalue("tmp_path"), "DistilBert").folder).trace(
        ids=ids(13)
    ),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_every_cell_is_the_share_that_python_has(
    watch: Watch, tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    """At several words: shares, what is kept, and the head that brings most; rows add up to 1."""
    trace = MODELS[name](request)
    file = trace.to_html(tmp_path / "page.html", runs=False)
    page = watch().open(f"{file.as_uri()}#pane=follow")
    for token in (1, len(trace) // 2, len(trace) - 1):
        followed = trace.follow(token)
        go(page, f"pane=follow&q={token}")
        until(page, f"document.querySelector('span.self')?.id === 'way-0-{token}'")
        shares = drawn(page)
        np.testing.assert_allclose(shares, expected(followed), atol=HALF)
        np.testing.assert_allclose(shares.sum(1), 1, atol=2 * HALF)
        titles = page.evaluate("[...document.querySelectorAll('[data-share]:not(.self)')].map(({ title }) => title)")
        heads = np.array([re.findall("· (\\d+)\\.(\\d+)\u2069$", title)[0] for title in titles], int)
        others = [at for at in range(len(trace)) if at != token]
        best = followed.shares[heads[:, 0], heads[:, 1], np.tile(others, len(trace.numbers))]
        np.testing.assert_allclose(best, followed.shares.max(1)[:, others].ravel(), atol=HALF)


def test_what_is_packed_makes_the_shares_without_the_page(tired: tuple[hs.Trace, Path]) -> None:
    """The file's u times its v and the weights of its q and k is the share, of every pair; none without V."""
    trace, _ = tired
    held = read(page_bytes(trace))
    heads = len(trace.layers[0].q)
    follows = [trace.follow(token) for token in range(len(trace))]
    for layer in trace.numbers:
        q, k, v = (held[f"layers.{layer}.{name}"].astype(np.float64) for name in "qkv")
        weights = np.exp(q @ k.swapaxes(1, 2) * trace.layers[layer].scale - held[f"layers.{layer}.lse"][..., None])
        u = held["view.readers"][layer * heads : (layer + 1) * heads].astype(np.float64)
        shares = weights * (u @ v.swapaxes(1, 2))
        for token, followed in enumerate(follows):
            shares[:, token, token] = 0
            np.testing.assert_allclose(shares[:, token], followed.shares[layer], atol=HALF)
            assert held["view.kept"][layer, token] == pytest.approx(followed.kept[layer], abs=1e-6)
    assert held["view.readers"].nbytes == sum(held[f"layers.{layer}.v"].nbytes for layer in trace.numbers)
    part = read(page_bytes(trace, layers=[3]))
    np.testing.assert_array_equal(part["view.readers"], held["view.readers"][3 * heads : 4 * heads])
    for without in (page_bytes(trace, values=False), page_bytes(trace, heads=[1])):
        assert not {"view.readers", "view.kept"} & set(read(without))


def test_a_page_without_them_opens_on_the_sentence(watch: Watch, bert: hs.Model, tmp_path: Path) -> None:
    file = bert.trace("The tired cat").to_html(tmp_path / "page.html", values=False)
    page = watch().open(f"{file.as_uri()}#pane=follow")
    assert "pane=follow" in page.locator(".said").inner_text()
    assert page.locator("[data-test=head]").is_visible()
    assert page.locator("[data-test=pane-follow]").count() == 0
    page.keyboard.press("2")
    assert page.locator("[data-test=head]").is_visible()
    # nor has a text beside one that has them
    traces = [bert.trace("The tired cat"), made_up(6, Mask(causal=True))]
    page = watch().open(f"{to_html(traces, tmp_path / 'two.html', runs=False).as_uri()}#pane=follow")
    page.wait_for_selector(".ways")
    page.keyboard.press("]")
    until(page, "document.querySelector('[data-test=head]')?.checkVisibility() && location.hash === '#d=1'")
    go(page, "d=1&pane=follow")
    assert "pane=follow" in page.locator(".said").inner_text()
    until(page, "location.hash === '#d=1'")


def test_the_headline_has_what_was_found(watch: Watch, tired: tuple[hs.Trace, Path]) -> None:
    """As `trace.follow` says it; the head that looks hardest beside the one that brings most; a cell's numbers.
    Arrows reach every cell, over the word itself; j and k another word; Enter opens the head.
    """
    trace, file = tired
    followed = trace.follow(IT)
    page = watch(viewport={"width": 1440, "height": 900}).open(f"{file.as_uri()}#pane=follow&q={IT}")
    drawn(page)
    headline = page.locator(".follow h1").inner_text()
    assert f"{headline}." == followed.sentence.split(" It keeps")[0]
    weights, shares = followed.weights[:, :, ANIMAL], followed.shares[:, :, ANIMAL]
    hard, best = (divmod(int(table.argmax()), table.shape[1]) for table in (weights, shares))
    assert (hard, best) == ((3, 1), (5, 11))
    assert page.locator("[data-test=hardest]").inner_text() == (
        "It keeps .62 to .74 of itself in a layer. Head 3.1 looks hardest at “animal”, .69, yet brings .06; 5.11, with "
        ".66, brings .19. Masking “animal” turns “it” most, by .343 in the end, and rollout puts it first, too."
    )
    told = {name: number(page.locator(f"[data-test=way-{name}]").inner_text()) for name in ("weight", "share", "total")}
    of_all = {"weight": weights[best], "share": shares[best], "total": shares[5].sum()}
    assert told == pytest.approx(of_all, abs=6e-3)
    kept = [number(one) for one in page.locator("[data-test=kept]").all_inner_texts()]
    assert kept == pytest.approx(list(followed.kept), abs=6e-3)
    most = [re.sub("[\u2068\u2069]", "", one) for one in page.locator("[data-test=most]").all_inner_texts()]
    assert most == ["because .13 by 0.2", "was .10 by 1.2", "tired .18 by 2.1", *(f"animal {n}" for n in ANIMALS)]
    assert page.locator(".ways path").count() == 6 + int((np.delete(expected(followed), IT, 1) >= 0.015).sum())
    go(page, f"pane=follow&q={IT}&l=0&h=0&k=0")
    drawn(page)
    reached = set()
    for layer in range(6):
        for step in range(len(trace) - 1):
            (cell,) = page.evaluate("[...document.querySelectorAll('[aria-selected=true]')].map(({ id }) => id)")
            reached.add(cell)
            assert page.locator(".ways").get_attribute("aria-activedescendant") == cell
            page.keyboard.press("ArrowDown" if step == len(trace) - 2 else "ArrowLeft" if layer % 2 else "ArrowRight")
            page.evaluate(DRAWN)
    assert reached == {f"way-{layer}-{at}" for layer in range(6) for at in range(len(trace)) if at != IT}
    page.keyboard.press("j")
    page.wait_for_selector(f"#way-0-{IT + 1}.self")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-test=weight]")
    # and the address reopens the cell and its head
    go(page, f"pane=follow&q={IT}")
    drawn(page)
    page.locator("#way-2-12").click()
    page.wait_for_selector("#way-2-12[aria-selected=true]")
    eventually(page, lambda: "k=12" in page.url, "the address has the cell")
    assert {"pane=follow", "l=2", "h=1", "q=9", "k=12"} <= set(page.url.split("#")[1].split("&"))
    again = page.url
    page.goto("about:blank")
    page.goto(again)
    page.wait_for_selector("#way-2-12[aria-selected=true]")
    assert "2.1" in page.locator("[data-test=open-head]").inner_text()
    page.locator(".headlist button").nth(1).click()
    second = page.locator(".headlist button").nth(1).inner_text().split()[0]
    page.wait_for_selector(".headlist button:nth-of-type(2)[aria-pressed=true]")
    assert second in page.locator("[data-test=open-head]").inner_text()
    page.locator("[data-test=open-head]").click()
    page.wait_for_selector("[data-test=weight]")
    assert page.locator("[data-test=head]").inner_text().endswith(second)


def test_one_layer_of_one_head_has_one_number_of_each_kind(watch: Watch, tmp_path: Path) -> None:
    """What is kept is not from .9 to .9, and the only head's share is not said again as that of all heads."""
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 16}
    trace = hs.open(made(tmp_path, "Bert", **shape).folder).trace(ids=ids(5))
    page = watch().open(trace.to_html(tmp_path / "one.html", runs=False).as_uri() + "#pane=follow&q=2")
    drawn(page)
    (kept,) = trace.follow(2).kept
    assert f"keeps {kept:.2f} of itself".replace("0.", ".") in page.locator(".follow").inner_text()
    assert page.locator("[data-test^=way-]").count() == 2  # weight and share


def cosines(first: torch.Tensor, second: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.cosine_similarity(first, second, dim=-1).numpy()


def test_masking_and_rollout_stand_beside_the_shares(watch: Watch, tired: tuple[hs.Trace, Path]) -> None:
    """Of the word that a file opens on, and of every word if a server has the model: against transformers and NumPy."""
    trace, file = tired
    module = minilm()
    ids_ = torch.tensor([trace.ids])
    runs = ids_.repeat(len(trace), 1)
    runs[range(len(trace)), range(len(trace))] = 103
    with torch.no_grad():
        before, after = (module(one, output_hidden_states=True).hidden_states[1:] for one in (ids_, runs))
    flows, flow = [], np.eye(len(trace))
    for layer in trace.numbers:
        lengths = np.asarray(trace.norm_map(layer, "AttnResLn-N")).astype(np.float64)
        flow = (lengths / lengths.sum(1, keepdims=True)) @ flow
        flows.append(flow)

    def check(page: Page, token: int) -> None:
        page.wait_for_selector("[data-test=turn]")
        for key in (ANIMAL, 12):
            page.locator(f"#way-4-{key}").click()
            page.wait_for_selector(f"#way-4-{key}[aria-selected=true]")
            wanted = {
                "turn": [1 - cosines(one[0, token], two[key, token]) for one, two in zip(before, after, strict=True)],
                "rollout": [one[token, key] for one in flows],
            }
            for name, values in wanted.items():
                told = [number(one) for one in page.locator(f"[data-test={name}]").all_inner_texts()]
                assert told == pytest.approx(values, abs=6e-4)

    page = watch(viewport={"width": 1440, "height": 900}).open(f"{file.as_uri()}#pane=follow&q={IT}")
    check(page, IT)
    told = "Masking “animal” turns “it” most, by .343 in the end, and rollout puts it first, too."
    assert page.locator("[data-test=beside]").inner_text() == told
    go(page, "pane=follow&q=2")
    page.wait_for_selector("#way-0-2.self")
    assert page.locator("[data-test=turn]").count() == 0
    with serving(trace) as served:
        address = f"{served.session.address()}#pane=follow&q=11"
        page = watch(viewport={"width": 1440, "height": 900}).open(address)
        check(page, 11)
        words = [at for at in range(len(trace)) if trace.words[at] is not None and trace.tokens[at] != "." and at != 11]
        turns = {at: 1 - float(cosines(before[-1][0, 11], after[-1][at, 11])) for at in words}
        masked, flowed = max(turns, key=lambda at: turns[at]), max(words, key=lambda at: flows[-1][11, at])
        shares = np.asarray(trace.follow(11)).sum(0)
        said = page.locator("[data-test=beside]").inner_text()
        agree = masked == flowed == max(words, key=lambda at: shares[at])
        assert said.startswith("Masking" if agree else "The measures disagree")
        assert trace.tokens[masked] in said
        assert trace.tokens[flowed] in said


CUT = """[...document.querySelectorAll(".ways > div + div :is(span, small)")]
  .filter((one) => one.checkVisibility() && one.firstChild)
  .filter((one) => one.scrollWidth > one.clientWidth + 2 && !one.title && !one.closest("[title]"))
  .map((one) => one.textContent)"""


@pytest.mark.parametrize(("layers", "tokens"), in_turn((6, 12, 24), (44, 15)))
def test_it_fits_every_size(watch: Watch, tmp_path: Path, layers: int, tokens: int) -> None:
    """All layers are on a desktop's screen; a narrow one sums up the weakest words as others; light and dark."""
    trace, file = deep(tmp_path, layers, tokens)
    shares = expected(trace.follow(IT))
    address = f"{file.as_uri()}#pane=follow&q={IT}&k=5&l=1"
    page = watch(color_scheme="light").open(address)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate(DRAWN)
        page.evaluate(DRAWN)
        assert unreadable(page) == [], width
        assert page.evaluate(CUT) == [], width
        assert set(page.evaluate(TYPE)) <= TYPE_SIZES
        ticks = page.locator(".ways s").count()
        assert ("tick: an even share" in page.locator(".follow > p:last-of-type").inner_text()) is (ticks > 0)
        cells = page.evaluate(CELLS)
        sums = np.zeros(layers)
        for layer, key, share in cells:
            sums[layer] += share
            if key >= 0:
                assert share == pytest.approx(shares[layer, key], abs=HALF)
        np.testing.assert_allclose(sums, 1, atol=2 * HALF)
        if width >= 1280:
            assert len(cells) == layers * tokens
            bottom = page.evaluate(
                "document.querySelector('.ways [role=row]:last-child').getBoundingClientRect().bottom"
            )
            assert bottom <= page.evaluate("document.querySelector('.ways').getBoundingClientRect().bottom") + 1
    if layers == 12:  # axe-core looks at elements, of which all sizes have the same kinds
        assert inaccessible(page) == []
        page.emulate_media(color_scheme="dark")
        until(page, "document.documentElement.dataset.theme === 'dark'")
        assert inaccessible(page) == []


def test_two_texts_each_have_their_own(watch: Watch, minilm: hs.Model, tmp_path: Path) -> None:
    traces = [minilm.trace(TEXT), minilm.trace(TEXT.replace("tired", "wide"))]
    page = watch().open(f"{to_html(traces, tmp_path / 'two.html', runs=False).as_uri()}#pane=follow&q={IT}")
    np.testing.assert_allclose(drawn(page), expected(traces[0].follow(IT)), atol=HALF)
    page.keyboard.press("]")
    wanted = expected(traces[1].follow(IT))
    eventually(page, lambda: np.allclose(drawn(page), wanted, atol=HALF), "the second text's shares")

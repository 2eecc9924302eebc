"""Cause and effect on the page: every number against transformers' eager attention, changed naively by hooks."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from fonts import brought
from looking import Watch, box_of, canvas, go, retype, table, unreadable, until
from serving import Served, start

import headscope as hs
from explain.tops import TEXT, contexts_in_torch, edited_pass
from headscope.page import html
from headscope.page import session as answers
from headscope.runs.engine import Edit
from patience import PATIENCE
from random_models import Made, run

if TYPE_CHECKING:
    from playwright.sync_api import Page

LAYERS, HEADS = 3, 4
OTHER = "the dog [MASK] off the hat and sat down !"


@pytest.fixture
def served(model: hs.Model) -> Iterator[Served]:
    running = start(model.trace(TEXT))
    yield running
    running.stop()


def logits(words: Made, ids: list[int], *edits: Edit, other: Sequence[torch.Tensor] = ()) -> np.ndarray:
    row: np.ndarray = edited_pass(words.module, ids, edits, other).logits[0, ids.index(4)].double().numpy()
    return row


def changes(words: Made, ids: list[int], best: int, way: str = "zero", **more: Any) -> np.ndarray:
    """(layers, heads): what a change of each head alone does to the logit."""
    base, edge = logits(words, ids)[best], (2, 5) if way == "edge" else None
    after = [logits(words, ids, Edit(*at, way, edge=edge), **more)[best] for at in np.ndindex(LAYERS, HEADS)]
    return np.reshape(after, (LAYERS, HEADS)) - base


def word_of(model: hs.Model, words: Made) -> tuple[list[int], int]:
    """The text's ids, and the id of the best word at the mask."""
    ids = list(model.trace(TEXT).ids)
    best = next(int(n) for n in np.argsort(-logits(words, ids)) if model.tokenizer.token(int(n)).isalnum())
    return ids, best


def grid(page: Page) -> np.ndarray:
    """(layers, heads): the numbers of the grid's table."""
    return np.reshape(table(page), (LAYERS, HEADS))


def record(page: Page, served: Served) -> dict[str, Any]:
    """The server's record of the run in view."""
    name = page.locator("[data-test=runs] [aria-pressed=true]").get_attribute("data-run")
    return dict(served.session.runs.records[str(name)])


def press_run(page: Page) -> None:
    page.locator("[data-test=run]").click()
    page.wait_for_selector("[data-test=run]:not(:disabled)")
    page.wait_for_selector("[data-test=runs] [aria-pressed=true]")


def test_each_head_in_turn(watch: Watch, served: Served, model: hs.Model, words: Made) -> None:
    ids, best = word_of(model, words)
    expected = changes(words, ids, best)
    page = watch().open(f"{served.session.address()}#pane=causes&q=2&k=5")
    press_run(page)
    np.testing.assert_allclose(grid(page), expected, atol=6e-4)
    order = np.argsort(-np.abs(expected), axis=None)
    names = page.locator(".effects").get_attribute("data-order")
    assert names == " ".join(f"{n // HEADS}.{n % HEADS}" for n in order)
    headline = page.locator(".headline").inner_text()
    assert headline.startswith(f"{names.split()[0]} matters most")
    assert f"{abs(expected.flat[order[0]]):.3f}" in headline
    # one rule of signs: more is green and less is purple, in the bars as in the grid
    bars = page.evaluate(
        "[...document.querySelectorAll('.effects span')]"
        ".map((one) => [Number(one.dataset.value), getComputedStyle(one.querySelector('i')).backgroundColor])"
    )
    np.testing.assert_allclose([value for value, _ in bars], np.sort(expected.ravel()), atol=6e-4)
    assert {colour for value, colour in bars if value > 0} <= {"rgb(0, 128, 74)"}
    assert {colour for value, colour in bars if value < 0} <= {"rgb(138, 63, 157)"}
    picture = canvas(page, ".heads canvas")
    across, down = min(96, (picture.shape[1] - 20) / HEADS), (picture.shape[0] - 16) / LAYERS
    for (layer, head), value in np.ndenumerate(expected):
        red, green, blue, _ = picture[round(16 + layer * down + 6), round(20 + (head + 0.5) * across - 2)]
        if abs(value) > np.abs(expected).max() / 20:
            assert green > max(red, blue) if value > 0 else green < min(red, blue)
    ranks = page.locator("[data-test=ranks] [data-head]").all()
    assert [str(row.get_attribute("data-head")) for row in ranks] == names.split()[: len(ranks)]
    weights = [float(model.trace(TEXT)[n // HEADS, n % HEADS].weights[2, 5]) for n in range(LAYERS * HEADS)]
    page.wait_for_selector(".scatter")
    most = int(np.argmax(weights))
    rank = list(order).index(most) + 1
    says = page.locator(".scatter figcaption").inner_text()
    assert f"{most // HEADS}.{most % HEADS} gives" in says
    assert f"{weights[most]:.3f}" in says
    assert f"number {rank} of 12" in says
    ticks = page.locator(".scatter .axes > text").all_text_contents()
    greatest = np.abs(expected).max()
    assert ticks[0:6:2] == ["0", ".5", "1"]
    np.testing.assert_allclose([*map(float, ticks[1:6:2])], [0, greatest / 4, greatest], atol=6e-3)
    assert page.locator(".effects .here b").inner_text() == f"0.0 {expected[0, 0]:+.3f}".replace("-", "−")
    assert page.locator("[data-test=asked]").inner_text().startswith("each head in turn: silenced")
    # effects stand beside the causes; the sentence has the question from before
    asked = "!location.hash.includes('by=effect') && document.querySelector('[data-test=statistic]').value !== 'effect'"
    page.locator("[data-test=pane-head]").click()
    until(page, asked)
    page.locator("[data-test=pane-causes]").click()
    until(page, "location.hash.includes('by=effect')")
    page.locator("[data-test=pane-head]").click()
    until(page, asked)


def test_a_group_is_silenced_beside_as_many_at_random(
    watch: Watch, served: Served, model: hs.Model, words: Made
) -> None:
    ids, best = word_of(model, words)
    page = watch().open(f"{served.session.address()}#pane=causes&way=groups")
    press_run(page)
    rows = page.locator(".groups table td > button")
    layer = rows.all_inner_texts().index("the 4 heads of layer 1")
    edits = [Edit(1, head) for head in range(HEADS)]
    before, after = (edited_pass(words.module, ids, change) for change in ((), edits))
    share = after.logits[0, ids.index(4)].double().softmax(-1)[best]
    rows.nth(layer).focus()
    page.keyboard.press("Enter")
    until(page, f"location.hash.includes('g={layer}')")
    headline = page.locator(".headline").inner_text()
    assert headline.startswith(f"Without the 4 heads of layer 1: probability {share:.3f}; as many at random: ")
    kept = record(page, served)["result"]
    low, median, high, below = kept["groups"][layer]["drawn"]
    assert low <= median <= high
    assert headline.endswith(f"{median:.3f}")
    base = float(before.logits[0, ids.index(4)].double().softmax(-1)[best])
    said = page.locator("[data-test=draws]").inner_text()
    assert said.startswith(f"{base:.3f} with all heads; lower in {below} of 100 such draws. (logit of ")
    a, b = (out.hidden_states[-1][0].double().numpy() for out in (before, after))
    turn = 1 - (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    ribbon = [float(str(word.get_attribute("data-weight"))) for word in page.locator(".said-word").all()]
    np.testing.assert_allclose(ribbon, turn, atol=1e-4)
    assert page.locator(".arcs path").count() == 0
    logits_alone = [
        edited_pass(words.module, ids, [Edit(*at)]).logits[0, ids.index(4)] for at in np.ndindex(LAYERS, HEADS)
    ]
    alone = [float(one.double().softmax(-1)[best]) - base for one in logits_alone]
    np.testing.assert_allclose(grid(page).ravel(), alone, atol=6e-4)
    most = page.locator(".curve svg").get_attribute("aria-label")
    assert f"12: {kept['curve'][-1][1]:.2f}".replace("0.", ".") in str(most)
    page.reload()
    page.wait_for_selector(".curve")
    assert page.locator(".headline").inner_text() == headline
    page.locator("[data-test=silence-group]").click()
    assert page.locator(".wishes .on").all_inner_texts() == [f"1.{head} ×" for head in range(HEADS)]


def test_other_changes_of_each_head(watch: Watch, served: Served, model: hs.Model, words: Made) -> None:
    """And of another output; attribution as ink."""
    ids, best = word_of(model, words)
    other = contexts_in_torch(words.module, list(model.trace(OTHER).ids))
    page = watch().open(f"{served.session.address()}#pane=causes&way=mean&q=2&k=5")
    for way in ("mean", "patch", "edge"):
        go(page, f"pane=causes&way={way}&q=2&k=5")
        if way == "patch":
            assert page.locator("[data-test=run]").is_disabled()
            page.fill("[data-test=patch]", OTHER)
        press_run(page)
        np.testing.assert_allclose(grid(page), changes(words, ids, best, way, other=other), atol=6e-4)
        assert page.locator("[data-test=made]").inner_text().startswith("each head in turn: ")
    total = float(words.module(torch.tensor([ids])).logits[0, ids.index(4), best].detach())
    go(page, "pane=causes&way=zero")
    page.select_option("[data-test=way]", "decompx")
    press_run(page)
    until(page, "document.querySelector('[data-test=sum]').textContent.includes('DecompX')")
    inked = [float(str(token.get_attribute("data-value"))) for token in page.locator("[data-test=ink] span").all()]
    result = record(page, served)["result"]
    assert result["total"] == pytest.approx(total, abs=1e-4)
    assert sum(inked) + result["rest"] + result["gap"] == pytest.approx(total, abs=1e-4)
    np.testing.assert_allclose(inked, model.attribute(TEXT).scores, atol=1e-4)
    strongest = int(np.argmax(np.abs(inked)))
    word = page.locator("[data-test=ink] span").nth(strongest).locator("bdi").inner_text()
    assert f"{word}\u2069” adds most" in page.locator(".headline").inner_text()
    assert f"{total:.3f}" in page.locator("[data-test=sum]").inner_text()
    go(page, "pane=causes&way=zero")
    page.select_option("[data-test=measure]", "word")
    assert page.locator("[data-test=run]").is_disabled()
    page.fill("[data-test=measure-text]", "dog")
    press_run(page)
    dog = model.tokenizer.id("dog")
    after = logits(words, ids, Edit(2, 1))[dog]
    assert grid(page)[2, 1] == pytest.approx(after - logits(words, ids)[dog], abs=6e-4)
    page.select_option("[data-test=measure]", "embedding")
    assert "another output" in page.locator("[data-test=made]").inner_text()
    assert page.locator("[data-test=made] .stale").count() == 1


def test_silence_and_see_takes_two_actions(watch: Watch, served: Served, model: hs.Model, words: Made) -> None:
    """As does cutting an edge from the pinned cell; a token is replaced, and another masked."""
    ids, best = word_of(model, words)
    page = watch().open(f"{served.session.address()}#l=1&h=2")
    page.keyboard.press("x")
    press_run(page)
    before, after = run(words.module, [ids]), edited_pass(words.module, ids, [Edit(1, 2)])
    was, now = (out.logits[0, ids.index(4)].double() for out in (before, after))
    says = page.locator(".headline").inner_text()
    assert f"{was[best]:.3f} → {now[best]:.3f}" in says
    assert f"probability {was.softmax(-1)[best]:.3f} → {now.softmax(-1)[best]:.3f}" in says
    assert page.locator("[data-test=made]").inner_text() == "✕ 1.2 silenced"
    a, b = (out.hidden_states[-1][0].double().numpy() for out in (before, after))
    moved = np.linalg.norm(b - a, axis=-1) / np.linalg.norm(a, axis=-1)
    page.wait_for_selector("[data-test=shift]")
    shown = [float(str(token.get_attribute("data-value"))) for token in page.locator("[data-test=shift] span").all()]
    np.testing.assert_allclose(shown, moved, atol=1e-4)
    top = page.locator(".outcomes [data-when=after] li").first.inner_text().split()
    assert top[0] == model.tokenizer.token(int(now.argmax()))
    assert float(top[1]) == pytest.approx(float(now.softmax(-1).max()), abs=6e-4)
    page.keyboard.press("]")
    page.keyboard.press("1")
    until(page, "document.querySelector('.badges').textContent.includes('✕ 1.2 silenced')")
    go(page, "l=1&h=2&q=2&k=5")
    page.locator("[data-test=cut-edge]").click()
    until(page, "document.querySelector('[data-test=made]')?.textContent.trim().endsWith(' cut')")
    after = logits(words, ids, Edit(1, 2, "edge", edge=(2, 5)))[best]
    assert f"{logits(words, ids)[best]:.3f} → {after:.3f}" in page.locator(".headline").inner_text()
    assert page.locator("[data-test=made]").inner_text() == "✕ 1.2: “\u2068cat\u2069” → “\u2068the\u2069” cut"
    assert record(page, served)["result"]["after"] == pytest.approx(after, abs=1e-4)
    go(page, "pane=causes&way=these")
    page.locator(".wishes .on").click()
    until(page, "document.querySelector('.wishes .on') === null")
    page.select_option("[data-test=replace-place]", "2")
    page.fill("[data-test=replace-by]", "dog")
    page.locator("[data-test=replace]").click()
    page.locator("[data-test=tokens] button").nth(6).click()
    press_run(page)
    changed = [*ids]
    changed[2], changed[6] = model.tokenizer.id("dog") or 0, 4
    after = run(words.module, [changed]).logits[0, ids.index(4), best]
    assert f"→ {float(after):.3f}" in page.locator(".headline").inner_text()
    name = page.locator("[data-test=made]").inner_text().replace("\u2068", "").replace("\u2069", "")
    assert name == "“mat” masked · “cat” → “dog”"
    page.fill("[data-test=replace-by]", "unheardof")
    page.locator("[data-test=replace]").click()
    page.locator("[data-test=run]").click()
    until(page, "document.querySelector('[role=alert]').textContent.includes('replaced by one token')")


def test_runs_survive_a_reload_and_say_when_they_are_stale(watch: Watch, served: Served) -> None:
    page = watch().open(f"{served.session.address()}#pane=causes")
    press_run(page)
    page.keyboard.press("x")
    press_run(page)
    page.wait_for_selector("[data-test=runs] li >> nth=1")
    said = page.locator(".headline").inner_text()
    until(page, "location.hash.includes('run=')")
    page.reload()
    page.wait_for_selector("[data-test=runs] li >> nth=1")
    assert page.locator(".headline").inner_text() == said
    assert page.locator("[data-test=made] .stale").count() == 0
    page.locator("[data-test=compare]").click()
    page.wait_for_selector(".moved canvas")
    assert page.locator("[data-test=tab]").count() == 2
    page.keyboard.press("4")
    page.locator("[data-test=runs] button").nth(1).click()
    until(page, "document.querySelector('.headline').textContent.includes('matters most')")
    before = page.locator(".headline").inner_text()
    retype(page, OTHER)
    page.wait_for_selector("[data-test=made] .stale")
    assert "made on" in page.locator("[data-test=made]").inner_text()
    assert page.locator("[data-test=runs] .stale").count() == 2
    assert "No run has changed" in page.locator("[data-test=asked]").inner_text()
    page.locator("[data-test=again]").click()
    until(page, "document.querySelectorAll('[data-test=runs] li').length === 3")
    assert page.locator("[data-test=made] .stale").count() == 0
    again = page.locator(".headline").inner_text()
    assert again != before
    assert np.isfinite(grid(page)).all()
    page.locator("[data-test=runs] button[data-run]").last.click()
    until(page, "document.querySelectorAll('[data-test=runs] .stale').length === 1")
    assert page.locator(".headline").inner_text() == before
    page.goto("about:blank")
    page.goto(f"{served.session.address()}#pane=causes")
    page.wait_for_selector("[data-test=runs] li >> nth=2")
    assert page.locator("[data-test=tab]").count() == 0
    page.locator("[data-test=runs] .stale").click()
    until(page, "document.querySelectorAll('[data-test=tab]').length === 2")
    until(page, "document.querySelectorAll('[data-test=made] .stale').length === 0")
    assert page.locator(".headline").inner_text() == again
    page.locator("[data-test=change-text]").click()
    assert page.input_value("[data-test=text]") == OTHER
    go(page, "pane=causes&run=gone")  # the last one stays in view
    until(page, "location.hash.includes('run=gone') && document.querySelector('[data-test=runs] [aria-pressed=true]')")
    assert "matters most" in page.locator(".headline").inner_text()


def test_a_file_holds_the_effects_of_a_small_model(watch: Watch, model: hs.Model, words: Made, tmp_path: Path) -> None:
    ids, best = word_of(model, words)
    page = watch().open(f"{model.trace(TEXT).to_html(tmp_path / 'runs.html').as_uri()}#pane=causes&by=effect")
    after = logits(words, ids, Edit(2, 1))[best]
    assert grid(page)[2, 1] == pytest.approx(after - logits(words, ids)[best], abs=6e-4)
    assert "matters most" in page.locator(".headline").inner_text()
    page.locator("[data-test=runs] button", has_text="DecompX").click()
    page.wait_for_selector("[data-test=ink]")
    page.locator("[data-test=runs] button", has_text="groups of heads").click()
    page.locator(".groups table tr", has_text="layer 2").click()
    silent = edited_pass(words.module, ids, [Edit(2, head) for head in range(HEADS)]).logits[0, ids.index(4)]
    share = silent.double().softmax(-1)[best]
    until(page, "document.querySelector('.headline').textContent.includes('layer 2')")
    assert f"layer 2: probability {share:.3f};" in page.locator(".headline").inner_text()
    assert re.search(r"lower in \d+ of 30 such draws\.", page.locator("[data-test=draws]").inner_text())
    assert page.locator("[data-test=run], [data-test=silence-group], .stale").count() == 0
    page = watch().open(model.trace(TEXT).to_html(tmp_path / "none.html", runs=False).as_uri() + "#pane=causes")
    assert "There is no model here" in page.locator("#head").inner_text()


def test_a_group_s_number_stands_on_one_line(watch: Watch, tired: tuple[hs.Trace, Path]) -> None:
    """A small one on a phone, beside the group's name."""
    page = watch(viewport={"width": 320, "height": 720}).open(f"{tired[1].as_uri()}#pane=causes&run=0-groups&g=2")
    lines = """(cell) => {
      cell.textContent = "0.00010";
      const range = document.createRange();
      range.selectNodeContents(cell);
      return range.getClientRects().length;
    }"""
    assert page.locator(".groups tr.pin td").nth(1).evaluate(lines) == 1
    assert unreadable(page) == []


NAMES = """[...document.querySelectorAll(".effects b")].map((one) => {
  const { left, right, top, bottom } = one.getBoundingClientRect();
  return [left, right, top, bottom];
})"""


def test_the_names_of_bars_leave_each_other_room(watch: Watch, model: hs.Model, tmp_path: Path) -> None:
    """Whichever head is in view, in a window of middle width and a wide font."""
    watched = watch(own=True, viewport={"width": 828, "height": 720})
    watched.page.add_init_script(brought("wide"))
    page = watched.open(f"{model.trace(TEXT).to_html(tmp_path / 'runs.html').as_uri()}#pane=causes")
    page.wait_for_selector(".effects")
    until(page, "[...document.fonts].every((face) => face.status === 'loaded')")
    frame = box_of(page, ".effects")
    for layer, head in np.ndindex(LAYERS, HEADS):
        go(page, f"pane=causes&l={layer}&h={head}")
        names = page.evaluate(NAMES)
        assert len(names) in (2, 3)
        for left, right, _, _ in names:
            assert left >= frame["x"] - 1
            assert right <= frame["x"] + frame["width"] + 1
        for a, b in itertools.combinations(names, 2):
            across, down = min(a[1], b[1]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[2], b[2])
            assert across <= 0 or down <= 2, (layer, head)


def test_layers_are_shown_as_they_come_and_a_study_is_cancelled(
    watch: Watch, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def endless(*given: Any) -> None:
        progress, layer_read = given[4:]
        layer_read(2, np.array([0.1, -0.3, 0.2, 0.0]))
        try:
            while True:
                progress(1, LAYERS)
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(answers, "answer", endless)
    page = watch().open(f"{served.session.address()}#pane=causes")
    page.locator("[data-test=run]").click()
    page.wait_for_selector(".effects")
    assert page.locator(".effects").get_attribute("data-order") == "2.1 2.2 2.0 2.3"
    until(page, "document.querySelector('.question [role=status]').textContent.includes('layer 1 of 3')")
    listed = [str(row.get_attribute("data-head")) for row in page.locator("[data-test=ranks] [data-head]").all()]
    assert listed == ["2.1", "2.2", "2.0", "2.3"][: len(listed)]
    page.locator("[data-test=cancel]").click()
    page.wait_for_selector("[data-test=run]:not(:disabled)")
    assert ended.wait(PATIENCE)
    assert page.locator(".effects, [data-test=runs] [data-run]").count() == 0
    assert page.locator("[role=alert]").all_inner_texts() == [""]


def test_the_answer_is_plain_json(served: Served, model: hs.Model) -> None:
    """No number that JSON lacks, such as NaN, is ever sent."""
    from headscope.page.questions import question_of
    from headscope.page.runs import DRAWS, answer, groups_in

    name, trace = next(iter(served.session.traces.items()))
    for way in ({"kind": "heads", "method": "zero"}, {"kind": "tokens", "method": "decompx"}):
        result = answer(model, name, trace, question_of(way), lambda *_: None, lambda *_: None)
        assert json.loads(json.dumps(result, allow_nan=False)) == result
    groups = groups_in(model, name, trace, question_of({"kind": "groups"}))
    assert json.loads(json.dumps(groups, allow_nan=False))["result"]["draws"] == DRAWS


def test_a_run_of_a_closed_text_says_what_a_file_holds(watch: Watch, tmp_path: Path) -> None:
    """There is no server that could have gone: a file gives a closed text back only when it is opened again."""
    model = hs.open("-")
    file = html.to_html([model.trace("The cat sat."), model.trace("The dog ran.")], tmp_path / "two.html", values=True)
    page = watch().open(f"{file.as_uri()}#pane=causes")
    page.wait_for_selector("[data-test=runs] [data-run]")
    page.locator(".tab .plain").first.click()
    page.locator("[data-test=runs] [data-run]").last.click()
    until(page, "document.querySelector('.trouble').textContent.includes('There is no model here')")

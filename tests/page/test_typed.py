"""The page with a model in it: one file from disk answers on what is typed, and sends nothing."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import HOSTILE, Watch, answered, eventually, go, head_of, lists, number, page_with, patiently, until
from test_page_bytes import view_of
from transformers import BertConfig, BertForMaskedLM

import headscope as hs
from commands import run
from explain.tops import bi_encoder, readable
from headscope.errors import UnsupportedError
from headscope.heads.catalog import CATALOG, ON_PAGE
from headscope.page.trace import page_bytes
from headscope.page.typed import typed_page
from headscope.runs.effects import effects
from making import sealed_trace
from naive_layers import MINILM
from small_bert import VOCABULARY, small_bert

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

GENDER = "She said to [MASK] father that she was ill."


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "live.html"
    result = run("view", "-", "--html", path)
    assert "headscope tiny in a page" in result.output
    return path


def desk_of(browser: Browser, model: hs.Model, **catalog: Any) -> Page:
    page = page_with(browser, model)
    page.evaluate(
        "(catalog) => { window.desk = new encoder.Desk(model, catalog); }", {"names": [], "masses": {}, **catalog}
    )
    return page


@pytest.fixture(scope="module")
def desk(browser: Browser) -> Iterator[Page]:
    """A page that has the bundled model's desk, as its worker has it."""
    names = list(ON_PAGE)
    masses = {name: tokens for name in names if (tokens := CATALOG[name].record()["tokens"])}
    page = desk_of(browser, hs.open(), names=names, masses=masses)
    yield page
    page.close()


@pytest.fixture(scope="module")
def minilm_desk(browser: Browser, minilm: hs.Model) -> Iterator[Page]:
    page = desk_of(browser, minilm)
    yield page
    page.close()


def write(page: Page, text: str, box: int = 0) -> None:
    page.fill(f"[data-test=live-text-{box}]", text)


def test_typed_text_has_numpys_weights(watch: Watch, file: Path) -> None:
    """Bad input is said, markup is text; if asked, the address keeps a text, of which there is a line of Python."""
    watched = watch()
    page = watched.open(file.as_uri())
    write(page, "The tired dog sat down, and the cat ran.")
    until(page, "document.querySelector('.columns').textContent.includes('tired')")
    page.locator("[data-test=head]").click()
    page.evaluate("location.hash = 'l=2&h=1&q=3&k=2'")
    until(page, "document.querySelector('.columns').textContent.includes('Head 2.')")
    assert head_of(page) == "Head 2.1"
    trace = hs.open().trace("The tired dog sat down, and the cat ran.")
    lists(page, trace[2, 1].weights[3], 1e-3)
    assert [address for address in watched.asked if not address.startswith(("file:", "blob:", "data:"))] == []
    assert "tired" not in page.url
    for text, why, better in (
        ("", "Type some words", "dog"),
        ("the " * 1000, "1,002 tokens, the model takes 256 at most", "cat"),
        ("\u200b", "no tokens", "horse"),
    ):
        write(page, text)
        until(page, f"document.querySelector('.top [role=alert]').textContent.includes({why!r})")
        write(page, f"The {better}.")
        until(page, f"document.querySelector('.columns').textContent.includes({better!r})")
        until(page, "document.querySelector('.top [role=alert]').textContent === ''")
    for text in (*HOSTILE, "👩‍👩‍👧 日本語 عربى", "x" * 300):
        write(page, text)
        page.wait_for_timeout(50)
    write(page, "[UNK] 👍🏽 end")
    until(page, "document.querySelector('.columns').textContent.includes('end')")
    write(page, 'A "tired" dog.')
    until(page, "document.querySelector('.columns').textContent.includes('tired')")
    assert "tired" not in page.url
    page.locator("[data-test=live-keep]").check()
    until(page, "location.hash.includes('tired')")
    again = page.url
    silence(page, "0.1")
    page.locator(".save summary").click()
    made = 'trace = hs.open("-").trace("A \\"tired\\" dog.", ablate=[(0, 1)])'
    eventually(page, lambda: made in page.locator(".save pre").inner_text(), made)
    page.goto("about:blank")
    page.goto(again)
    page.wait_for_selector("html[data-painted]")
    assert page.input_value("[data-test=live-text-0]") == 'A "tired" dog.'


def test_every_layer_of_a_typed_text_is_seen(watch: Watch, tmp_path: Path) -> None:
    """Twelve layers on a laptop: the page scrolls, the grid does not, and its pictures can be read."""
    (tmp_path / "deep").mkdir()
    folder = small_bert(tmp_path / "deep")
    layers = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 48, "intermediate_size": 64}
    shape = BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=64, **layers)
    BertForMaskedLM(shape).save_pretrained(folder)
    run("view", folder, "--html", tmp_path / "deep.html")
    page = watch(tools=False, viewport={"width": 1280, "height": 720}).open((tmp_path / "deep.html").as_uri())
    until(page, "document.querySelectorAll('.said-word').length > 2")
    until(
        page, "(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight)(document.querySelector('.scroller'))"
    )
    assert int(page.locator(".heads").get_attribute("data-side") or 0) >= 21


def told(page: Page) -> list[str]:
    """What the grid has for each head, as its table says it."""
    return page.locator("[data-test=grid-table] tbody td").all_inner_texts()


def silence(page: Page, name: str) -> None:
    layer, head = name.split(".")
    go(page, f"l={layer}&h={head}")
    eventually(page, lambda: head_of(page) == f"Head {name}", name)
    page.locator("[data-test=live-silence]").click()


HEADS = [(layer, head) for layer in range(4) for head in range(4)]
CHOSEN = "document.querySelector('[data-test=statistic]').value"
TURN = "Number(document.querySelector('.measured').dataset.turn)"
HEADLINE = "(document.querySelector('.live .guess h1')?.textContent ?? '')"


def test_it_opens_on_the_guess_and_the_head_that_turns_it(watch: Watch, file: Path) -> None:
    """One grid, each picture with the guess without its head; from [MASK] looks the head whose silence costs most.

    The guess comes and goes with the mask.
    """
    page = watch(viewport={"width": 1440, "height": 900}).open(file.as_uri())
    eventually(page, lambda: head_of(page) == "Head 3.3", "the head that turns the guess")
    assert page.evaluate(HEADLINE) == "The model guesses her"
    model = hs.open()
    (whole,) = model.fill(GENDER, top=50)
    without = {head: model.fill(GENDER, top=50, ablate=[head])[0] for head in HEADS}
    for said, one in zip(told(page), without.values(), strict=True):
        label, share = said.split()
        assert label == one.tokens[0]
        assert number(share) == pytest.approx(one.probabilities[0], abs=1e-3)
    lost = {head: whole.probabilities[0] - one.probabilities[one.tokens.index("her")] for head, one in without.items()}
    ranks = page.locator("[data-test=ranks] button")
    for n, head in enumerate(sorted(HEADS, key=lambda head: -lost[head])[:3]):
        assert ranks.nth(n).get_attribute("data-head") == f"{head[0]}.{head[1]}"
        assert float(ranks.nth(n).get_attribute("data-number") or 0) == pytest.approx(lost[head], abs=1e-3)
    words = page.locator("[data-test=sentence-both] .said-word")
    row = np.asarray(model.trace(GENDER)[3, 3].weights[4])
    marks = [words.nth(n).get_attribute("class") or "" for n in range(len(row))]
    assert [n for n, mark in enumerate(marks) if "looking" in mark] == [4]
    assert [n for n, mark in enumerate(marks) if "seen" in mark] == [1 + int(row[1:-1].argmax())]
    write(page, "The dog ran.")
    until(page, f"{RIBBON} === 'Thedogran.' && {CHOSEN} !== 'guess' && {HEADLINE} === ''")
    assert page.locator("[data-test=statistic] option[value=guess]").count() == 0
    write(page, "The [MASK] ran.")
    until(page, f"{RIBBON} === 'The[MASK]ran.' && {CHOSEN} === 'guess'")
    (mask,) = model.fill("The [MASK] ran.")
    assert page.evaluate(HEADLINE) == f"The model guesses {mask.tokens[0]}"


LATE = """const { postMessage } = Worker.prototype;
Worker.prototype.postMessage = function (message, ...rest) {
  const send = () => postMessage.call(this, message, ...rest);
  if (message.kind === "without") window.late = send;
  else send();
};"""
"""The guess without each head is asked for when the test says so."""


def test_a_reader_who_looks_elsewhere_meanwhile_stays_there(watch: Watch, file: Path) -> None:
    watched = watch(own=True, viewport={"width": 1440, "height": 900})
    watched.page.add_init_script(LATE)
    page = watched.open(file.as_uri())
    until(page, f"{HEADLINE} === 'The model guesses her' && 'late' in window")
    go(page, "l=1&h=2&by=guess")
    assert told(page) == ["–"] * 16
    page.evaluate("late()")
    eventually(page, lambda: "–" not in told(page), "the guess without each head")
    assert head_of(page) == "Head 1.2"


def test_silenced_heads_change_the_guess(watch: Watch, file: Path) -> None:
    """Causes work on what was typed."""
    page = watch().open(file.as_uri())
    turning = page.locator("[data-test=live-turns] button")
    turning.wait_for()
    model = hs.open()
    turn = [head for head in HEADS if model.fill(GENDER, ablate=[head])[0].tokens[0] != model.fill(GENDER)[0].tokens[0]]
    assert [tuple(map(int, one.inner_text().split()[0].split("."))) for one in turning.all()] == turn
    assert turn == [(3, 3)]
    turning.click()
    until(page, f"{HEADLINE} === 'Without 3.3 the guess turns from her to his'")
    assert page.locator(".live .guess li >> nth=0").inner_text().split() == ["his", ".62"]
    eventually(page, lambda: "–" not in told(page), "the guess without another head")
    without = model.fill(GENDER, ablate=[(3, 3), (1, 0)])[0]
    assert told(page)[4].split()[0] == without.tokens[0]
    silence(page, "1.0")
    until(page, f"{HEADLINE} === 'Without 3.3, 1.0 the guess turns from her to {without.tokens[0]}'")
    page.locator("[data-test=live-all]").click()
    until(page, f"{HEADLINE} === 'The model guesses her'")
    # of a sentence that was typed while a head is silent, nobody knows the guess with every head
    silence(page, "3.3")
    guess = "document.querySelector('.live .guess').textContent"
    until(page, f"{guess}.includes('turns from')")
    before = page.evaluate(TURN)
    write(page, "The [MASK] ran.")
    until(page, f"{RIBBON} === 'The[MASK]ran.' && {TURN} > {before}")
    assert "turns from" not in page.evaluate(guess)
    page.locator("[data-test=live-all]").click()
    write(page, GENDER)
    until(page, f"{HEADLINE} === 'The model guesses her'")
    page.locator("[data-test=pane-causes]").click()
    page.locator("[data-test=run]").click()
    page.wait_for_selector("[data-test=runs] [aria-pressed=true]")
    expected = effects(model, GENDER)
    shown = page.locator("[data-test=runs]").inner_text()
    assert "her" in expected.target.label
    assert GENDER[:20] in shown or "silenced" in page.locator(".causes").inner_text()


def test_what_is_shared_opens_without_the_model(watch: Watch, file: Path, tmp_path: Path) -> None:
    page = watch().open(file.as_uri())
    until(page, f"{HEADLINE} === 'The model guesses her'")
    go(page, "l=3&h=3&q=4&k=2&by=guess")
    page.locator("[data-test=share]").click()
    with page.expect_download() as download:
        page.locator("[data-test=share-save]").click()
    download.value.save_as(tmp_path / "shared.html")
    page = watch().open((tmp_path / "shared.html").as_uri())
    assert head_of(page) == "Head 3.3"
    lists(page, np.asarray(hs.open().trace(GENDER)[3, 3].weights)[4], 1e-3)
    assert page.locator("[data-test=statistic]").input_value() == "entropy"
    assert page.locator(".live, .trouble:not(.none), .said:not(:empty)").count() == 0


def test_a_token_to_replace_is_one_of_the_text(watch: Watch, file: Path) -> None:
    """Of a shorter text the menu has no place of the longer one. What the model refuses, no server does."""
    page = watch().open(file.as_uri())
    go(page, "pane=causes&way=these&q=7&k=2")
    place = page.locator("[data-test=replace-place]")
    assert place.input_value() == "7"
    write(page, "The cat.")
    until(page, f"{RIBBON} === 'Thecat.'")
    assert place.input_value() in {"0", "1", "2", "3", "4"}
    for word in ("dog", "zzzz"):
        page.fill("[data-test=replace-by]", word)
        page.locator("[data-test=replace]").click()
        page.locator("[data-test=run]").click()
        page.wait_for_selector("[data-test=run]")
    until(page, f"{ALERT}.includes(\"'zzzz' is not in the vocabulary\")")
    assert "server" not in page.evaluate(ALERT)


def test_an_address_has_whole_letters(watch: Watch, file: Path) -> None:
    page = watch().open(f"{file.as_uri()}#text={'%20' * 1998}a%F0%9F%90%88")
    until(page, f"({BOXES})[0].length === 1999")
    page.locator("[data-test=help]").click()  # the page works


def test_each_address_shows_the_sentence_that_it_brings(watch: Watch, file: Path) -> None:
    """With its pinned cell; so do Back and Forward, and an address that comes while the page writes its own."""
    shown = "[document.querySelector('[data-test=live-text-0]').value, location.hash]"
    cat, mat = ("#l=1&h=2&q=2&k=3&text=The%20cat%20ran", "#q=6&k=5&text=It%20sat%20on%20a%20red%20mat")
    page = watch(own=True).open(file.as_uri() + cat)

    def shows(sentence: str, address: str) -> None:
        until(page, f"({shown}).join() === '{sentence},{address}'")
        until(page, f"document.querySelector('.columns').textContent.includes('{sentence.split()[-1]}')")
        page.wait_for_selector("[data-test=weight]")
        assert page.locator("[data-test=live-keep]").is_checked()
        assert page.evaluate(shown) == [sentence, address]

    shows("The cat ran", cat)
    page.evaluate(f"location.hash = '{mat}'")
    shows("It sat on a red mat", mat)
    page.go_back()
    shows("The cat ran", cat)
    page.go_forward()
    shows("It sat on a red mat", mat)
    page.evaluate(
        f"""() => {{
          document.querySelector("[data-test=mass]").value = 0.3;
          document.querySelector("[data-test=mass]").dispatchEvent(new Event("input"));
          location.hash = "{cat}";
          for (const end = performance.now() + 200; performance.now() < end;);
        }}"""
    )
    shows("The cat ran", cat)
    write(page, "")
    write(page, "The dog")
    until(page, "location.hash.endsWith('text=The%20dog')")
    page.evaluate("location.hash = '#h=1'")  # says nothing of a sentence: it stays, and is kept no longer
    until(page, "!document.querySelector('[data-test=live-keep]').checked")
    assert page.evaluate(shown) == ["The dog", "#h=1"]


def test_words_that_the_model_does_not_know_stand_as_they_were_typed(watch: Watch, file: Path) -> None:
    """In their direction, and in the note beside them, too."""
    page = watch().open(file.as_uri())
    write(page, "القط متعبا")
    until(page, "document.querySelector('[data-test=sentence-both]').dir === 'rtl'")
    page.locator(".said-word bdi").nth(1).click()
    seen = "[...document.querySelectorAll('.note p')].find((one) => !one.style.visibility)"
    until(page, f"{seen}.textContent.includes('القط')")


def test_two_sentences_are_compared(watch: Watch, file: Path) -> None:
    """The box that opens is typed in at once. One that can't be shown is said until it can."""
    page = watch().open(file.as_uri())
    page.locator("[data-test=live-compare]").click()
    until(page, "document.activeElement.dataset.test === 'live-text-1'")
    write(page, "He said to [MASK] father that he was ill.", 1)
    until(page, "(document.querySelector('.cosine h2 b')?.textContent ?? '1.000') !== '1.000'")
    cosine = number(page.locator(".cosine h2 b").inner_text())
    first, second = (
        hs.open().trace(text).outputs["last_hidden_state"].array.mean(0)
        for text in (GENDER, "He said to [MASK] father that he was ill.")
    )
    assert cosine == pytest.approx(first @ second / np.linalg.norm(first) / np.linalg.norm(second), abs=1e-3)
    page.locator("[data-test=pane-compare]").click()
    page.locator("[data-test=live-compare]").click()
    until(page, "!document.querySelector('[data-test=live-text-1]')")
    page.locator("[data-test=live-compare]").click()
    write(page, "the " * 300)
    until(page, f"{ALERT}.includes('takes 256 at most')")
    write(page, "The cat ran.", 1)
    until(page, f"({TABS})[1] === 'The cat ran.' && {ALERT}.includes('takes 256 at most')")
    write(page, "The dog ran.")
    until(page, f"({TABS})[0] === 'The dog ran.' && {ALERT} === ''")


SLOW = """const { postMessage } = Worker.prototype;
window.opening = window.begun = 0;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message.kind !== "open") return postMessage.call(this, message, ...rest);
  window.opening++;
  window.begun++;
  setTimeout(() => { window.opening--; postMessage.call(this, message, ...rest); }, 200);
};"""
"""Each trace takes longer to open than a key to type."""
RIBBON = "[...document.querySelectorAll('.ribbon .said-word:not(.special) bdi')].map((one) => one.textContent).join('')"
TABS = "[...document.querySelectorAll('[data-test=tab]')].map((one) => one.title.split('\\n')[1])"
BOXES = "[...document.querySelectorAll('[data-test^=live-text]')].map((one) => one.value)"
ALERT = "document.querySelector('.top [role=alert]').textContent"


@pytest.fixture
def slow(watch: Watch, file: Path) -> Page:
    watched = watch(own=True, viewport={"width": 1440, "height": 900})
    watched.page.add_init_script(SLOW)
    return watched.open(file.as_uri())


def come_to_rest(page: Page) -> None:
    """Wait until no trace is on its way; then every picture is of what its box says."""

    def at_rest() -> None:
        assert page.evaluate("opening") == 0
        boxes = page.evaluate(BOXES)
        assert page.evaluate(TABS) == (boxes if len(boxes) > 1 else [])
        assert page.evaluate(RIBBON) == boxes[0].replace(" ", "")

    patiently(page, at_rest)


def test_while_opening_is_slow_the_picture_is_of_the_box(slow: Page) -> None:
    """Keys come faster than traces: in the end ribbon, guess, heads and silence are of what the box says."""
    text = "He said to [MASK] father that he was ill."
    box = slow.locator("[data-test=live-text-0]")
    box.press("Control+a")
    box.press_sequentially(text, delay=30)
    come_to_rest(slow)
    box.press_sequentially("!", delay=30)
    box.press("Backspace")
    silence(slow, "3.3")
    (mask,) = hs.open().fill(text, ablate=[(3, 3)])
    shown = [mask.tokens[0], f"{mask.probabilities[0]:.2f}"[1:]]
    guessed = "document.querySelector('.live .guess li').innerText.split(/\\s+/)"
    eventually(slow, lambda: slow.evaluate(guessed) == shown, "the guess without 3.3")
    come_to_rest(slow)


def test_while_opening_is_slow_two_boxes_keep_their_pictures(slow: Page) -> None:
    """Typing in one box loses nothing of the other; one that is closed meanwhile leaves no tab."""
    texts = ["The dog sat.", "The cat ran off."]
    slow.locator("[data-test=live-compare]").click()
    for slot in (0, 1):
        slow.locator(f"[data-test=live-text-{slot}]").press("Control+a")
        slow.locator(f"[data-test=live-text-{slot}]").press_sequentially(texts[slot], delay=30)
    first, second = (hs.open().trace(text).outputs["last_hidden_state"].array.mean(0) for text in texts)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    until(slow, f"document.querySelector('.cosine h2 b')?.textContent === '{cosine:.3f}'")
    come_to_rest(slow)
    before = slow.evaluate("begun")
    write(slow, "The cat ran to the dog.", 1)
    until(slow, f"begun > {before}")  # a busy machine may look only when it is over
    slow.locator("[data-test=live-compare]").click()
    write(slow, "The dog sat down.")
    until(slow, f"{RIBBON} === 'Thedogsatdown.' && opening === 0")
    come_to_rest(slow)


def test_without_decompression_one_line(watch: Watch, file: Path) -> None:
    watched = watch(own=True)
    watched.page.add_init_script("delete window.DecompressionStream")
    watched.page.goto(file.as_uri())
    until(watched.page, "document.body.textContent.includes('DecompressionStream')")
    assert "Use Chrome 80" in watched.page.inner_text("body")


def test_effects_are_numpys(desk: Page) -> None:
    model = hs.open()
    base = answered(desk, "(text) => desk.trace({ text }).id", GENDER)
    for ask, options in (
        ({"kind": "heads", "method": "zero"}, {}),
        ({"kind": "heads", "method": "mean", "target": ["word", "his"]}, {"target": "his", "method": "mean"}),
        (
            {"kind": "heads", "method": "edge", "edge": [4, 1], "target": ["embedding"]},
            {"target": ("embedding",), "edge": (4, 1)},
        ),
        (
            {"kind": "heads", "method": "patch", "patch_from": "He said to [MASK] father that he was ill."},
            {"patch_from": "He said to [MASK] father that he was ill."},
        ),
        ({"kind": "heads", "method": "zero", "target": ["similarity", "A dog."]}, {"target": ("similarity", "A dog.")}),
    ):
        record = answered(desk, "(change) => [...desk.study(change)].at(-1).run", {"base": base, **ask})
        expected = effects(model, GENDER, **options)
        np.testing.assert_allclose(record["result"]["change"], np.array(expected), atol=1e-4)
        assert record["target"]["label"] == expected.target.label
        assert record["result"]["base"] == pytest.approx(expected.base, abs=1e-4)


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_a_truncated_vector_is_numpys(browser: Browser, tmp_path: Path, mode: str) -> None:
    """sentence-transformers' truncate_dim: the vector is the first numbers of the pooled one."""
    library = bi_encoder(mode, truncate_dim=8)
    library.save(str(tmp_path), create_model_card=False)
    texts = ["She sat down, tired.", "A dog."]
    vectors = library.encode(texts)
    model = hs.open(tmp_path)
    page = desk_of(browser, model)
    found = answered(page, "(texts) => desk.cosine(...texts.map((text) => desk.trace({ text }).id))", texts)
    assert found["cosine"] == pytest.approx(float(library.similarity(*vectors)), abs=2e-3)
    base = answered(page, "(text) => desk.trace({ text }).id", texts[0])
    for target in (["similarity", texts[1]], ["embedding"], ["embedding_distance"]):
        ask = {"base": base, "kind": "heads", "method": "zero", "target": target}
        record = answered(page, "(change) => [...desk.study(change)].at(-1).run", ask)
        expected = effects(model, texts[0], target=tuple(target))
        np.testing.assert_allclose(record["result"]["change"], np.array(expected), atol=4e-3)
    page.close()


def test_a_change_is_the_servers(desk: Page) -> None:
    """The same record as the server's, apart from the ids."""
    from headscope.page.questions import question_of
    from headscope.page.runs import compared, rerun

    model = hs.open()
    asks: list[dict[str, Any]] = [
        {"ablate": [[3, 3], [0, 1]]},
        {"mask": [2]},
        {"replace": [[1, "he"]], "target": ["word", "his"]},
        {"ablate": [[1, 0]], "target": ["embedding_distance"]},
    ]
    base = answered(desk, "(text) => desk.trace({ text }).id", GENDER)
    for ask in asks:
        found = answered(desk, "(change) => desk.trace(change).run", {"base": base, **ask})
        trace = model.trace(GENDER)
        question = question_of(ask)
        expected = compared(model, base, trace, rerun(model, trace, question), question)
        assert found["names"] == expected["names"]
        assert found["ask"] == expected["ask"]
        for name in ("before", "after", "moved", "shift"):
            np.testing.assert_allclose(found["result"][name], expected["result"][name], atol=1e-4)
        for when in ("was", "now"):
            for mine, theirs in zip(found["result"][when], expected["result"][when], strict=True):
                assert [one["label"] for one in mine["top"][:3]] == [one["label"] for one in theirs["top"][:3]]
                assert mine["place"] == theirs["place"]


BASE64 = """([text, pair]) => {
    const bytes = new Uint8Array(desk.trace({ text, pair }).bytes);
    let signs = "";
    for (let at = 0; at < bytes.length; at += 8192) signs += String.fromCharCode(...bytes.subarray(at, at + 8192));
    return btoa(signs);
}"""
"""A trace's file; as JSON it would take seconds."""


@pytest.mark.parametrize("pair", [None, "It sat on a mat."])
def test_the_trace_file_is_pythons(desk: Page, tmp_path: Path, pair: str | None) -> None:
    """Read back by headscope: tokens, words, spans, Q, K, V; statistics, pictures and norms as page_bytes has them."""
    from safetensors.numpy import load

    text = "The tired cat's hat was unbelievable."
    content = b64decode(desk.evaluate(BASE64, [text, pair]))
    trace = hs.load(sealed_trace(tmp_path / "typed.safetensors", content))
    expected = hs.open().trace(text, pair)
    assert trace.queries == expected.queries
    assert trace.fingerprint == expected.fingerprint
    for layer in range(4):
        for part in ("q", "k", "v", "lse"):
            np.testing.assert_allclose(
                getattr(trace.layers[layer], part), getattr(expected.layers[layer], part), atol=1e-4
            )
    built = page_bytes(expected, dtype="fp32", values=True)
    assert view_of(content)["roles"] == view_of(built)["roles"]
    found, reference = load(content), load(built)
    for name in ("view.statistics", "view.value_norms", "view.writes", "view.shares"):
        np.testing.assert_allclose(found[name], reference[name], atol=2e-2, rtol=2e-3, err_msg=name)
    assert np.abs(found["view.thumbs"].astype(int) - reference["view.thumbs"]).max() <= 1


def test_the_page_is_the_same_each_time() -> None:
    assert typed_page(hs.open())[0] == typed_page(hs.open())[0]


GOLD = "Gold is a soft metal. It doesn't rust, so its price never fell."


@pytest.mark.parametrize(
    ("name", "text", "pair"),
    [
        ("-", "The tired dog sat down because it was old, and the horse ran.", None),
        pytest.param(str(MINILM), "Which metal does not rust?", GOLD, marks=pytest.mark.slow),
    ],
)
def test_findings_of_typed_text(
    desk: Page, request: pytest.FixtureRequest, name: str, text: str, pair: str | None
) -> None:
    """Those that Python has, with its numbers and sentences; without what a link brings, and heads that are alike."""
    model, atol = hs.open(name), 1e-4 if pair is None else 1e-3  # MiniLM's page has fp16
    if pair is not None:
        desk = request.getfixturevalue("minilm_desk")
    view = view_of(b64decode(desk.evaluate(BASE64, [text, pair])))
    expected = [one.as_dict() for one in model.trace(text, pair).findings() if one.kind != "alike"]
    assert {"link", "previous", "next", "sink"} <= {one["kind"] for one in expected}
    (first, *_) = expected[0]["cells"]
    assert pair is None or (first["query"], first["key"]) == (2, 12)  # metal in both texts
    findings: Any = view["findings"]
    for found, one in zip(findings, expected, strict=True):
        assert (found["kind"], found["tokens"]) == (one["kind"], one["tokens"])
        assert found["cells"] == one["cells"][: len(found["cells"])]
        assert found["numbers"] == pytest.approx({name: one["numbers"][name] for name in found["numbers"]}, abs=atol)
        assert one["sentence"].startswith(found["sentence"])
    assert view["opening"] == expected[0]["cells"][0]


@pytest.mark.slow
def test_minilm_answers_and_says_what_a_cosine_is_made_of(
    browser: Browser, minilm: hs.Model, minilm_desk: Page, tmp_path: Path
) -> None:
    """Two sentences: the vectors are those of the paper's formula in fp64, and each word's share of the cosine."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    texts = (
        "The animal did not cross the street because it was too tired.",
        "A dog was too weary to walk over the road.",
    )
    file = tmp_path / "minilm.html"
    file.write_bytes(typed_page(minilm)[0])
    tokenizer = AutoTokenizer.from_pretrained(MINILM)
    model = AutoModel.from_pretrained(MINILM).eval()
    states = []
    for text in texts:
        with torch.inference_mode():
            states.append(model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double().numpy())
    vectors = [x.mean(0) for x in states]
    length = np.linalg.norm(vectors[0]) * np.linalg.norm(vectors[1])
    cosine = "(texts) => desk.cosine(...texts.map((text) => desk.trace({ text }).id))"
    found = answered(minilm_desk, cosine, list(texts))
    assert found["cosine"] == pytest.approx(vectors[0] @ vectors[1] / length, abs=1e-4)
    for side in (0, 1):
        shares = states[side] @ vectors[1 - side] / len(states[side]) / length
        np.testing.assert_allclose(found["shares"][side], shares, atol=1e-4)
        assert found["labels"][side][0] == "[CLS]"
    opened = browser.new_page()
    opened.goto(file.as_uri())
    opened.wait_for_selector("html[data-painted]")
    assert head_of(opened)
    opened.fill("[data-test=live-text-0]", texts[0])
    opened.locator("[data-test=live-compare]").click()
    opened.fill("[data-test=live-text-1]", texts[1])
    shown = f"{found['cosine']:.3f}"
    until(opened, f"document.querySelector('.cosine h2 b')?.textContent === {shown!r}")
    opened.close()


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any]:
    """A small model of sentence-transformers, with a limit, whose texts are lower-cased before the tokenizer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    readable(tmp_path / "plain", "Bert", "Model")
    settings = json.loads((tmp_path / "plain" / "tokenizer_config.json").read_text())
    (tmp_path / "plain" / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    inner = Transformer(str(tmp_path / "plain"), max_seq_length=12, do_lower_case=True)
    library = SentenceTransformer(modules=[inner, Pooling(inner.get_embedding_dimension())], device="cpu")
    library.save_pretrained(str(tmp_path / "saved"))
    return tmp_path / "saved", library


@pytest.mark.parametrize("older", [False, True])
def test_a_text_is_read_as_sentence_transformers_reads_it(
    browser: Browser, saved: tuple[Path, Any], older: bool
) -> None:
    """Version 6 keeps the lower case in the tokenizer, older ones in a file of their own."""
    folder, library = saved
    if older:
        state = json.loads((folder / "tokenizer.json").read_text())
        state["normalizer"] = state["normalizer"]["normalizers"][1]
        (folder / "tokenizer.json").write_text(json.dumps(state))
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12, "do_lower_case": true}')
    model = hs.open(folder)
    page = page_with(browser, model)
    read = answered(page, "(text) => wordpiece.encode(text)", "The CAT sat on the mat. [MASK]")
    assert read["ids"] == library.tokenize(["The CAT sat on the mat. [MASK]"])["input_ids"][0].tolist()
    assert "[UNK]" not in read["tokens"][:8]
    greek = answered(page, "(text) => wordpiece.normalized(text, 3)", "ΟΔΟΣ İΣ ΣΑΣ")
    places = [place for place, sign in enumerate("ΟΔΟΣ İΣ ΣΑΣ", 3) for _ in sign.lower()]
    sigmas = "οδος i̇ς σας" if older else "οδοσ i̇σ σασ"
    assert [(each["sign"], each["from"]) for each in greek] == list(zip(sigmas, places, strict=True))
    refused = answered(page, "(text) => { try { passed(text) } catch (error) { return error.message } }", "the " * 11)
    assert refused == "the text has 13 tokens, the model takes 12 at most: shorten it"
    page.close()


def test_a_model_with_a_prompt_is_refused(saved: tuple[Path, Any]) -> None:
    folder, library = saved
    library.prompts, library.default_prompt_name = {"find": "find: "}, "find"
    library.save_pretrained(str(folder))
    with pytest.raises(UnsupportedError, match=r"its prompt 'find: ' is put before every text(.|\n)*headscope view"):
        typed_page(hs.open(folder))

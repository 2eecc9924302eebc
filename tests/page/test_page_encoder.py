"""The page's own tokenizer and forward pass equal those of the tokenizers library and of headscope in NumPy."""

from __future__ import annotations

import json
import random
import unicodedata
from base64 import b64decode
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from looking import answered, page_with
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

import headscope as hs
from headscope.checkpoint.tokenizer.wordpiece import described
from headscope.errors import CheckpointError, UnsupportedError
from headscope.page import typed as packing
from headscope.page.typed import packed
from headscope.runs.engine import Edit, NumpyRunner
from headscope.runs.texts import as_input
from products import pairwise
from random_models import FAMILIES, made
from small_bert import VOCABULARY, small_bert

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from headscope.checkpoint.tokenizer import Tokenizer as Face


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


@pytest.mark.parametrize("each", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["a third", "all"])
def test_a_hundred_texts_of_the_bundled_model(page: Page, each: int) -> None:
    model = hs.open()
    for text, pair in texts(model)[::each]:
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
    [{"layer": layer, "head": head, "how": "zero"} for layer, head in ((0, 0), (3, 3), (0, 3))],
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


TABLES = Path(__file__).parents[2] / "web" / "src" / "encoder" / "unicode.ts"
TEXTS = 10_000
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABC xyz.,;:!?'\"-()[]{}#@$%^&*_+=/\\|~`<>0123456789",
    "ÀÉÎÕÜàéîõüßẞıİŁłØøÆæŒœﬁﬂĲĳǅ",
    "\u0300\u0301\u0308\u0323\u0327\u0345\u0483\u0591\u064b\u0e31\u302e\u3099\u1d165\u16ff0"
    "\u00ad\u200b\u200c\u200d\u2060\ufeff\ufffd\x00\x01\x1f\x7f\x85\x9f",
    " \t\n\r\x0b\x0c\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000",
    "ΑΒΓΣσςάΐΰΆдёйЁЙҐабв",
    "漢字仮名交じり文ｶﾞがガ한국어각\u1100\u1161\u11a8々〆㐀\U00020000豈\uf900",
    "שלוםعربيةहिन्दीไทยမြန်မာ𑎃𑤸𝐀𝒜Ⅷ①½™",
    "😀👍🏽👩‍👩‍👧‍👦🇩🇪\ufe0f\u20e3",
    "“”‘’«»…–—·•¿¡§¶†‡′″‹›。、「」！？",
)
WHOLE = ("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[mask]", "[MASK", "##ing", "unbelievable", "the", "x" * 101)


@cache
def hostile_texts() -> tuple[str, ...]:
    """Mixtures of scripts, marks, controls and special tokens; and every character of Unicode somewhere."""
    generator = random.Random(29)
    planes = [*range(1, 0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE0200)]
    everywhere = [chr(code) for code in planes if unicodedata.category(chr(code)) != "Cn"]
    everywhere = everywhere[:: max(1, len(everywhere) // (8 * TEXTS))]
    texts = []
    for at in range(TEXTS):
        parts = []
        for _ in range(generator.randint(1, 12)):
            kind = generator.random()
            if kind < 0.1:
                parts.append(generator.choice(WHOLE))
            elif kind < 0.2:
                parts.append(" ")
            else:
                letters = generator.choice(ALPHABETS)
                parts.append("".join(generator.choices(letters, k=generator.randint(1, 6))))
        texts.append("".join(parts) + "a".join(everywhere[8 * at : 8 * at + 8]))
    return tuple(texts)


def library(vocabulary: list[str], **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({token: at for at, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([token for token in vocabulary if token[0] == "["])
    cls, sep = vocabulary.index("[CLS]"), vocabulary.index("[SEP]")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    return tokenizer


def letters_and_more() -> list[str]:
    """A vocabulary that spells most of what the texts have: a word that is unknown tells nothing."""
    signs = sorted({sign for letters in ALPHABETS for sign in letters if not sign.isspace()})
    plain = {part for sign in signs for part in unicodedata.normalize("NFD", sign) + sign.lower() + sign}
    every = sorted(plain | set("unbelievable"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "un", "##believ", "##able"]
    return [*words, *every, *(f"##{sign}" for sign in every)]


def test_the_tables_are_the_librarys(request: pytest.FixtureRequest) -> None:
    """`pytest --refresh-screens` writes web/src/encoder/unicode.ts."""
    if request.config.getoption("--refresh-screens"):
        TABLES.write_text(typescript(), encoding="utf-8")
    assert TABLES.read_text(encoding="utf-8") == typescript()


def test_hostile_texts_with_the_bundled_vocabulary(page: Page) -> None:
    tokenizer = hs.open().tokenizer
    texts, expected = [], []
    for text in hostile_texts():
        try:
            encoded = tokenizer.encode(text)
        except hs.InputError:  # no tokens
            continue
        texts.append(text)
        spans = [None if span is None else list(span) for span in encoded.spans]
        expected.append([list(encoded.ids), list(encoded.tokens), list(encoded.words), spans])
    assert len(texts) > 0.99 * TEXTS
    found = answered(
        page,
        "(texts) => texts.map((text) => wordpiece.encode(text)).map((e) => [e.ids, e.tokens, e.words, e.spans])",
        texts,
    )
    assert [text for text, a, b in zip(texts, found, expected, strict=True) if a != b] == []


@pytest.mark.parametrize(("lowercase", "strip", "clean"), pairwise((True, False), (None, True, False), (True, False)))
def test_hostile_texts_with_every_option(
    page: Page, lowercase: bool, strip: bool | None, clean: bool, tmp_path: Path
) -> None:
    options = {"clean_text": clean, "handle_chinese_chars": clean, "strip_accents": strip, "lowercase": lowercase}
    tokenizer = library(letters_and_more(), **options)
    vocabulary = described(read(tokenizer, tmp_path))
    texts = hostile_texts()[::20]
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    kept = [(text, each) for text, each in zip(texts, expected, strict=True) if each.ids]
    found = answered(
        page,
        "([vocabulary, texts]) => { const other = new encoder.WordPiece(vocabulary);"
        " return texts.map((text) => other.encode(text)).map((e) => [e.ids.slice(1, -1), e.spans.slice(1, -1)]); }",
        [vocabulary, [text for text, _ in kept]],
    )
    wrong = [
        text
        for (text, each), (ids, spans) in zip(kept, found, strict=True)
        if ids != each.ids or [tuple(span) for span in spans] != each.offsets
    ]
    assert wrong == []


def read(rust: Tokenizer, folder: Path) -> Face:
    """The tokenizer as headscope opens it from tokenizer.json."""
    small_bert(folder)
    (folder / "vocab.txt").unlink(missing_ok=True)
    rust.save(str(folder / "tokenizer.json"))
    return hs.open(folder).tokenizer


def test_pairs_and_the_window(page: Page) -> None:
    tokenizer = hs.open().tokenizer
    for text, pair in (("The cat sat.", "It [SEP] was a mat"), ("[MASK]", "é"), ("a", "b c [MASK]")):
        encoded = tokenizer.encode(text, pair)
        found = answered(page, "([text, pair]) => wordpiece.encode(text, pair)", [text, pair])
        assert found["ids"] == list(encoded.ids)
        assert found["segments"] == list(encoded.segments)
        assert found["special"] == list(encoded.special)
        assert found["words"] == list(encoded.words)
    for text, why in (("", "no tokens"), (" \u200b ", "no tokens"), ("a\ud83d", "half of a pair")):
        said = page.evaluate(
            "(text) => { try { wordpiece.encode(JSON.parse(text)) } catch (e) { return e.message } }", json.dumps(text)
        )
        assert why in said
    said = page.evaluate("() => { try { passed('the '.repeat(1000)) } catch (e) { return e.message } }")
    assert "1,002 tokens, the model takes 256 at most" in said


def test_what_is_not_wordpiece_is_refused(tmp_path: Path) -> None:
    rust = library(letters_and_more())
    rust.add_tokens([AddedToken("cat", single_word=True)])
    with pytest.raises(UnsupportedError, match="'cat' has the option single_word"):
        described(read(rust, tmp_path / "a"))
    rust = library(letters_and_more())
    rust.normalizer = normalizers.NFC()
    with pytest.raises(UnsupportedError, match="its normalizer is NFC, not BertNormalizer"):
        described(read(rust, tmp_path / "b"))
    rust = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 7}, unk_token="[UNK]"))
    rust.normalizer, rust.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    with pytest.raises(UnsupportedError, match="ids don't run from 0 without a gap"):
        described(read(rust, tmp_path / "c"))
    without = small_bert(tmp_path / "d")
    (without / "vocab.txt").unlink()
    with pytest.raises(hs.HeadscopeError):
        described(hs.open(without).tokenizer)


DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


ASSIGNED = (*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200))
"""All characters but those of the planes for private use."""
PRIVATE = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
"""The planes for private use, which are alike throughout."""


def _normalizer(**options: bool) -> normalizers.BertNormalizer:
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**off, **options})


def tables() -> dict[str, tuple[str, list[int]]]:
    """Name of each table -> what it means, and its code points."""
    clean, spaced = _normalizer(clean_text=True), _normalizer(handle_chinese_chars=True)
    stripped, decomposed = _normalizer(strip_accents=True), normalizers.NFD()
    words = pre_tokenizers.BertPreTokenizer()
    found: dict[str, list[int]] = {name: [] for name in MEANINGS}
    for code in ASSIGNED:
        sign = chr(code)
        cleaned = clean.normalize_str(sign)
        split = [word for word, _ in words.pre_tokenize_str(f"a{sign}b")]
        found["DROPPED"] += [code] * (cleaned == "")
        found["SPACES"] += [code] * (cleaned == " ")
        found["SEPARATORS"] += [code] * (split == ["a", "b"])
        found["PUNCTUATION"] += [code] * (split == ["a", sign, "b"])
        found["IDEOGRAPHS"] += [code] * (spaced.normalize_str(sign) != sign)
        found["MARKS"] += [code] * (stripped.normalize_str(sign) == "")
        found["DECOMPOSED"] += [code] * (decomposed.normalize_str(sign) != sign)
    for first, last in PRIVATE:
        if {clean.normalize_str(chr(code)) for code in (first, last)} == {""}:
            found["DROPPED"] += range(first, last + 1)
    return {name: (MEANINGS[name], codes) for name, codes in found.items()}


MEANINGS = {
    "DROPPED": "dropped where a text is cleaned",
    "SPACES": "turned into a space where a text is cleaned",
    "SEPARATORS": "between words",
    "PUNCTUATION": "words of their own",
    "IDEOGRAPHS": "put between spaces",
    "MARKS": "dropped where accents are stripped, after canonical decomposition",
    "DECOMPOSED": "of which there is a canonical decomposition",
}


def typescript() -> str:
    """The module web/src/encoder/unicode.ts."""
    lines = [
        "// Characters that BERT's tokenizer treats specially, asked of the `tokenizers` library:",
        "// `pytest tests/page/test_page_encoder.py --refresh-screens` writes this file. Ranges: from the end of the",
        '// one before to the first, and how many, in base 36: "gap.count".',
    ]
    for name, (meaning, codes) in tables().items():
        lines += [f"/** Characters {meaning}. */", f'export const {name} = "{" ".join(_ranges(codes))}";']
    return "\n".join(lines) + "\n"


def _ranges(codes: Iterable[int]) -> Iterator[str]:
    end, first, last = 0, None, -1
    for code in codes:
        if first is not None and code != last + 1:
            yield f"{_base36(first - end)}.{_base36(last + 1 - first)}"
            end, first = last + 1, None
        first, last = code if first is None else first, code
    if first is not None:
        yield f"{_base36(first - end)}.{_base36(last + 1 - first)}"


def _base36(number: int) -> str:
    return (_base36(number // 36) if number >= 36 else "") + DIGITS[number % 36]

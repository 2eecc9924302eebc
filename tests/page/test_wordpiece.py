"""WordPiece in the page equals the `tokenizers` library: ids, words and spans, on texts made to tell them apart."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from encoders import answered, page_with
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from unicode_tables import typescript

import headscope as hs
from headscope.checkpoint.tokenizer.wordpiece import described
from headscope.errors import UnsupportedError
from small_bert import small_bert

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from headscope.checkpoint.tokenizer import Tokenizer as Face

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
    return [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "un",
        "##believ",
        "##able",
        *every,
        *(f"##{sign}" for sign in every),
    ]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    opened = page_with(browser, hs.open())
    yield opened
    opened.close()


def test_the_tables_are_the_librarys(request: pytest.FixtureRequest) -> None:
    """`pytest --refresh-screens` writes web/src/encoder/unicode.ts."""
    if request.config.getoption("--refresh-screens"):
        TABLES.write_text(typescript(), encoding="utf-8")
    assert TABLES.read_text(encoding="utf-8") == typescript()


@pytest.mark.parametrize("each", [5, pytest.param(1, marks=pytest.mark.slow)], ids=["a fifth", "all"])
def test_hostile_texts_with_the_bundled_vocabulary(page: Page, each: int) -> None:
    tokenizer = hs.open().tokenizer
    texts, expected = [], []
    for text in hostile_texts()[::each]:
        try:
            encoded = tokenizer.encode(text)
        except hs.InputError:  # no tokens
            continue
        texts.append(text)
        spans = [None if span is None else list(span) for span in encoded.spans]
        expected.append([list(encoded.ids), list(encoded.tokens), list(encoded.words), spans])
    assert len(texts) > 0.99 * TEXTS / each
    found = answered(
        page,
        "(texts) => texts.map((text) => wordpiece.encode(text)).map((e) => [e.ids, e.tokens, e.words, e.spans])",
        texts,
    )
    assert [text for text, a, b in zip(texts, found, expected, strict=True) if a != b] == []


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [None, True, False])
@pytest.mark.parametrize("clean", [True, False])
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

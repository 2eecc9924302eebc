"""What tokens are by themselves, over kinds of tokenizers, against BERT's own pre-tokenizer and transformers."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer

import headscope as hs
from headscope.atlas.words import words_of_text
from headscope.explain.content import content_of
from headscope.heads import roles_of
from headscope.heads.windows import axis_of
from headscope.page.trace import page_bytes
from headscope.page.trace_parts import header_bytes
from headscope.results.score_parts import parts_of
from headscope.results.tokens import punctuation, whole_words
from random_models import made

TEXTS = (
    "the cat , sat .",
    "The cat, it sat (on the mat). It's late ...",
    "  two  spaces , and … “quotes” at the end !",
    "café… 日本 。 naïve ½",
)
LETTERS = sorted(set("".join(TEXTS)) - {" "})


def unigram(pre: Any) -> Tokenizer:
    """Words with a space's mark, single letters, and the mark alone: no sign has the mark in its token."""
    words = {"▁the": -2.0, "▁The": -2.0, "▁cat": -2.0, "at": -3.0, "▁it": -2.0, "▁": -3.0, "...": -4.0}
    rest = {letter: -6.0 for letter in (*LETTERS, *string.ascii_lowercase) if letter not in words}
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *words.items(), *rest.items()], unk_id=0))
    tokenizer.pre_tokenizer = pre
    return tokenizer


def byte_level() -> Tokenizer:
    """Every byte is a token."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(sorted(alphabet))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def word_piece() -> Tokenizer:
    vocabulary = ["[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "XLM-R": lambda: unigram(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])),
    "DeBERTa-v2": lambda: unigram(pre_tokenizers.Metaspace()),
    "whole text": lambda: unigram(pre_tokenizers.Metaspace(split=False)),
    "byte-level": byte_level,
    "WordPiece": word_piece,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", MAKERS)
def test_words_and_signs_are_those_of_berts_pre_tokenizer(kind: str, text: str) -> None:
    expected = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)
    signs = {at for word, (at, end) in expected if end - at == 1 and not word.isalnum() for at in range(at, end)}
    encoding = MAKERS[kind]().encode(text)
    axis = axis_of(encoding)
    numbers, words = whole_words(axis, text)
    assert [word for word in words if word] == joined([word for word, _ in expected], words)
    flags = punctuation(axis, text)
    covered = {at for flag, span in zip(flags, axis.spans, strict=True) if flag and span for at in range(*span)}
    assert {at for at in covered if text[at] != " "} == signs
    assert not any(flag for flag, token in zip(flags, axis.tokens, strict=True) if not token.strip("▁"))
    assert words_of_text(encoding, text).forms == tuple(word for word in words if word)
    assert numbers == sorted(numbers)


def joined(expected: list[str], words: list[str]) -> list[str]:
    """BERT's words, with full stops together where the vocabulary has `...` as one token."""
    if "..." not in words:
        return expected
    return " ".join(expected).replace(". . .", "...").split()


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An XLM-RoBERTa whose vocabulary has no sign with a space's mark."""
    folder = tmp_path_factory.mktemp("xlm-r")
    tokenizer = MAKERS["XLM-R"]()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    ends = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
    )
    made(folder, "XLMRoberta", vocab_size=tokenizer.get_vocab_size())
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "XLMRobertaTokenizerFast", "cls_token": "<s>", "sep_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def test_a_mark_of_a_space_is_no_punctuation(roberta: Path) -> None:
    text, pair = "the cat , sat .", "it , at !"
    model = hs.open(roberta)
    module = AutoModel.from_pretrained(roberta, attn_implementation="eager", trust_remote_code=False).eval()
    live = hs.trace(module, text, tokenizer=AutoTokenizer.from_pretrained(roberta, trust_remote_code=False))
    for trace, signs in (
        (live, [",", "."]),
        (model.trace(text), [",", "."]),
        (model.trace(text, pair), [",", ".", ",", "!"]),
        (model.trace(words=text.split()), [",", "."]),
    ):
        with torch.no_grad():
            weights = module(torch.tensor([trace.ids]), output_attentions=True).attentions
        places = [at for at, token in enumerate(trace.tokens) if token in set(string.punctuation)]
        assert [trace.tokens[at] for at in places] == signs
        assert np.flatnonzero(roles_of(trace).punctuation).tolist() == places
        expected = [layer[0][..., places].sum(-1).mean(-1).numpy() for layer in weights]
        np.testing.assert_allclose(trace.statistics("punctuation")["punctuation"].array, expected, atol=1e-5)


def test_whole_words_of_findings_and_parts(roberta: Path) -> None:
    text = "The cat, it. It (sat) ,"
    trace = hs.open(roberta).trace(text)
    content = content_of(trace, trace.queries, roles_of(trace))
    inner = [word for word, special in zip(content.words, trace.queries.special, strict=True) if not special]
    assert list(dict.fromkeys(word for word in inner if word)) == ["The", "cat", ",", "it", ".", "It", "(", "sat", ")"]
    referring = {content.words[at] for at in np.flatnonzero(content.referring)}
    assert referring == {"it", "It"}
    assert {content.words[at] for at in np.flatnonzero(content.content)} == {"cat", "sat"}
    groups = [part.label for part in parts_of(np.zeros(len(trace.tokens)), trace.queries, "word", text)]
    assert groups == ["<s>", "The", "cat", ",", "it", ".", "It", "▁", "(", "sat", ")", "▁", ",", "</s>"]
    tokens = [part.label for part in parts_of(np.zeros(len(trace.tokens)), trace.queries, "token", text)]
    assert tokens[-4:] == [")", "▁", ",", "</s>"]


@pytest.mark.parametrize("content", [page_bytes, header_bytes])
def test_a_page_merges_the_words_that_everything_else_counts(
    roberta: Path, tmp_path: Path, content: Callable[[hs.Trace], bytes]
) -> None:
    text = "The cat, it sat (on the mat) ."
    (tmp_path / "page.trace").write_bytes(content(hs.open(roberta).trace(text)))
    with safe_open(tmp_path / "page.trace", "numpy") as file:
        metadata = file.metadata()
    axis, labels = json.loads(metadata["headscope"])["queries"], json.loads(metadata["headscope.view"])["labels"]
    words: dict[int, str] = {}
    for word, span in zip(axis["words"], axis["spans"], strict=True):
        if word is not None:
            words[word] = words.get(word, "") + text[slice(*span)]
    expected = [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)]
    assert [word for word in words.values() if word] == expected
    assert [word is None for word in axis["words"]] == axis["special"]
    signs = set(string.punctuation)
    assert [label for label in labels if label.strip("·") in signs] == [word for word in expected if word in signs]


def test_bytes_of_a_character_are_one_word() -> None:
    text = "日 é !"
    axis = axis_of(byte_level().encode(text))
    numbers, words = whole_words(axis, text)
    assert [word for word in words if word] == ["日", "é", "!"]
    assert np.bincount(numbers).max() >= 3

"""Tokenizer files that are damaged, hostile, or contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import BERT_SPECIALS, Folder, folder_with, unigram_json, write_json

from headscope.checkpoint.tokenizer import load_tokenizer
from headscope.checkpoint.tokenizer.backend import library_errors
from headscope.errors import CheckpointError, HeadscopeError, UnsupportedError

SMALL = [*BERT_SPECIALS, "the", "cat", "##s"]
TRUNCATED = json.dumps(unigram_json())[:2000]
PLAIN = {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
PLAIN["max_input_chars_per_word"] = 100

HOSTILE_TOKENIZERS = {
    "empty": "",
    "not JSON": "PK\x03\x04",
    "truncated": TRUNCATED,
    "a list": "[]",
    "an empty object": "{}",
    "null": "null",
    "deep": '{"version":"1.0","model":' + "[" * 200_000,
    "deep list": "[" * 200_000,
    "no such model": '{"version":"1.0","model":{"type":"Mystery","vocab":{}}}',
    "wrong vocabulary": '{"version":"1.0","model":{"type":"WordPiece","vocab":{"a":"b"},"unk_token":"[UNK]"}}',
    "negative id": '{"version":"1.0","model":{"type":"WordPiece","vocab":{"a":-1},"unk_token":"[UNK]"}}',
    "empty unigram": '{"version":"1.0","model":{"type":"Unigram","vocab":[],"unk_id":0}}',
    "unknown beyond": '{"version":"1.0","model":{"type":"Unigram","vocab":[["a",0.0]],"unk_id":5}}',
    "merge of nothing": '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}',
    "no unknown token": json.dumps({"version": "1.0", "model": PLAIN}),
    "template without its tokens": json.dumps(
        {
            "version": "1.0",
            "model": {**PLAIN, "vocab": {"a": 0, "[UNK]": 1}},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            },
        }
    ),
    "template without the text": json.dumps(
        {
            "version": "1.0",
            "model": {**PLAIN, "vocab": {"a": 0, "[UNK]": 1}},
            "post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
        }
    ),
    "pattern": json.dumps(
        {
            "version": "1.0",
            "model": {**PLAIN, "vocab": {"a": 0, "[UNK]": 1}},
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "(("},
                "behavior": "Isolated",
                "invert": False,
            },
        }
    ),
}


@pytest.mark.parametrize("case", HOSTILE_TOKENIZERS)
def test_hostile_tokenizer_json(tmp_path: Path, case: str) -> None:
    folder = folder_with(tmp_path, {"model_type": "bert"})
    (tmp_path / "tokenizer.json").write_text(HOSTILE_TOKENIZERS[case], encoding="utf-8")
    with pytest.raises((CheckpointError, UnsupportedError)) as caught:
        load_tokenizer(folder).encode("b b")
    assert "tokenizer.json" in str(caught.value.where)
    assert caught.value.advice


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_tokenizer_json(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    good = SMALL_JSON
    start = data.draw(st.integers(0, len(good) - 1))
    stop = data.draw(st.integers(start, min(len(good), start + 20)))
    damaged = good[:start] + data.draw(st.binary(max_size=4)) + good[stop:]
    path = tmp_path_factory.mktemp("damaged")
    (path / "tokenizer.json").write_bytes(damaged)
    try:
        load_tokenizer(Folder(path, {"model_type": "bert"})).encode("the cats", "a b", max_length=9)
    except HeadscopeError as error:
        assert error.advice  # noqa: PT017


SMALL_JSON = json.dumps(
    {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0},
        "added_tokens": [{"id": 4, "content": "[MASK]", "special": True}],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {**PLAIN, "vocab": {token: index for index, token in enumerate(SMALL)}},
    }
).encode("utf-8")


@pytest.mark.parametrize("filename", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a":' * 200_000, "\ufffe{}", '"a"', '{"a":1,"a":2}'])
def test_hostile_small_files(tmp_path: Path, filename: str, text: str) -> None:
    folder = folder_with(tmp_path, {"model_type": "bert"}, vocab_txt=SMALL)
    (tmp_path / filename).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder)
    assert filename in str(caught.value)


@pytest.mark.parametrize(
    ("filename", "value"),
    [
        ("tokenizer_config.json", {"do_lower_case": "yes"}),
        ("tokenizer_config.json", {"tokenizer_class": ["BertTokenizer"]}),
        ("tokenizer_config.json", {"mask_token": 7}),
        ("tokenizer_config.json", {"mask_token": {"lstrip": True}}),
        ("tokenizer_config.json", {"mask_token": ""}),
        ("tokenizer_config.json", {"added_tokens_decoder": ["[MASK]"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "[MASK]"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"-1": {"content": "[MASK]"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"4": {"content": "other"}}}),
        ("tokenizer_config.json", {"additional_special_tokens": "x"}),
        ("tokenizer_config.json", {"additional_special_tokens": ["\ud800"]}),
        ("tokenizer_config.json", {"truncation_side": 3}),
        ("special_tokens_map.json", {"cls_token": ["[CLS]"]}),
        ("added_tokens.json", {"<e1>": "x"}),
        ("added_tokens.json", {"<e1>": 999}),
        ("added_tokens.json", {"cat": 3}),
    ],
)
def test_contradictions(tmp_path: Path, filename: str, value: dict[str, Any]) -> None:
    folder = folder_with(tmp_path, {"model_type": "bert"}, vocab_txt=SMALL)
    (tmp_path / filename).write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder).encode("the")
    assert caught.value.advice


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "vocabulary is empty"),
        (b"\n\n", "vocabulary is empty"),
        (b"[PAD]\n\xff\xfe\n", "can't be read as UTF-8"),
        (b"the\ncat\n", r"lacks \[CLS\], \[SEP\], \[UNK\]"),
    ],
)
def test_hostile_vocab_txt(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(Folder(tmp_path, {"model_type": "bert"}))


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        ({"a": 0}, "", "lacks <s>, </s>"),
        ({}, "", "has no tokens"),
        ({"<s>": 0, "</s>": -1}, "", "the id of '</s>' is -1"),
        ({"<s>": 0, "</s>": True}, "", "the id of '</s>' is True"),
        ({"<s>": 0, "</s>": 1}, "#version: 0.2\na b c\n", "line 2 of merges.txt has 3"),
        ({"<s>": 0, "</s>": 1}, "a b\n", "out of vocabulary"),
    ],
)
def test_hostile_byte_level(tmp_path: Path, vocabulary: dict[str, Any], merges: str, message: str) -> None:
    folder = folder_with(tmp_path, {"model_type": "roberta"}, vocab=vocabulary, merges_txt=merges)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(folder)


def test_a_panic_of_the_library_is_an_error_of_ours() -> None:
    class PanicException(BaseException):
        """pyo3's: it derives from BaseException alone."""

    def call(error: BaseException) -> None:
        with library_errors("tokenizer.json", "fetch it again"):
            raise error

    with pytest.raises(CheckpointError, match="panicked: index out of bounds"):
        call(PanicException("index out of bounds"))
    with pytest.raises(KeyboardInterrupt):
        call(KeyboardInterrupt())


@pytest.mark.parametrize("case", ["single", "pair"])
def test_a_template_that_repeats_or_swaps_texts(tmp_path: Path, case: str) -> None:
    state = unigram_json()
    template = state["post_processor"]
    template[case] = template[case] * 2 if case == "single" else template[case][::-1]
    write_json(tmp_path, "tokenizer.json", state)
    with pytest.raises(UnsupportedError, match="template uses"):
        load_tokenizer(Folder(tmp_path)).encode("the", None if case == "single" else "cat")

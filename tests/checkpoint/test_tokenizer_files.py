"""Tokenizer files that are damaged, hostile, or contradict each other."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizer_folders import BERT_SPECIALS, Folder, folder_with, unigram_json, write_json
from tokenizers import Tokenizer

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.checkpoint.tokenizer import load_tokenizer
from headscope.checkpoint.tokenizer.backend import library_errors
from headscope.errors import CheckpointError, UnsupportedError

SMALL = [*BERT_SPECIALS, "the", "cat", "##s"]
PLAIN = {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
PLAIN["max_input_chars_per_word"] = 100


def wordpiece(**parts: Any) -> str:
    """A tokenizer.json of two words, and these parts."""
    return json.dumps({"version": "1.0", "model": {**PLAIN, "vocab": {"a": 0, "[UNK]": 1}}, **parts})


def template(single: list[Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
SPLIT = {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False}

HOSTILE_TOKENIZERS = {
    "empty": "",
    "not JSON": "PK\x03\x04",
    "truncated": json.dumps(unigram_json())[:2000],
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
    "template without its tokens": wordpiece(
        post_processor=template([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, TEXT])
    ),
    "template without the text": wordpiece(post_processor=template([])),
    "pattern": wordpiece(pre_tokenizer=SPLIT),
}


@pytest.mark.parametrize("case", HOSTILE_TOKENIZERS)
def test_hostile_tokenizer_json(tmp_path: Path, case: str) -> None:
    folder = folder_with(tmp_path, {"model_type": "bert"})
    (tmp_path / "tokenizer.json").write_text(HOSTILE_TOKENIZERS[case], encoding="utf-8")
    with pytest.raises((CheckpointError, UnsupportedError)) as caught:
        load_tokenizer(folder).encode("b b")
    assert "tokenizer.json" in str(caught.value.where)
    assert caught.value.advice


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
    for interrupt in (KeyboardInterrupt, SystemExit):
        with pytest.raises(interrupt):
            call(interrupt())


@pytest.mark.parametrize("case", ["single", "pair"])
def test_a_template_that_repeats_or_swaps_texts(tmp_path: Path, case: str) -> None:
    state = unigram_json()
    template = state["post_processor"]
    template[case] = template[case] * 2 if case == "single" else template[case][::-1]
    write_json(tmp_path, "tokenizer.json", state)
    with pytest.raises(UnsupportedError, match="template uses"):
        load_tokenizer(Folder(tmp_path)).encode("the", None if case == "single" else "cat")


# Rules that double a text each are refused before any text is read; usual rules are not.

LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def charsmap(content: bytes) -> dict[str, Any]:
    """A table of sentencepiece whose only replacement is this long."""
    table = (4).to_bytes(4, "little") + bytes(4) + content + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def saved(folder: Path, normaliser: Any, splitter: Any = None) -> Path:
    shutil.copytree(BUNDLED, folder, dirs_exist_ok=True)
    file = folder / "tokenizer.json"
    stated = json.loads(file.read_text())
    stated["normalizer"] = normaliser
    stated["pre_tokenizer"] = splitter or stated["pre_tokenizer"]
    # An added token is normalised when the file is read, before any text.
    stated["added_tokens"] += [{**stated["added_tokens"][0], "id": 9, "content": "aa", "normalized": True}]
    file.write_text(json.dumps(stated))
    return folder


@pytest.mark.parametrize(
    "rules",
    [
        [replace("aa", String="a")] * 24,
        [{"type": "Sequence", "normalizers": [replace("aa", String="a")] * 12}] * 2,
        [replace("a", Regex="(?=a)")] * 24,
        [replace("a", String="")] * 24,
        [replace("aaa", Regex="a")] * 24,
        [LETTERS] * 24,
        [charsmap(b"x" * 100)] * 4,
        [replace("b" * 300, String="a")],
    ],
    ids=["literal", "nested", "between letters", "everywhere", "pattern", "bytes", "charsmap", "once"],
)
def test_rules_that_grow_without_bound_are_refused(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    folder = saved(tmp_path, {"type": "Sequence", "normalizers": rules})
    with pytest.raises(UnsupportedError, match="rules that make a text longer may make more than 256"):
        hs.open(folder).trace("a cat")
    with pytest.raises(UnsupportedError, match="may make more than 256"):
        hs.open(folder).trace(words=["a", "cat"])
    assert hs.open(folder).trace(ids=[2, 9, 3]).ids == (2, 9, 3)


def test_splitters_that_grow_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, None, {"type": "Sequence", "pretokenizers": [LETTERS] * 24})
    with pytest.raises(UnsupportedError, match="may make more than 256"):
        hs.open(folder).trace("é")


def test_many_rules_that_do_not_grow_are_run(tmp_path: Path) -> None:
    usual = [
        {"type": "NFKC"},
        *[replace(" ", Regex=" {2,}")] * 10,
        *[replace("a", String="á")] * 30,
        replace("''", String='"'),
        replace(" , ", Regex="[,;]"),
        {"type": "Lowercase"},
    ]
    folder = saved(tmp_path, {"type": "Sequence", "normalizers": usual})
    text = "A cat, á  dog"
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert list(hs.open(folder).trace(text).ids) == expected

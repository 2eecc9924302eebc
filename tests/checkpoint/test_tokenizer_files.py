"""Tokenizer files that are damaged, hostile or contradictory; invalid inputs; what needs more than files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from headscope.checkpoint.tokenizer import Tokenizer, load_tokenizer
from headscope.checkpoint.tokenizer.backend import library_errors
from headscope.errors import CheckpointError, InputError, UnsupportedError
from tokenizer_folders import BERT_SPECIALS, Folder, folder_with, unigram_json, wordpiece_json, write_json

SMALL = [*BERT_SPECIALS, "the", "cat", "##s"]


def wordpiece(**parts: Any) -> str:
    """A tokenizer.json of two words, and these parts."""
    return json.dumps(wordpiece_json({"a": 0, "[UNK]": 1}, **parts))


def template(single: list[Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}


CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
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
    "no unknown token": json.dumps(wordpiece_json({"a": 0})),
    "template without its tokens": wordpiece(post_processor=template([CLS, TEXT])),
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


def test_a_template_of_unequal_columns(tmp_path: Path) -> None:
    rule = template([CLS, TEXT])
    rule["special_tokens"] = {"[CLS]": {"id": "[CLS]", "ids": [1, 1], "tokens": ["[CLS]"]}}
    folder = folder_with(tmp_path, {"model_type": "bert"})
    (tmp_path / "tokenizer.json").write_text(wordpiece(post_processor=rule), encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.encode_ids([1, 0])):
        with pytest.raises(CheckpointError, match="produces 3 ids but 2 tokens"):
            call()


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


# Errors: invalid inputs, and tokenizers that need more than their files.


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    config = {"model_type": "bert", "vocab_size": 8, "type_vocab_size": 2}
    return load_tokenizer(folder_with(tmp_path, config, vocab_txt=SMALL))


INPUTS: dict[str, tuple[Callable[[Tokenizer], Any], str]] = {
    "empty": (lambda t: t.encode(""), "text is empty"),
    "space": (lambda t: t.encode(" \n\u3000"), "the text has no tokens"),
    "empty pair": (lambda t: t.encode("the", ""), "pair is empty"),
    "no text": (lambda t: t.encode(None), "NoneType"),
    "list as text": (lambda t: t.encode(["the"]), "expected a string"),
    "NUL": (lambda t: t.encode("\0"), "has no tokens"),
    "lone accent": (lambda t: t.encode("\u0301"), "has no tokens"),
    "surrogate": (lambda t: t.encode("the \ud83d"), "character 4 of text is U+D83D"),
    "surrogate word": (lambda t: t.encode_words(["the", "\udc80"]), "character 0 of words[1] is U+DC80"),
    "no words": (lambda t: t.encode_words([]), "words is empty"),
    "empty word": (lambda t: t.encode_words(["the", ""]), "words[1] is empty"),
    "text as words": (lambda t: t.encode_words("the cat"), "expected a list of strings"),
    "number as word": (lambda t: t.encode_words(["the", 3]), "words[1] has type int"),
    "empty pair of words": (lambda t: t.encode_words(["the"], []), "pair is empty"),
    "no ids": (lambda t: t.encode_ids([]), "ids is empty"),
    "id beyond": (lambda t: t.encode_ids([1, 8]), "ids[1] is 8, but the model's vocabulary has ids 0 to 7"),
    "id below": (lambda t: t.encode_ids([-1]), "ids[0] is -1"),
    "huge id": (lambda t: t.encode_ids([2**70]), str(2**70)),
    "fraction": (lambda t: t.encode_ids([1.5]), "ids[0] is 1.5"),
    "nested": (lambda t: t.encode_ids([[1, 2]]), "ids[0] is [1, 2]"),
    "number": (lambda t: t.encode_ids(7), "ids has type int"),
    "segments short": (lambda t: t.encode_ids([1, 2], [0]), "segments has 1 entries, but ids has 2"),
    "segment beyond": (lambda t: t.encode_ids([1, 2], [0, 2]), "segments[1] is 2"),
    "segment below": (lambda t: t.encode_ids([1, 2], [0, -1]), "segments[1] is -1"),
    "max_length": (lambda t: t.encode("the", max_length=2), "max_length is 2, but the special tokens take 2"),
    "max_length of pair": (lambda t: t.encode("the", "cat", max_length=4), "special tokens take 3 positions"),
    "max_length 0": (lambda t: t.encode("the", max_length=0), "max_length is 0"),
    "max_length true": (lambda t: t.encode("the", max_length=True), "max_length is True"),
    "max_length text": (lambda t: t.encode("the", max_length="9"), "max_length is '9'"),
    "token": (lambda t: t.token(8), "id is 8"),
    "token of a token": (lambda t: t.token("the"), "id is 'the', expected an integer"),
    "id of an id": (lambda t: t.id(5), "token has type int, expected a string"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_inputs(tokenizer: Tokenizer, case: str) -> None:
    call, message = INPUTS[case]
    with pytest.raises(InputError) as caught:
        call(tokenizer)
    assert message in str(caught.value)
    assert caught.value.where
    assert caught.value.advice


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, {"model_type": "bert", "vocab_size": 100, "pad_token_id": 0}))
    for call in (lambda: tokenizer.encode("the"), lambda: tokenizer.encode_words(["the"])):
        with pytest.raises(CheckpointError, match="lacks the files of a tokenizer") as caught:
            call()
        assert "ids=" in str(caught.value)
    assert tokenizer.encode_ids([1, 99, 0]).tokens == ("#1", "#99", "#0")
    assert tokenizer.encode_ids([1, 99, 0]).special == (False, False, True)
    assert (tokenizer.size, tokenizer.mask_token, tokenizer.mask_id, tokenizer.source) == (100, None, None, None)
    assert load_tokenizer(folder_with(tmp_path, {"model_type": "bert"})).encode_ids([5]).tokens == ("#5",)


@pytest.mark.parametrize(
    ("config", "files", "found", "advice"),
    [
        (
            "roberta",
            {"vocab_txt": SMALL},
            "RobertaTokenizer, the tokenizer of model_type roberta, can't use vocab.txt",
            "BertTokenizer, add tokenizer_class in tokenizer_config.json",
        ),
        ("deberta-v2", {"vocab_txt": SMALL}, "can't use vocab.txt", "BertTokenizer, add tokenizer_class"),
        (
            "roberta",
            {"vocab_txt": SMALL, "vocab": {"a": 0}},
            "vocab.json without merges.txt. RobertaTokenizer, ",
            "BertTokenizer, add",
        ),
        ("roberta", {"vocab": {"<s>": 0, "</s>": 1}}, "vocab.json without merges.txt", ""),
        ("bert", {"vocab": {"a": 0}, "merges_txt": ""}, "can't use vocab.json and merges.txt", "RobertaTokenizer, add"),
        (
            "roberta",
            {"vocab_txt": SMALL, "tokenizer_config": {"tokenizer_class": "RobertaTokenizer"}},
            "RobertaTokenizer, named in tokenizer_config.json, can't use vocab.txt",
            "correct tokenizer_class in tokenizer_config.json",
        ),
    ],
)
def test_files_that_another_class_made_are_named(
    tmp_path: Path, config: str, files: dict[str, Any], found: str, advice: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder_with(tmp_path, {"model_type": config}, **files)).encode("the")
    listed = caught.value.found.partition("none of ")[2].partition(". ")[0]
    assert not [name for name in listed.split(", ") if (tmp_path / name).is_file()]
    assert found in caught.value.found
    assert advice in caught.value.advice


def test_the_advice_for_such_a_file_is_right(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"model_type": "roberta"}, vocab_txt=SMALL)
    with pytest.raises(CheckpointError):
        load_tokenizer(folder).encode("the")
    named = folder_with(
        tmp_path, {"model_type": "roberta"}, vocab_txt=SMALL, tokenizer_config={"tokenizer_class": "BertTokenizer"}
    )
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)("the the")["input_ids"]
    assert list(load_tokenizer(named).encode("the the").ids) == expected


@pytest.mark.parametrize(
    ("class_name", "files", "message"),
    [
        ("PhobertTokenizer", {"vocab_txt": "x 1\n"}, "PhobertTokenizer"),
        ("BertweetTokenizer", {"vocab_txt": "x 1\n"}, "tweet normalizer"),
        ("HerbertTokenizerFast", {"vocab": {"a": 0}, "merges_txt": ""}, "HerbertTokenizer"),
        ("XLMRobertaTokenizer", {}, "sentencepiece model"),
        ("CamembertTokenizer", {}, "sentencepiece model"),
        ("MysteryTokenizer", {"vocab_txt": SMALL}, "MysteryTokenizer, which needs steps that headscope doesn't have"),
        ("PreTrainedTokenizerFast", {"vocab_txt": SMALL}, "PreTrainedTokenizerFast"),
    ],
)
def test_classes_that_need_more(tmp_path: Path, class_name: str, files: dict[str, Any], message: str) -> None:
    config = {"model_type": "roberta", "vocab_size": 50}
    tokenizer = load_tokenizer(folder_with(tmp_path, config, tokenizer_config={"tokenizer_class": class_name}, **files))
    for call in (lambda: tokenizer.encode("the"), lambda: tokenizer.encode_words(["the"])):
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert message in str(caught.value)
        assert "save_pretrained" in str(caught.value)
    assert tokenizer.encode_ids([49]).tokens == ("#49",)


def test_sentencepiece_alone(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"model_type": "camembert"})
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"\x0a\x00")
    with pytest.raises(UnsupportedError, match="CamembertTokenizer, which needs a sentencepiece model"):
        load_tokenizer(folder).encode("le chat")


TWEETS = {"tokenizer_class": "BertweetTokenizer", "normalization": True}
OWN_CODE = {"tokenizer_class": "BertTokenizer", "auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}
NEED_MORE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an unknown model": (
        {"model_type": "mystery"},
        {"vocab_txt": SMALL},
        r"the tokenizer's class is unknown: .*mystery",
    ),
    "code of its own": ({}, {"vocab_txt": SMALL, "tokenizer_config": OWN_CODE}, "code from the checkpoint"),
    "a normalizer of tweets": ({}, {"tokenizer": unigram_json(), "tokenizer_config": TWEETS}, "tweet normalizer"),
    "casing that nothing proves": (
        {"model_type": "bert"},
        {"vocab_txt": [*BERT_SPECIALS, *(f"word{i}" for i in range(300)), "Stray"]},
        r"1 of the vocabulary's 301 tokens .*'Stray'[\s\S]*do_lower_case",
    ),
    "a segmenter that nothing names": (
        {"model_type": "bert"},
        {"vocab_txt": [*BERT_SPECIALS, "東京", "猫", "the"]},
        r"word segmenter that no file names[\s\S]*ids=",
    ),
}


@pytest.mark.parametrize("kind", NEED_MORE)
def test_vocabularies_that_are_not_enough(tmp_path: Path, kind: str) -> None:
    config, files, message = NEED_MORE[kind]
    tokenizer = load_tokenizer(folder_with(tmp_path, config, **files))
    for call in (lambda: tokenizer.encode("word1"), lambda: tokenizer.encode_words(["word1"])):
        with pytest.raises(UnsupportedError, match=message):
            call()
    if "vocab_txt" in files:
        assert tokenizer.encode_ids([5]).tokens == (files["vocab_txt"][5],)


def test_the_same_refusal_twice(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, {}))
    errors = []
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            tokenizer.encode("the")
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])

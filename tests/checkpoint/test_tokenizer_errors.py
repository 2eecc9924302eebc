"""Errors of tokenizers: invalid inputs, and tokenizers that need more than their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import BERT_SPECIALS, Folder, folder_with, unigram_json

from headscope.checkpoint.tokenizer import Tokenizer, load_tokenizer
from headscope.errors import CheckpointError, InputError, UnsupportedError

SMALL = [*BERT_SPECIALS, "the", "cat", "##s"]


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
}


@pytest.mark.parametrize("case", INPUTS)
def test_inputs(tokenizer: Tokenizer, case: str) -> None:
    call, message = INPUTS[case]
    with pytest.raises(InputError) as caught:
        call(tokenizer)
    assert message in str(caught.value)
    assert caught.value.where
    assert caught.value.advice


@given(ids=st.lists(st.integers(-3, 12), max_size=5), segments=st.none() | st.lists(st.integers(-1, 3), max_size=5))
@settings(max_examples=100)
def test_any_ids(ids: list[int], segments: list[int] | None) -> None:
    without = load_tokenizer(Folder(Path("nowhere"), {"vocab_size": 10, "type_vocab_size": 2}))
    fits = segments is None or (len(segments) == len(ids) and all(0 <= segment < 2 for segment in segments))
    if ids and fits and all(0 <= index < 10 for index in ids):
        assert without.encode_ids(ids, segments).ids == tuple(ids)
    else:
        with pytest.raises(InputError):
            without.encode_ids(ids, segments)


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, {"model_type": "bert"}))
    for call in (lambda: tokenizer.encode("the"), lambda: tokenizer.encode_words(["the"])):
        with pytest.raises(CheckpointError, match="lacks the files of a tokenizer") as caught:
            call()
        assert "ids=" in str(caught.value)
    assert tokenizer.encode_ids([5]).tokens == ("#5",)


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


def test_unknown_model_with_a_vocabulary(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, {"model_type": "mystery"}, vocab_txt=SMALL))
    with pytest.raises(UnsupportedError, match=r"the tokenizer's class is unknown: .*mystery"):
        tokenizer.encode("the")
    assert tokenizer.encode_ids([5]).tokens == ("the",)


def test_code_of_its_own(tmp_path: Path) -> None:
    options = {"tokenizer_class": "BertTokenizer", "auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}
    tokenizer = load_tokenizer(folder_with(tmp_path, {}, vocab_txt=SMALL, tokenizer_config=options))
    with pytest.raises(UnsupportedError, match="code from the checkpoint"):
        tokenizer.encode("the")


def test_tweet_normalizer_beside_a_tokenizer_json(tmp_path: Path) -> None:
    options = {"tokenizer_class": "BertweetTokenizer", "normalization": True}
    folder = folder_with(tmp_path, {}, tokenizer=unigram_json(), tokenizer_config=options)
    with pytest.raises(UnsupportedError, match="tweet normalizer"):
        load_tokenizer(folder).encode("the")


def test_casing_that_nothing_proves(tmp_path: Path) -> None:
    vocabulary = [*BERT_SPECIALS, *(f"word{i}" for i in range(300)), "Stray"]
    folder = folder_with(tmp_path, {"model_type": "bert"}, vocab_txt=vocabulary)
    tokenizer = load_tokenizer(folder)
    with pytest.raises(UnsupportedError, match=r"1 of the vocabulary's 301 tokens .*'Stray'") as caught:
        tokenizer.encode("word1")
    assert "do_lower_case" in str(caught.value.advice)
    assert tokenizer.encode_ids([len(vocabulary) - 1]).tokens == ("Stray",)


def test_a_vocabulary_made_by_an_unnamed_segmenter(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"model_type": "bert"}, vocab_txt=[*BERT_SPECIALS, "東京", "猫", "the"])
    tokenizer = load_tokenizer(folder)
    for ask in (lambda: tokenizer.encode("猫"), lambda: tokenizer.encode_words(["猫"])):
        with pytest.raises(UnsupportedError, match=r"word segmenter that no file names[\s\S]*ids="):
            ask()
    assert tokenizer.encode_ids([len(BERT_SPECIALS)]).tokens == ("東京",)


def test_the_same_refusal_twice(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, {}))
    errors = []
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            tokenizer.encode("the")
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])

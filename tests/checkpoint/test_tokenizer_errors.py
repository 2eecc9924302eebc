"""What is refused: tokenizers that need more than their files, hostile files, and inputs that can't be."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import BERT_SPECIALS, Folder, folder_with, unigram_json, write_json

from headscope.checkpoint.tokenizer import Tokenizer, load_tokenizer
from headscope.checkpoint.tokenizer.backend import library_errors
from headscope.errors import CheckpointError, HeadscopeError, InputError, MissingExtraError, UnsupportedError

SMALL = [*BERT_SPECIALS, "the", "cat", "##s"]
JAPANESE = [*BERT_SPECIALS, "猫", "は", "走る", "##る", "ガ", "走"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    config = {"model_type": "bert", "vocab_size": 8, "type_vocab_size": 2}
    return load_tokenizer(folder_with(tmp_path, config, vocab_txt=SMALL))


INPUTS: dict[str, tuple[Callable[[Tokenizer], Any], str]] = {
    "empty": (lambda t: t.encode(""), "text is empty"),
    "space": (lambda t: t.encode(" \n\u3000"), "nothing but white space (3 characters)"),
    "empty pair": (lambda t: t.encode("the", ""), "pair is empty"),
    "no text": (lambda t: t.encode(None), "NoneType"),
    "list as text": (lambda t: t.encode(["the"]), "should be a string"),
    "NUL": (lambda t: t.encode("\0"), "leaves no pieces"),
    "lone accent": (lambda t: t.encode("\u0301"), "leaves no pieces"),
    "surrogate": (lambda t: t.encode("the \ud83d"), "character 4 of text is U+D83D"),
    "surrogate word": (lambda t: t.encode_words(["the", "\udc80"]), "character 0 of words[1] is U+DC80"),
    "no words": (lambda t: t.encode_words([]), "words is empty"),
    "empty word": (lambda t: t.encode_words(["the", ""]), "words[1] is empty"),
    "text as words": (lambda t: t.encode_words("the cat"), "should be a list of strings"),
    "number as word": (lambda t: t.encode_words(["the", 3]), "words[1] is of type int"),
    "empty pair of words": (lambda t: t.encode_words(["the"], []), "pair is empty"),
    "no ids": (lambda t: t.encode_ids([]), "ids is empty"),
    "id beyond": (lambda t: t.encode_ids([1, 8]), "ids[1] is 8, and the model's vocabulary has ids 0 to 7"),
    "id below": (lambda t: t.encode_ids([-1]), "ids[0] is -1"),
    "huge id": (lambda t: t.encode_ids([2**70]), str(2**70)),
    "fraction": (lambda t: t.encode_ids([1.5]), "ids[0] is 1.5"),
    "nested": (lambda t: t.encode_ids([[1, 2]]), "ids[0] is [1, 2]"),
    "number": (lambda t: t.encode_ids(7), "ids is of type int"),
    "segments short": (lambda t: t.encode_ids([1, 2], [0]), "segments has 1 entries, and ids has 2"),
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
    call, found = INPUTS[case]
    with pytest.raises(InputError) as caught:
        call(tokenizer)
    assert found in str(caught.value)
    assert caught.value.where
    assert caught.value.advice


@given(ids=st.lists(st.integers(-3, 12), max_size=5), segments=st.none() | st.lists(st.integers(-1, 3), max_size=5))
@settings(max_examples=100, deadline=None)
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
        with pytest.raises(CheckpointError, match="no tokenizer that could read text") as caught:
            call()
        assert "ids=" in str(caught.value)
    assert tokenizer.encode_ids([5]).tokens == ("#5",)


@pytest.mark.parametrize(
    ("class_name", "files", "found"),
    [
        ("PhobertTokenizer", {"vocab_txt": "x 1\n"}, "PhobertTokenizer"),
        ("BertweetTokenizer", {"vocab_txt": "x 1\n"}, "tweet normalizer"),
        ("HerbertTokenizerFast", {"vocab": {"a": 0}, "merges_txt": ""}, "HerbertTokenizer"),
        ("XLMRobertaTokenizer", {}, "sentencepiece model"),
        ("CamembertTokenizer", {}, "sentencepiece model"),
        ("MysteryTokenizer", {"vocab_txt": SMALL}, "MysteryTokenizer, which needs more than headscope knows"),
        ("PreTrainedTokenizerFast", {"vocab_txt": SMALL}, "PreTrainedTokenizerFast"),
    ],
)
def test_classes_that_need_more(tmp_path: Path, class_name: str, files: dict[str, Any], found: str) -> None:
    config = {"model_type": "roberta", "vocab_size": 50}
    tokenizer = load_tokenizer(folder_with(tmp_path, config, tokenizer_config={"tokenizer_class": class_name}, **files))
    for call in (lambda: tokenizer.encode("the"), lambda: tokenizer.encode_words(["the"])):
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert found in str(caught.value)
        assert "save_pretrained" in str(caught.value)
    assert tokenizer.encode_ids([49]).tokens == ("#49",)


def test_sentencepiece_alone(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"model_type": "camembert"})
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"\x0a\x00")
    with pytest.raises(UnsupportedError, match="CamembertTokenizer, which needs a sentencepiece model"):
        load_tokenizer(folder).encode("le chat")


def test_unknown_model_with_a_vocabulary(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, {"model_type": "mystery"}, vocab_txt=SMALL))
    with pytest.raises(UnsupportedError, match=r"nothing says which tokenizer .*mystery"):
        tokenizer.encode("the")
    assert tokenizer.encode_ids([5]).tokens == ("the",)


def test_code_of_its_own(tmp_path: Path) -> None:
    options = {"tokenizer_class": "BertTokenizer", "auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}
    tokenizer = load_tokenizer(folder_with(tmp_path, {}, vocab_txt=SMALL, tokenizer_config=options))
    with pytest.raises(UnsupportedError, match="code that comes with the checkpoint"):
        tokenizer.encode("the")


def test_tweet_normalizer_beside_a_tokenizer_json(tmp_path: Path) -> None:
    options = {"tokenizer_class": "BertweetTokenizer", "normalization": True}
    folder = folder_with(tmp_path, {}, tokenizer=unigram_json(), tokenizer_config=options)
    with pytest.raises(UnsupportedError, match="tweet normalizer"):
        load_tokenizer(folder).encode("the")


def test_half_a_byte_level_bpe(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, {"model_type": "roberta"}, vocab={"<s>": 0, "</s>": 1}))
    with pytest.raises(CheckpointError, match=r"vocab\.json without merges\.txt"):
        tokenizer.encode("the")


def test_casing_that_nothing_proves(tmp_path: Path) -> None:
    vocabulary = [*BERT_SPECIALS, *(f"word{i}" for i in range(300)), "Stray"]
    folder = folder_with(tmp_path, {"model_type": "bert"}, vocab_txt=vocabulary)
    with pytest.raises(UnsupportedError, match=r"1 of the vocabulary's 301 pieces .*'Stray'") as caught:
        load_tokenizer(folder)
    assert "do_lower_case" in str(caught.value.advice)


def test_a_vocabulary_made_by_an_unnamed_segmenter(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"model_type": "bert"}, vocab_txt=[*BERT_SPECIALS, "東京", "猫", "the"])
    with pytest.raises(UnsupportedError, match="word segmenter that no file names"):
        load_tokenizer(folder)


def japanese(path: Path, **options: Any) -> Tokenizer:
    settings = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab", **options}
    return load_tokenizer(folder_with(path, {"model_type": "bert"}, vocab_txt=JAPANESE, tokenizer_config=settings))


def test_japanese_without_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fugashi", None)
    tokenizer = japanese(tmp_path)
    with pytest.raises(MissingExtraError, match="fugashi") as caught:
        tokenizer.encode("猫は走る")
    assert "pip install 'headscope[japanese]'" in str(caught.value)
    assert "words=" in str(caught.value)
    assert tokenizer.encode_words(["猫", "は", "走る", "ｶﾞ", "[MASK]", "##る"]).ids == (2, 5, 6, 7, 9, 4, 8, 3)
    assert tokenizer.encode_ids([5, 6]).tokens == ("猫", "は")


def test_japanese_without_its_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fugashi")
    for name in ("ipadic", "unidic", "unidic_lite"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match="dictionary") as caught:
            japanese(tmp_path / name, mecab_kwargs={"mecab_dic": name}).encode("猫")
        assert "headscope[japanese]" in str(caught.value)
    system = japanese(
        tmp_path / "system", mecab_kwargs={"mecab_dic": None, "mecab_option": "-d nowhere -r nowhere/mecabrc"}
    )
    with pytest.raises(MissingExtraError, match="can't open the dictionary"):
        system.encode("猫")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"word_tokenizer_type": "sudachi"}, "sudachi"),
        ({"word_tokenizer_type": "jumanpp"}, "jumanpp"),
        ({"mecab_kwargs": {"mecab_dic": "neologd"}}, "neologd"),
        ({"mecab_kwargs": {"mecab_option": "-o stolen.txt"}}, "-o"),
        ({"mecab_kwargs": {"mystery": 1}}, "mystery"),
    ],
)
def test_japanese_segmenters_that_are_not_known(tmp_path: Path, options: dict[str, Any], found: str) -> None:
    tokenizer = japanese(tmp_path, **options)
    with pytest.raises(UnsupportedError) as caught:
        tokenizer.encode("猫は走る")
    assert found in str(caught.value)
    assert tokenizer.encode_words(["猫"]).ids == (2, 5, 3)


def test_japanese_by_sentencepiece(tmp_path: Path) -> None:
    tokenizer = japanese(tmp_path, subword_tokenizer_type="sentencepiece")
    with pytest.raises(UnsupportedError, match="sentencepiece"):
        tokenizer.encode_words(["猫"])
    assert tokenizer.encode_ids([5]).tokens == ("猫",)


def test_what_mecab_can_not_read(tmp_path: Path) -> None:
    pytest.importorskip("fugashi")
    tokenizer = japanese(tmp_path)
    with pytest.raises(InputError, match="character 1 is a NUL"):
        tokenizer.encode("猫\0は")
    with pytest.raises(InputError, match="40000 characters"):
        tokenizer.encode("猫" * 40_000)


def test_japanese_spans(tmp_path: Path) -> None:
    pytest.importorskip("fugashi")
    text = "猫は ｶﾞ[MASK]㍿走る"
    encoded = japanese(tmp_path).encode(text)
    found = [
        (token, text[span[0] : span[1]]) for token, span in zip(encoded.tokens, encoded.spans, strict=True) if span
    ]
    assert found[:4] == [("猫", "猫"), ("は", "は"), ("ガ", "ｶﾞ"), ("[MASK]", "[MASK]")]
    assert ("[UNK]", "㍿") in found
    assert found[-1] == ("走る", "走る")


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
@settings(max_examples=150, deadline=None)
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
@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a":' * 200_000, "\ufffe{}", '"a"'])
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
    ("data", "found"),
    [
        (b"", "vocabulary is empty"),
        (b"\n\n", "vocabulary is empty"),
        (b"[PAD]\n\xff\xfe\n", "can't be read as UTF-8"),
        (b"the\ncat\n", r"lacks \[CLS\], \[SEP\], \[UNK\]"),
    ],
)
def test_hostile_vocab_txt(tmp_path: Path, data: bytes, found: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(CheckpointError, match=found):
        load_tokenizer(Folder(tmp_path, {"model_type": "bert"}))


@pytest.mark.parametrize(
    ("vocabulary", "merges", "found"),
    [
        ({"a": 0}, "", "lacks <s>, </s>"),
        ({}, "", "holds no pieces"),
        ({"<s>": 0, "</s>": -1}, "", "the id of '</s>' is -1"),
        ({"<s>": 0, "</s>": True}, "", "the id of '</s>' is True"),
        ({"<s>": 0, "</s>": 1}, "#version: 0.2\na b c\n", "line 2 of merges.txt holds 3"),
        ({"<s>": 0, "</s>": 1}, "a b\n", "out of vocabulary"),
    ],
)
def test_hostile_byte_level(tmp_path: Path, vocabulary: dict[str, Any], merges: str, found: str) -> None:
    folder = folder_with(tmp_path, {"model_type": "roberta"}, vocab=vocabulary, merges_txt=merges)
    with pytest.raises(CheckpointError, match=found):
        load_tokenizer(folder)


def test_a_panic_of_the_library_is_an_error_of_ours() -> None:
    class PanicException(BaseException):
        """pyo3's: it derives from BaseException alone."""

    def call(error: BaseException) -> None:
        with library_errors("tokenizer.json", "fetch it again"):
            raise error

    with pytest.raises(CheckpointError, match="broke down: index out of bounds"):
        call(PanicException("index out of bounds"))
    with pytest.raises(KeyboardInterrupt):
        call(KeyboardInterrupt())


def test_the_same_refusal_twice(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, {}))
    errors = []
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            tokenizer.encode("the")
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])


@pytest.mark.parametrize("case", ["single", "pair"])
def test_a_template_that_repeats_or_swaps_texts(tmp_path: Path, case: str) -> None:
    state = unigram_json()
    template = state["post_processor"]
    template[case] = template[case] * 2 if case == "single" else template[case][::-1]
    write_json(tmp_path, "tokenizer.json", state)
    with pytest.raises(UnsupportedError, match="template places"):
        load_tokenizer(Folder(tmp_path)).encode("the", None if case == "single" else "cat")

"""Every kind of tokenizer against transformers' own, over texts in many scripts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headscope.checkpoint.tokenizer import Encoded, Tokenizer, load_tokenizer
from headscope.errors import InputError
from tokenizer_folders import (
    BERT_SPECIALS,
    PAIRS,
    TEXTS,
    Folder,
    bert_folder,
    folder_with,
    roberta_folder,
    unigram_json,
    wordpiece_vocabulary,
)

transformers = pytest.importorskip("transformers")

Both = tuple[Tokenizer, Any]


def saved_bert(path: Path) -> Folder:
    plain = bert_folder(path / "plain", lower=True)
    reference = transformers.BertTokenizer.from_pretrained(plain.path)
    reference.add_tokens(["<e1>", "</e1>"])
    reference.save_pretrained(path)
    return folder_with(path, plain.config)


def saved_roberta(path: Path) -> Folder:
    plain = roberta_folder(path / "plain")
    transformers.RobertaTokenizer.from_pretrained(plain.path).save_pretrained(path)
    return folder_with(path, plain.config)


KINDS: dict[str, Callable[[Path], Folder]] = {
    "bert-uncased": partial(bert_folder, lower=True),
    "bert-cased": partial(bert_folder, lower=False, tokenizer_class="BertTokenizer"),
    "bert-accents": partial(bert_folder, lower=True, strip_accents=False, tokenize_chinese_chars=False),
    "distilbert": partial(bert_folder, lower=True, tokenizer_class="DistilBertTokenizer", model_type="distilbert"),
    "electra": partial(bert_folder, lower=True, tokenizer_class="ElectraTokenizerFast", model_type="electra"),
    "roberta": roberta_folder,
    "roberta-space": partial(roberta_folder, add_prefix_space=True),
    "roberta-untrimmed": partial(roberta_folder, trim_offsets=False),
    "xlm-roberta": lambda path: folder_with(path, {"model_type": "xlm-roberta"}, tokenizer=unigram_json()),
    "saved-bert": saved_bert,
    "saved-roberta": saved_roberta,
}


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    # As a plain PreTrainedTokenizerFast where there is only tokenizer.json: transformers' XLM-RoBERTa class would
    # build another tokenizer from its vocabulary.
    kind = transformers.PreTrainedTokenizerFast if request.param == "xlm-roberta" else transformers.AutoTokenizer
    return load_tokenizer(folder), kind.from_pretrained(folder.path)


ALL = {"return_token_type_ids": True, "return_special_tokens_mask": True, "return_offsets_mapping": True}


def assert_same(ours: Encoded, tokenizer: Any, *inputs: Any, first_words: int = 0, **options: Any) -> Any:
    reference = tokenizer(*inputs, **ALL, **options)
    assert list(ours.ids) == reference["input_ids"]
    # Not theirs.tokens(): where a mask takes the space before it, that is " <mask>", which is no piece.
    assert list(ours.tokens) == tokenizer.convert_ids_to_tokens(reference["input_ids"])
    assert list(ours.segments) == reference["token_type_ids"]
    assert list(ours.special) == [bool(flag) for flag in reference["special_tokens_mask"]]
    expected = [
        None if word is None else word + (first_words if text == 1 else 0)
        for word, text in zip(reference.word_ids(), reference.sequence_ids(), strict=True)
    ]
    assert list(ours.words) == expected
    return reference


def spans_of(reference: Any) -> list[tuple[int, int] | None]:
    return [
        None if special else tuple(span)
        for span, special in zip(reference["offset_mapping"], reference["special_tokens_mask"], strict=True)
    ]


def test_texts(both: Both) -> None:
    ours, reference = both
    for text in TEXTS:
        encoded = ours.encode(text)
        expected = assert_same(encoded, reference, text)
        assert list(encoded.spans) == spans_of(expected), text


BLANKS = (" ", "  ", "\n", " \t\r\n", "\u3000", "\u00a0 ")


def test_white_space(both: Both) -> None:
    """Byte-level vocabularies have tokens for it; a text that the others drop raises an error."""
    ours, reference = both
    read = []
    for text in BLANKS:
        if reference(text, add_special_tokens=False)["input_ids"]:
            encoded = ours.encode(text)
            assert list(encoded.spans) == spans_of(assert_same(encoded, reference, text)), text
            assert_same(ours.encode("The cat", text), reference, "The cat", text, first_words=2)
            read.append(text)
        else:
            with pytest.raises(InputError, match="the text has no tokens"):
                ours.encode(text)
    assert len(read) == (len(BLANKS) if type(reference).__name__ == "RobertaTokenizer" else 0)


@pytest.mark.parametrize("max_length", [None, 30, 14, 13, 12, 9, 8, 7, 6])
def test_pairs_and_truncation(both: Both, max_length: int | None) -> None:
    ours, reference = both
    cut = {} if max_length is None else {"truncation": "longest_first", "max_length": max_length}
    for pair in PAIRS:
        encoded = ours.encode(*pair, max_length=max_length)
        words = reference(pair[0], add_special_tokens=False).word_ids()
        expected = assert_same(encoded, reference, *pair, **cut, first_words=max(words) + 1)
        assert list(encoded.spans) == spans_of(expected)
        assert_same(ours.encode(pair[0], max_length=max_length), reference, pair[0], **cut)


def test_words(both: Both) -> None:
    ours, reference = both
    if type(reference).__name__ == "RobertaTokenizer":
        reference = transformers.AutoTokenizer.from_pretrained(reference.name_or_path, add_prefix_space=True)
    for text in TEXTS:
        words = text.split()
        assert_same(ours.encode_words(words), reference, words, is_split_into_words=True)
        assert_same(
            ours.encode_words(words, ["one", "two"]),
            reference,
            words,
            ["one", "two"],
            is_split_into_words=True,
            first_words=len(words),
        )


def test_named_tokens(both: Both) -> None:
    ours, reference = both
    if reference.mask_token is not None:
        assert (ours.mask_token, ours.mask_id) == (reference.mask_token, reference.mask_token_id)
        assert ours.pad_id == reference.pad_token_id
    assert ours.size == len(reference)
    for index in range(len(reference)):
        token = reference.convert_ids_to_tokens(index)
        assert ours.token(index) == token
        assert ours.id(token) == index


def test_left_truncation(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, lower=True, truncation_side="left")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for pair in PAIRS:
        expected = reference(*pair, truncation=True, max_length=9)
        assert list(load_tokenizer(folder).encode(*pair, max_length=9).ids) == expected["input_ids"]


def test_added_tokens_of_old_files(tmp_path: Path) -> None:
    vocabulary = wordpiece_vocabulary(lower=True)
    folder = folder_with(
        tmp_path,
        {"model_type": "bert"},
        vocab_txt=vocabulary,
        tokenizer_config={"do_lower_case": True},
        special_tokens_map={"mask_token": "[MASK]", "additional_special_tokens": ["<e1>"]},
        added_tokens={"<e1>": len(vocabulary), "Blub": len(vocabulary) + 1},
    )
    ours, reference = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("the <e1>cat Blub", "BLUB blub xBlubx"):
        assert_same(ours.encode(text), reference, text)


JAPANESE_TEXTS = [
    "吾輩は猫である。名前はまだ無い。",
    "東京都に　住んでいます。",
    "ﾊﾝｶｸ ｶﾞｷﾞ と ＡＢＣ１２３ ㍿ ①",
    "か\u3099き\u3099 とが、ぎ",
    "改行\nとタブ\tと  空白",
    "😀 と ゔ 龘 [MASK] を [SEP]使う。[UNK]",
    "English Words ALSO İ",
    "ーーー・・・「」",
    "a" * 120,
    "\u3000全角\u3000",
]

JAPANESE_OPTIONS = [
    {"word_tokenizer_type": "mecab"},
    {"word_tokenizer_type": "mecab", "subword_tokenizer_type": "character"},
    {"word_tokenizer_type": "mecab", "do_lower_case": True, "never_split": ["Words"]},
    {"word_tokenizer_type": "mecab", "mecab_kwargs": {"mecab_dic": "unidic_lite", "normalize_text": False}},
    {
        "word_tokenizer_type": "mecab",
        "subword_tokenizer_type": "character",
        "do_lower_case": True,
        "mecab_kwargs": {"normalize_text": False},
    },
    {"word_tokenizer_type": "mecab", "do_subword_tokenize": False},
    {"word_tokenizer_type": "mecab", "additional_special_tokens": ["123", "猫で"]},
    {"do_word_tokenize": False, "subword_tokenizer_type": "character"},
]


@pytest.mark.parametrize("options", JAPANESE_OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_japanese(tmp_path: Path, options: dict[str, Any]) -> None:
    pytest.importorskip("fugashi")
    letters = sorted({c for text in JAPANESE_TEXTS for c in text if c not in "龘 \n\t"} | set("がぎabc株式会社"))
    vocabulary = [*BERT_SPECIALS, *letters, *(f"##{c}" for c in letters if c not in "無")]
    vocabulary += ["吾輩", "猫", "名前", "東京", "住ん", "##んで", "Words", "words", "english", "です"]
    folder = folder_with(
        tmp_path,
        {"model_type": "bert", "type_vocab_size": 2},
        vocab_txt=vocabulary,
        tokenizer_config={"tokenizer_class": "BertJapaneseTokenizer", **options},
    )
    ours = load_tokenizer(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = transformers.BertJapaneseTokenizer.from_pretrained(tmp_path)
    flags = {name: True for name in ALL if "offsets" not in name}
    for text in JAPANESE_TEXTS:
        expected = reference(text, **flags)
        encoded = ours.encode(text)
        assert list(encoded.ids) == expected["input_ids"], text
        assert list(encoded.tokens) == reference.convert_ids_to_tokens(expected["input_ids"])
        assert list(encoded.special) == [bool(flag) for flag in expected["special_tokens_mask"]]
        for max_length in (5, 6, 7, 8):
            expected = reference(text, "名前はまだ無い", **flags, truncation="longest_first", max_length=max_length)
            pair = ours.encode(text, "名前はまだ無い", max_length=max_length)
            assert list(pair.ids) == expected["input_ids"]
            assert list(pair.segments) == expected["token_type_ids"]


def test_do_lower_case_is_true_by_default_in_transformers_and_by_proof_here(tmp_path: Path) -> None:
    folder_with(tmp_path, {"model_type": "bert"}, vocab_txt=wordpiece_vocabulary(lower=False))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(Folder(tmp_path, json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))))
    assert reference.do_lower_case
    assert reference.tokenize("The") != ["The"]
    assert ours.encode("The").tokens == ("[CLS]", "The", "[SEP]")

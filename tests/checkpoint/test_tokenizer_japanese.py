"""BertJapaneseTokenizer: what it needs beside its files, what of it is refused, and where its pieces stand."""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from headscope.checkpoint.tokenizer import Tokenizer, load_tokenizer
from headscope.errors import CheckpointError, InputError, MissingExtraError, UnsupportedError, install
from tokenizer_folders import BERT_SPECIALS, folder_with

JAPANESE = [*BERT_SPECIALS, "猫", "は", "走る", "##る", "ガ", "走"]


def japanese(path: Path, **options: Any) -> Tokenizer:
    settings = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab", **options}
    return load_tokenizer(folder_with(path, {"model_type": "bert"}, vocab_txt=JAPANESE, tokenizer_config=settings))


def test_japanese_without_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fugashi", None)
    tokenizer = japanese(tmp_path)
    with pytest.raises(MissingExtraError, match="fugashi") as caught:
        tokenizer.encode("猫は走る")
    assert install("japanese") in str(caught.value)
    assert "words=" in str(caught.value)
    assert tokenizer.encode_words(["猫", "は", "走る", "ｶﾞ", "[MASK]", "##る"]).ids == (2, 5, 6, 7, 9, 4, 8, 3)
    assert tokenizer.encode_ids([5, 6]).tokens == ("猫", "は")


def test_japanese_without_its_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fugashi")
    for name in ("ipadic", "unidic", "unidic_lite"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match="dictionary") as caught:
            japanese(tmp_path / name, mecab_kwargs={"mecab_dic": name}).encode("猫")
        assert install("japanese") in str(caught.value)
    system = japanese(
        tmp_path / "system", mecab_kwargs={"mecab_dic": None, "mecab_option": "-d nowhere -r nowhere/mecabrc"}
    )
    with pytest.raises(MissingExtraError, match="can't open the dictionary"):
        system.encode("猫")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word_tokenizer_type": "basic"}, "basic"),
        ({"word_tokenizer_type": "sudachi"}, "sudachi"),
        ({"word_tokenizer_type": "jumanpp"}, "jumanpp"),
        ({"mecab_kwargs": {"mecab_dic": "neologd"}}, "neologd"),
        ({"mecab_kwargs": {"mecab_option": "-o stolen.txt"}}, "-o"),
        ({"mecab_kwargs": {"mystery": 1}}, "mystery"),
    ],
)
def test_japanese_segmenters_that_are_not_known(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    tokenizer = japanese(tmp_path, **options)
    with pytest.raises(UnsupportedError) as caught:
        tokenizer.encode("猫は走る")
    assert message in str(caught.value)
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
    tokens = [
        (token, text[span[0] : span[1]]) for token, span in zip(encoded.tokens, encoded.spans, strict=True) if span
    ]
    assert tokens[:4] == [("猫", "猫"), ("は", "は"), ("ガ", "ｶﾞ"), ("[MASK]", "[MASK]")]
    assert ("[UNK]", "㍿") in tokens
    assert tokens[-1] == ("走る", "走る")


def test_words_that_mecab_found_are_tokens_of_the_text(tmp_path: Path) -> None:
    fugashi = pytest.importorskip("fugashi")
    dictionary = pytest.importorskip("unidic_lite").DICDIR
    text = "猫は ｶﾞ 走る 龘"
    found = fugashi.GenericTagger(f'-d "{dictionary}" -r "{dictionary}/mecabrc"')(unicodedata.normalize("NFKC", text))
    tokenizer = japanese(tmp_path)
    words = tokenizer.encode_words([word.surface for word in found])
    assert (words.ids, words.words) == (tokenizer.encode(text).ids, tokenizer.encode(text).words)


def test_a_word_that_is_spelled_like_an_added_token_is_none(tmp_path: Path) -> None:
    """MeCab's words are normalized after added tokens were found, as in transformers."""
    pytest.importorskip("fugashi")
    tokenizer = japanese(tmp_path, additional_special_tokens=["ABC"])
    assert tokenizer.encode("ABCＡＢＣ").tokens == ("[CLS]", "ABC", "[UNK]", "[SEP]")
    assert tokenizer.encode_words(["ABC", "ＡＢＣ"]).tokens == ("[CLS]", "ABC", "[UNK]", "[SEP]")


def test_white_space_of_a_mask_is_part_of_it(tmp_path: Path) -> None:
    pytest.importorskip("fugashi")
    mask = {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    encoded = japanese(tmp_path, added_tokens_decoder={"4": mask}).encode("猫 [MASK]は")
    assert encoded.tokens == ("[CLS]", "猫", "[MASK]", "は", "[SEP]")
    assert encoded.spans == (None, (0, 1), (1, 8), (8, 9), None)


def test_an_added_token_that_must_be_a_word(tmp_path: Path) -> None:
    single = {"content": "猫", "single_word": True}
    with pytest.raises(UnsupportedError, match="single_word"):
        japanese(tmp_path, added_tokens_decoder={"5": single}).encode("猫")


def test_japanese_without_its_vocabulary(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    tokenizer = load_tokenizer(folder_with(tmp_path, {"model_type": "bert"}, tokenizer_config=settings))
    with pytest.raises(CheckpointError, match=r"vocab\.txt is missing"):
        tokenizer.encode("猫")
    assert tokenizer.encode_ids([5]).tokens == ("#5",)

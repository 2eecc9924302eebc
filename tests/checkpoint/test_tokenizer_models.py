"""SentencePiece, ESM's vocabulary, null tokens and BertJapaneseTokenizer, against the libraries' own tokens."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    EsmConfig,
    EsmForMaskedLM,
    EsmTokenizer,
)

import headscope as hs
from headscope.checkpoint.tokenizer import Tokenizer, load_tokenizer
from headscope.checkpoint.tokenizer.sentencepiece import read_model
from headscope.errors import CheckpointError, InputError, MissingExtraError, UnsupportedError, install
from tokenizer_folders import BERT_SPECIALS, PAIRS, RESIDUES, TEXTS, Folder, folder_with

DATA = Path(__file__).parent.parent / "data" / "sentencepiece"
"""A model of 400 pieces, and what sentencepiece 0.2.3 makes of a few texts with it."""


def deberta(folder: Path, **options: object) -> Folder:
    shutil.copy(DATA / "spm.model", folder / "spm.model")
    if options:
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return Folder(folder, {"model_type": "deberta-v2"})


@pytest.mark.parametrize("row", json.loads((DATA / "expected.json").read_text("utf-8")), ids=lambda row: row["text"])
def test_tokens_are_sentencepieces(tmp_path: Path, row: dict[str, object]) -> None:
    encoded = load_tokenizer(deberta(tmp_path)).encode(str(row["text"]))
    assert list(encoded.ids) == [1, *row["ids"], 2]  # type: ignore[misc]
    assert (encoded.tokens[0], encoded.tokens[-1]) == ("[CLS]", "[SEP]")


def test_the_mask_follows_the_models_pieces(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(deberta(tmp_path))
    assert (tokenizer.mask_token, tokenizer.mask_id, tokenizer.size) == ("[MASK]", 400, 401)
    pair = tokenizer.encode("The [MASK] sat", "on the mat")
    assert pair.ids.count(400) == 1
    assert pair.segments == (*[0] * (pair.ids.index(2) + 1), *[1] * (len(pair.ids) - pair.ids.index(2) - 1))


def test_settings_of_case_and_punctuation(tmp_path: Path) -> None:
    lower = load_tokenizer(deberta(tmp_path, do_lower_case=True))
    assert lower.encode("HELLO the").ids == lower.encode("hello the").ids
    split = load_tokenizer(deberta(tmp_path, split_by_punct=True))
    assert split.encode("at.at").tokens[1:-1] == ("▁at", "▁.", "▁at")


def test_alberts_tokenizer_lowers_case_and_strips_accents(tmp_path: Path) -> None:
    shutil.copy(DATA / "spm.model", tmp_path / "spiece.model")
    albert = load_tokenizer(Folder(tmp_path, {"model_type": "albert"}))
    assert albert.encode("THE CAFÉ").ids == albert.encode("the cafe").ids
    assert albert.encode("``at''").tokens == albert.encode('"at"').tokens


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\x0a\x05"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "spm.model").write_bytes(data)
    with pytest.raises(CheckpointError, match="is not a SentencePiece model"):
        read_model(tmp_path / "spm.model", "here")


def test_other_types_of_models_are_refused(tmp_path: Path) -> None:
    trainer = b"\x18\x02"  # model_type: BPE
    (tmp_path / "spm.model").write_bytes((DATA / "spm.model").read_bytes() + b"\x12\x02" + trainer)
    tokenizer = load_tokenizer(Folder(tmp_path, {"model_type": "deberta-v2"}))
    with pytest.raises(UnsupportedError, match="of type 2"):
        tokenizer.encode("the cat")


def residues(folder: Path) -> tuple[Folder, transformers.EsmTokenizer]:
    (folder / "vocab.txt").write_text("\n".join(RESIDUES))
    return Folder(folder, {"model_type": "esm"}), transformers.EsmTokenizer(str(folder / "vocab.txt"))


SEQUENCES = [
    "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ",
    "M K T A Y",
    "MK<mask>AY",
    "MKTax bYZ-.",
    "m k t",
    "<null_1>J1",
    "A" * 300,
]


@pytest.mark.parametrize("text", [*SEQUENCES, *TEXTS])
def test_residues_are_transformers(tmp_path: Path, text: str) -> None:
    folder, theirs = residues(tmp_path)
    ours = load_tokenizer(folder)
    assert list(ours.encode(text).ids) == theirs(text)["input_ids"]


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_of_residues_are_transformers(tmp_path: Path, pair: tuple[str, str]) -> None:
    folder, theirs = residues(tmp_path)
    encoded = load_tokenizer(folder).encode(*pair)
    assert list(encoded.ids) == theirs(*pair)["input_ids"]
    assert set(encoded.segments) == {0}


def test_the_mask_of_residues(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(residues(tmp_path)[0])
    assert (tokenizer.mask_token, tokenizer.mask_id, tokenizer.size) == ("<mask>", 32, 33)


# A special token that is null: the tokenizer has none, though its class has one. Files are transformers' own.

MERS = [f"{a}{b}{c}" for a in "ACGT" for b in "ACGT" for c in "ACGT"]
NUCLEOTIDES = ["<unk>", "<pad>", "<mask>", "<cls>", *MERS, *"ACGTN", "<eos>", "<bos>"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DNA = "ACGTACCGTNAG"


@pytest.fixture
def nucleotides(tmp_path: Path) -> tuple[Path, Any, Any]:
    """As the Nucleotide Transformer is saved: an EsmTokenizer with "eos_token": null."""
    (tmp_path / "vocab.txt").write_text("\n".join(NUCLEOTIDES))
    tokenizer = EsmTokenizer(tmp_path / "vocab.txt", eos_token=None)
    config = EsmConfig(
        vocab_size=len(NUCLEOTIDES), pad_token_id=1, mask_token_id=2, max_position_embeddings=64, **SIZES
    )
    model = EsmForMaskedLM(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path, AutoTokenizer.from_pretrained(tmp_path), model


def test_no_end_is_added_to_a_text(nucleotides: tuple[Path, Any, Any]) -> None:
    folder, tokenizer, model = nucleotides
    assert tokenizer.eos_token is None
    ids = tokenizer(DNA).input_ids
    opened = hs.open(folder)
    trace = opened.trace(DNA)
    assert list(trace.ids) == ids
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    assert torch.allclose(torch.tensor(trace.outputs["logits"].array), expected, atol=1e-4)
    live = hs.trace(model, DNA, tokenizer=tokenizer)
    assert list(live.ids) == ids
    assert live.special.tolist() == trace.special.tolist() == [True] + [False] * (len(ids) - 1)
    with pytest.raises(ValueError, match="multiple sequences"):
        tokenizer(DNA, DNA)
    with pytest.raises(UnsupportedError, match="eos_token is null, so nothing ends a text of a pair"):
        opened.trace(DNA, DNA)


@pytest.mark.parametrize("only_vocabulary", [False, True])
def test_no_mask_is_found(tmp_path: Path, only_vocabulary: bool) -> None:
    tokenizer = saved(tmp_path, only_vocabulary, mask_token=None)
    model = hs.open(tmp_path)
    assert tokenizer.mask_token is None
    assert model.tokenizer.mask_token is None
    text = "the [MASK] sat"
    assert list(model.trace(text).ids) == tokenizer(text).input_ids
    with pytest.raises(UnsupportedError, match="the tokenizer has no mask token"):
        model.fill(text)


@pytest.mark.parametrize("name", ["cls_token", "sep_token"])
def test_a_template_without_its_token_is_refused(tmp_path: Path, name: str) -> None:
    """transformers puts the word "None" there."""
    tokenizer = saved(tmp_path, True, **{name: None})
    assert "None" in tokenizer("the cat").tokens()
    with pytest.raises(UnsupportedError, match=f"{name} is null, and this tokenizer puts that token around every text"):
        hs.open(tmp_path).trace("the cat")
    assert hs.open(tmp_path).trace(ids=[2, 5, 3]).tokens == ("[CLS]", "the", "[SEP]")


def saved(folder: Path, only_vocabulary: bool, **options: Any) -> Any:
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertForMaskedLM(BertConfig(vocab_size=len(WORDS), **SIZES)).save_pretrained(folder)
    BertTokenizer(vocab=str(folder / "vocab.txt"), **options).save_pretrained(folder)
    if only_vocabulary:
        (folder / "tokenizer.json").unlink()
    return AutoTokenizer.from_pretrained(folder)


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

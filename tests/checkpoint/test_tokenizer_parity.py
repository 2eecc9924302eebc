"""Every kind of tokenizer against transformers' own and the libraries' own, over texts in many scripts."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
import warnings
from collections.abc import Callable
from functools import partial
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
from headscope.results.tokens import TokenAxis
from tokenizer_folders import (
    BERT_SPECIALS,
    PAIRS,
    RESIDUES,
    TEXTS,
    Folder,
    bert_folder,
    folder_with,
    roberta_folder,
    unigram_json,
    wordpiece_vocabulary,
)

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


def assert_same(ours: TokenAxis, tokenizer: Any, *inputs: Any, first_words: int = 0, **options: Any) -> Any:
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


# SentencePiece, ESM's vocabulary, null tokens and BertJapaneseTokenizer, against the libraries' own tokens.


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


SEQUENCES = [
    "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ",
    "M K T A Y",
    "MK<mask>AY",
    "MKTax bYZ-.",
    "m k t",
    "<null_1>J1",
    "A" * 300,
]


def test_residues_are_transformers(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(RESIDUES))
    ours, theirs = load_tokenizer(Folder(tmp_path, {"model_type": "esm"})), EsmTokenizer(str(tmp_path / "vocab.txt"))
    assert (ours.mask_token, ours.mask_id, ours.size) == ("<mask>", 32, 33)
    for inputs in (*((text,) for text in (*SEQUENCES, *TEXTS)), *PAIRS):
        encoded = ours.encode(*inputs)
        assert list(encoded.ids) == theirs(*inputs)["input_ids"], inputs
        assert set(encoded.segments) == {0}


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

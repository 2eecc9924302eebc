"""Which files a tokenizer is read from, what is decided, and what goes in as text, words and ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer_parity import KINDS
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertTokenizer,
    PreTrainedTokenizerFast,
    __version__,
)

import headscope as hs
from commands import run
from headscope.checkpoint.tokenizer import Tokenizer, load_tokenizer
from headscope.errors import InputError
from making import change_json
from small_bert import small_bert
from tokenizer_folders import (
    BERT_SPECIALS,
    Folder,
    folder_with,
    unigram_json,
    wordpiece_json,
    wordpiece_tokenizer,
    wordpiece_vocabulary,
)

SMALL = [*BERT_SPECIALS, "the", "cat", "##s", "sat", ".", ",", "play", "##ing"]


def bert(path: Path, vocabulary: list[str] | None = None, **files: Any) -> Tokenizer:
    config = files.pop("config", {"model_type": "bert", "type_vocab_size": 2})
    return load_tokenizer(folder_with(path, config, vocab_txt=vocabulary or SMALL, **files))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    names = {"wordpiece": "bert-uncased", "byte-level": "roberta", "unigram": "xlm-roberta"}
    return {kind: load_tokenizer(KINDS[name](tmp_path_factory.mktemp(kind))) for kind, name in names.items()}


def test_tokenizer_json_comes_first_and_cuts_only_when_asked(tmp_path: Path) -> None:
    state = unigram_json()
    assert state["truncation"]["max_length"] == 8
    assert state["padding"] is not None
    tokenizer = load_tokenizer(folder_with(tmp_path, {"model_type": "xlm-roberta"}, tokenizer=state, vocab_txt=SMALL))
    assert tokenizer.source == "tokenizer.json"
    assert len(tokenizer.encode("the")) < 8 < len(tokenizer.encode("the cat sat on the mat " * 3))
    assert len(tokenizer.encode("the cat sat on the mat " * 3, max_length=8)) == 8
    assert any("truncation" in note for note in tokenizer.notes)


def test_a_template_without_special_tokens_is_kept(tmp_path: Path) -> None:
    state = {**unigram_json(), "post_processor": None}
    encoded = load_tokenizer(folder_with(tmp_path, {}, tokenizer=state)).encode("the cat", "sat")
    assert not any(encoded.special)
    assert encoded.words == tuple(sorted(word for word in encoded.words if word is not None))


def test_dropout_is_switched_off(tmp_path: Path) -> None:
    state = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}
    state["model"]["dropout"] = 0.999  # type: ignore[index]
    tokenizer = load_tokenizer(folder_with(tmp_path, {}, tokenizer=state))
    assert {tokenizer.encode("abab").ids for _ in range(20)} == {(2, 2)}


def test_mask_named_nowhere_is_still_a_mask(tmp_path: Path) -> None:
    vocabulary = {token: i for i, token in enumerate(SMALL)}
    state = wordpiece_json(vocabulary, pre_tokenizer={"type": "BertPreTokenizer"})
    tokenizer = load_tokenizer(folder_with(tmp_path, {"model_type": "bert"}, tokenizer=state))
    assert tokenizer.encode("the [MASK]").tokens == ("the", "[MASK]")
    assert (tokenizer.mask_token, tokenizer.mask_id, tokenizer.pad_id) == ("[MASK]", 4, 0)


def test_tokenizer_config_overrules_tokenizer_json(tmp_path: Path) -> None:
    saved = bert(tmp_path / "first", wordpiece_vocabulary(lower=False))._engine
    state = saved._rust.to_str()  # type: ignore[attr-defined]
    folder = folder_with(tmp_path, {"model_type": "bert"}, tokenizer_config={"do_lower_case": True})
    (tmp_path / "tokenizer.json").write_text(state, encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("THE").tokens == tokenizer.encode("the").tokens
    assert any("do_lower_case is True" in note for note in tokenizer.notes)


@pytest.mark.parametrize(
    ("vocabulary", "text", "tokens"),
    [
        (["the", "cafe"], "THE CAFÉ", ["the", "cafe"]),
        (["The", "the", "Café"], "The Café THE", ["The", "Café", "[UNK]"]),
        (["the", "café", "안녕"], "The CAFÉ 안녕", ["the", "café", "안녕"]),
    ],
    ids=["lower", "cased", "lower with accents"],
)
def test_casing_is_read_off_the_vocabulary(tmp_path: Path, vocabulary: list[str], text: str, tokens: list[str]) -> None:
    tokenizer = bert(tmp_path, [*BERT_SPECIALS, *vocabulary])
    assert list(tokenizer.encode(text).tokens[1:-1]) == tokens
    assert "tokenizer_config.json doesn't set it" in tokenizer.notes[0]


def test_special_tokens_by_other_names(tmp_path: Path) -> None:
    names = {"cls_token": "<c>", "sep_token": "<s>", "unk_token": "<u>", "mask_token": "<m>", "pad_token": "<p>"}
    tokenizer = bert(
        tmp_path,
        ["<p>", "<u>", "<c>", "<s>", "<m>", "cat"],
        tokenizer_config={"do_lower_case": True, "tokenizer_class": "BertTokenizer"},
        special_tokens_map=names,
    )
    assert tokenizer.encode("Cat <m> dog").tokens == ("<c>", "cat", "<m>", "<u>", "<s>")
    assert (tokenizer.mask_token, tokenizer.mask_id, tokenizer.pad_id) == ("<m>", 4, 0)


def test_vocabulary_lines(tmp_path: Path) -> None:
    tokenizer = bert(tmp_path, "\r\n".join([*BERT_SPECIALS, "cat ", "do\u2028g", "\u3000", "the"]))  # type: ignore[arg-type]
    assert [tokenizer.token(index) for index in range(5, 9)] == ["cat", "do\u2028g", "\u3000", "the"]
    assert tokenizer.encode("cat the").ids == (2, 5, 8, 3)


def test_left_out_segments(tmp_path: Path) -> None:
    options = {"model_input_names": ["input_ids", "attention_mask"], "do_lower_case": True}
    assert set(bert(tmp_path, tokenizer_config=options).encode("the", "cat").segments) == {0}


def test_words(tmp_path: Path) -> None:
    encoded = bert(tmp_path).encode_words(["The", "play", "##ing", "[MASK]", "cats.", "##zz"], ["the", "cat"])
    pieces = ["the", "play", "##ing", "[MASK]", "cat", "##s", ".", "[UNK]", "[UNK]", "[UNK]"]
    assert encoded.tokens == ("[CLS]", *pieces, "[SEP]", "the", "cat", "[SEP]")
    assert encoded.words == (None, 0, 1, 2, 3, 4, 4, 4, 5, 5, 5, None, 6, 7, None)
    assert set(encoded.spans) == {None}


@pytest.mark.parametrize(("kind", "mark"), [("byte-level", "Ġ"), ("unigram", "▁")])
def test_words_spelled_as_pieces(kinds: dict[str, Tokenizer], kind: str, mark: str) -> None:
    tokenizer = kinds[kind]
    piece = next(token for token in map(tokenizer.token, range(20, tokenizer.size)) if token.startswith(f"{mark}t"))
    encoded = tokenizer.encode_words([piece, "<mask>", "the"])
    assert encoded.tokens[1:3] == (piece, "<mask>")
    assert encoded.tokens[3].startswith(mark)
    assert encoded.words[1:4] == (0, 1, 2)


def test_ids(tmp_path: Path) -> None:
    tokenizer = bert(tmp_path, config={"vocab_size": 20, "type_vocab_size": 2, "model_type": "bert"})
    encoded = tokenizer.encode_ids([2, 5, 4, 19, 3, 0], [0, 0, 0, 1, 1, 1])
    assert encoded.tokens == ("[CLS]", "the", "[MASK]", "#19", "[SEP]", "[PAD]")
    assert encoded.special == (True, False, False, False, True, True)
    assert encoded.segments == (0, 0, 0, 1, 1, 1)
    assert set(encoded.words) == set(encoded.spans) == {None}
    assert tokenizer.encode_ids([5]).segments == (0,)
    assert (tokenizer.token(19), tokenizer.size, tokenizer.id("zz"), tokenizer.id("\ud800")) == ("#19", 13, None, None)


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "unigram"])
@given(text=st.text(min_size=1, max_size=60), pair=st.none() | st.text(min_size=1, max_size=20))
@settings(max_examples=150)
def test_any_text(kinds: dict[str, Tokenizer], kind: str, text: str, pair: str | None) -> None:
    try:
        encoded = kinds[kind].encode(text, pair)
    except InputError as error:
        reasons = ("is empty", "has no tokens", "surrogate")
        assert any(reason in str(error) for reason in reasons)  # noqa: PT017
        return
    assert {len(field) for name, field in vars(encoded).items() if name != "prompt"} == {len(encoded)}
    words = [word for word in encoded.words if word is not None]
    assert words == sorted(words)
    start, source = 0, text
    for position, (span, special) in enumerate(zip(encoded.spans, encoded.special, strict=True)):
        if special:
            assert (span, encoded.words[position]) == (None, None)
            start, source = 0, text if position == 0 or pair is None else pair
            continue
        assert start <= span[0] <= span[1] <= len(source)
        start = span[0]


@given(words=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6), cut=st.none() | st.integers(3, 12))
@settings(max_examples=100)
def test_any_words(kinds: dict[str, Tokenizer], words: list[str], cut: int | None) -> None:
    for tokenizer in kinds.values():
        try:
            encoded = tokenizer.encode_words(words, max_length=cut)
        except InputError:
            continue
        owners = [word for word in encoded.words if word is not None]
        assert owners == sorted(owners)
        assert set(owners) <= set(range(len(words)))
        assert cut is None or len(encoded) <= cut


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "unigram"])
def test_long_text(kinds: dict[str, Tokenizer], kind: str) -> None:
    text = "The cat sat on the mat. " * 4_200
    assert len(text) > 100_000
    assert len(kinds[kind].encode(text, max_length=512)) == 512
    assert len(kinds[kind].encode("x" * 100_000, max_length=512)) <= 512


def test_only_the_files_that_matter_are_asked_for(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"model_type": "xlm-roberta"}, tokenizer=unigram_json())
    load_tokenizer(folder)
    small = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
    assert folder.asked == [*small, "tokenizer.json"]


def test_a_folder_is_enough(tmp_path: Path) -> None:
    folder_with(tmp_path, {}, vocab_txt=SMALL)
    tokenizer = load_tokenizer(Folder(tmp_path))
    assert tokenizer.encode("the cat").tokens == ("[CLS]", "the", "cat", "[SEP]")
    assert any("no file names another" in note for note in tokenizer.notes)


# Segments of a pair against transformers, and vocabularies that belong to another kind of tokenizer.


PAIR = ("the cat", "sat on it")


def saved(folder: Path, **options: Any) -> Path:
    """A small BERT whose tokenizer the installed transformers saved as one of no class of its own."""
    small_bert(folder)
    vocabulary = {line: at for at, line in enumerate((folder / "vocab.txt").read_text().splitlines())}
    (folder / "vocab.txt").unlink()
    specials = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=wordpiece_tokenizer(vocabulary), **specials, **options).save_pretrained(
        str(folder)
    )
    change_json(folder / "config.json", transformers_version=__version__)
    return folder


@pytest.mark.parametrize(
    "options", [{}, {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}], ids=["default", "named"]
)
def test_segments_are_those_of_the_version_that_saved_them(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = saved(tmp_path, **options)
    encoded = AutoTokenizer.from_pretrained(str(folder))(*PAIR)
    tokenizer = hs.open(folder).tokenizer
    ours = tokenizer.encode(*PAIR)
    assert list(ours.ids) == encoded["input_ids"]
    assert list(ours.segments) == list(encoded.get("token_type_ids", [0] * len(ours)))
    doubts = tokenizer.doubts(pair=True)
    assert [("one segment" in doubt, "version 4 gives two" in doubt) for doubt in doubts] == [(True, True)] * (
        not options
    )
    assert tokenizer.doubts(pair=False) == []


def test_transformers_4_gave_two(tmp_path: Path) -> None:
    """Its PreTrainedTokenizerBase.model_input_names was input_ids, token_type_ids, attention_mask."""
    folder = saved(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    versions = {"4.41.2": "transformers 4 saved it", None: "no file says who saved it", "9" * 5000: "5 saved it"}
    for version, said in versions.items():
        change_json(folder / "config.json", transformers_version=version)
        tokenizer = hs.open(folder).tokenizer
        assert set(tokenizer.encode(*PAIR).segments) == ({0} if "5" in said else {0, 1})
        assert said in tokenizer.doubts(pair=True)[0]


def test_segments_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hs.HeadscopeError, match="unknown segments 'both'"):
        hs.open(saved(tmp_path / "one"), segments="both")
    with pytest.raises(hs.HeadscopeError, match="the model has one segment"):
        load_tokenizer(folder_with(tmp_path / "single", {"type_vocab_size": 1}), "two")


def test_every_way_in_keeps_the_choice_or_says_where_versions_differ(tmp_path: Path) -> None:
    """Matches of a reranker against its own logit for these segments."""
    folder = saved(tmp_path / "one")
    config = json.loads((folder / "config.json").read_text())
    torch.manual_seed(0)
    made = AutoModelForSequenceClassification.from_config(
        BertConfig(**{**config, "num_labels": 1, "initializer_range": 0.3})
    )
    made.save_pretrained(str(folder))
    change_json(folder / "config.json", transformers_version=config["transformers_version"])
    ids = AutoTokenizer.from_pretrained(str(folder))(*PAIR, return_tensors="pt")["input_ids"]
    segments = {"one": [0] * 8, "two": [0] * 4 + [1] * 4}
    logits = {
        name: made.eval()(ids, token_type_ids=torch.tensor([row])).logits.item() for name, row in segments.items()
    }
    assert abs(logits["one"] - logits["two"]) > 1e-3
    for wanted, name in ((None, "one"), ("one", "one"), ("two", "two")):
        model = hs.open(folder, segments=wanted)
        assert list(model.trace(*PAIR).segments) == segments[name]
        assert (model.tokenizer.doubts(pair=True) == []) == (wanted is not None)
        (found,) = hs.match(model, *PAIR, check=False)
        assert found.score == pytest.approx(logits[name], abs=1e-5)
        assert [("have one segment" in note) for note in found.notes] == [True] * (wanted is None)
        more = () if wanted is None else ("--set", f"segments={wanted}")
        done = run("match", folder, *PAIR, *more, "--set", "check=false", "--json")
        assert json.loads(done.stdout)["documents"][0]["score"] == pytest.approx(logits[name], abs=1e-5)
        done = run("attend", folder, PAIR[0], "--pair", PAIR[1], *more, "--json")
        assert json.loads(done.stdout)["segments"] == segments[name]
        assert ("have one segment" in done.stderr) == (wanted is None)
        effects = model.effects(PAIR[0], pair=PAIR[1])
        assert (effects.base, len(effects.notes)) == (pytest.approx(logits[name], abs=1e-5), wanted is None)


@pytest.mark.parametrize("mark", ["▁", "Ġ"])
def test_a_vocabulary_of_another_tokenizer_is_named(tmp_path: Path, mark: str) -> None:
    words = ["the", "cat", "sat", "on", "mat", "größe", "café"]
    pieces = [*BERT_SPECIALS, *(mark + word for word in words), "ing", "s", "é"]
    folder = small_bert(tmp_path / "model")
    count = len((folder / "vocab.txt").read_text().splitlines())
    listed = [*pieces, *(f"[unused{at}]" for at in range(count - len(pieces)))]
    (folder / "vocab.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    library = BertTokenizer(vocab=dict(map(reversed, enumerate(listed))))  # type: ignore[arg-type]
    assert library.tokenize("the cat sat") == ["[UNK]"] * 3
    tokenizer = hs.open(folder).tokenizer
    assert tokenizer.encode("the cat sat").tokens == ("[CLS]", *["[UNK]"] * 3, "[SEP]")
    (note,) = tokenizer.notes
    assert "can't belong to its WordPiece tokenizer: 6 of 6 of its words are not read as themselves" in note
    assert tokenizer.doubts(pair=False) == [note]
    assert "can't belong" in run("attend", folder, "the cat sat").stderr
    assert hs.open(folder).trace(words=["the", "cat"]).notes == (note,)
    library.save_pretrained(str(tmp_path / "json"))
    shutil.copy(folder / "config.json", tmp_path / "json" / "config.json")
    assert tokenizer.notes[0] in load_tokenizer(folder_with(tmp_path / "json", {"type_vocab_size": 2})).notes


def plain(folder: Path, rust: Any) -> Any:
    """A tokenizer.json for a small BERT; headscope's tokenizer of it."""
    small_bert(folder)
    (folder / "vocab.txt").unlink()
    rust.save(str(folder / "tokenizer.json"))
    change_json(folder / "config.json", vocab_size=rust.get_vocab_size())
    return load_tokenizer(hs.open(folder).checkpoint)


LIST = [*BERT_SPECIALS, *"thecasmnoi", "the", "cat", "sat", "mat", "moon", "mast", "##the", "##ing", "##s", "##moon"]


@pytest.mark.parametrize("kind", ["byte-level BPE", "BPE", "Unigram", "lower case"])
def test_a_word_list_in_another_tokenizer_is_named(tmp_path: Path, kind: str) -> None:
    """The list of a WordPiece tokenizer in the others, and capitals in a tokenizer that lower-cases."""
    listed = [one.upper() for one in LIST] if kind == "lower case" else LIST
    ids = {one: at for at, one in enumerate(listed)}
    model = {
        "byte-level BPE": models.BPE(ids, [], unk_token="[UNK]"),
        "BPE": models.BPE(ids, [], unk_token="[UNK]"),
        "Unigram": models.Unigram([(one, -1.0) for one in listed], unk_id=1),
        "lower case": models.WordPiece(ids, unk_token="[UNK]"),
    }[kind]
    rust = Library(model)
    rust.pre_tokenizer = {"byte-level BPE": pre_tokenizers.ByteLevel(), "Unigram": pre_tokenizers.Metaspace()}.get(
        kind, pre_tokenizers.Whitespace()
    )
    if kind == "lower case":
        rust.normalizer = normalizers.Lowercase()
    words = ["the", "cat", "sat", "mat", "moon", "mast"]
    assert not {word for text in words for word in rust.encode(text).tokens if rust.encode(text).tokens == [text]}
    (note,) = plain(tmp_path, rust).doubts(pair=False)
    assert f"can't belong to its {type(model).__name__} tokenizer: 6 of 6 of its words" in note


@pytest.mark.parametrize("kind", ["byte-level BPE", "BPE with ends", "Unigram", "WordPiece", "letters"])
def test_a_tokenizer_with_its_own_vocabulary_has_no_note(tmp_path: Path, kind: str) -> None:
    text = (Path(__file__).parents[1] / "data" / "alice.txt").read_text(encoding="utf-8")
    special = {"special_tokens": BERT_SPECIALS, "vocab_size": 400, "show_progress": False}
    rust, trainer = {
        "byte-level BPE": (Library(models.BPE()), trainers.BpeTrainer(**special)),
        "BPE with ends": (
            Library(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>")),
            trainers.BpeTrainer(**special, end_of_word_suffix="</w>"),
        ),
        "Unigram": (Library(models.Unigram()), trainers.UnigramTrainer(**special, unk_token="[UNK]")),
        "WordPiece": (Library(models.WordPiece(unk_token="[UNK]")), trainers.WordPieceTrainer(**special)),
        "letters": (Library(models.WordLevel(unk_token="[UNK]")), trainers.WordLevelTrainer(**special)),
    }[kind]
    splits = {"byte-level BPE": pre_tokenizers.ByteLevel(), "Unigram": pre_tokenizers.Metaspace()}
    rust.pre_tokenizer = splits.get(
        kind, pre_tokenizers.Split("", "isolated") if kind == "letters" else pre_tokenizers.Whitespace()
    )
    rust.train_from_iterator(text.splitlines()[:400], trainer)
    assert plain(tmp_path, rust).notes == ()

"""Segments of a pair against transformers, and vocabularies that belong to another kind of tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

import headscope as hs
from commands import run
from headscope.checkpoint.tokenizer import load_tokenizer
from making import change_json
from small_bert import small_bert
from tokenizer_folders import BERT_SPECIALS, folder_with, wordpiece_tokenizer

PAIR = ("the cat", "sat on it")


def saved(folder: Path, **options: Any) -> Path:
    """A small BERT whose tokenizer the installed transformers saved as one of no class of its own."""
    from transformers import PreTrainedTokenizerFast
    from transformers import __version__ as version

    small_bert(folder)
    vocabulary = {line: at for at, line in enumerate((folder / "vocab.txt").read_text().splitlines())}
    (folder / "vocab.txt").unlink()
    specials = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=wordpiece_tokenizer(vocabulary), **specials, **options).save_pretrained(
        str(folder)
    )
    change_json(folder / "config.json", transformers_version=version)
    return folder


@pytest.mark.parametrize(
    "options", [{}, {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}], ids=["default", "named"]
)
def test_segments_are_those_of_the_version_that_saved_them(tmp_path: Path, options: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

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
    for version, said in (("4.41.2", "transformers 4 saved it"), (None, "no file says who saved it")):
        change_json(folder / "config.json", transformers_version=version)
        tokenizer = hs.open(folder).tokenizer
        assert set(tokenizer.encode(*PAIR).segments) == {0, 1}
        assert said in tokenizer.doubts(pair=True)[0]


def test_the_caller_chooses(tmp_path: Path) -> None:
    folder = saved(tmp_path / "one")
    for wanted, found in (("one", {0}), ("two", {0, 1}), (None, {0})):
        model = hs.open(folder, segments=wanted)
        assert set(model.trace(*PAIR).segments) == found
        assert (model.tokenizer.doubts(pair=True) == []) == (wanted is not None)
        more = () if wanted is None else ("--set", f"segments={wanted}")
        done = run("attend", folder, PAIR[0], "--pair", PAIR[1], *more, "--json")
        assert set(json.loads(done.stdout)["segments"]) == found
        assert ("have one segment" in done.stderr) == (wanted is None)
    with pytest.raises(hs.HeadscopeError, match="unknown segments 'both'"):
        hs.open(folder, segments="both")
    change_json(folder / "config.json", type_vocab_size=1)
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
        (found,) = hs.match(model, *PAIR, check=False)
        assert found.score == pytest.approx(logits[name], abs=1e-5)
        assert [("have one segment" in note) for note in found.notes] == [True] * (wanted is None)
        more = () if wanted is None else ("--set", f"segments={wanted}")
        done = run("match", folder, *PAIR, *more, "--set", "check=false", "--json")
        record = json.loads(done.stdout)
        assert record["documents"][0]["score"] == pytest.approx(logits[name], abs=1e-5)
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
    from transformers import BertTokenizer

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
    rust = Tokenizer(model)
    rust.pre_tokenizer = {
        "byte-level BPE": pre_tokenizers.ByteLevel(),
        "Unigram": pre_tokenizers.Metaspace(),
    }.get(kind, pre_tokenizers.Whitespace())
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
        "byte-level BPE": (Tokenizer(models.BPE()), trainers.BpeTrainer(**special)),
        "BPE with ends": (
            Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>")),
            trainers.BpeTrainer(**special, end_of_word_suffix="</w>"),
        ),
        "Unigram": (Tokenizer(models.Unigram()), trainers.UnigramTrainer(**special, unk_token="[UNK]")),
        "WordPiece": (Tokenizer(models.WordPiece(unk_token="[UNK]")), trainers.WordPieceTrainer(**special)),
        "letters": (Tokenizer(models.WordLevel(unk_token="[UNK]")), trainers.WordLevelTrainer(**special)),
    }[kind]
    splits = {"byte-level BPE": pre_tokenizers.ByteLevel(), "Unigram": pre_tokenizers.Metaspace()}
    rust.pre_tokenizer = splits.get(
        kind, pre_tokenizers.Split("", "isolated") if kind == "letters" else pre_tokenizers.Whitespace()
    )
    rust.train_from_iterator(text.splitlines()[:400], trainer)
    assert plain(tmp_path, rust).notes == ()

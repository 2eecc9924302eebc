"""Segments of a pair against transformers, and vocabularies that belong to another kind of tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headscope as hs
from checkpoint.tokenizer_folders import BERT_SPECIALS, folder_with
from headscope.checkpoint.tokenizer import load_tokenizer
from headscope.cli import app
from small_bert import small_bert

PAIR = ("the cat", "sat on it")


def rewritten(folder: Path, name: str, **fields: Any) -> None:
    settings = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps({**settings, **fields}))


def saved(folder: Path, **options: Any) -> Path:
    """A small BERT whose tokenizer the installed transformers saved as one of no class of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    from transformers import __version__ as version

    small_bert(folder)
    vocabulary = {line: at for at, line in enumerate((folder / "vocab.txt").read_text().splitlines())}
    (folder / "vocab.txt").unlink()
    rust = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    specials = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=rust, **specials, **options).save_pretrained(str(folder))
    rewritten(folder, "config.json", transformers_version=version)
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
        rewritten(folder, "config.json", transformers_version=version)
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
        run = CliRunner().invoke(app, ["attend", str(folder), PAIR[0], "--pair", PAIR[1], *more, "--json"])
        assert set(json.loads(run.stdout)["segments"]) == found
        assert ("have one segment" in run.stderr) == (wanted is None)
    with pytest.raises(hs.HeadscopeError, match="unknown segments 'both'"):
        hs.open(folder, segments="both")
    rewritten(folder, "config.json", type_vocab_size=1)
    with pytest.raises(hs.HeadscopeError, match="the model has one segment"):
        load_tokenizer(folder_with(tmp_path / "single", {"type_vocab_size": 1}), "two")


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
    assert "can't belong to a WordPiece tokenizer: 7 of its 10 tokens with letters" in note
    assert tokenizer.doubts(pair=False) == [note]
    assert "can't belong" in CliRunner().invoke(app, ["attend", str(folder), "the cat sat"]).stderr
    library.save_pretrained(str(tmp_path / "json"))
    shutil.copy(folder / "config.json", tmp_path / "json" / "config.json")
    assert tokenizer.notes[0] in load_tokenizer(folder_with(tmp_path / "json", {"type_vocab_size": 2})).notes

"""A survey is resumed by the model that began it and by no other: everything that changes a number is compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from surveying import ALICE, contents
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
)

import headscope as hs
from headscope.atlas.loading import tokenizer_record
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError

TEXTS = [ALICE[at : at + 300] for at in range(0, 1500, 300)]
OPTIONS: dict[str, Any] = {"length": 32, "part_size": 500, "threads": 1, "report": False}


def stop(tally) -> None:
    if tally.parts == 1:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with the bundled model's tokenizer, and the beginning of its survey beside it."""
    folder = tmp_path_factory.mktemp("identity") / "small"
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=4096, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED / name, folder / name)
    # A class that takes every section of tokenizer.json as it stands: BertTokenizer makes its own from the vocabulary.
    edited("tokenizer_config.json", lambda it: it.update(tokenizer_class="PreTrainedTokenizerFast"))(folder)
    with pytest.raises(KeyboardInterrupt):
        hs.survey(folder, TEXTS, out=folder.parent / "out", progress=stop, **OPTIONS)
    return folder


def edited(name: str, edit: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        record = json.loads((folder / name).read_text(encoding="utf-8"))
        edit(record)
        (folder / name).write_text(json.dumps(record), encoding="utf-8")

    return change


def swap_two_words(record: dict[str, Any]) -> None:
    vocabulary = record["model"]["vocab"]
    vocabulary["the"], vocabulary["of"] = vocabulary["of"], vocabulary["the"]


CHANGES = {
    "activation": (edited("config.json", lambda it: it.update(hidden_act="relu")), r'hidden_act was "gelu", is "relu"'),
    "epsilon": (edited("config.json", lambda it: it.update(layer_norm_eps=1e-3)), "layer_norm_eps was 1e-12, is 0.001"),
    "another field": (edited("config.json", lambda it: it.update(is_decoder=True)), "is_decoder was false, is true"),
    "lower-casing": (
        edited("tokenizer.json", lambda it: it["normalizer"].update(lowercase=False)),
        r"tokenizer\.normalizer\.lowercase was true, is false",
    ),
    "vocabulary": (edited("tokenizer.json", swap_two_words), r'tokenizer\.model was "sha256 \w+", is "sha256 \w+"'),
    "special tokens": (
        edited("tokenizer.json", lambda it: it["post_processor"]["single"].pop()),
        r'tokenizer\.post_processor was "sha256',
    ),
    "side": (
        edited("tokenizer_config.json", lambda it: it.update(truncation_side="left")),
        r'tokenizer\.truncation_side was "right", is "left"',
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_weights_with_something_else_changed(small, tmp_path, change):
    folder = shutil.copytree(small, tmp_path / "small")
    edit, message = CHANGES[change]
    edit(folder)
    before = contents(small.parent / "out")
    with pytest.raises(InputError, match=rf"(?s)the folder holds a survey with another model: .*{message}"):
        hs.survey(folder, TEXTS, out=small.parent / "out", **OPTIONS)
    assert contents(small.parent / "out") == before


def test_the_way_matrices_are_multiplied(small):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(InputError, match=r'running\.matmul was "highest", is "medium"'):
            hs.survey(small, TEXTS, out=small.parent / "out", **OPTIONS)
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_same_model_elsewhere_goes_on(small, tmp_path):
    """Where it lies, the names of classes and an unused pooler change no number."""
    folder = shutil.copytree(small, tmp_path / "small")
    out = shutil.copytree(small.parent / "out", tmp_path / "out")
    edited("config.json", lambda it: it.update(id2label={"0": "no", "1": "yes"}, _name_or_path="elsewhere"))(folder)
    hs.survey(folder, TEXTS, out=out, **OPTIONS)
    whole = hs.survey(small, TEXTS, out=tmp_path / "whole", **OPTIONS)
    assert contents(out) == contents(whole.folder)


def changed_weight(model: Any) -> None:
    model.encoder.layer[1].attention.self.query.weight.data[0, 0] += 1


def changed_config(model: Any) -> None:
    model.config.layer_norm_eps = 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [(changed_weight, r"model\.sha256 was"), (changed_config, r"model\.config\.layer_norm_eps was 1e-12, is 0.1")],
)
def test_a_live_model_that_was_changed_in_memory(tmp_path, change, message):
    model, tokenizer = AutoModel.from_pretrained(BUNDLED), AutoTokenizer.from_pretrained(BUNDLED)
    with pytest.raises(KeyboardInterrupt):
        hs.survey(model, TEXTS, tokenizer=tokenizer, out=tmp_path / "out", progress=stop, **OPTIONS)
    with pytest.raises(KeyboardInterrupt):  # it was not changed by being run: this goes on
        hs.survey(model, TEXTS, tokenizer=tokenizer, out=tmp_path / "out", progress=stop, **OPTIONS)
    change(model)
    with pytest.raises(InputError, match=message):
        hs.survey(model, TEXTS, tokenizer=tokenizer, out=tmp_path / "out", **OPTIONS)


def test_rotations_are_compared(tmp_path):
    """They are buffers that no checkpoint holds."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model, tokenizer = LlamaModel(config), AutoTokenizer.from_pretrained(BUNDLED)
    requested = {**OPTIONS, "tokenizer": tokenizer, "out": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt):
        hs.survey(model, TEXTS, progress=stop, **requested)
    model.rotary_emb.inv_freq *= 2
    with pytest.raises(InputError, match=r"model\.sha256 was"):
        hs.survey(model, TEXTS, **requested)


def test_lower_casing_of_a_tokenizer_that_makes_its_own_sections():
    """A BertTokenizer goes by tokenizer_config.json, or by what it is called with."""
    plain, cased = (
        tokenizer_record(AutoTokenizer.from_pretrained(BUNDLED, **requested))
        for requested in ({}, {"do_lower_case": False})
    )
    assert plain["normalizer"]["lowercase"]
    assert not cased["normalizer"]["lowercase"]
    assert {name for name in plain if plain[name] != cased[name]} == {"normalizer"}


def test_a_tokenizer_that_cannot_be_saved_is_told_apart_all_the_same():
    """A pre-tokenizer written in Python."""

    class Spaces:
        def pre_tokenize(self, text: Any) -> None:
            text.split(lambda at, one: one.split(" ", "removed"))

    def custom(swapped: bool) -> PreTrainedTokenizerFast:
        record = json.loads((BUNDLED / "tokenizer.json").read_text(encoding="utf-8"))
        if swapped:
            swap_two_words(record)
        result = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(record)))
        result.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Spaces())
        return result

    assert tokenizer_record(custom(False)) == tokenizer_record(custom(False))
    assert tokenizer_record(custom(False)) != tokenizer_record(custom(True))

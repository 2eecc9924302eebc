"""Files that fuzzing found, each as the code that makes it: a result or a HeadscopeError, and no other output."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope as hs
from attacks.readers import READERS, read_config
from headscope.atlas.store import array_and_record, array_bytes, table_of_bytes
from headscope.errors import CheckpointError, ConfigError, HeadscopeError, InputError, UnsupportedError
from headscope.files import label_of, sealed_parquet
from headscope.page.trace import page_file
from making import change_json
from small_bert import small_bert

EXTREMES = [float("nan"), float("inf"), -float("inf"), 10**99, -(10**99), 0, -1, 0.5, True, None, "", "x" * 300]
EXTREMES += [[], [[]], [None], ["a", 1], {}, {"a": {"b": []}}, {"": None}]


@pytest.mark.parametrize("value", EXTREMES, ids=lambda value: repr(value)[:20])
def test_any_value_of_any_field_of_a_config(tmp_path: Path, value: Any) -> None:
    """NaN for architectures ended `headscope summary` in a TypeError."""
    whole = json.loads(READERS["config"].prepare(tmp_path)[-1])
    for name in whole:
        (tmp_path / "config.json").write_text(json.dumps({**whole, name: value}))
        with suppress(HeadscopeError):
            read_config(tmp_path)


def bert_with(folder: Path, name: str, **fields: Any) -> hs.Model:
    """The small BERT with these fields in a file."""
    change_json(small_bert(folder) / name, **fields)
    return hs.open(folder)


def test_an_epsilon_beyond_float32_is_refused(tmp_path: Path) -> None:
    model = bert_with(tmp_path, "config.json", layer_norm_eps=1e308)
    with pytest.raises(ConfigError, match="layer_norm_eps"):
        model.trace("the cat")


MECAB = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
SETTINGS: list[tuple[dict[str, Any], type[HeadscopeError], str | None]] = [
    *(
        ({**MECAB, option: value}, HeadscopeError, option)
        for option, value in (
            ("never_split", [{"a": "x" * 9000}]),
            ("mecab_kwargs", "x" * 9000),
            ("do_lower_case", ["x" * 9000]),
        )
    ),
    *(
        ({**MECAB, "mecab_kwargs": {"mecab_dic": dictionary}}, UnsupportedError, "mecab_dic is")
        for dictionary in (["ipadic"], {"a": 1}, 5, "other")
    ),
    ({**MECAB, "mecab_kwargs": {"mecab_option": "\ud800", "mecab_dic": None}}, HeadscopeError, None),
    ({"tokenizer_class": "BertTokenizer", "added_tokens_decoder": {"9" * 5000: 5}}, CheckpointError, None),
]


@pytest.mark.parametrize(("settings", "kind", "message"), SETTINGS)
def test_any_settings_of_a_tokenizer(
    tmp_path: Path, settings: dict[str, Any], kind: type[HeadscopeError], message: str | None
) -> None:
    """A long value makes a short message, and a dictionary may have any type."""
    model = bert_with(tmp_path, "tokenizer_config.json", **settings)
    with pytest.raises(kind, match=message) as refused:
        model.trace("the cat")
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("model", ["half \ud800 of a pair", "x" * 5000, "a\0b", "./" + "x" * 5000])
def test_a_trace_whose_model_is_called_anything(tmp_path: Path, model: str) -> None:
    """The page's header was not UTF-8, and the name was looked up as a folder."""
    trace = hs.open(small_bert(tmp_path)).trace("the cat").replaced(model=model)
    again = hs.load(trace.save(tmp_path / "t.safetensors"))
    assert again.model == model
    assert page_file(again)[0]


def test_an_infinite_effect_in_the_survey_of_a_stranger(tmp_path: Path) -> None:
    """The change from infinity was a warning and NaN."""
    reader = READERS["survey by a stranger"]
    name, _, content = next(data for data in reader.prepare(tmp_path) if data.startswith(b"effects/")).partition(b"\0")
    array, record = array_and_record(content)
    with pytest.raises(InputError, match="an infinite number among the effects"):
        reader.read(name + b"\0" + array_bytes(np.full_like(array, np.inf), label_of(content), record), tmp_path)


def test_written_tokens_without_a_column_in_the_survey_of_a_stranger(tmp_path: Path) -> None:
    """The rows of the survey ended in a KeyError."""
    reader = READERS["survey by a stranger"]
    files = reader.prepare(tmp_path)
    name, _, content = next(data for data in files if data.startswith(b"writes.parquet")).partition(b"\0")
    table = table_of_bytes(content).drop_columns("sure")
    with pytest.raises(InputError, match="something that no survey does: KeyError: 'sure'"):
        reader.read(name + b"\0" + sealed_parquet(table, label_of(content)), tmp_path)

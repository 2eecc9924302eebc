"""Misspelt options and attributes, those of other libraries, missing extras: errors say what is meant."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertModel, RobertaConfig, RobertaModel

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError, install

TEXT = "The cat sat."
OPTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "trace": (lambda: hs.open().trace(TEXT, max_len=3), "'max_len'; did you mean 'max_length'?"),
    "effects": (lambda: hs.open().effects(TEXT, methd="mean"), "'methd'; did you mean 'method'?"),
    "attribute": (lambda: hs.open().attribute(TEXT, chek=True), "'chek'; did you mean 'check'?"),
    "match": (lambda: hs.match("-", TEXT, TEXT, chek=False), "'chek'; did you mean 'check'?"),  # type: ignore[call-arg]
    "compare": (lambda: hs.compare("-", "-", corpsu="x"), "'corpsu'; did you mean 'corpus'?"),  # type: ignore[call-arg]
    "survey": (lambda: hs.survey("-", "x", lables=True), "'lables'; did you mean 'labels'?"),
    "capture": (lambda: hs.capture(torch.nn.Linear(2, 2), layer=[0]), "'layer'; did you mean 'layers'?"),  # type: ignore[call-arg]
    "to_html": (lambda: hs.open().trace(TEXT).to_html("x", pth=1), "'pth'; did you mean 'path'?"),  # type: ignore[call-arg]
}
ATTRIBUTES: dict[str, tuple[Callable[[], Any], str]] = {
    "attentions": (lambda: hs.open().trace(TEXT).attentions, "use trace.weights"),
    "logits": (lambda: hs.open().trace(TEXT).logits, r"use trace\.outputs\['logits'\]"),
    "hidden_state": (lambda: hs.open().trace(TEXT).hidden_state, "did you mean 'hidden_states'?"),
    "attn": (lambda: hs.open().trace(TEXT)[0, 1].attn, "use weights"),
    "hidden_size": (lambda: hs.open().config.hidden_size, r"use config\['hidden_size'\]"),
    "hiden_size": (lambda: hs.open().config.hiden_size, "did you mean 'hidden_size'?"),
    "num_layers": (lambda: hs.open().num_layers, r"use model\.anatomy\.dimensions\.layers"),
    "encode": (lambda: hs.open().encode(TEXT), "sentence_embedding"),
    "paramters": (lambda: hs.open().paramters, "did you mean 'parameters'?"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_misspelt_option_names_the_function_that_was_called(name: str) -> None:
    call, expected = OPTIONS[name]
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == f"{name}() got an unexpected keyword argument {expected}"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_is_called_otherwise_here(name: str) -> None:
    call, expected = ATTRIBUTES[name]
    with pytest.raises(AttributeError, match=expected) as raised:
        call()
    assert raised.value.name == name


def test_a_misspelt_statistic() -> None:
    with pytest.raises(InputError, match="unknown statistic 'entrop'; did you mean 'entropy'"):
        hs.open().trace(TEXT).statistics(["entrop"])


def test_what_suggests_is_still_asked_and_copied_as_usual() -> None:
    trace = hs.open().trace(TEXT)
    assert not hasattr(trace, "attentions")
    assert getattr(trace, "_repr_latex_", None) is None
    assert copy.deepcopy(trace).tokens == pickle.loads(pickle.dumps(trace)).tokens == trace.tokens
    assert list(inspect.signature(hs.match).parameters)[:3] == ["model", "query", "documents"]


@pytest.mark.parametrize("first", [0, 2])
def test_a_text_that_is_too_long_for_a_live_model(first: int) -> None:
    """RoBERTa's table of positions begins after the row of padding."""
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    model: Any = BertModel.from_pretrained(BUNDLED)
    if first:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        model = RobertaModel(RobertaConfig(max_position_embeddings=66, pad_token_id=1, type_vocab_size=2, **sizes))
    most = 64 if first else 256
    text = "cat " * (most - 2)
    assert len(hs.trace(model, tokenizer, text)) == most
    with pytest.raises(InputError, match=f"the text has {most + 1} tokens, the model takes {most} at most"):
        hs.trace(model, tokenizer, text + "cat")


class Installed:
    """A distribution with this direct_url.json, by which pip remembers where a package came from (PEP 610)."""

    def __init__(self, origin: Any) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.origin if self.origin is None or isinstance(self.origin, str) else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'headscope[view]'"),
        ({"url": "{here}", "dir_info": {"editable": True}}, "pip install -e '{path}[view]'"),
        ({"url": "{here}", "dir_info": {}}, "pip install '{path}[view]'"),
        ({"url": "{here}/gone.whl", "archive_info": {}}, "pip install 'headscope[view]'"),
        ({"url": "https://example.org/headscope.git", "vcs_info": {}}, "pip install 'headscope[view]'"),
        ("not JSON", "pip install 'headscope[view]'"),
        ("[]", "pip install 'headscope[view]'"),
    ],
)
def test_extras_are_installed_from_where_headscope_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Any, expected: str
) -> None:
    folder = tmp_path / "a clone"
    folder.mkdir()
    if isinstance(origin, dict):
        origin["url"] = origin["url"].replace("{here}", folder.as_uri())
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(origin))
    assert install("view", "view") == expected.replace("{path}", str(folder))

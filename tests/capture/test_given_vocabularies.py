"""Tokens are named by whatever vocabulary the caller holds: the library's own, and dicts in both directions."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(BUNDLED)


def captured(vocabulary: Any, ids: torch.Tensor) -> tuple[str, ...]:
    model = BertModel.from_pretrained(BUNDLED).eval()
    with hs.capture(model, tokenizer=vocabulary) as found, torch.no_grad():
        model(ids)
    return found.trace.tokens


def inverted(vocabulary: Mapping[str, int]) -> dict[int, str]:
    return {number: token for token, number in vocabulary.items()}


WAYS: dict[str, Callable[[dict[str, int]], Any]] = {
    "token to id": lambda words: words,
    "an OrderedDict of numpy's integers": lambda words: OrderedDict((w, np.int64(n)) for w, n in words.items()),
    "id to token": inverted,
    "id to token in JSON": lambda words: json.loads(json.dumps(inverted(words))),
    "a list": lambda words: [token for token, _ in sorted(words.items(), key=lambda item: item[1])],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_vocabulary_in_either_direction_names_the_tokens(tokenizer: Any, way: str) -> None:
    ids = tokenizer("The cat sat on 3 mats.", return_tensors="pt").input_ids
    assert captured(WAYS[way](tokenizer.get_vocab()), ids) == tuple(tokenizer.convert_ids_to_tokens(ids[0]))


def test_an_id_that_a_vocabulary_lacks_keeps_its_number() -> None:
    assert captured({"the": 6, "3": 7}, torch.tensor([[6, 7, 8]])) == ("the", "3", "8")
    assert captured({6: "the"}, torch.tensor([[6, 7]])) == ("the", "7")


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"the": 6, "a": 6}, "id 6 is that of two tokens, 'the' and 'a'"),
        ({"the": "le"}, "expected ids and tokens, got 'the': 'le'"),
        ({"the": 6, 7: "a"}, "expected ids and tokens, got 'the': 6"),
    ],
)
def test_what_is_no_vocabulary_is_refused(vocabulary: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hs.capture(BertModel.from_pretrained(BUNDLED), tokenizer=vocabulary)

"""`hs.open` as a person uses it: texts, pairs, words, ids, masks filled; heads by hand; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import headscope as hs
from headscope.errors import InputError, UnsupportedError
from headscope.runs.predicting import fill
from headscope.runs.texts import BATCH_TOKENS, batches
from small_bert import small_bert


def test_a_text_becomes_tokens_as_the_model_has_them(model: hs.Model) -> None:
    trace = model.trace("The tired cat.")
    assert trace.tokens == ("[CLS]", "the", "tir", "##ed", "cat", ".", "[SEP]")
    assert trace.special.tolist() == [True, False, False, False, False, False, True]
    assert trace.words == (None, 0, 1, 1, 2, 3, None)
    assert trace.text == "The tired cat."
    assert trace.model == str(model.name)


def test_a_batch_is_what_each_text_is_by_itself(model: hs.Model) -> None:
    texts, pairs = ["the cat sat", "dogs", "the mat."], ["on the mat", "sat", "the dog"]
    for trace, text, pair in zip(model.trace(texts, pairs), texts, pairs, strict=True):
        alone = model.trace(text, pair)
        assert trace.tokens == alone.tokens
        for layer in range(3):
            np.testing.assert_allclose(trace[layer, 1].weights, alone[layer, 1].weights, atol=1e-6)
        np.testing.assert_allclose(trace.outputs["logits"], alone.outputs["logits"], atol=2e-5)
    assert model.trace([]) == []


def test_batches_go_through_in_bounded_parts() -> None:
    for sizes, expected in (([], []), ([BATCH_TOKENS, 1, 1], [1, 2]), ([9 * BATCH_TOKENS, 1], [1, 1])):
        assert [len(batch) for batch in batches(sizes, int)] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "got none"),
        ({"text": "the", "ids": [5]}, "got text and ids"),
        ({"text": ["the"], "ids": [5]}, "list of texts"),
        ({"text": ["the", "cat"], "pair": "sat"}, "2 texts and one text"),
        ({"text": ["the", "cat"], "pair": ["sat"]}, "2 texts and 1 in pair"),
        ({"text": "the", "pair": ["sat"]}, "`pair` is a list of 1 texts"),
        ({"text": ""}, "empty"),
        ({"text": " \n "}, "the text has no tokens"),
        ({"ids": [5], "segments": [0, 0]}, "segments"),
        ({"text": "the cat", "max_length": 1}, "max_length|1"),
    ],
)
def test_what_can_not_be_a_text_is_refused_in_words(model: hs.Model, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        model.trace(**arguments)
    assert refused.value.advice


def test_what_is_no_head_is_refused_in_words(model: hs.Model) -> None:
    with pytest.raises(InputError, match=r"expected a layer and a head, got \(0,\)[\s\S]*ablate=\{\(3, 5\)\}"):
        model.trace("a", ablate=(0, 0))


def test_the_bundled_model_has_a_name() -> None:
    bert = hs.open()
    assert repr(bert).startswith("the bundled model: BertModel")
    assert repr(bert.trace("hat")).startswith("trace of the bundled model: ")


def test_probabilities_are_transformers_own(small):
    torch = pytest.importorskip("torch")
    from transformers import BertForMaskedLM

    model = hs.open(small)
    trace = model.trace("the [MASK] sat on [MASK]")
    theirs = BertForMaskedLM.from_pretrained(small).eval()
    with torch.inference_mode():
        chances = torch.softmax(theirs(input_ids=torch.tensor([trace.ids])).logits[0].double(), -1).numpy()
    found = fill(model, "the [MASK] sat on [MASK]", top=4)
    assert [one.position for one in found] == [2, 5]
    for one in found:
        row = chances[one.position]
        assert list(one.ids) == list(np.argsort(-row)[:4])
        np.testing.assert_allclose(one.probabilities, row[list(one.ids)], atol=2e-6)
        assert one.tokens == tuple(model.tokenizer.token(index) for index in one.ids)


def test_all_pieces_together_have_probability_1(small):
    (one,) = fill(hs.open(small), "the cat", "[MASK] sat", top=10_000)
    assert one.position == 4
    assert sum(one.probabilities) == pytest.approx(1)


def test_refusals(small, tmp_path):
    model = hs.open(small)
    with pytest.raises(InputError, match=r"the text has no \[MASK\]"):
        fill(model, "the cat")
    with pytest.raises(InputError, match="top is 0"):
        fill(model, "the [MASK]", top=0)
    other = tmp_path / "other"
    other.mkdir()
    save_file({"head.weight": np.zeros((2, 2), "f4")}, other / "model.safetensors")
    (other / "config.json").write_text('{"model_type": "flaubert", "architectures": ["FlaubertWithLMHeadModel"]}')
    with pytest.raises(UnsupportedError, match=r"model_type 'flaubert'\n.*\n.*hs.capture"):
        fill(hs.open(other), "the [MASK]")
    with pytest.raises(UnsupportedError, match="no masked-LM head; on top of BertModel it has nothing"):
        fill(hs.open(small_bert(tmp_path, masked_lm=False)), "the [MASK]")

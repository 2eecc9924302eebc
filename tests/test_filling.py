"""Filling masks, held against transformers' own pipeline of logits and softmax."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import headscope as hs
from headscope.errors import CheckpointError, InputError, UnsupportedError
from headscope.runs.predicting import fill
from small_bert import small_bert


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


def test_no_number_is_no_probability(tmp_path):
    folder = small_bert(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.bias"] = np.full_like(tensors["cls.predictions.bias"], np.nan)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        fill(hs.open(folder), "the [MASK]")


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

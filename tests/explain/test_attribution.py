"""Attributions against the papers' own naive formulas, tokens x tokens x d_model, and against torch autograd."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headscope as hs
from explain.tops import TEXT, readable
from headscope.errors import CheckpointError, InputError, NoteWarning
from headscope.explain.propagation import hold
from headscope.explain.readout import top_gradient
from headscope.runs.texts import as_input, as_traced
from naive_layers import MINILM
from random_models import BERTS_LAYER, run

TARGETS = [
    ("Bert", "ForMaskedLM", None),
    ("Bert", "ForMaskedLM", ("embedding",)),
    ("Bert", "ForMaskedLM", ("similarity", "the dog took off her hat")),
    ("Bert", "ForSequenceClassification", "bad"),
    ("Bert", "ForTokenClassification", ("token", 4, "good")),
    ("Roberta", "ForSequenceClassification", None),
    ("Roberta", "ForMaskedLM", None),
    ("DistilBert", "ForSequenceClassification", None),
    ("DistilBert", "ForMaskedLM", "mat"),
    ("Electra", "ForMaskedLM", None),
    ("Electra", "ForSequenceClassification", None),
]


class Naive:
    """A model's weights by role in fp64, and what transformers computed for a text."""

    def __init__(self, model: hs.Model, module: Any, ids: list[int]) -> None:
        self.model = model
        outputs = run(module, [ids])
        self.attentions = [item[0].double().numpy() for item in outputs.attentions]
        self.states = [item[0].double().numpy() for item in outputs.hidden_states]
        self.heads = model.anatomy.known().heads

    def weight(self, role: str, layer: int | None = None) -> np.ndarray:
        return np.asarray(self.model.checkpoint.read(self.model.anatomy.parameter(role, layer).stored), dtype=float)

    def linear(self, shares: np.ndarray, role: str, layer: int | None = None) -> np.ndarray:
        """On the last axis; the bias goes to the last share."""
        out = shares @ self.weight(f"{role}.weight", layer).T
        out[:, -1] += self.weight(f"{role}.bias", layer)
        return out

    def norm(self, shares: np.ndarray, role: str, layer: int | None = None) -> np.ndarray:
        whole = shares.sum(1)
        deviation = np.sqrt(whole.var(-1) + self.model.anatomy.setting("norm_eps"))[:, None, None]
        out = (shares - shares.mean(-1, keepdims=True)) / deviation * self.weight(f"{role}.weight", layer)
        out[:, -1] += self.weight(f"{role}.bias", layer)
        return out

    def activation(self, shares: np.ndarray, function: Any) -> np.ndarray:
        whole = shares.sum(1)
        return shares * (function(torch.tensor(whole)).numpy() / whole)[:, None]


def decompx(naive: Naive) -> np.ndarray:
    """(tokens, tokens + 1, d_model): the shares of the last hidden state, the biases' last; the paper's equations."""
    x = naive.states[0]
    shares = np.zeros((len(x), len(x) + 1, x.shape[1]))
    shares[np.arange(len(x)), np.arange(len(x))] = x
    for layer, p in enumerate(naive.attentions):
        values = naive.linear(shares, "layer.value", layer)
        split = values.reshape(*values.shape[:2], naive.heads, -1)
        mixed = np.einsum("hij,jkhd->ikhd", p, split).reshape(values.shape)
        shares = shares + naive.linear(mixed, "layer.attention_output", layer)
        shares = naive.norm(shares, "layer.attention_norm", layer)
        middle = naive.activation(naive.linear(shares, "layer.ffn_in", layer), torch.nn.functional.gelu)
        shares = naive.norm(naive.linear(middle, "layer.ffn_out", layer) + shares, "layer.output_norm", layer)
        np.testing.assert_allclose(shares.sum(1), naive.states[layer + 1], atol=1e-4)
    return shares


def by_ratios(model: hs.Model, target: Any, text: str = TEXT) -> tuple[np.ndarray, float]:
    """The scores and the biases' row with activations held at their ratios, as the paper holds them."""
    held = hold(model.encoder, as_input(as_traced(model, text).encoded), slopes="ratio")
    g, on_top = top_gradient(model, target, held.last, slopes="ratio")
    scores, below = held.parts(g)
    return scores, below + on_top


@pytest.mark.parametrize("stem", BERTS_LAYER)
def test_decompx_is_the_papers_forward_propagation_of_shares(tmp_path: Path, stem: str) -> None:
    field = "activation" if stem == "DistilBert" else "hidden_act"
    checkpoint = readable(tmp_path, stem, "ForMaskedLM", **{field: "gelu"})
    model = hs.open(tmp_path)
    result = model.attribute(TEXT)
    naive = Naive(model, checkpoint.module, list(model.trace(TEXT).ids))
    row = result.target.row
    assert row is not None
    scores, rest = by_ratios(model, result.target)
    middle = naive.linear(decompx(naive)[row : row + 1], "masked_lm.transform")
    top = naive.norm(naive.activation(middle, torch.nn.functional.gelu), "masked_lm.norm")[0]
    expected = top @ naive.weight("masked_lm.decoder")[result.target.index]
    np.testing.assert_allclose(scores, expected[:-1], atol=2e-4)
    bias = naive.weight("masked_lm.bias")[result.target.index]
    assert rest == pytest.approx(expected[-1] + bias, abs=2e-4)


@pytest.mark.parametrize(("stem", "suffix", "wanted"), TARGETS)
def test_decompx_adds_up_to_the_output_of_transformers(tmp_path: Path, stem: str, suffix: str, wanted: Any) -> None:
    checkpoint = readable(tmp_path, stem, suffix)
    model = hs.open(tmp_path)
    result = model.attribute(TEXT, wanted)
    outputs = run(checkpoint.module, [list(model.trace(TEXT).ids)])
    target = result.target
    if target.direction is not None:
        vector = outputs.hidden_states[-1][0].double().mean(0).numpy()
        expected = vector @ target.direction / np.linalg.norm(vector)
    elif target.kind == "class":
        expected = float(outputs.logits[0, target.index])
    else:
        expected = float(outputs.logits[0, target.row, target.index])
    assert result.rest is not None
    assert result.total == pytest.approx(expected, abs=1e-4)
    assert result.scores.sum() + result.rest == pytest.approx(expected, abs=2e-4)
    assert result.gap == pytest.approx(0, abs=2e-4)


def test_all_minilm() -> None:
    """DecompX of a real model's vector, by the naive formula."""
    folder = MINILM
    module = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    model = hs.open(folder)
    text = "She took off her hat and sat down, tired."
    naive = Naive(model, module, list(model.trace(text).ids))
    result = model.attribute(text)
    expected = decompx(naive).mean(0) @ result.target.direction / result.target.length
    scores, rest = by_ratios(model, result.target, text)
    np.testing.assert_allclose(scores, expected[:-1], atol=2e-5)
    assert rest == pytest.approx(expected[-1], abs=2e-5)
    assert result.rest is not None
    assert result.scores.sum() + result.rest == pytest.approx(1, abs=2e-5)


def test_memory_grows_with_the_text_and_not_with_its_square(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DecompX' shares of 240 tokens would be 240 x 240 x 64 numbers, 15 MB."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "max_position_embeddings": 256}
    readable(tmp_path, "Bert", "ForSequenceClassification", **sizes)
    model = hs.open(tmp_path)
    model.attribute("the cat", check=False)
    for place in ("headscope.attention.scores.TILE_CELLS", "headscope.explain.steps.TILE_CELLS"):
        monkeypatch.setattr(place, 1 << 12)
    peaks = {}
    for words in (118, 238):
        tracemalloc.start()
        model.attribute("cat " * words, check=False)
        peaks[words + 2] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[240] < 240 * 240 * 64 * 4 / 3
    assert peaks[240] < 2.2 * peaks[120]


def test_an_output_that_is_no_number_is_refused(tmp_path: Path) -> None:
    checkpoint = readable(tmp_path, "Bert", "ForSequenceClassification")
    with torch.no_grad():
        checkpoint.module.classifier.bias[1] = float("nan")
    checkpoint.module.save_pretrained(tmp_path)
    model = hs.open(tmp_path)
    for explain in (model.attribute, model.effects):
        with pytest.raises(CheckpointError, match=r"not a number|is nan"):
            explain(TEXT, 1)


def test_refusals(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "ForMaskedLM")
    model = hs.open(tmp_path)
    with pytest.raises(InputError, match="73 tokens"):
        model.attribute("[MASK] " + "cat " * 70)
    with pytest.warns(NoteWarning, match="cut to 64 tokens"):
        notes = model.attribute("cat " * 70).notes
    assert "from 72 to 64 tokens" in " ".join(notes)  # the text's vector, as elsewhere
    with pytest.raises(InputError, match=r"no \[MASK\]"):
        model.attribute("the cat", "mat")


def test_the_distance_of_a_vector_from_itself_has_no_slope(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "Model")
    with pytest.raises(InputError, match="slope 0"):
        hs.open(tmp_path).attribute(TEXT, ("embedding_distance",))


def test_effects_are_correlated_as_numpy_does(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "ForSequenceClassification")
    model = hs.open(tmp_path)
    zero, mean = model.effects(TEXT), model.effects(TEXT, method="mean")
    assert zero.correlation(mean) == pytest.approx(np.corrcoef(zero.change.ravel(), mean.change.ravel())[0, 1])
    with pytest.raises(InputError, match=r"\(3, 4\) and of \(2, 2\)"):
        zero.correlation(np.zeros((2, 2)))

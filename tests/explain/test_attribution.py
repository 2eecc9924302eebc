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
from explain.minilm import minilm_folder
from explain.tops import TEXT, readable
from headscope.errors import CheckpointError, InputError, UnsupportedError
from headscope.explain.propagation import hold
from headscope.explain.readout import top_gradient
from headscope.runs.gradients import gradients, integrated_gradients
from headscope.runs.modules import inputs_of, module_for, score_of
from headscope.runs.texts import as_input, as_traced
from random_models import BERTS_LAYER, FAMILIES, run

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


def alti(naive: Naive) -> np.ndarray:
    """(tokens, tokens): the product of all layers' contributions, by the paper's equations."""
    total = np.eye(len(naive.states[0]))
    for layer, p in enumerate(naive.attentions):
        x = naive.states[layer]
        values = x @ naive.weight("layer.value.weight", layer).T + naive.weight("layer.value.bias", layer)
        W_O = naive.weight("layer.attention_output.weight", layer).T
        d_head = x.shape[1] // naive.heads
        spans = [slice(h * d_head, (h + 1) * d_head) for h in range(naive.heads)]
        sent = sum(np.einsum("ij,jd->ijd", p[h], values[:, span] @ W_O[span]) for h, span in enumerate(spans))
        sent[np.arange(len(x)), np.arange(len(x))] += x
        summed = sent.sum(1) + naive.weight("layer.attention_output.bias", layer)
        deviation = np.sqrt(summed.var(-1, keepdims=True) + naive.model.anatomy.setting("norm_eps"))
        gamma, beta = (naive.weight(f"layer.attention_norm.{part}", layer) for part in ("weight", "bias"))
        y = (summed - summed.mean(-1, keepdims=True)) / deviation * gamma + beta
        moved = (sent - sent.mean(-1, keepdims=True)) / deviation[:, None] * gamma
        near = np.maximum(0, np.abs(y).sum(-1)[:, None] - np.abs(y[:, None] - moved).sum(-1))
        total = near / near.sum(-1, keepdims=True) @ total
    return total


@pytest.mark.parametrize("wanted", [None, ("embedding",)])
@pytest.mark.parametrize("stem", BERTS_LAYER)
def test_alti_is_the_papers_product_of_contributions(tmp_path: Path, stem: str, wanted: Any) -> None:
    checkpoint = readable(tmp_path, stem, "ForMaskedLM")
    model = hs.open(tmp_path)
    result = model.attribute(TEXT, wanted, method="alti")
    rows = alti(Naive(model, checkpoint.module, list(model.trace(TEXT).ids)))
    expected = rows.mean(0) if result.target.row is None else rows[result.target.row]
    np.testing.assert_allclose(result.scores, expected, atol=1e-5)
    assert result.scores.sum() == pytest.approx(1)
    assert result.scores.min() >= 0
    assert result.rest is None
    assert result.gap is None


def test_all_minilm() -> None:
    """DecompX and ALTI of a real model's vector, by the naive formulas."""
    folder = minilm_folder()
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
    np.testing.assert_allclose(model.attribute(text, method="alti").scores, alti(naive).mean(0), atol=1e-5)


@pytest.mark.parametrize(("stem", "suffix", "wanted"), TARGETS)
def test_attention_gradients_are_those_of_eager_attention(tmp_path: Path, stem: str, suffix: str, wanted: Any) -> None:
    checkpoint = readable(tmp_path, stem, suffix)
    model = hs.open(tmp_path)
    target = model.effects(TEXT, wanted).target
    found = gradients(module_for(model, target), inputs_of(model, as_traced(model, TEXT).encoded), score_of(target))
    ids = torch.tensor([model.trace(TEXT).ids])
    outputs = checkpoint.module(input_ids=ids, output_attentions=True, output_hidden_states=True)
    if target.direction is not None:
        vector = outputs.hidden_states[-1][0].double().mean(0)
        score = vector @ torch.from_numpy(target.direction)
        score = score / (vector.norm() if target.kind == "similarity" else target.length)
    else:
        logits = outputs.logits[0]
        score = logits[target.index] if target.kind == "class" else logits[target.row, target.index]
    slopes = torch.autograd.grad(score, outputs.attentions)
    expected = torch.stack([(p * g)[0].sum(1) for p, g in zip(outputs.attentions, slopes, strict=True)]).detach()
    np.testing.assert_allclose(found.keys, expected.numpy(), atol=1e-4)
    with pytest.raises(InputError, match="recipe") as raised:
        model.attribute(TEXT, method="attention_gradient")
    assert "docs/recipes.md" in str(raised.value.advice)
    with pytest.raises(InputError, match="slope 0"):
        model.attribute(TEXT, ("embedding_distance",))


@pytest.mark.parametrize("stem", ["Bert", "DistilBert"])
def test_head_gradients_are_those_of_a_mask_on_heads(tmp_path: Path, stem: str) -> None:
    """Michel et al. 2019: xi multiplies each head's output, and the importance is |dL/dxi| at xi = 1."""
    checkpoint = readable(tmp_path, stem, "ForSequenceClassification")
    model, module = hs.open(tmp_path), checkpoint.module
    result = model.effects(TEXT, method="gradient")
    masks = torch.ones(3, 4, requires_grad=True)
    layers = module.bert.encoder.layer if stem == "Bert" else module.distilbert.transformer.layer
    for at, layer in enumerate(layers):
        into = layer.attention.output.dense if stem == "Bert" else layer.attention.out_lin
        into.register_forward_pre_hook(lambda _, given, at=at: (given[0] * masks[at].repeat_interleave(8),))
    module(torch.tensor([model.trace(TEXT).ids])).logits[0, result.target.index].backward()
    assert masks.grad is not None
    np.testing.assert_allclose(result.change, -masks.grad.numpy(), atol=1e-4)
    exact = model.effects(TEXT)
    by_numpy = np.corrcoef(exact.change.ravel(), result.change.ravel())[0, 1]
    assert exact.correlation(result) == pytest.approx(by_numpy)
    with pytest.raises(InputError, match=r"\(3, 4\) and of \(2, 2\)"):
        exact.correlation(np.zeros((2, 2)))


@pytest.mark.parametrize(("stem", "suffix", "wanted"), TARGETS)
def test_integrated_gradients_add_up(tmp_path: Path, stem: str, suffix: str, wanted: Any) -> None:
    readable(tmp_path, stem, suffix)
    model = hs.open(tmp_path)
    result = model.attribute(TEXT, wanted, method="integrated_gradients", steps=64)
    assert result.gap == pytest.approx(0, abs=2e-2)
    decomposed = model.attribute(TEXT, wanted)
    assert result.total == pytest.approx(decomposed.total, abs=1e-4)
    assert not result.scores[np.array(result.axis.special)].any()
    assert result.target.kind != "word" or result.scores[result.target.row] == 0


@pytest.mark.parametrize("stem", [stem for stem in FAMILIES if stem not in BERTS_LAYER])
def test_integrated_gradients_of_every_family_add_up(tmp_path: Path, stem: str) -> None:
    """They need no rule: the sum over tokens is the score less that of the baseline, by the live module."""
    readable(tmp_path, stem, "ForMaskedLM")
    result = hs.open(tmp_path).attribute(TEXT, method="integrated_gradients", steps=96)
    assert result.gap == pytest.approx(0, abs=5e-2)
    assert np.abs(result.scores).max() > 1e-3


def test_integrated_gradients_are_a_plain_sum(tmp_path: Path) -> None:
    """Midpoints on the line between the embeddings, given as inputs_embeds."""
    checkpoint = readable(tmp_path, "Bert", "ForSequenceClassification")
    model, module = hs.open(tmp_path), checkpoint.module
    result = model.attribute(TEXT, method="integrated_gradients", steps=64)
    ids = torch.tensor([model.trace(TEXT).ids])
    special = torch.tensor([result.axis.special])
    words = module.bert.embeddings.word_embeddings
    end, start = words(ids).detach(), words(torch.where(special, ids, 0)).detach()
    total = torch.zeros_like(end)
    for step in range(200):
        at = (start + (step + 0.5) / 200 * (end - start)).requires_grad_()
        (slope,) = torch.autograd.grad(module(inputs_embeds=at).logits[0, result.target.index], at)
        total += slope / 200
    np.testing.assert_allclose(result.scores, ((end - start) * total).sum(-1)[0], atol=2e-3)


def test_any_live_model_of_the_families(tmp_path: Path) -> None:
    """In training mode, with SDPA, parameters that require gradients: all as it was afterwards."""
    checkpoint = readable(tmp_path, "Bert", "ForSequenceClassification")
    module = checkpoint.module.train()
    module.bert.encoder.layer[0].eval()
    modes = [part.training for part in module.modules()]
    module.set_attn_implementation("sdpa")
    inputs = {"input_ids": torch.tensor([[2, 5, 6, 7, 3]])}
    result = gradients(module, inputs, lambda outputs: outputs.logits[0, 1])
    again = gradients(module, inputs, lambda outputs: outputs.logits[0, 1])
    np.testing.assert_array_equal(result.heads, again.heads)
    np.testing.assert_allclose(result.keys.sum(-1), result.heads, atol=1e-5)
    assert [part.training for part in module.modules()] == modes
    assert all(item.grad is None and item.requires_grad for item in module.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    for wrong, message in (
        ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, r"\(2, 3\), expected \(1, tokens\)"),
        ({}, "missing"),
        ({**inputs, "attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}, "padded"),
    ):
        with pytest.raises(InputError, match=message):
            gradients(module, wrong, lambda outputs: outputs.logits[0, 1])
    with pytest.raises(InputError, match="not one number"):
        gradients(module, inputs, lambda outputs: outputs.logits)
    with pytest.raises(InputError, match="0 steps"):
        integrated_gradients(module, inputs, lambda outputs: outputs.logits[0, 1], inputs["input_ids"], steps=0)
    with pytest.raises(UnsupportedError, match="Linear is of no family"):
        gradients(torch.nn.Linear(2, 2), inputs, lambda outputs: outputs.logits[0, 1])


def test_the_module_is_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = readable(tmp_path, "Bert", "ForMaskedLM", tie_word_embeddings=False)
    model = hs.open(tmp_path)
    target = model.attribute(TEXT).target
    encoded = model.tokenizer.encode(TEXT)
    module = module_for(model, target)
    assert type(module).__name__ == "BertForMaskedLM"
    with torch.no_grad():
        logit = float(score_of(target)(module(**inputs_of(model, encoded))))
    expected = float(run(checkpoint.module, [list(encoded.ids)]).logits[0, target.row, target.index])
    assert logit == pytest.approx(expected, abs=1e-5)


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
    with pytest.raises(InputError, match="no method 'guess'"):
        model.attribute(TEXT, method="guess")
    with pytest.raises(InputError, match="73 tokens"):
        model.attribute("[MASK] " + "cat " * 70)
    assert "from 72 to 64 tokens" in " ".join(model.attribute("cat " * 70).notes)  # the text's vector, as elsewhere
    with pytest.raises(InputError, match=r"no \[MASK\]"):
        model.attribute("the cat", "mat")

"""What heads and feed-forwards write, against transformers with autograd, and against the last hidden state itself."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headscope as hs
from explain.tops import captured_trace
from headscope.encoder import Input
from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.explain.promotes import all_promote, along_the_residual, with_masked_lm
from headscope.explain.residual import walk
from naive_layers import PRE_NORM, naive_layers
from random_models import ids, made, random_model

HEADS = {
    "Bert": lambda m: attrgetter("transform.dense", "transform.LayerNorm", "decoder")(m.cls.predictions),
    "Roberta": lambda m: (m.lm_head.dense, m.lm_head.layer_norm, m.lm_head.decoder),
    "DistilBert": lambda m: (m.vocab_transform, m.vocab_layer_norm, m.vocab_projector),
    "Electra": lambda m: (m.generator_predictions.dense, m.generator_predictions.LayerNorm, m.generator_lm_head),
}
"""Family -> the dense layer, the LayerNorm and the decoder of its masked-LM head; GELU is between the first two."""
AFTER = {
    "MegatronBert": lambda m: (m.bert.encoder.ln, HEADS["Bert"](m)),
    "Esm": lambda m: (m.esm.encoder.emb_layer_norm_after, HEADS["Roberta"](m)),
    "EuroBert": lambda m: (m.model.norm, (m.lm_head,)),
    "ModernBert": lambda m: (m.model.final_norm, (m.head.dense, m.head.norm, m.decoder)),
}
"""Family -> the norm after its last layer, and the same parts; EuroBERT's head is its decoder alone."""
QUERY = 4


@pytest.fixture(scope="module", params=list(HEADS))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    checkpoint = made(tmp_path_factory.mktemp(request.param), request.param, "ForMaskedLM")
    module, text = checkpoint.module.double(), ids(10)
    before: dict[nn.Module, torch.Tensor] = {}
    norms = [one for one in module.modules() if isinstance(one, nn.LayerNorm)]
    handles = [
        one.register_forward_pre_hook(lambda norm, given: before.update({norm: given[0].detach()[0]})) for one in norms
    ]
    fed: list[torch.Tensor] = []
    with torch.no_grad():
        layers = naive_layers(module.base_model, text)
        module(input_ids=torch.tensor([text]), attention_mask=torch.ones(1, len(text), dtype=torch.long))
        for handle in handles:
            handle.remove()
        for layer in layers:
            inner = [one for one in layer.module.modules() if isinstance(one, nn.LayerNorm)]
            fed.append(before[inner[1]] - inner[0](before[inner[0]]))
    model = hs.open(checkpoint.folder)
    parts = HEADS[request.param](module)
    return SimpleNamespace(model=model, trace=model.trace(ids=text), layers=layers, before=before, fed=fed, parts=parts)


def close(promotion: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(promotion.effects, expected, rtol=1e-3, atol=2e-5 * np.abs(expected).max())


def frozen(norm: nn.LayerNorm, x: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """LayerNorm with the deviation that it is given."""
    return (x - x.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


def deviation_of(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    return (x.detach().var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()


def naive_effects(both: SimpleNamespace, layer: int, written: torch.Tensor, skip: int) -> np.ndarray:
    """(vocabulary,): autograd's change of the logits along a vector written after `skip` LayerNorms of a layer."""
    norms = [one for layer in both.layers for one in layer.module.modules() if isinstance(one, nn.LayerNorm)]
    for norm in norms[2 * layer + skip :]:
        x = both.before[norm][QUERY]
        written = frozen(norm, x + written, deviation_of(norm, x)) - frozen(norm, x, deviation_of(norm, x))
    dense, norm, decoder = both.parts
    last = both.layers[-1].output[QUERY]
    held = deviation_of(norm, nn.functional.gelu(dense(last)))

    def head(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(frozen(norm, nn.functional.gelu(dense(x)), held), decoder.weight)

    _, change = torch.autograd.functional.jvp(head, last, written)
    found: np.ndarray = change.detach().numpy()
    return found


def test_heads_promote_what_autograd_says(both: SimpleNamespace) -> None:
    for layer, naive in enumerate(both.layers):
        for head in (0, 3):
            promotion = both.trace[layer, head].promotes(QUERY, top=5)
            expected = naive_effects(both, layer, naive.sent[head, QUERY].sum(0).detach(), 0)
            close(promotion, expected)
            best, worst = int(expected.argmax()), int(expected.argmin())
            assert (promotion.raised[0]["id"], promotion.lowered[0]["id"]) == (best, worst)
            assert promotion.raised[0]["effect"] == pytest.approx(float(expected[best]), rel=1e-3)
            assert [len(promotion.raised), len(promotion.lowered)] == [5, 5]


def test_all_heads_at_once_promote_what_autograd_says(both: SimpleNamespace) -> None:
    """The text beside a longer one, of which other positions are asked for."""
    texts = [Input(np.array(text), np.zeros(len(text), dtype=np.int64)) for text in (ids(17, 3), both.trace.ids)]
    every = np.arange(both.model.anatomy.known().vocab)[None]
    parts = list(all_promote(both.model, texts, [np.array([2, 11]), np.array([QUERY])], every))
    assert [rows for rows, _ in parts] == [slice(0, 3)]
    effects = parts[0][1][:, 2]
    for layer, naive in enumerate(both.layers):
        for head in range(len(naive.sent)):
            expected = naive_effects(both, layer, naive.sent[head, QUERY].sum(0).detach(), 0)
            found = effects[layer * len(naive.sent) + head]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("family", ["Albert", "RoFormer", "MPNet", "DebertaV2", *PRE_NORM])
def test_all_heads_at_once_promote_as_each_does(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts, other tokens for each head, one position at a time."""
    model = hs.open(made(tmp_path, family, "ForMaskedLM").folder)
    sizes = model.anatomy.known()
    texts, places = [ids(9), ids(14, 1)], [np.array([1, 5]), np.array([0, 3, 13])]
    tokens = np.random.default_rng(0).integers(0, sizes.vocab, size=(sizes.layers * sizes.heads, 7))
    monkeypatch.setattr("headscope.explain.promotes.CELLS", 1)
    inputs = [Input(np.array(text), np.zeros(len(text), dtype=np.int64)) for text in texts]
    parts = list(all_promote(with_masked_lm(model, "here"), inputs, places, tokens))
    assert [rows.stop - rows.start for rows, _ in parts] == [1] * 5
    effects = np.concatenate([found for _, found in parts], axis=1)
    traces = [(model.trace(ids=text), place) for text, at in zip(texts, places, strict=True) for place in at]
    for at, (trace, place) in enumerate(traces):
        for cell, (layer, head) in enumerate(np.ndindex(sizes.layers, sizes.heads)):
            expected = trace[layer, head].promotes(place).effects[tokens[cell]]
            np.testing.assert_allclose(effects[cell, at], expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", PRE_NORM)
def test_norms_before_the_sums_leave_the_last_in_the_way(name: str, tmp_path: Path) -> None:
    """Against autograd through transformers' own last norm and masked-LM head, the deviations of norms held."""
    checkpoint, text = made(tmp_path, name, "ForMaskedLM"), ids(10)
    module = checkpoint.module.double()
    norm, parts = AFTER[name](module)
    before: list[torch.Tensor] = []
    handle = norm.register_forward_pre_hook(lambda _, given: before.append(given[0].detach().reshape(10, -1)[QUERY]))
    layers = naive_layers(module.base_model, text)
    handle.remove()

    def held(of: Any, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        centre = 1 if hasattr(of, "eps") else 0  # EuroBERT's RMSNorm
        square = (x - centre * x.mean()).detach().square().mean()
        deviation = (square + (of.eps if centre else of.variance_epsilon)).sqrt()
        return lambda y: (y - centre * y.mean()) / deviation * of.weight

    def logits(written: torch.Tensor) -> torch.Tensor:
        last = held(norm, before[0])(written)
        if len(parts) == 1:
            return nn.functional.linear(last, parts[0].weight)
        at = norm(before[0])
        active, slope = torch.autograd.functional.jvp(lambda x: nn.functional.gelu(parts[0](x)), at, last)
        return nn.functional.linear(held(parts[1], active)(slope), parts[2].weight)

    trace = hs.open(checkpoint.folder).trace(ids=text)
    for layer in (0, len(layers) - 1):
        expected = logits(layers[layer].sent[2, QUERY].sum(0).detach()).detach().numpy()
        close(trace[layer, 2].promotes(QUERY), expected)
    attention = layers[1].sent[:, QUERY].sum((0, 1)) + (0 if layers[1].dense.bias is None else layers[1].dense.bias)
    fed = (layers[1].output[QUERY] - layers[1].x[QUERY] - attention).detach()
    close(trace[1].promotes(QUERY), logits(fed).detach().numpy())


def test_a_layer_that_mixes_by_convolution_is_refused(tmp_path: Path) -> None:
    model = hs.open(made(tmp_path, "DebertaV2", "ForMaskedLM", conv_kernel_size=3).folder)
    inputs = [Input(np.array(ids(9)), np.zeros(9, dtype=np.int64))]
    with pytest.raises(UnsupportedError, match="convolution"):
        list(all_promote(with_masked_lm(model, "here"), inputs, [np.array([1])], np.zeros((1, 1), dtype=np.int64)))


def test_the_ov_matrix_alone(both: SimpleNamespace) -> None:
    layer = both.layers[1]
    v_W_O = (layer.sent[2, QUERY, 7] / layer.p[2, QUERY, 7]).detach()
    promotion = both.trace[1, 2].promotes(QUERY, key=7)
    close(promotion, naive_effects(both, 1, v_W_O, 0))
    assert "OV matrix on token 7" in repr(promotion)


def test_layers_promote_what_autograd_says(both: SimpleNamespace) -> None:
    for layer, naive in enumerate(both.layers):
        attention = (naive.sent.sum((0, 2))[QUERY] + naive.dense.bias).detach()
        for part, written in (("feed_forward", both.fed[layer][QUERY]), ("attention", attention)):
            expected = naive_effects(both, layer, written, int(part == "feed_forward"))
            close(both.trace[layer].promotes(QUERY, **({} if part == "feed_forward" else {"part": part})), expected)


def test_all_parts_together_are_the_last_hidden_state(both: SimpleNamespace) -> None:
    """Nothing is lost along the residual: embeddings, heads, feed-forwards and LayerNorm biases add up to it."""
    trace, encoder = both.trace, both.model.encoder
    way = walk(trace, np.array([QUERY]))
    total = along_the_residual(encoder, way, 0, way[0].x[0].astype(np.float64), "attention")
    for layer in range(len(way)):
        attention = trace[layer].output[QUERY] + encoder.weight("layer.attention_output.bias", layer)
        shift = encoder.weight("layer.attention_norm.bias", layer)
        total = total + along_the_residual(encoder, way, layer, attention.astype(np.float64), "attention")
        fed = way[layer].fed[0]
        total += along_the_residual(encoder, way, layer, (fed + shift).astype(np.float64), "feed_forward")
        last = encoder.weight("layer.output_norm.bias", layer).astype(np.float64)
        total += along_the_residual(encoder, way, layer + 1, last, "attention")
    expected = both.layers[-1].output[QUERY].detach().numpy()
    np.testing.assert_allclose(total, expected, atol=2e-5)
    np.testing.assert_allclose(way[-1].output[0], expected, atol=2e-5)


def test_walking_one_query_is_the_forward_pass_with_silenced_heads(both: SimpleNamespace) -> None:
    trace = both.model.trace(ids=both.trace.ids, ablate={(0, 1), (2, 3)}, hidden_states=True)
    for row in (0, 6):
        for layer, written in enumerate(walk(trace, np.array([row]))):
            np.testing.assert_allclose(written.output[0], trace.hidden_states[layer + 1][row], atol=2e-5)


def test_the_bundled_model_fills_in_words() -> None:
    trace = hs.open().trace("She took off her [MASK] and sat down by the fire.")
    mask = trace.tokens.index("[MASK]")
    promotion = trace[3].promotes(mask)
    assert promotion.raised[0]["effect"] > 0 > promotion.lowered[0]["effect"]
    lines = repr(promotion).splitlines()
    assert lines[0] == f"layer 3, feed-forward, at token {mask}:"
    first = promotion.raised[0]
    assert lines[1].startswith(f"  raises {first['token']} {first['effect']:+.3f}")
    assert promotion.as_dict()["raised"][0] == {"token": first["token"], "id": first["id"], "effect": first["effect"]}


def test_what_is_missing_is_named(both: SimpleNamespace, minilm: hs.Model) -> None:
    with pytest.raises(UnsupportedError, match="no masked-LM head; on top of BertModel it has nothing"):
        minilm.trace("The cat.")[0, 0].promotes(1)
    with pytest.raises(InputError, match="no token 99"):
        both.trace[0, 0].promotes(99)
    with pytest.raises(InputError, match="top is 0"):
        both.trace[0, 0].promotes(1, top=0)
    with pytest.raises(InputError, match="no part 'mlp'"):
        both.trace[0].promotes(1, part="mlp")
    with pytest.raises(TraceError, match="this trace has no model"):
        both.trace.replaced(source=None)[0, 0].promotes(1)
    live = captured_trace(random_model("Bert", "ForMaskedLM"), ids(7))
    with pytest.raises(UnsupportedError, match="Of a live model only attention is known"):
        live[0, 0].promotes(1)

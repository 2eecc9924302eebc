"""Mixing ratios, norm maps, rollout and value zeroing against the papers' naive formulas and published numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

import headscope as hs
from explain.tops import captured_trace
from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.explain import mixing
from headscope.explain.finding_measures import Link
from headscope.explain.findings import brought_by_links
from headscope.explain.mixing import KINDS
from headscope.page.trace import page_file
from headscope.results.explained import Followed
from naive_layers import MINILM, PRE_NORM, NaiveLayer, minilm, naive_layers
from random_models import FAMILIES, ids, made, random_model

TEXT = "The cat sat on the mat because it was tired, and the dog watched the cat from the window."
NORM_KINDS = KINDS[1:4:2] + KINDS[4:]


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """A random checkpoint of a family, or all-MiniLM-L6-v2: opened, traced, and its layers by transformers in fp64."""

    @cache
    def look(name: str) -> SimpleNamespace:
        real = name == "MiniLM"
        model = hs.open(MINILM if real else made(tmp_path_factory.mktemp(name), name).folder)
        module = minilm() if real else random_model(name).double()
        trace = model.trace(TEXT) if real else model.trace(ids=ids(13))
        with torch.no_grad():
            layers = naive_layers(module, trace.ids)
        return SimpleNamespace(model=model, trace=trace, ids=trace.ids, layers=layers, close=2e-5 if real else 2e-6)

    return look


RANDOM = ["Bert", "Roberta", "DistilBert", "Electra"]


@pytest.fixture(params=RANDOM)
def both(request: pytest.FixtureRequest, looked_at: Callable[[str], SimpleNamespace]) -> SimpleNamespace:
    return looked_at(request.param)


@pytest.fixture(params=[*RANDOM, "MiniLM"])
def either(request: pytest.FixtureRequest, looked_at: Callable[[str], SimpleNamespace]) -> SimpleNamespace:
    return looked_at(request.param)


@pytest.fixture
def real(looked_at: Callable[[str], SimpleNamespace]) -> SimpleNamespace:
    return looked_at("MiniLM")


@pytest.mark.parametrize("kind", KINDS)
def test_ratios_are_the_papers(either: SimpleNamespace, kind: str) -> None:
    expected = torch.stack([layer.ratios(kind) for layer in either.layers]).detach().numpy()
    for trace in (either.trace, either.model.trace(ids=either.ids, hidden_states=True)):
        ratio = trace.mixing_ratio(kind)
        assert (ratio.kind, ratio.layers) == (kind, tuple(range(len(either.layers))))
        np.testing.assert_allclose(np.asarray(ratio), expected, atol=either.close)
        np.testing.assert_allclose(ratio.mean, expected.mean(-1), atol=either.close)


@pytest.mark.parametrize("kind", NORM_KINDS)
def test_norm_maps_are_the_lengths_of_every_vector(either: SimpleNamespace, kind: str) -> None:
    for number, layer in enumerate(either.layers):
        expected = layer.vectors(kind).norm(dim=-1).detach().numpy()
        lengths = either.trace.norm_map(number, kind)
        np.testing.assert_allclose(np.asarray(lengths), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(lengths[3], expected[3], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(lengths[2:9:3, 1:8], expected[2:9:3, 1:8], rtol=1e-4, atol=1e-6)


def test_norm_maps_of_one_head(both: SimpleNamespace) -> None:
    expected = both.layers[1].sent.norm(dim=-1).detach().numpy()
    for head in range(4):
        np.testing.assert_allclose(np.asarray(both.trace.norm_map(1, head=head)), expected[head], rtol=1e-4, atol=1e-7)
    with pytest.raises(InputError, match="AttnRes-N has no map of norms of one head"):
        both.trace.norm_map(1, "AttnRes-N", head=0)
    with pytest.raises(InputError, match="Attn-W has no map of norms"):
        both.trace.norm_map(1, "Attn-W")


def test_silenced_heads_send_nothing(both: SimpleNamespace) -> None:
    silenced = both.model.trace(ids=both.ids, ablate={(0, 1), (0, 2)})
    layer = replace(both.layers[0], p=both.layers[0].p * torch.tensor([1.0, 0.0, 0.0, 1.0])[:, None, None])
    expected = layer.vectors("Attn-N").norm(dim=-1).detach().numpy()
    np.testing.assert_allclose(np.asarray(silenced.norm_map(0)), expected, rtol=1e-4, atol=1e-6)
    for kind in ("Attn-N", "AttnRes-N", "AttnResLn-N"):
        np.testing.assert_allclose(silenced.mixing_ratio(kind).ratios[0], layer.ratios(kind).detach(), atol=2e-6)
    away = 1 - layer.p[[0, 3]].mean(0).diagonal().detach().numpy()
    np.testing.assert_allclose(silenced.mixing_ratio("Attn-W").ratios[0], away, atol=2e-6)
    assert silenced.norm_map(0, head=1)[...].max() == 0


def test_a_module_in_training_mode_keeps_its_random_numbers() -> None:
    """It is run to see whether a LayerNorm follows its heads, and its dropout draws."""
    module = random_model("Bert")
    trace = captured_trace(module, ids(6), hidden_states=True)
    module.train()
    before = torch.get_rng_state()
    with pytest.raises(UnsupportedError, match="the LayerNorm that follows the heads is not known"):
        trace.mixing_ratio()
    assert torch.equal(torch.get_rng_state(), before)
    assert module.training


@pytest.mark.parametrize("states", [True, False])
def test_captured_models_give_what_opened_ones_give(both: SimpleNamespace, states: bool) -> None:
    name = next(stem for stem in FAMILIES if both.model.anatomy.base_class == f"{stem}Model")
    module = random_model(name)
    trace = captured_trace(module, both.ids, hidden_states=states)
    for kind in ("Attn-W", "AttnRes-W", "Attn-N"):
        np.testing.assert_allclose(trace.mixing_ratio(kind).ratios, both.trace.mixing_ratio(kind).ratios, atol=1e-5)
    for kind in ("AttnRes-N", "AttnResLn-N"):
        if name == "DistilBert" and states:
            with pytest.raises(UnsupportedError, match="the LayerNorm that follows the heads is not known"):
                trace.mixing_ratio(kind)
        elif not states:
            with pytest.raises(TraceError, match="kept no hidden states") as caught:
                trace.mixing_ratio(kind)
            assert "output_hidden_states=True" in str(caught.value)
        else:
            np.testing.assert_allclose(trace.mixing_ratio(kind).ratios, both.trace.mixing_ratio(kind).ratios, atol=1e-5)


def test_what_is_missing_is_named(both: SimpleNamespace, tmp_path: Path) -> None:
    path = both.trace.save(tmp_path / "one.safetensors")
    alone = hs.load(path)
    assert alone.mixing_ratio("Attn-W").ratios.shape == (3, 13)
    with pytest.raises(TraceError, match="needs W_O"):
        alone.mixing_ratio("Attn-N")
    again = hs.load(path, model=both.model)
    np.testing.assert_allclose(again.mixing_ratio().ratios, both.trace.mixing_ratio().ratios, atol=1e-6)
    without = hs.load(both.trace.save(tmp_path / "two.safetensors", values=False), model=both.model)
    with pytest.raises(TraceError, match="values were not kept"):
        without.mixing_ratio("Attn-N")
    with pytest.raises(InputError, match="no kind 'N'"):
        both.trace.mixing_ratio("N")


def test_expansion_rates_are_the_published_ones(real: SimpleNamespace) -> None:
    rates = [round(layer.expansion_rate, 3) for layer in real.model.layers]
    assert rates == [0.676, 1.070, 1.265, 1.392, 1.161, 1.074]


def test_heads_that_share_keys_and_values() -> None:
    """A captured Llama: grouped queries, causal, and pre-norm, so that no LayerNorm follows the heads."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 60}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    torch.manual_seed(0)
    module = transformers.LlamaModel._from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    trace = captured_trace(module, ids(9), hidden_states=True)
    for number, naive in enumerate(naive_layers(module, ids(9))):
        lengths = {None: naive.vectors("Attn-N").norm(dim=-1), 3: naive.sent[3].norm(dim=-1)}
        for head, expected in lengths.items():
            np.testing.assert_allclose(np.asarray(trace.norm_map(number, head=head)), expected, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(trace.mixing_ratio("Attn-N").ratios[number], naive.ratios("Attn-N"), atol=1e-5)
    assert trace.mixing_ratio("AttnRes-W").ratios.max() < 0.5
    with pytest.raises(UnsupportedError, match="so the LayerNorm that follows the heads is not known"):
        trace.mixing_ratio("AttnRes-N")


def naive_rollout(layers: list[NaiveLayer], kind: str) -> np.ndarray:
    """(S, S): A_L ... A_1, each with rows that sum to 1."""
    flow = torch.eye(len(layers[0].x), dtype=torch.float64)
    for layer in layers:
        mixing = layer.vectors(kind).norm(dim=-1)
        flow = mixing / mixing.sum(-1, keepdim=True) @ flow
    return np.asarray(flow.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_rollout_is_the_product_of_all_layers(either: SimpleNamespace, kind: str) -> None:
    expected = naive_rollout(either.layers, kind)
    for token in (0, 4 - len(either.trace)):  # counted from the end, too
        to = either.trace.rollout(to=token, kind=kind)
        assert (to.dims, to.labels) == (("tokens",), either.trace.tokens)
        np.testing.assert_allclose(to.array, expected[token], atol=2e-6)
        np.testing.assert_allclose(either.trace.rollout(from_=token, kind=kind).array, expected[:, token], atol=2e-6)
        assert to.array.sum() == pytest.approx(1, abs=1e-5)
        if kind == "AttnRes-W":  # of Abnar and Zuidema 2020, A = 0.5 W + 0.5 I: the default
            np.testing.assert_array_equal(either.trace.rollout(to=token), to)


def test_rollout_says_what_it_needs(either: SimpleNamespace) -> None:
    for given in ({}, {"to": 1, "from_": 2}):
        with pytest.raises(InputError, match="exactly one of `to` and `from_`"):
            either.trace.rollout(**given)
    with pytest.raises(InputError, match="no token 99"):
        either.trace.rollout(to=99)
    module = random_model("Bert")
    chosen = captured_trace(module, ids(7), layers=range(module.config.num_hidden_layers))
    np.testing.assert_array_equal(chosen.rollout(to=1), captured_trace(module, ids(7)).rollout(to=1))


def test_a_causal_model_keeps_what_comes_later_out() -> None:
    module = random_model("Bert", is_decoder=True)
    trace = captured_trace(module, ids(9))
    flow = trace.rollout(to=4)
    assert flow.array[5:].max() == 0
    assert flow.array.sum() == pytest.approx(1, abs=1e-6)
    assert trace.mixing_ratio("Attn-N").ratios[:, 0] == pytest.approx(0, abs=1e-6)


def without_value(layer: NaiveLayer, key: int) -> torch.Tensor:
    """(S, d_model): the layer's output with token `key`'s value vector set to 0 in all heads."""

    others = (torch.arange(len(layer.x)) != key)[:, None]
    handle = layer.value.register_forward_hook(lambda _, __, output: output * others)
    with torch.no_grad():
        output = layer.module(layer.x[None])
    handle.remove()
    found = output[0] if isinstance(output, tuple) else output
    return found[0] if found.dim() == 3 else found


def test_value_zeroing_is_the_layer_run_without_each_value(either: SimpleNamespace) -> None:
    for number in (0, len(either.layers) - 1):
        layer = either.layers[number]
        changed = torch.stack([without_value(layer, key) for key in range(len(either.trace))])  # (key, query, d_model)
        expected = 1 - torch.cosine_similarity(changed, layer.output[None], dim=-1).detach().numpy()
        for query in (0, 5):
            row = either.trace.value_zeroing(number, query)
            assert row.dims == ("keys",)
            np.testing.assert_allclose(row.array, expected[:, query], rtol=2e-3, atol=1e-10)
        kept = either.model.trace(ids=either.trace.ids, segments=either.trace.segments, hidden_states=True)
        np.testing.assert_allclose(kept.value_zeroing(number, 5).array, expected[:, 5], rtol=2e-3, atol=1e-10)


def test_value_zeroing_in_blocks_is_value_zeroing(either: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = either.trace.value_zeroing(1, 2).array
    monkeypatch.setattr(mixing, "BLOCK_KEYS", 3)
    np.testing.assert_allclose(either.trace.value_zeroing(1, 2).array, whole, rtol=1e-3, atol=1e-11)


def test_value_zeroing_needs_the_whole_layer() -> None:
    with pytest.raises(UnsupportedError, match="Of a live model only attention is known"):
        captured_trace(random_model("Bert"), ids(7)).value_zeroing(0, 1)


# Norms before the sums.


@pytest.mark.parametrize("name", PRE_NORM)
def test_norms_before_the_sums(name: str, tmp_path: Path) -> None:
    """There is no LayerNorm between the vectors that tokens send and the residual: AttnRes-N is all of a layer."""
    module, text = random_model(name).double(), ids(13)
    layers = naive_layers(module, text)
    model = hs.open(made(tmp_path, name).folder)
    for trace in (model.trace(ids=text), model.trace(ids=text, hidden_states=True)):
        for kind in KINDS[:4]:
            expected = torch.stack([layer.ratios(kind) for layer in layers]).detach().numpy()
            np.testing.assert_allclose(trace.mixing_ratio(kind).ratios, expected, atol=5e-6)
            flow = naive_rollout(layers, kind)
            np.testing.assert_allclose(trace.rollout(to=4, kind=kind).array, flow[4], atol=5e-6)
        with pytest.raises(UnsupportedError, match="AttnResLn-N is defined for layers whose norms follow") as caught:
            trace.mixing_ratio()
        assert 'use "AttnRes-N"' in str(caught.value)
        lengths = layers[1].vectors("AttnRes-N").norm(dim=-1).detach().numpy()
        np.testing.assert_allclose(np.asarray(trace.norm_map(1, "AttnRes-N")), lengths, rtol=1e-4, atol=1e-6)
        followed = trace.follow(5)
        for at, layer in enumerate(layers):
            shares, kept = naive_shares(layer)
            np.testing.assert_allclose(followed.shares[at], shares[:, 5], atol=2e-5)
            assert followed.kept[at] == pytest.approx(kept[5], abs=2e-5)
        assert b"view.kept" in page_file(trace)[0]
        for number in (0, len(layers) - 1):
            zeroed = [naive_layers(module, text, (number, key))[number].output[5] for key in range(len(text))]
            expected = 1 - torch.cosine_similarity(torch.stack(zeroed), layers[number].output[5][None], dim=-1).numpy()
            np.testing.assert_allclose(trace.value_zeroing(number, 5).array, expected, rtol=2e-3, atol=1e-9)


# A word followed through the layers.


TIRED = "The animal did not cross the street because it was too tired."
IT, ANIMAL = 9, 2


@pytest.fixture(scope="module")
def trace() -> hs.Trace:
    return hs.open(MINILM).trace(TIRED)


def naive_shares(layer: NaiveLayer) -> tuple[np.ndarray, np.ndarray]:
    """(heads, S, S), r_i F_ij^h . A_i / |A_i|^2 and 0 where j = i; and (S,), 1 - r_i. Without a norm, F as it is."""
    F, kind = layer.sent, "AttnRes-N"
    if layer.norm is not None:
        before = layer.sent.sum((0, 2)) + layer.dense.bias + layer.x
        deviation = (before.var(-1, unbiased=False) + layer.norm.eps).sqrt()
        F, kind = (F - F.mean(-1, keepdim=True)) / deviation[:, None, None] * layer.norm.weight, "AttnResLn-N"
    F = F * (1 - torch.eye(len(layer.x)))[None, :, :, None]
    A = F.sum((0, 2))
    r = layer.ratios(kind)
    shares = torch.einsum("hijm,im->hij", F, A) * (r / A.square().sum(-1))[None, :, None]
    return shares.detach().numpy(), (1 - r).detach().numpy()


def test_shares_are_those_of_every_vector(either: SimpleNamespace) -> None:
    naive = [naive_shares(layer) for layer in either.layers]
    for token in (0, 5, len(either.trace) - 1):
        followed = either.trace.follow(token)
        for at, (layer, (shares, kept)) in enumerate(zip(either.layers, naive, strict=True)):
            np.testing.assert_allclose(followed.shares[at], shares[:, token], atol=2e-5)
            assert followed.kept[at] == pytest.approx(kept[token], abs=2e-5)
            np.testing.assert_allclose(followed.weights[at], layer.p[:, token].detach(), atol=2e-5)
        np.testing.assert_allclose(np.asarray(followed).sum(-1) + followed.kept, 1, atol=1e-5)


def test_what_is_looked_at_hardest_brings_less(trace: hs.Trace) -> None:
    """3.1 gives “animal” .69 and brings .06; 5.11 gives .66 and brings .19, which no weight says."""
    followed = trace.follow(IT)
    assert [round(float(followed.weights[at][ANIMAL]), 2) for at in ((3, 1), (5, 11))] == [0.69, 0.66]
    assert [round(float(followed.shares[at][ANIMAL]), 2) for at in ((3, 1), (5, 11))] == [0.06, 0.19]
    np.testing.assert_allclose(followed.kept, [0.69, 0.73, 0.68, 0.70, 0.74, 0.62], atol=5e-3)
    assert followed.sentence == (
        "“it” takes in “tired” in layer 2, then “animal”, most in layer 5 through head 5.11. It keeps 0.62 to 0.74 of "
        "itself in a layer; “animal” brings 0.22 there, 0.19 through that head."
    )
    (link, *_) = trace.findings()
    assert link.sentence.endswith("It brings .06 of the new “it”; 5.11 brings .19.")
    assert [(cell.layer, cell.head, cell.query, cell.key) for cell in link.cells] == [(3, 1, 9, 2), (5, 11, 9, 2)]
    frame = followed.to_pandas()
    best = frame.loc[frame["share"].idxmax()]
    assert (best["layer"], best["token"], best["head"]) == (5, "animal", 11)
    assert len(frame) == 6 * 14


def test_a_notebook_shows_layers_and_tokens(trace: hs.Trace, tmp_path: Path) -> None:
    """Through IPython's formatter; and the figure's numbers are those of the shares."""
    from IPython.core.formatters import DisplayFormatter

    one = trace.follow(IT)
    shown, _ = DisplayFormatter().format(one)
    head, *rows = [re.findall(r"<t[hd][^>]*>(.*?)</", row) for row in re.findall(r"<tr>.*?</tr>", shown["text/html"])]
    assert head == ["layer", *trace.tokens]
    assert [row[1 + ANIMAL] for row in rows[3:]] == ["0.09 by 3.1", "0.09 by 4.4", "0.22 by 5.11"]
    assert [row[1 + IT] for row in rows] == [f"{share:.2f} kept" for share in one.kept]
    axes = one.plot(save=tmp_path / "one.svg")
    drawn = {text.get_position(): text.get_text() for text in axes.texts}
    assert (drawn[2, 5], drawn[9, 5]) == (".22\n5.11", ".62")
    assert len(drawn) == 6 + (np.asarray(one) >= 0.02).sum()


def test_a_silenced_head_brings_nothing(trace: hs.Trace) -> None:
    followed = hs.open(MINILM).trace(TIRED, ablate={(5, 11)}).follow(IT)
    assert not followed.shares[5, 11].any()
    np.testing.assert_allclose(np.asarray(followed).sum(-1) + followed.kept, 1, atol=1e-5)


def test_a_live_module_with_its_hidden_states_gives_the_same(trace: hs.Trace) -> None:
    module = transformers.AutoModel.from_pretrained(MINILM).eval()
    words = transformers.AutoTokenizer.from_pretrained(MINILM)
    for live in (
        captured_trace(module, trace.ids, hidden_states=True),
        hs.trace(module, TIRED, tokenizer=words, hidden_states=True),
    ):
        np.testing.assert_allclose(live.follow(IT).shares, trace.follow(IT).shares, atol=1e-4)
    with pytest.raises(TraceError, match="hidden_states=True"):
        hs.trace(module, TIRED, tokenizer=words).follow(IT)


def test_layers_with_other_numbers_of_heads_are_followed() -> None:
    """What is kept, and the shares of heads that are there, add up to 1; a link may lead through any of them."""
    module = random_model("Bert")
    attention = module.encoder.layer[0].attention.self
    attention.num_attention_heads, attention.attention_head_size = 2, 16
    trace = captured_trace(module, ids(8), hidden_states=True)
    one = trace.follow(3)
    assert one.shares.shape == one.weights.shape == (3, 4, 8)
    assert not one.shares[0, 2:].any()
    np.testing.assert_allclose(one.kept, 1 - trace.mixing_ratio().ratios[:, 3], atol=1e-5)
    np.testing.assert_allclose(one.kept + one.shares.sum((1, 2)), 1, atol=1e-5)
    for layer, heads in enumerate((2, 4, 4)):
        np.testing.assert_allclose(one.weights[layer, :heads], trace[layer].weights[:, 3], atol=1e-6)
    ((share, most, place),) = brought_by_links(trace, [Link(1, 3, 3, 6, 0.5, 0.1)])
    assert share == pytest.approx(one.shares[1, 3, 6], abs=1e-6)
    assert most == pytest.approx(one.shares[:, :, 6].max(), abs=1e-6)
    assert one.shares[place][6] == one.shares[:, :, 6].max()


def followed(totals: list[list[float]], places: tuple[int, ...], words: tuple[str, ...]) -> Followed:
    """One head; the first token is followed."""
    shares = np.array(totals, dtype=np.float32)[:, None]
    kept = 1 - shares.sum((1, 2))
    return Followed(0, words, words, places, tuple(range(len(totals))), kept, shares, np.abs(shares))


def test_the_sentence_counts_words_and_leaves_marks_out() -> None:
    words = ("it", "play", "##ing", ".", "dog")
    one = followed([[0, 0.1, 0.1, 0.5, 0.15], [0, 0, 0, 0.5, 0.1]], (0, 1, 1, -1, 2), words)
    assert one.brought()[0]["word"] == "dog"  # 0.25 in both layers, "play" 0.2 in one
    assert one.sentence == (
        "“it” takes in “dog”, most in layer 0 through head 0.0. It keeps 0.15 to 0.40 of itself in a layer; "
        "“dog” brings 0.15 there, 0.15 through that head."
    )
    (play,) = [found for found in one.brought() if found["word"] == "play"]
    assert play["layer"] == 0
    assert play["share"] == pytest.approx(0.2)


def test_next_to_nothing_is_said_as_such() -> None:
    one = followed([[0, 0.01], [0, 0.012]], (0, 1), ("it", "dog"))
    assert one.sentence == "“it” keeps 0.99 of itself; no word brings as much as 0.02."
    assert followed([[0]], (0,), ("it",)).sentence == "“it” keeps 1.00 of itself; no word brings as much as 0.02."


def test_what_can_t_be_followed_is_refused(trace: hs.Trace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="token 15"):
        trace.follow(15)
    with pytest.raises(TraceError, match="needs the model's weights"):
        hs.load(trace.save(tmp_path / "alone.safetensors")).follow(1)
    before = hs.open(made(tmp_path, "DebertaV2", conv_kernel_size=3).folder).trace(ids=ids(9))
    with pytest.raises(UnsupportedError, match="a convolution stands beside the first layer"):
        before.follow(1)
    assert all("brings" not in finding.numbers for finding in before.findings())


def test_one_token_keeps_all_of_itself(tmp_path: Path) -> None:
    one = hs.open(made(tmp_path, "Bert").folder).trace(ids=ids(1)).follow(0)
    np.testing.assert_array_equal(one.kept, 1)
    assert not one.shares.any()

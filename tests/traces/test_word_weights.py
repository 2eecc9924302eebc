"""Weights by name: between words by Clark's rule, as frames of pandas and arrays of xarray."""

from __future__ import annotations

import sys

import numpy as np
import pandas
import pytest

import headscope as hs
from headscope.errors import MissingExtraError

TEXT, PAIR = "The unbelievable cat-lovers sat.", "Antidisestablishmentarianism!"


def by_hand(tokens: tuple[str, ...], weights: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Clark et al. 2019, section 4.1, cell by cell; `##` continues a word."""
    words: list[list[int]] = []
    for at, token in enumerate(tokens):
        if token.startswith("##"):
            words[-1].append(at)
        else:
            words.append([at])
    cells = np.array([[np.mean([sum(weights[i, j] for j in to) for i in word]) for to in words] for word in words])
    return ["".join(tokens[at].removeprefix("##") for at in word) for word in words], cells


@pytest.fixture(scope="module")
def trace(bundled: hs.Model) -> hs.Trace:
    trace = bundled.trace(TEXT, PAIR)
    assert sum(token.startswith("##") for token in trace.tokens) > 3
    return trace


def test_weights_between_words_are_sums_of_means(trace: hs.Trace) -> None:
    for layer, head in ((0, 0), (2, 1), (3, 3)):
        words, cells = by_hand(trace.tokens, np.asarray(trace[layer, head].weights, dtype=np.float64))
        found = trace[layer, head].by_words()
        np.testing.assert_allclose(found, cells, atol=1e-6)
        np.testing.assert_allclose(found.array.sum(-1), 1, atol=1e-5)
        assert [word.lower() for word in found.queries] == [word.lower() for word in words]
        assert found.labels == found.queries
        assert found.dims == ("queries", "keys")
        frame = found.to_pandas()
        assert (list(frame.index), frame.index.name, frame.columns.name) == (list(found.queries), "query", "key")
        assert frame.loc["unbelievable", "sat"] == pytest.approx(cells[words.index("unbelievable"), words.index("sat")])


def test_special_tokens_are_words_that_can_be_left_out(trace: hs.Trace) -> None:
    whole, without = trace[1, 1].by_words(), trace[1, 1].by_words(special=False)
    kept = [at for at, word in enumerate(whole.queries) if not word.startswith("[")]
    np.testing.assert_array_equal(without, whole[np.ix_(kept, kept)])
    assert without.queries == tuple(whole.queries[at] for at in kept)
    assert (without.array.sum(-1) < 1).all()


def test_all_heads_at_once(trace: hs.Trace) -> None:
    every, layer = trace.by_words(), trace[2].by_words(special=False)
    assert every.heads == tuple((at, head) for at in range(4) for head in range(4))
    for place, head in enumerate(every.heads):
        np.testing.assert_array_equal(every[place], trace[head].by_words())
    np.testing.assert_array_equal(layer[3], trace[2, 3].by_words(special=False))
    assert layer.heads == ((2, 0), (2, 1), (2, 2), (2, 3))
    frame = every.to_pandas()
    assert frame.index.names == ["layer", "head", "query"]
    assert frame.loc[(2, 3, "sat"), "The"] == pytest.approx(trace[2, 3].by_words().to_pandas().loc["sat", "The"])


def test_keys_of_cross_attention_have_their_own_names() -> None:
    import torch
    from transformers import BartConfig, BartModel

    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 50}
    model = BartModel(BartConfig(**sizes, **heads, max_position_embeddings=16)).eval()
    with torch.no_grad(), hs.capture(model) as captured:
        model(torch.tensor([[5, 6, 7, 8]]), decoder_input_ids=torch.tensor([[9, 10]]))
    trace = captured["cross"][0]
    found = trace[0, 1].by_words()
    assert (found.shape, found.queries, found.labels) == ((2, 4), trace.tokens, trace.keys.tokens)
    np.testing.assert_allclose(found, trace[0, 1].weights, atol=1e-6)
    assert trace.frame(0, 1).shape == (2, 4)


def test_a_frame_has_the_tokens_as_names(trace: hs.Trace) -> None:
    frame = trace.frame(3, 1)
    assert (list(frame.index), list(frame.columns)) == ([*trace.tokens], [*trace.tokens])
    np.testing.assert_array_equal(frame.to_numpy(), trace[3, 1].weights[:])
    kept = np.flatnonzero(~trace.special)
    np.testing.assert_allclose(trace.frame(3, 1, special=False), trace[3, 1].weights[:][np.ix_(kept, kept)], atol=1e-6)
    pandas.testing.assert_frame_equal(trace.frame(3, 1, words=True), trace[3, 1].by_words().to_pandas())


def test_every_table_is_a_frame(bundled: hs.Model) -> None:
    parameters = bundled.parameters
    frame = parameters.to_pandas()
    assert frame["count"].sum() == parameters.total
    pairs = [(["A", "cat", "sat"], [(1, 0)])] * 2
    assert len(hs.pair_heads(bundled, pairs).to_pandas()) == len(hs.pair_heads(bundled, pairs, by="row").to_pandas())
    match = hs.match(bundled, "a cat", ["the cat sat", "a dog"])
    assert len(match.to_pandas()) == len(match.rows())


def test_arrays_of_xarray(trace: hs.Trace) -> None:
    words = trace.by_words()
    found = words.to_xarray()
    assert (found.dims, found.name) == (("heads", "queries", "keys"), "weights")
    cell = found.sel(heads="2.1", queries="sat", keys="The")
    assert float(cell) == trace[2, 1].by_words().to_pandas().loc["sat", "The"]
    np.testing.assert_array_equal(found.coords["keys"], list(words.queries))
    states = trace.outputs["last_hidden_state"]
    assert (states.to_xarray().dims, [*states.to_xarray().coords]) == (states.dims, [])
    np.testing.assert_array_equal(states.to_xarray(), states)


def test_tables_of_xarray(trace: hs.Trace) -> None:
    table = trace.statistics(["entropy", "first"])
    found = table.to_xarray()
    assert [*found.data_vars] == [*table]
    assert float(found["entropy"].sel(layers=3, heads=1)) == table["entropy"][3, 1]
    queries = trace.statistics("entropy", per_query=True)
    np.testing.assert_array_equal(queries.to_xarray()["entropy"].sel(layers=2, heads=0), queries["entropy"].array[2, 0])


@pytest.mark.parametrize("name", ["pandas", "xarray"])
def test_a_missing_library_is_named(name: str, trace: hs.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=f"{name} is not installed"):
        getattr(trace[0, 0].by_words(), f"to_{name}")()

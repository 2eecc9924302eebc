"""Positions of a trace's tokens in the batch: rows, padding, tokens masked out in the middle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from comparing import captured_of, eager_attentions

import headscope as hs
from families import BY_NAME, DECODER, Family
from headscope.errors import InputError
from headscope.page.trace import page_bytes
from headscope.traces import Cut
from products import pairwise

built = BY_NAME["BertModel"].build


def batch(holes: dict[int, list[int]], rows: int = 1, tokens: int = 12) -> dict[str, torch.Tensor]:
    """Random ids, and a mask that hides the given positions of the given rows."""
    ids = torch.randint(5, 50, (rows, tokens), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, places in holes.items():
        mask[row, places] = 0
    return {"input_ids": ids, "attention_mask": mask}


HOLES = [[5], [3, 4, 8], [0, 1, 6], [6, 10, 11], [0, 4, 5, 11]]


@pytest.mark.parametrize(
    ("name", "hidden", "engine"), pairwise(("bert", "window of 4", "window of 40"), HOLES, ("numpy", "torch"))
)
def test_a_token_that_is_masked_out_keeps_its_place(name: str, hidden: list[int], engine: str) -> None:
    """Distances and neighbours are those of the sequence that the model read, masked tokens included."""
    sliding = Family("MistralModel", {**DECODER, "sliding_window": 40 if "40" in name else 4})
    model = built() if name == "bert" else sliding.build()
    inputs = batch({0: hidden})
    (trace,) = captured_of(model, **inputs).traces
    weights = eager_attentions(model, inputs)["self"]
    real = inputs["attention_mask"][0].numpy().astype(bool)
    first, last = np.flatnonzero(real)[[0, -1]]
    assert trace.positions.tolist() == [*range(first, last + 1)]
    assert trace.ids == tuple(inputs["input_ids"][0, first : last + 1].tolist())
    assert trace.layers[0].mask.bias is None
    assert trace.verify().agrees
    gap = np.arange(12)[None, :] - np.arange(12)[:, None]
    table = trace.statistics(["offset", "distance", "previous", "next", "same"], engine=engine)
    for layer, theirs in enumerate(weights):
        cells = theirs[0][:, real]
        expected = {
            "offset": (cells * gap[real]).sum(-1).mean(-1),
            "distance": (cells * abs(gap[real])).sum(-1).mean(-1),
        }
        for name_, offset in (("previous", -1), ("next", 1), ("same", 0)):
            at = [query for query in np.flatnonzero(real) if first <= query + offset <= last]
            expected[name_] = theirs[0][:, at, [query + offset for query in at]].mean(-1)
        for statistic, values in expected.items():
            np.testing.assert_allclose(table[statistic].array[layer], values, atol=2e-5, err_msg=statistic)
        span = slice(first, last + 1)
        seen = np.asarray(trace[layer].weights)
        np.testing.assert_allclose(seen[:, real[span]], theirs[0][:, span, span][:, real[span]], atol=2e-5)


def test_the_page_measures_the_same(tmp_path: Path) -> None:
    """The numbers in the page's data and the saved file keep the positions too."""
    model, inputs = built(), batch({0: [4, 5, 6]})
    (trace,) = captured_of(model, **inputs).traces
    real = inputs["attention_mask"][0].numpy().astype(bool)
    gap = abs(np.arange(12)[None, :] - np.arange(12)[:, None])
    expected = [(one[0] * gap)[:, real].sum(-1).mean(-1) for one in eager_attentions(model, inputs)["self"]]
    tensors = safetensors.numpy.load(page_bytes(trace, dtype="fp32"))
    distances = [one for one in tensors["view.statistics"] if np.allclose(one, expected, atol=1e-4)]
    assert len(distances) == 1
    again = hs.load(trace.save(tmp_path / "trace.safetensors"))
    np.testing.assert_allclose(again.statistics("distance")["distance"].array, expected, atol=2e-5)


def test_rows_and_positions_of_a_batch(tmp_path: Path) -> None:
    model = built()
    inputs = batch({0: [10, 11], 1: [0, 1, 2, 6], 2: []}, rows=3)
    weights = eager_attentions(model, inputs)["self"]
    traces = captured_of(model, **inputs).traces
    assert [trace.row for trace in traces] == [0, 1, 2]
    assert [trace.positions.tolist() for trace in traces] == [[*range(10)], [*range(3, 12)], [*range(12)]]
    for trace in (*traces, *(hs.load(one.save(tmp_path / f"{one.row}.safetensors")) for one in traces)):
        assert trace.cut.sizes == (12, 12)
        for layer, theirs in enumerate(weights):
            part = theirs[trace.row][:, trace.positions][:, :, trace.key_positions]
            seen = np.isfinite(trace.layers[layer].lse)
            np.testing.assert_allclose(np.asarray(trace[layer].weights)[seen], part[seen], atol=2e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("empty", "message"), [([1], "row 1 is empty"), ([0, 2], "rows 0, 2 are empty")])
def test_an_empty_text_in_a_batch_is_named(empty: list[int], message: str, attention: str) -> None:
    model = built(attention=attention)
    inputs = batch({row: [*range(12)] for row in empty}, rows=3)
    with pytest.raises(InputError, match=message):
        captured_of(model, **inputs)
    (trace,) = captured_of(model, **batch({})).traces
    assert (trace.row, trace.positions.tolist(), trace.key_positions.tolist()) == (0, [*range(12)], [*range(12)])
    assert trace.cut == Cut.none(12, 12)


def test_an_empty_text_in_a_list_is_named(bert: hs.Model) -> None:
    with pytest.raises(InputError, match=r"text\[1\]: text is empty"):
        bert.trace(["the cat", "", "the mat"])
    with pytest.raises(InputError, match=r"pair\[2\]: the pair has no tokens"):
        bert.trace(["the cat", "the dog", "the mat"], ["sat", "sat", "  "])


def test_positions_and_special_tokens_index_one_axis_of_other_arrays() -> None:
    """A tuple would be an index of as many axes: of two tokens, a single cell."""
    words = ["[CLS]", "a", "[SEP]", *map(str, range(3, 40))]
    hidden = np.arange(24.0).reshape(12, 2)
    (trace,) = captured_of(built(), **batch({0: [0, 1, 4, *range(5, 11)]})).traces
    assert len(trace) == 10
    model = built()
    with hs.capture(model, tokenizer=words) as found, torch.no_grad():
        states = model(torch.tensor([[1, 2]])).last_hidden_state[0]
    pair = found.trace
    for array in (states, states.numpy()):
        assert array[pair.positions].shape == array[pair.key_positions].shape == (2, states.shape[1])
        assert array[pair.special].shape == (0, states.shape[1])
        assert array[pair.segments == 0].shape == (2, states.shape[1])
    assert hidden[trace.positions].tolist() == hidden[2:].tolist()
    assert hidden[trace.left_out].tolist() == hidden[:2].tolist()
    text = hs.open().trace("cat")
    states = text.outputs["last_hidden_state"]
    assert states[~text.special].tolist() == states[1:-1].tolist()
    again = hs.open().trace(ids=text.ids, segments=text.segments)
    assert again.tokens == text.tokens

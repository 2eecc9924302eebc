"""Weights with any mask that PyTorch accepts, against PyTorch's softmax of scores and mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from comparing import assert_weights, captured_of, eager_attentions, own, passed, softmax_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from families import BY_NAME, built
from headscope.errors import UnsupportedError
from headscope.heads.measure import statistics
from headscope.live import capture
from headscope.live.masks.analyst import Analyst, RawMask, find_rules
from headscope.traces import Trace
from products import in_turn, pairwise

LEAST = torch.finfo(torch.float32).min
INF = float("inf")
pytestmark = pytest.mark.usefixtures("no_grad")


def drawn(batch: int, heads: int, tokens: int, size: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [size * torch.randn(batch, heads, tokens, 8, generator=generator) for _ in range(3)]


def captured(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> list[Trace]:
    model = own(lambda self, *qkv, mask: scaled_dot_product_attention(*qkv, attn_mask=mask))
    return captured_of(model, q, k, v, mask=mask).traces


def assert_right(traces: list[Trace], q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor, atol: float) -> None:
    """Compare every cell of every head. No query sees a removed key, and only rows of -inf are empty."""
    truth = softmax_of(q, k, mask).numpy()
    none = (~mask if mask.dtype == torch.bool else mask == -INF).expand(*truth.shape).all(-1).numpy()
    for row, trace in enumerate(traces):
        places = zip(truth.shape[2:], (trace.cut.queries, trace.cut.keys), strict=True)
        queries, keys = (np.isin(np.arange(size), kept) for size, kept in places)
        assert np.abs(truth[row][:, queries][:, :, ~keys]).max(initial=0) == 0, "a key was cut away that is looked at"
        assert not (keys & ~queries).any()
        for head in range(truth.shape[1]):
            one = trace[0, head]
            cells = truth[row, head][queries][:, keys]
            np.testing.assert_allclose(np.asarray(one.weights), cells, atol=atol)
            np.testing.assert_array_equal(np.isneginf(one.lse), none[row, head][queries])
            np.testing.assert_allclose(one.weights.sum(1), ~none[row, head][queries], atol=1e-5)


def assert_statistics(trace: Trace) -> None:
    """Compare the entropy, however it is computed, of each query that is not masked out and sees a key."""
    table = statistics(trace, ["entropy"], per_query=True)["entropy"].array[0]
    for head in range(trace.heads):
        one = trace[0, head]
        p = np.asarray(one.weights, dtype=np.float64)
        shown = trace.layers[0].mask.keys
        seeing = (p.sum(1) > 0.5) & (True if shown is None else shown)
        np.testing.assert_array_equal(np.isnan(table[head]), ~seeing)
        ours = -np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0).sum(1)
        np.testing.assert_allclose(table[head][seeing], ours[seeing], atol=2e-4)


SHIFTS = [0.0, -3.0, 7.5, -20_000.0, 15_000.0, -1e6, -1e9, LEAST, -INF]
MASKED = [-INF, -1e4, -1e9, LEAST, -104.0, -50.0]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), tokens=st.integers(1, 7), batch=st.sampled_from([1, 2]), heads=st.sampled_from([1, 2]))
def test_whatever_the_mask(data: st.DataObject, tokens: int, batch: int, heads: int) -> None:
    q, k, v = drawn(batch, heads, tokens)
    shape = (data.draw(st.sampled_from([1, batch])), data.draw(st.sampled_from([1, heads])), tokens, tokens)
    if data.draw(st.booleans()):
        shape = (*shape[:2], 1, tokens)
    count = int(np.prod(shape))
    ruled = shape[2] > 1 and data.draw(st.booleans())
    if ruled:  # causality, a window, and padding on one side
        ahead = torch.arange(tokens) - torch.arange(tokens)[:, None]
        far = [data.draw(st.integers(0, 7)) for _ in range(2)]
        real = torch.arange(tokens) >= data.draw(st.integers(0, tokens - 1))
        real = data.draw(st.sampled_from([real, real.flip(0)]))
        hidden = ((ahead < -far[0]) | (ahead > far[1]) | ~real).expand(shape)
    else:
        hidden = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))).view(shape)
        if data.draw(st.booleans()):
            hidden = hidden & torch.ones(shape[-2:], dtype=torch.bool).triu(1)
    kind = data.draw(st.sampled_from(["bool", "masked", "numbers"]))
    if kind == "bool":
        mask = ~hidden
    else:
        level = data.draw(st.sampled_from(MASKED))
        mask = torch.zeros(shape)
        if kind == "numbers":
            mask = torch.randn(shape, generator=torch.Generator().manual_seed(count))
        mask = mask.masked_fill(hidden, level)
        shifts = data.draw(st.lists(st.sampled_from(SHIFTS), min_size=shape[-2], max_size=shape[-2]))
        mask = mask + torch.tensor(shifts)[:, None]
        mask = torch.where(mask < LEAST, torch.tensor(data.draw(st.sampled_from([LEAST, -INF]))), mask)
    traces = captured(q, k, v, mask)
    # Sums next to a shift may round the other way if scores differ in their last bit.
    assert_right(traces, q, k, mask.expand(batch, heads, tokens, tokens), 2e-6 if kind == "bool" else 3e-3)
    for trace in traces:
        assert_statistics(trace)
        assert trace.verify(reference=False).agrees
        assert trace.layers[0].mask.bias is None or not ruled or kind != "bool"


def test_a_query_that_sees_no_key_in_one_head_alone() -> None:
    q, k, v = drawn(1, 2, 5)
    mask = torch.ones(1, 2, 5, 5, dtype=torch.bool)
    mask[0, 1, 4] = False
    (trace,) = captured(q, k, v, mask)
    assert_right([trace], q, k, mask, 2e-6)
    assert trace.verify(reference=False).agrees


@pytest.mark.parametrize(
    ("level", "padding", "numbers"), pairwise((-1e9, LEAST), ([2], [1, 2], [2, 4], [0, 2], [0, 2, 4]), (False, True))
)
def test_whole_rows_of_padding_between_others(level: float, padding: list[int], numbers: bool) -> None:
    """The trace keeps what stands between tokens; such a query looks at every key alike, padding too."""
    q, k, v = drawn(1, 2, 5)
    mask = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)) if numbers else torch.zeros(5, 5)
    mask[padding] = level
    mask[:, padding] = level
    (trace,) = captured(q, k, v, mask[None, None])
    assert_right([trace], q, k, mask.expand(1, 2, 5, 5), 2e-6)
    assert_statistics(trace)
    assert trace.verify(reference=False).agrees


@pytest.mark.parametrize(
    ("shift", "causal", "of"),
    pairwise((0.0, -20_000.0, -1e6, 15_000.0, LEAST), (False, True), ("every row", "one row", "the last row")),
)
def test_a_row_that_is_shifted_as_a_whole(shift: float, causal: bool, of: str) -> None:
    q, k, v = drawn(1, 2, 9)
    mask = torch.zeros(9, 9)
    rows = {"every row": slice(None), "one row": slice(4, 5), "the last row": slice(8, 9)}[of]
    mask[rows] += shift
    mask = torch.where(torch.ones(9, 9, dtype=torch.bool).triu(1) & causal, -INF, mask)
    (trace,) = captured(q, k, v, mask[None, None])
    assert len(trace) == 9, "no token is cut away"
    assert_right([trace], q, k, mask.expand(1, 2, 9, 9), 1e-6 + 4 * abs(shift) * 2**-24 if shift > -1e6 else 1e-5)
    if abs(shift) < 1e5:
        assert_weights([trace], [softmax_of(q.double(), k.double(), mask)], 1e-6 + abs(shift) * 2**-23)
    assert trace.verify(reference=False).agrees


@pytest.mark.parametrize(
    ("level", "side", "form"),
    pairwise((-1e4, -1e9, LEAST, -INF), ("left", "right"), ("keys", "rows", "causal", "causal, added twice")),
)
def test_padding_is_found_as_before(level: float, side: str, form: str) -> None:
    """Padding as libraries write it: padding keys in every row; whole padding rows; both, in causal maps."""
    q, k, v = drawn(1, 2, 8)
    real = torch.arange(8) >= 3 if side == "left" else torch.arange(8) < 5
    hidden = (~real)[None].expand(8, 8)
    later = torch.ones(8, 8, dtype=torch.bool).triu(1)
    if form == "rows":
        hidden = hidden | ~real[:, None]
    mask = torch.zeros(8, 8).masked_fill(hidden | (later & form.startswith("causal")), level)
    if form == "causal, added twice":
        mask = (torch.zeros(8, 8).masked_fill(hidden, level) + torch.zeros(8, 8).masked_fill(later, level)).clamp(LEAST)
    (trace,) = captured(q, k, v, mask[None, None])
    assert len(trace) == int(real.sum())
    assert trace.layers[0].mask.bias is None
    assert trace.layers[0].mask.causal == form.startswith("causal")
    assert trace.positions.tolist() == trace.key_positions.tolist() == torch.nonzero(real).flatten().tolist()
    assert_weights([trace], [softmax_of(q, k, mask)])


@pytest.mark.parametrize("wrong", [float("nan"), INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_that_softmax_does_not_take_are_an_error(wrong: float, dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in drawn(1, 1, 5))
    mask = torch.zeros(1, 1, 5, 5, dtype=dtype)
    mask[0, 0, 3, 1] = wrong
    with pytest.raises(UnsupportedError, match="NaN" if wrong != INF else "infinity") as caught:
        captured(q, k, v, mask)
    assert caught.value.advice


def test_scores_so_large_that_a_library_s_mask_does_not_hide() -> None:
    """-10000 doesn't mask a key from a query whose scores differ by more."""
    q, k, v = drawn(1, 2, 6, size=100.0)
    mask = torch.zeros(6, 6).masked_fill(torch.arange(6) > 3, -1e4)
    truth = softmax_of(q, k, mask)
    assert truth[..., 4:].max() > 0.9
    (trace,) = captured(q, k, v, mask[None, None])
    assert_right([trace], q, k, mask.expand(1, 2, 6, 6), 2e-2)


def test_masks_of_64_bits_keep_rows_beyond_32() -> None:
    q, k, v = (x.double() for x in drawn(1, 2, 6))
    mask = torch.zeros(6, 6, dtype=torch.float64)
    mask[2] = -1e300
    mask[3, :2] = -1e300
    mask[4] = -1e9
    mask[5] -= 20_000
    assert_weights(captured(q, k, v, mask[None, None]), [softmax_of(q.double(), k.double(), mask)])


BOOLEAN = {
    "causal": torch.tril(torch.ones(2, 1, 7, 7)).bool(),
    "none for the first query": torch.tril(torch.ones(2, 1, 7, 7), -1).bool(),
    "by head": torch.rand(2, 4, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.7,
    "keys": (torch.arange(7) < torch.tensor([[5], [7]]))[:, None, None],
}


MASKED_TWICE = ("BertModel", "DistilBertModel", "ModernBertModel", "GPT2Model", "LlamaModel", "MPNetModel", "BartModel")


@pytest.mark.parametrize(("name", "kind"), in_turn(MASKED_TWICE, tuple(BOOLEAN)))
def test_boolean_masks_mean_the_same_in_the_second_run(name: str, kind: str) -> None:
    """Eager attention adds True as 1; `against` says so where it explains the difference."""
    model = BY_NAME[name].build()
    ids = torch.randint(5, 40, (2, 7))
    mask = BOOLEAN[kind][:, : 1 if name == "BartModel" else 4]  # its stacks have other numbers of heads
    if name != "MPNetModel":  # which always adds its mask
        numbers = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        meant = captured_of(model, ids, attention_mask=numbers)
    captured = captured_of(model, ids, attention_mask=mask)
    trace = captured.traces[0]
    assert trace.verify().agrees, trace.verify()
    if name == "MPNetModel":
        assert trace.verify(against=model(ids, attention_mask=mask, output_attentions=True).attentions).agrees
        return
    model.set_attn_implementation("eager")
    returned = model(ids, attention_mask=mask, output_attentions=True)
    theirs = returned.encoder_attentions if name == "BartModel" else returned.attentions
    added = captured_of(model, ids, attention_mask=mask)
    if kind == "causal":
        np.testing.assert_allclose(trace.weights[:], meant.traces[0].weights[:], atol=1e-5)
    report = trace.verify(against=theirs)
    assert not report.agrees
    assert "boolean mask" in "".join(report.notes)
    assert added.traces[0].verify(against=theirs).agrees
    assert added.traces[0].verify().agrees
    assert not trace.verify(against=[one.flip(-1) for one in theirs]).notes


def test_weights_that_differ_above_the_first_layer_are_not_blamed_on_a_mask() -> None:
    """A boolean mask that hides nothing explains nothing, though adding True to every score gives the same weights."""
    model, ids = BY_NAME["BertModel"].build(attention="eager"), torch.randint(5, 40, (1, 7))
    trace = captured_of(model, ids).trace
    first, second, *others = model(ids, output_attentions=True).attentions
    report = trace.verify(against=(first, second.flip(-1), *others))
    assert not report.agrees
    assert not report.notes


RUN_AGAIN = ("BertModel", "DistilBertModel", "ModernBertModel", "LlamaModel", "FalconModel")


@pytest.mark.parametrize(("name", "ran"), in_turn(RUN_AGAIN, ("sdpa", "eager")))
def test_the_second_run_is_that_of_the_attention_that_ran(name: str, ran: str) -> None:
    """Whatever attention the model has been given since: a mask means what it meant in the captured pass."""
    family, alibi = BY_NAME[name], name == "FalconModel"  # whose ALiBi is made from a mask of two dimensions
    model = replace(family, settings={**family.settings, "alibi": True}).build() if alibi else family.build()
    masks = [torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])]
    if not alibi:
        masks += [BOOLEAN["causal"], BOOLEAN["none for the first query"]]
    ids = torch.randint(5, 40, (2, 7), generator=torch.Generator().manual_seed(1))
    for mask in masks:
        model.config._attn_implementation = ran
        captured = captured_of(model, ids, options={"padding": "keep"}, attention_mask=mask)
        model.config._attn_implementation = "eager" if ran == "sdpa" else "sdpa"
        for trace in captured.traces:
            assert trace.verify().agrees, (trace.row, trace.verify())


ENCODERS = ["BertModel", "DebertaModel", "DebertaV2Model", "DistilBertModel", "ModernBertModel", "MPNetModel"]


@pytest.mark.parametrize(
    ("name", "side"), in_turn((*ENCODERS, "GPT2Model", "LlamaModel", "MistralModel"), ("right", "left"))
)
def test_padding_is_kept_on_request(name: str, side: str) -> None:
    model = BY_NAME[name].build()
    ids, mask = torch.randint(5, 40, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    cut = (4, 5) if side == "right" else (0, 1)
    mask[0, list(cut)] = 0
    with capture(model, padding="keep") as kept:
        dropped = captured_of(model, ids, attention_mask=mask)
    if name not in ("MPNetModel", "DebertaModel", "DebertaV2Model"):
        model.set_attn_implementation("eager")
    theirs = model(ids, attention_mask=mask, output_attentions=True).attentions
    for row in (0, 1):
        trace, short = kept.traces[row], dropped.traces[row]
        assert (len(trace), trace.left_out.size, tuple(short.left_out)) == (6, 0, cut if row == 0 else ())
        assert ("2 of 6 left out as padding" in repr(short)) == (row == 0)
        assert "left out" not in repr(trace)
        assert trace.verify(against=theirs).agrees, trace.verify(against=theirs)
        assert trace.verify().agrees, trace.verify()
        assert short.verify(against=theirs).agrees


@pytest.mark.parametrize("name", ["MT5Model", "UMT5Model", "PLBartModel", "BartModel"])
def test_queries_of_a_decoder_from_which_every_key_is_hidden(name: str) -> None:
    """Beside a position bias, SDPA writes the lowest number over scores: even weights. Without one there are none."""
    model, inputs = built(name, padded=True, attention="sdpa")
    inputs["decoder_attention_mask"] = torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    captured = captured_of(model, options={"padding": "keep"}, **inputs)
    theirs = eager_attentions(model, inputs, (("decoder", "decoder_attentions"),))["decoder"][0][1]
    trace = captured["decoder"][1]
    assert len(trace) == 5
    np.testing.assert_allclose(theirs[:, :2].sum(-1), 1, atol=1e-6)
    theirs[:, :2] *= name.endswith("T5Model")
    np.testing.assert_allclose(trace[0].weights[:], theirs, atol=1e-4)
    for one in captured.traces:  # in the other row, every query sees a key
        assert one.verify(reference=one.row == 1).agrees, (one.stack, one.row, one.verify())


@pytest.mark.parametrize("name", ["GptOssModel", "MiMoV2FlashModel"])
def test_a_shifted_row_beside_a_sink(name: str) -> None:
    """A shift of the scores alone changes the softmax: below the sink nothing is left for the keys."""
    model, ids = BY_NAME[name].build(), BY_NAME[name].inputs(padded=False)["input_ids"][:1]
    for shift in (LEAST, -20_000.0, -300.0, 15_000.0):
        mask = torch.zeros(1, 1, 7, 7).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), LEAST)
        mask[..., 4, :] = torch.where(mask[..., 4, :] == LEAST, LEAST, shift)
        theirs, captured = passed(model, ids, attention_mask=mask, output_attentions=True)
        assert_weights(captured, theirs.attentions, 1e-5)
        places = torch.cat([theirs.attentions[0][0], 1 - theirs.attentions[0][0].sum(-1, keepdim=True)], -1)
        if captured.trace.layers[0].terms.sinks is not None:
            table = statistics(captured.trace, ["entropy"], per_query=True)["entropy"].array[0]
            assert np.isnan(table[:, 4]).all() == (shift <= -20_000), "a query that sees no key"
            table = np.nan_to_num(table)
            np.testing.assert_allclose(table, torch.special.entr(places.clamp(min=0)).sum(-1), atol=1e-3)
        assert captured.trace.verify().agrees, captured.trace.verify()


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_last_query_that_nobody_sees_is_kept_on_request(need_weights: bool) -> None:
    mha, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(1, 5, 16)
    hidden = ~torch.tril(torch.ones(5, 5), -1).bool()
    kept = captured_of(mha, x, x, x, options={"padding": "keep"}, attn_mask=hidden, need_weights=need_weights)
    dropped = captured_of(mha, x, x, x, attn_mask=hidden, need_weights=need_weights)
    _, expected = mha(x, x, x, attn_mask=hidden, average_attn_weights=False)
    np.testing.assert_allclose(kept.trace[0].weights[:, 1:], expected[0, :, 1:], atol=1e-6)
    assert (kept.trace.left_out.tolist(), dropped.trace.left_out.tolist()) == ([], [4])


def test_each_mask_is_looked_at_once() -> None:
    analyst = Analyst()
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    first = analyst.rules(RawMask(mask=mask), 2, 6, 6, slice(0, 6))
    assert analyst.rules(RawMask(mask=mask), 2, 6, 6, slice(0, 6)) is first
    assert analyst.rules(RawMask(mask=mask.clone()), 2, 6, 6, slice(0, 6)) is first
    assert analyst.rules(RawMask(mask=mask), 2, 6, 6, None) is not first


@pytest.mark.parametrize("kept", [[True] * 6, [False, True, True, True, True, False]])
def test_keys_that_nobody_sees_are_padding_in_any_mask(kept: list[bool]) -> None:
    """No rule describes chunks of 3, so the mask stays a bias; its padding is recognised nevertheless."""
    real = torch.tensor(kept)
    place = torch.arange(6)
    mask = (place[:, None] // 3 == place // 3) & (place <= place[:, None]) & real & real[:, None]
    rule = find_rules(RawMask(mask=mask[None, None]), 1, 6, 6, slice(0, 6)).row(0)
    assert rule.mask.bias is not None
    expected = None if all(kept) else real.numpy()
    np.testing.assert_array_equal(rule.keys, expected)
    np.testing.assert_array_equal(rule.queries, expected)
    cut = rule.cut(rule.queries, rule.keys)
    np.testing.assert_array_equal(cut.bias[0] == 0, mask[real][:, real])

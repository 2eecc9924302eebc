"""Maps in place of a head's weights, in live models, in fp64: against eager attention with the map put in by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from comparing import Mixer, own, passed
from torch import nn
from torch.nn import functional

from families import BY_NAME, CACHE, FAMILIES, Family, built
from headscope.attention.patterns import draws
from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.live import ablate, capture
from products import in_turn

LAYER, HEAD = 1, 1
pytestmark = pytest.mark.usefixtures("no_grad")
NAMED = ("uniform", "shuffle", "shuffle:5", "identity")
Made = Callable[[torch.Tensor], torch.Tensor]
"""A head's weights over a batch, (batch, queries, keys) -> the map that replaces them."""

TRAPS = (
    "grouped queries",
    "sinks",
    "soft cap",
    "window on both sides",
    "position bias",
    "ALiBi",
    "shared, convolution",
)
SOME = [
    *(BY_NAME[name] for name in ("BertModel", "DistilBertModel", "EsmModel", "GPT2Model", "RoFormerModel")),
    *(family for family in FAMILIES if family.trap in TRAPS and not family.name.startswith(("Flint", "Vault"))),
]


def squared(weights: np.ndarray) -> np.ndarray:
    """A callable's map: sharper weights, of any array module."""
    cells = weights**2
    total = cells.sum(-1)[..., None]
    return cells / (total + (total == 0))


def by_hand(way: str, padding: np.ndarray) -> Made:
    """The map of a way, made anew.

    Args:
        way: its name.
        padding: (batch, tokens), True for padding.
    """

    def made(weights: torch.Tensor) -> torch.Tensor:
        if way == "squared":
            return squared(weights)
        seen = weights > 0
        if way == "uniform":
            return seen.to(weights) / seen.sum(-1, keepdim=True).clamp(min=1)
        if way == "identity":
            return torch.eye(weights.shape[1], dtype=weights.dtype).expand_as(weights)
        cells, seed = torch.zeros_like(weights), int(way.partition(":")[2] or 0)
        for row, of_text in enumerate(weights):
            queries = np.flatnonzero(~padding[row])
            for place, query in enumerate(queries):
                keys = torch.nonzero(seen[row, query]).flatten()
                numbers = draws((seed, LAYER, HEAD), np.array([place]), len(keys))[0]
                cells[row, query, keys] = of_text[query, keys[np.argsort(numbers)]]
        return cells

    return made


@contextmanager
def put_in(model: nn.Module, name: str, head: int, made: Made) -> Iterator[list[int]]:
    """Replace a head's weights after the softmax of one module; counts the softmaxes. Softmaxes keep the precision."""
    running, count = [False], [0]
    real = functional.softmax

    def softmax(scores: torch.Tensor, dim: int = -1, **_: Any) -> torch.Tensor:
        weights = real(scores, dim=dim)
        if running[0] and scores.dim() == 4:
            count[0] += 1
            weights = weights.clone()
            sinks = getattr(model.get_submodule(name), "sinks", None)
            keys = weights.shape[-1] - (sinks is not None)
            cells = made(weights[:, head, :, :keys])
            weights[:, head] = functional.pad(cells, (0, weights.shape[-1] - keys))
        return weights

    module = model.get_submodule(name)
    handles = [
        module.register_forward_pre_hook(lambda *_: running.__setitem__(0, True)),
        module.register_forward_hook(lambda *_: running.__setitem__(0, False)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "softmax", softmax)
        try:
            yield count
        finally:
            for handle in handles:
                handle.remove()


def eager_with(model: Any, name: str, head: int, made: Made, inputs: dict[str, Any]) -> torch.Tensor:
    """The output of the model's eager attention with the map put in."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with put_in(model, name, head, made) as count, torch.no_grad():
        output: torch.Tensor = model(**inputs)[0]
    model.set_attn_implementation(before)
    assert count == [1]
    return output


def run(model: Any, way: Any, inputs: dict[str, Any], stack: str | None = None) -> tuple[torch.Tensor, Any]:
    """The output and the traces of a pass with a head under another map."""
    with ablate(model, {(LAYER, HEAD): way}, stack=stack):
        output, captured = passed(model, **inputs)
    return output[0], captured


WAYS = (*NAMED, "squared")
EVERY_WAY = ("BertModel", "DebertaV2Model", "GptOssModel")
"""One for each place where a map is put in: an operator, a reader, beside a sink."""


@pytest.mark.parametrize(
    ("family", "way"),
    [
        (family, way)
        for at, family in enumerate(SOME)
        for way in (WAYS if family.name in EVERY_WAY else (WAYS[at % 5], WAYS[(at + 2) % 5]))
    ],
    ids=str,
)
def test_the_output_is_eager_attention_under_the_map(family: Family, way: str) -> None:
    dtype = torch.float32 if family.trap == "sinks" else torch.float64  # its experts take nothing wider
    model, inputs = family.build(dtype), family.inputs(padded=True)
    kept = inputs["attention_mask"].bool()
    given = squared if way == "squared" else way
    output, captured = run(model, given, inputs)
    trace = captured.traces[0]
    expected = eager_with(model, trace[LAYER].name, HEAD, by_hand(way, ~kept.numpy()), inputs)
    exact = 1e-9 if family.trap in ("", "grouped queries", "window on both sides") else 1e-5
    torch.testing.assert_close(output[kept], expected[kept], atol=exact, rtol=exact)
    assert not torch.allclose(model(**inputs)[0][kept], expected[kept], atol=1e-3)
    assert trace.swapped == {(LAYER, HEAD): "callable" if way == "squared" else way}
    assert trace.ablated == frozenset()


@pytest.mark.parametrize(
    ("name", "way", "stack"),
    in_turn(("BartModel", "T5Model"), ("uniform", "shuffle", "squared"), ("encoder", "decoder", "cross")),
)
def test_stacks_of_an_encoder_and_a_decoder(name: str, way: str, stack: str) -> None:
    model, inputs = built(name, torch.float64)
    output, captured = run(model, squared if way == "squared" else way, inputs, stack)
    trace = captured[stack][0]
    nothing = np.zeros((2, len(trace.queries)), dtype=bool)
    expected = eager_with(model, trace[LAYER].name, HEAD, by_hand(way, nothing), inputs)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    others = [other for other in captured.stacks if other != stack]
    assert all(not captured[other][0].swapped for other in others)


@pytest.mark.parametrize("name", ["BertModel", "LlamaModel", "DebertaV2Model"])
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, list])
def test_an_array_is_used_as_it_is(name: str, kind: Any) -> None:
    model, inputs = built(name, torch.float64)
    inputs = {name: x[:1] for name, x in inputs.items()}
    tokens = inputs["input_ids"].shape[1]
    cells = np.random.default_rng(0).random((tokens, tokens))
    if name == "LlamaModel":
        cells = np.tril(cells)
    cells /= cells.sum(-1, keepdims=True)
    output, captured = run(model, kind(cells.tolist() if kind is list else cells), inputs)
    name = captured.trace[LAYER].name
    expected = eager_with(model, name, HEAD, lambda weights: torch.from_numpy(cells)[None], inputs)
    torch.testing.assert_close(output, expected, atol=1e-9, rtol=1e-9)
    assert captured.trace.swapped == {(LAYER, HEAD): "array"}


REFUSED = [
    (np.full((7, 6), 1 / 6), "7 queries and 7 keys"),
    (np.full((7, 7), np.nan), "finite"),
    (np.eye(7) * 2 - 1 / 7, "at least 0"),
    (np.eye(7) / 2, "row 0 of the map sums to 0.5"),
    (np.full((7, 7), 1 / 7), "query 0, key 1, which the mask hides"),
    (np.eye(7)[None], "3 axes"),
    ("half", "unknown way"),
    ("shuffle:-1", "unknown way"),
    (object(), "the map of a head is <object"),
    (lambda weights: weights[:3], r"the map is \(3, 7\)"),
    (lambda weights: "no map", "the map of a head is 'no map'"),
]


@pytest.mark.parametrize(
    ("name", "stack", "way", "message"),
    [*(("LlamaModel", None, *row) for row in REFUSED), ("BartModel", "cross", "identity", "none can look at itself")],
)
def test_a_map_that_does_not_fit_is_refused(name: str, stack: str | None, way: Any, message: str) -> None:
    model, inputs = built(name)
    with pytest.raises(InputError, match=message) as raised:
        run(model, way, inputs, stack)
    assert raised.value.advice


def test_a_map_has_no_rows_for_padding() -> None:
    """A callable is given each text alone, and a map for seven tokens doesn't fit the shorter text."""
    model, inputs = built("BertModel", padded=True)
    lengths = inputs["attention_mask"].sum(1).tolist()
    seen: list[tuple[int, ...]] = []

    def looked(weights: np.ndarray) -> np.ndarray:
        seen.append(weights.shape)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        return weights

    output, _ = run(model, looked, inputs)
    assert seen == [(length, length) for length in lengths]
    torch.testing.assert_close(output, model(**inputs)[0], atol=1e-5, rtol=1e-4)
    with pytest.raises(InputError, match="has no rows for padding"):
        run(model, np.eye(max(lengths)), inputs)


@pytest.mark.parametrize("way", NAMED)
@pytest.mark.parametrize(("name", "left"), [("BertModel", False), ("LlamaModel", False), ("LlamaModel", True)])
def test_a_text_in_a_batch_is_the_text_alone(name: str, way: str, left: bool) -> None:
    """But where positions count padding on the left, as BERT's: the text alone is then another input."""
    model, inputs = built(name, torch.float64, padded=True, left=left)
    kept = inputs["attention_mask"][1].bool()
    whole, _ = run(model, way, inputs)
    alone, _ = run(model, way, {"input_ids": inputs["input_ids"][1:, kept]})
    torch.testing.assert_close(whole[1, kept], alone[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("way", NAMED)
def test_steps_of_a_generation_are_rows_of_the_whole_pass(way: str) -> None:
    """With a cache, each step has one query; the map of the whole text has its row."""
    model, inputs = built("LlamaModel", torch.float64)
    whole, _ = run(model, way, inputs)
    first, rest = inputs["input_ids"][:, :3], inputs["input_ids"][:, 3:]
    with ablate(model, {(LAYER, HEAD): way}), capture(model) as captured:
        cache = transformers.DynamicCache()
        step = model(input_ids=first, **{CACHE: cache}, use_cache=True)
        parts = [step[0]]
        for ids in rest.split(1, 1):
            step = model(input_ids=ids, **{CACHE: cache}, use_cache=True)
            parts.append(step[0])
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-9, rtol=1e-9)
    assert all(trace.swapped == {(LAYER, HEAD): way} for trace in captured.generations)


@pytest.mark.parametrize("returns_weights", [False, True])
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("way", ["uniform", "shuffle", "identity"])
def test_modules_of_torch_nn(way: str, extra: bool, returns_weights: bool) -> None:
    """One module by the formula, with keys that are no tokens."""
    mha = nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=extra, add_zero_attn=extra).double().eval()
    model = own(lambda self, x: self.mha(x, x, x, need_weights=returns_weights)[0], mha=mha)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    with ablate(model, {(0, 1): way}):
        output, captured = passed(model, x)
    trace = captured.traces[0]
    assert trace.swapped == {(0, 1): way}
    q, k, v = functional.linear(x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1)
    if extra:
        k, v = (torch.cat([part, bias.expand(2, -1, -1)], 1) for part, bias in ((k, mha.bias_k), (v, mha.bias_v)))
    q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in (q, k, v))
    if extra:
        k, v = (torch.cat([part, torch.zeros_like(part[:, :, :1])], 2) for part in (k, v))
    weights = (q @ k.mT / 2).softmax(-1)
    for row, cells in enumerate(weights[:, 1]):
        if way == "shuffle":
            for query, numbers in enumerate(draws((0, 0, 1), np.arange(5), k.shape[2])):
                cells[query] = cells[query, np.argsort(numbers)].clone()
        else:
            weights[row, 1] = 1 / k.shape[2] if way == "uniform" else torch.eye(5, k.shape[2])
    expected = mha.out_proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected, atol=1e-9, rtol=1e-9)


@torch.enable_grad()
def test_gradients_flow_through_the_values() -> None:
    """Under a uniform map, the query's weights get no gradient; the values' get the mean's."""
    model = Mixer().double()
    x = torch.randn(1, 5, 32, dtype=torch.float64, requires_grad=True)
    with ablate(model, {(0, head): "uniform" for head in range(4)}):
        model(x).sum().backward()
    found = x.grad
    x.grad = None
    mean = model.into(x).chunk(3, -1)[2].mean(1, keepdim=True).expand(-1, 5, -1)
    model.out(mean).sum().backward()
    torch.testing.assert_close(found, x.grad)
    family = BY_NAME["DebertaV2Model"]
    with ablate(family.build(), {(1, 1): "uniform"}) as block, pytest.raises(UnsupportedError, match="gradients"):
        block.model(**family.inputs(padded=False))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_maps_are_refused_in_transforms_of_torch_func() -> None:
    model = Mixer()
    with ablate(model, {(0, 1): "uniform"}), pytest.raises(UnsupportedError, match=r"torch\.func\.vmap"):
        torch.func.vmap(model)(torch.randn(2, 1, 5, 32))


@pytest.mark.parametrize("way", [*NAMED, "mean", squared])
def test_what_a_trace_says_of_a_head_under_another_map(way: Any) -> None:
    """Weights are the head's own; the output is what it wrote, or an error where the trace lacks the map."""
    model, inputs = built("BertModel", padded=True)
    written = []
    linear = model.encoder.layer[LAYER].attention.output.dense
    handle = linear.register_forward_pre_hook(lambda module, args: written.append(args[0]))
    output, captured = run(model, way, inputs)
    handle.remove()
    for row, trace in enumerate(captured.traces):
        head, tokens = trace[LAYER, HEAD], len(trace)
        np.testing.assert_allclose(np.asarray(head.weights) @ head.v, head.context, atol=1e-5)
        assert trace.verify().agrees
        assert head.silenced == (way == "mean")
        if way is squared:
            with pytest.raises(TraceError, match=r"another map \(callable\), which the trace lacks"):
                assert head.output.any()
        else:
            W_O = trace.source.W_O(LAYER, HEAD)
            context = written[0][row, :tokens, HEAD * 8 : HEAD * 8 + 8].numpy()
            np.testing.assert_allclose(head.written, context, atol=1e-5)
            np.testing.assert_allclose(head.output, context @ W_O, atol=1e-4)
    assert output.isfinite().all()

"""nn.MultiheadAttention in all its forms against the weights and outputs that it returns itself."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from comparing import captured_of, own, parts_of, passed, refused, softmax_of
from torch import nn

from headscope.errors import UnsupportedError
from headscope.live import ablate, capture


def amplified(module: nn.Module) -> Any:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3.0)
    return module.eval()


def test_queries_keys_and_values_are_the_module_s() -> None:
    torch.manual_seed(55)
    mha, x = nn.MultiheadAttention(4, 2, batch_first=True).eval(), torch.randn(1, 5, 4)
    record = captured_of(mha, x, x, x).trace.layers[0]
    for part, expected in zip((record.q, record.k, record.v), parts_of(mha, x), strict=True):
        np.testing.assert_allclose(part, expected[0].detach(), atol=1e-6)


FORMS = [
    {},
    {"bias": False},
    {"batch_first": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "batch_first": False},
    {"kdim": 6},
    {"kdim": 6, "vdim": 10},
    {"kdim": 6, "vdim": 10, "bias": False, "add_bias_kv": True},
]


def masks(queries: int, keys: int, heads: int) -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    padding = torch.zeros(2, keys, dtype=torch.bool)
    padding[1, -2:] = True
    holes = torch.rand(queries, keys, generator=generator) < 0.3
    holes[:, 0] = False
    numbers = torch.randn(queries, keys, generator=generator)
    later = torch.ones(queries, keys).triu(1).bool()
    many = torch.rand(2 * heads, queries, keys, generator=generator) < 0.3
    many[..., 0] = False
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": later},
        "causal hint": {"attn_mask": later, "is_causal": True},
        "bool 2d": {"attn_mask": holes},
        "float 2d": {"attn_mask": numbers},
        "bool 3d": {"attn_mask": many},
        "float 3d": {"attn_mask": torch.randn(2 * heads, queries, keys, generator=generator)},
        "both bool": {"attn_mask": later, "key_padding_mask": padding},
        "both float": {
            "attn_mask": numbers,
            "key_padding_mask": torch.zeros(2, keys).masked_fill(padding, float("-inf")),
        },
    }


@pytest.mark.parametrize("kind", masks(6, 6, 2))
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "+".join(form) or "plain")
def test_every_form_and_mask(form: dict[str, Any], kind: str) -> None:
    form = {"batch_first": True, **form}
    mha = amplified(nn.MultiheadAttention(8, 2, **form))
    crossed = "kdim" in form
    queries, keys = (5, 7) if crossed else (6, 6)
    query = torch.randn(2, queries, 8)
    key = torch.randn(2, keys, form.get("kdim", 8)) if crossed else query
    value = torch.randn(2, keys, form.get("vdim", 8)) if crossed else query
    if not form["batch_first"]:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value)) if crossed else [query.transpose(0, 1)] * 3
    given = masks(queries, keys, 2)[kind]
    with torch.no_grad():
        (output, weights), captured = passed(mha, query, key, value, average_attn_weights=False, **given)
    assert len(captured.traces) == 2
    extras = ("[bias_k]",) * form.get("add_bias_kv", False) + ("[zero]",) * form.get("add_zero_attn", False)
    if not form["batch_first"]:
        output = output.transpose(0, 1)
    for row, trace in enumerate(captured.traces):
        kept_q, kept_k = list(trace.cut.queries), list(trace.cut.keys)
        assert trace.keys.tokens[len(trace.keys) - len(extras) :] == extras
        total = 0
        for head in range(2):
            expected = weights[row, head].numpy()[kept_q][:, kept_k]
            np.testing.assert_allclose(np.asarray(trace[0, head].weights), expected, atol=1e-5)
            total = total + trace[0, head].output
        bias = 0 if mha.out_proj.bias is None else mha.out_proj.bias.detach().numpy()
        np.testing.assert_allclose(total + bias, output[row].numpy()[kept_q], atol=2e-5)
        if kind == "causal" and not extras and not crossed:
            assert trace.layers[0].mask.causal
            assert trace.layers[0].mask.bias is None


@pytest.mark.parametrize("kind", ["none", "padding", "causal hint", "float 2d"])
def test_without_weights_and_unbatched(kind: str) -> None:
    mha, x, given = amplified(nn.MultiheadAttention(8, 2)), torch.randn(6, 8), masks(6, 6, 2)[kind]
    if "key_padding_mask" in given:
        given = {"key_padding_mask": given["key_padding_mask"][1]}
    (output, weights), captured = passed(mha, x, x, x, need_weights=False, **given)
    assert weights is None
    trace = captured.trace
    total = sum(trace[0, head].output for head in range(2)) + mha.out_proj.bias.detach().numpy()
    np.testing.assert_allclose(total, output.detach().numpy()[list(trace.cut.queries)], atol=2e-5)


def test_layers_that_are_not_selected_stay_unrecorded() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        """Weights are returned, and dropped."""
        for layer in self.layers:
            x = x + layer(x, x, x)[0]
        return x

    layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3))
    model, x = amplified(own(forward, layers=layers)), torch.randn(2, 6, 8)
    captured = captured_of(model, x, options={"layers": [1]})
    with torch.no_grad():
        x = x + model.layers[0](x, x, x)[0]
        weights = model.layers[1](x, x, x, average_attn_weights=False)[1]
    assert (captured.unrecorded, captured.traces[0].numbers) == ((), (1,))
    for trace in captured.traces:
        np.testing.assert_allclose(trace[1].weights[:], weights[trace.row], atol=1e-5)


@pytest.mark.parametrize("keys", [3, 5, 7])
def test_the_causal_hint_over_other_keys_begins_with_the_first_key(keys: int) -> None:
    """PyTorch then drops the mask and lets query i see key j if j <= i, however many keys there are."""
    mha = amplified(nn.MultiheadAttention(8, 2, batch_first=True))
    query, key = torch.randn(1, 5, 8), torch.randn(1, keys, 8)
    mask = torch.ones(5, keys, dtype=torch.bool).triu(1)
    with torch.no_grad(), capture(mha) as captured:
        mha(query, key, key, attn_mask=mask, is_causal=True, need_weights=False)
        _, weights = mha(query, key, key, attn_mask=mask, average_attn_weights=False)
    hinted = captured.traces[0]
    assert hinted.verify().agrees
    np.testing.assert_allclose(hinted[0].weights[:], weights[0], atol=1e-5)


@pytest.mark.parametrize(
    ("padding", "left", "right"),
    [(slice(5, 7), 7, 0), (slice(5, 7), 3, 0), (slice(5, 7), 3, 2), (slice(0, 2), 7, 2), (slice(0, 2), 3, 2)],
)
def test_a_rule_over_keys_whose_padding_is_cut_away(padding: slice, left: int, right: int) -> None:
    """Causality and windows count from the last query and the last key; queries of other tokens stay."""
    mha, (query, key) = amplified(nn.MultiheadAttention(8, 2, batch_first=True)), torch.randn(2, 2, 7, 8)
    distance = torch.arange(7) - torch.arange(7)[:, None]
    hidden, padded = (distance < -left) | (distance > right), torch.zeros(2, 7, dtype=torch.bool)
    padded[1, padding] = True
    given = {"attn_mask": hidden, "key_padding_mask": padded, "average_attn_weights": False}
    with torch.no_grad():
        (_, weights), captured = passed(mha, query, key, key, **given)
    for row, trace in enumerate(captured.traces):
        assert len(trace.queries) == 7
        assert trace.layers[0].mask.bias is None
        np.testing.assert_allclose(trace[0].weights[:], weights[row][:, :, trace.key_positions], atol=1e-5)


def classifier(norm_first: bool) -> Any:
    """A transformer nested in a custom module."""

    def forward(self: Any, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner["encoder"](self.words(ids), src_key_padding_mask=ids == 0)[:, 0])

    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    inner = nn.ModuleDict({"encoder": nn.TransformerEncoder(layer, 3, enable_nested_tensor=not norm_first)})
    return own(forward, words=nn.Embedding(50, 16), inner=inner, out=nn.Linear(16, 2))


def test_keys_that_begin_where_the_queries_do_are_other_tokens() -> None:
    """Every other one of the same text: a key that is hidden is no query that is padding."""
    mha, x = nn.MultiheadAttention(4, 2, batch_first=True).eval(), torch.randn(1, 8, 4)
    queries, keys = x[:, :4], x[:, ::2]
    hidden = torch.tensor([[True, False, False, False]])
    trace = captured_of(mha, queries, keys, keys, key_padding_mask=hidden, need_weights=False).trace
    expected = mha(queries, keys, keys, key_padding_mask=hidden, average_attn_weights=False)[1][0].detach()
    np.testing.assert_allclose([trace[0, head].weights[...] for head in range(2)], expected[..., 1:], atol=1e-6)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_nested_encoder_with_padding_keeps_its_fast_path_away(norm_first: bool, mode: Any) -> None:
    model = amplified(classifier(norm_first))
    ids = torch.randint(1, 50, (2, 6))
    ids[1, 4:] = 0
    with mode():
        before = model(ids)
        with capture(model, tokenizer=[f"w{n}" for n in range(50)]) as captured:
            inside = model(ids)
        after = model(ids)
    assert torch.backends.mha.get_fastpath_enabled()
    torch.testing.assert_close(inside, before, atol=1e-4, rtol=1e-4)
    assert torch.equal(before, after)
    assert [(len(trace), len(trace.layers)) for trace in captured.traces] == [(6, 3), (4, 3)]
    assert captured.traces[1].tokens == tuple(f"w{n}" for n in ids[1, :4].tolist())
    assert captured.traces[0].layers[2].name == "inner.encoder.layers.2.self_attn"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("inside", [False, True])
def test_nested_tensors_are_refused(inside: bool) -> None:
    """PyTorch takes them on its fast path only, which a capture switches off."""
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model: Any = (nn.TransformerEncoder(layer, 2) if inside else nn.MultiheadAttention(8, 2, batch_first=True)).eval()
    x = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(2, 8)])
    message = r"over nested tensors[\s\S]*to_padded_tensor"
    refused(message, model, x, **({} if inside else {"key": x, "value": x}))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("transform", ["vmap", "grad", "jacrev"])
@pytest.mark.parametrize("inside", [False, True])
def test_transforms_of_torch_func_are_named(transform: str, inside: bool) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        """A model that uses the transform itself."""
        return run(self.layer, x) if inside else self.layer(x)

    def run(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if transform == "vmap":
            return torch.func.vmap(part)(x[None])
        return getattr(torch.func, transform)(lambda x: part(x).sum())(x)

    model, x = own(forward, layer=nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)), torch.randn(2, 5, 32)
    name = "vmap" if transform == "vmap" else "grad"
    with pytest.raises(UnsupportedError, match=rf"runs in torch\.func\.{name}"), capture(model):
        model(x) if inside else run(model, x)
    with torch.no_grad(), capture(model) as captured:
        model.layer(x) if inside else model(x)
    assert len(captured.traces) == 2


def test_heads_are_silenced_in_transforms_of_torch_func() -> None:
    model, x = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True).eval(), torch.randn(2, 5, 32)
    leaf = x.clone().requires_grad_()
    with ablate(model, [(0, 1)]):
        expected = torch.autograd.grad(model(leaf).sum(), leaf)[0]
        torch.testing.assert_close(torch.func.grad(lambda x: model(x).sum())(x), expected)


class Plain(nn.MultiheadAttention):
    def forward(self, x: torch.Tensor, weights: bool = False) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=weights)[0]


class ByItself(Plain):
    def forward(self, x: torch.Tensor, weights: bool = False) -> torch.Tensor:  # type: ignore[override]
        q, k, v = parts_of(self, x)
        attend = nn.functional.scaled_dot_product_attention
        mixed = attend(q, k, v) if not weights else softmax_of(q, k) @ v
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("cls", [Plain, ByItself])
def test_an_overridden_forward_is_read_at_the_operator(cls: type[Plain]) -> None:
    mha, x = amplified(cls(8, 2, batch_first=True)), torch.randn(2, 6, 8)
    with torch.no_grad():
        expected = nn.MultiheadAttention.forward(mha, x, x, x, average_attn_weights=False)[1]
        captured = captured_of(mha, x)
        with pytest.raises(UnsupportedError, match="not recorded: aten::_softmax"), capture(mha):
            mha(x, weights=True)
    for row, trace in enumerate(captured.traces):
        np.testing.assert_allclose(trace[0].weights[:], expected[row], atol=1e-6)
        assert trace.verify().agrees


def test_named_blocks_of_a_container_are_one_stack_and_numbered_attributes_are_two() -> None:
    """torchvision's encoder names its blocks encoder_layer_0, encoder_layer_1, … in an nn.Sequential."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention_1(x, x, x)[0]
        return x + self.attention_2(x, x, x)[0]

    def block() -> nn.Module:
        parts = {f"attention_{at}": nn.MultiheadAttention(8, 2, batch_first=True) for at in (1, 2)}
        return own(forward, **parts)

    model = nn.Sequential(OrderedDict((f"encoder_layer_{at}", block()) for at in range(3))).eval()
    first, second = captured_of(model, torch.randn(1, 5, 8)).traces
    assert (len(first.layers), len(second.layers)) == (3, 3)
    assert first.stack != second.stack
    assert first.verify().agrees


@pytest.mark.filterwarnings("ignore:module forward hook with")  # PyTorch's, of hooks after the one that raises
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("number", [False, True])
@pytest.mark.parametrize(
    ("hidden", "queries"), [([0, 1, 2, 3, 4], "every query"), ([3], "query 3"), ([1, 4], "queries 1, 4")]
)
def test_a_head_that_sees_no_key_is_named(inside: bool, number: bool, hidden: list[int], queries: str) -> None:
    """PyTorch returns NaN for it if it computes weights, and 0 if it doesn't."""
    mha, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(1, 5, 16)
    mask = torch.zeros(4, 5, 5, dtype=torch.bool)
    mask[2, hidden] = True
    mask = torch.zeros(4, 5, 5).masked_fill(mask, float("-inf")) if number else mask
    around = own(lambda self, *given, **options: self.attend(*given, **options), attend=mha)
    call = partial(around if inside else mha, x, x, x, attn_mask=mask)
    with torch.no_grad():
        assert call()[0].isnan().any()
        with pytest.raises(UnsupportedError) as error, capture(call.func):
            call()
        with capture(call.func) as captured:
            call(need_weights=False)
    place = f"layer 0, row 0, query {hidden[0]}"
    assert error.value.where == f"{'attend' if inside else 'MultiheadAttention'}, {place}"
    assert f"hides every key from head 2 for {queries}," in error.value.found
    assert np.asarray(captured.trace[0, 2].weights)[hidden].sum() == 0

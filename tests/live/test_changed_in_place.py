"""Tensors that somebody changes in place while a model runs, or after it: each layer has the map that it computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from comparing import Mixer, assert_weights, captured_of, own, parts_of, passed, refused, split
from torch import nn
from torch.nn.attention import flex_attention as flex

from families import BY_NAME
from headscope.errors import UnsupportedError
from headscope.live import capture
from headscope.live.keeping import contents
from headscope.traces import Trace

TOKENS = 40
QUERIES = (5, TOKENS - 1)
"""The queries whose edge to key 3 is cut between the layers. A capture samples the last query, but not the first."""

Change = Callable[[torch.Tensor], None]


def cut(mask: Any) -> None:
    """Mask key 3 for some queries, or for all if the mask, of PyTorch or NumPy, has a single row."""
    mask[..., QUERIES if mask.shape[-2] > 1 else 0, 3] = False if "bool" in str(mask.dtype) else -np.inf


WAYS: dict[str, tuple[Any, Change]] = {
    "no_grad": (torch.no_grad, cut),
    "inference_mode": (torch.inference_mode, cut),
    "data": (torch.enable_grad, lambda mask: cut(mask.data)),
    "NumPy": (torch.enable_grad, lambda mask: cut(mask.numpy())),
}


def allowed(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, TOKENS, dtype=torch.bool)


MASKS: dict[str, Callable[[], torch.Tensor]] = {
    "bool, 2 axes": lambda: allowed(TOKENS).tril(),
    "bool, 3 axes": lambda: allowed(4, TOKENS),
    "bool, per row": lambda: allowed(2, 1, TOKENS),
    "bool, for all queries": lambda: allowed(2, 1, 1),
    "bool, transposed": lambda: allowed(TOKENS).triu().T,
    "float, 2 axes": lambda: torch.zeros(TOKENS, TOKENS),
    "float, per head": lambda: torch.randn(4, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)),
    "float, cropped": lambda: torch.zeros(2, 1, TOKENS + 3, TOKENS + 5)[:, :, :TOKENS, :TOKENS],
    "a number for each key": lambda: torch.linspace(-1, 1, TOKENS).repeat(TOKENS, 1),
}

EXPANDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "for heads and rows": lambda mask: mask.expand(2, 4, -1, -1),
    "for queries": lambda mask: mask[:1].expand(TOKENS, TOKENS),
}


def weights_by_hand(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    """Weights by the formula, in NumPy: a torch.softmax in the model would be attention that isn't recorded."""
    added = np.where(mask.numpy(), 0, -np.inf) if mask.dtype == torch.bool else mask.double().numpy()
    scores = (q @ k.mT * q.shape[-1] ** -0.5).detach().double().numpy() + added
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


class Layer(Mixer):
    """Four heads of 8, or a single one without an axis of heads, which keep the weights of their last call."""

    weights = np.empty(0)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.weights = weights_by_hand(*self.parts(x)[:2], mask)
        return x + super().forward(x, mask)


class Torch(nn.Module):
    """The same with nn.MultiheadAttention, which counts True as masked."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.weights = nn.MultiheadAttention(32, 4, batch_first=True), np.empty(0)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, _ = parts_of(self.attention, x)
        self.weights = weights_by_hand(q, k, ~mask if mask.dtype == torch.bool else mask)
        return x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


def assert_right(traces: list[Trace], layers: nn.ModuleList) -> None:
    """Every layer of every trace has the weights that its layer computed, and every layer is in one."""
    assert sorted((trace.row, number) for trace in traces for number in trace.numbers) == [
        (row, number) for row in range(2) for number in range(len(layers))
    ]
    for trace in traces:
        assert trace.verify().agrees
        weights = {number: layers[number].weights for number in trace.numbers}
        maps = {number: x if x.ndim == 4 else x[:, None] for number, x in weights.items()}
        for cells in assert_weights([trace], maps):
            np.testing.assert_allclose(cells.sum(-1), 1, atol=1e-6)


def stack(make: Callable[[], nn.Module]) -> Any:
    """Three layers. Before the second, somebody changes the mask, and before the third, changes it back."""

    def forward(self: Any, x: torch.Tensor, mask: torch.Tensor, change: Change, given: Any = None) -> Any:
        before, given = mask.clone(), mask if given is None else given
        x = self.layers[0](x, given)
        change(mask)
        x = self.layers[1](x, given)
        mask.data.copy_(before)
        return self.layers[2](x, given)

    return own(forward, layers=nn.ModuleList(make() for _ in range(3)))


GIVEN: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, Any]]]] = {
    **{kind: (Layer, lambda make=make: (make(), None)) for kind, make in MASKS.items()},
    **{kind: (Layer, lambda to=to: ((mask := allowed(TOKENS)), to(mask))) for kind, to in EXPANDED.items()},
    "one head without an axis of heads": (lambda: Layer(heads=0), lambda: (allowed(2, TOKENS), None)),
}
"""Layers, and the mask that somebody changes with what the layers are given if that isn't the mask itself."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", GIVEN)
def test_a_mask_that_changes_between_layers(kind: str, way: str) -> None:
    (mode, change), (make, masks) = WAYS[way], GIVEN[kind]
    model = stack(make)
    with mode():
        mask, given = masks()
        captured = passed(model, torch.randn(2, TOKENS, 32), mask, change, given)[1]
    assert_right(captured.traces, model.layers)
    if kind in MASKS:
        changed, before = (model.layers[number].weights for number in (1, 0))
        assert (changed[..., 3] == 0).any(), "the layer in the middle had a masked edge"
        assert ((before[..., 3] > 0) != (changed[..., 3] > 0)).any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_multihead_attention(kind: str, way: str) -> None:
    def change(mask: torch.Tensor) -> None:
        array = mask.data if way != "NumPy" else torch.from_numpy(mask.numpy())
        array[5, 3] = True if kind == "bool" else float("-inf")

    model, mask = stack(Torch), ~allowed(TOKENS) if kind == "bool" else torch.zeros(TOKENS, TOKENS)
    with WAYS[way][0]():
        captured = passed(model, torch.randn(2, TOKENS, 32), mask, change)[1]
    assert_right(captured.traces, model.layers)


def test_padding_that_a_later_layer_looks_at() -> None:
    """The second layer's keys are not those that the first one hid, so it is in a trace of its own."""
    model = stack(Layer)
    mask = allowed(2, 1, 1)
    mask[1, ..., TOKENS - 4 :] = False
    captured = captured_of(model, torch.randn(2, TOKENS, 32), mask, lambda mask: mask.fill_(True))
    assert_right(captured.traces, model.layers)
    assert [(trace.numbers, len(trace)) for trace in captured.traces if trace.row] == [
        ((0, 2), TOKENS - 4),
        ((1,), TOKENS),
    ]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(("name", "argument"), [("BertModel", "attention_mask"), ("T5EncoderModel", "position_bias")])
def test_models_of_transformers(name: str, argument: str, implementation: str) -> None:
    """A hook changes the mask, or T5's position bias, before the second layer: as in a run with eager attention."""
    model = BY_NAME["BertModel"].build() if name == "BertModel" else BY_NAME["T5Model"].build().encoder
    model.set_attn_implementation(implementation)

    def change(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dim() == 4:
                value[..., 2, 1] = float("-inf")

    layers = model.encoder.layer if name == "BertModel" else model.block
    layers[1].register_forward_pre_hook(change, with_kwargs=True)
    ids = torch.arange(3, 15)[None]
    captured = captured_of(model, ids, attention_mask=torch.zeros(1, 1, 12, 12))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(ids, attention_mask=torch.zeros(1, 1, 12, 12), output_attentions=True).attentions
    assert attentions[1][0, 0, 2, 1] == 0 < attentions[0][0, 0, 2, 1]
    assert_weights(captured, attentions, 2e-5)


@pytest.mark.parametrize("name", ["DebertaModel", "DebertaV2Model"])
def test_a_mask_of_deberta_that_changes_between_layers(name: str) -> None:
    """It hides all keys from padding, so the mask that is read is not the tensor that the layers share."""
    model = BY_NAME[name].build()

    def change(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dim() == 4 and value.shape[-1] == value.shape[-2] == 12:
                value[..., 1, 2] = 0

    model.encoder.layer[1].register_forward_pre_hook(change, with_kwargs=True)
    ids, mask = torch.arange(3, 27).view(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    output, captured = passed(model, ids, attention_mask=mask, output_attentions=True)
    assert output.attentions[1][0, 0, 1, 2] == 0 < output.attentions[0][0, 0, 1, 2]
    assert_weights(captured, output.attentions, 2e-5)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_function_of_flex_attention_that_looks_at_what_changes_is_refused() -> None:
    """It is read once for all layers that are given it, and their contexts show that it masks otherwise by now."""
    hidden = torch.zeros(40, dtype=torch.bool)

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
        return (q >= k) & ~(hidden[q] & (k == 3))

    block_mask = flex.create_block_mask(mask_mod, None, None, 40, 40, device="cpu")

    def forward(self: Any, x: torch.Tensor) -> Any:
        q = split(x, 2)
        return flex.flex_attention(q, q, q, block_mask=block_mask).transpose(1, 2).flatten(2)  # type: ignore[union-attr]

    model = nn.Sequential(own(forward), own(forward)).eval()
    for query in (5, 17, 38):  # one query of all
        hidden.zero_()
        handle = model[1].register_forward_pre_hook(lambda module, args, at=query: hidden.__setitem__(at, True))  # type: ignore[misc]
        refused(r"something other than[\s\S]*where: 1", model, torch.randn(1, 40, 32))
        handle.remove()


def test_masks_elsewhere_are_compared_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of GPUs, on the CPU: an error at the end of the pass says that a mask changed."""
    monkeypatch.setattr(contents, "HASHED", frozenset())
    model = stack(Layer)
    x = torch.randn(2, TOKENS, 32)
    with torch.no_grad(), capture(model) as captured:
        model(x, allowed(TOKENS).tril(), lambda mask: None)
        with pytest.raises(UnsupportedError, match="changed in place") as error:
            model(x, allowed(TOKENS).tril(), cut)
        assert "clone" in str(error.value)
        model(x, allowed(TOKENS).tril(), lambda mask: None)
    assert [trace.numbers for trace in captured.traces] == [(0, 1, 2)] * 4
    assert_weights(captured.traces[2:], [layer.weights for layer in model.layers])


def test_what_a_caller_changes_after_the_pass() -> None:
    """Masks, ids and outputs in memory that is used again: the traces keep what was there."""
    model, ids, mask = BY_NAME["BertModel"].build(), torch.arange(3, 15)[None], torch.randn(1, 4, 12, 12)
    with torch.no_grad():
        output, captured = passed(model, input_ids=ids, attention_mask=mask)
    expected, bias = output.last_hidden_state[0].clone(), mask[0].clone()
    for tensor in (ids, mask, output.last_hidden_state, output.pooler_output):
        tensor.fill_(4)
    trace = captured.trace
    assert trace.ids == tuple(range(3, 15))
    np.testing.assert_array_equal(trace.outputs["last_hidden_state"].array, expected)
    np.testing.assert_array_equal(trace[0].mask.bias, bias)
    report = trace.verify()
    assert report.agrees, report
    assert any("changed" in reason for _, reason in report.skipped)


@pytest.mark.parametrize("changed", [False, True])
def test_an_argument_with_nan_is_as_it_was(changed: bool) -> None:
    """As a time series has it for what is missing."""
    model = own(lambda self, ids, _: self.bert(ids), bert=BY_NAME["BertModel"].build())
    values = torch.tensor([[1.0, torch.nan, 2.0]])
    trace = passed(model, torch.arange(3, 6)[None], values)[1].trace
    values[0, 1 if changed else 0] = 1.0
    reasons = [name for name, reason in trace.verify().skipped if "changed" in reason]
    assert reasons == ["tokens", "eager weights"] * changed

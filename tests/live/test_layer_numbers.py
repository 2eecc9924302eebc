"""Layers are numbered as in the model that is there: attention twice, layers skipped or replaced, two calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from comparing import Mixer, captured_of, own, pass_of, weights_of
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from families import BY_NAME, DECODER, Family
from headscope.errors import InputError, UnsupportedError
from headscope.live import ablate, capture
from headscope.live.names.sources import MEMORIES
from headscope.live.plan.stacks import plan_of


class Attention(Mixer):
    """Four heads of 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(scaled_dot_product_attention(*self.parts(x)).transpose(1, 2).flatten(2))


class Twice(Attention):
    """Attends twice each time it runs, the second time from keys to queries."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        found = scaled_dot_product_attention(q, k, v) - 0.3 * scaled_dot_product_attention(k, q, v)
        return x + self.out(found.transpose(1, 2).flatten(2))


def diff_llama() -> Any:
    settings = {**DECODER, "num_hidden_layers": 3, "num_key_value_heads": 4}
    return Family("DiffLlamaModel", settings, factor=1.0).build()


def test_diff_llama_has_two_maps_a_layer() -> None:
    model = diff_llama()
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        captured = captured_of(model, ids, use_cache=False)
        model.set_attn_implementation("eager")  # type: ignore[operator]
        eager = model(ids, use_cache=False, output_attentions=True).attentions
    assert captured.stacks == ("self", "self.2")
    assert [(trace.stack, trace.numbers) for trace in captured.traces] == [("self", (0, 1, 2)), ("self.2", (0, 1, 2))]
    for trace in captured.traces:
        assert trace.verify().agrees
        for layer, theirs in enumerate(eager):
            np.testing.assert_allclose(trace[layer].weights[:], theirs[0], atol=1e-6)
    assert [trace.stack for trace in captured["self.2"]] == ["self.2"]


def test_a_part_can_be_silenced_alone() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Attention(), Twice()).eval(), torch.randn(1, 6, 32)
    heads = [(1, head) for head in range(4)]
    with torch.no_grad():
        hidden = model[0](x)
        layer: Twice = model[1]  # type: ignore[assignment]
        q, k, v = layer.parts(hidden)
        first, second = scaled_dot_product_attention(q, k, v), -0.3 * scaled_dot_product_attention(k, q, v)
        left = {"self": torch.zeros_like(first), "self.1": second, "self.2": first}
        for stack, context in left.items():
            with ablate(model, heads, stack=stack):
                found = model(x)
            torch.testing.assert_close(found, hidden + layer.out(context.transpose(1, 2).flatten(2)))
    with pytest.raises(InputError, match=r"there is no stack 'other'"):
        ablate(model, heads, stack="other")


def test_a_layer_left_out_leaves_its_number_free() -> None:
    """Skip layers as LayerDrop, early exit and stochastic depth do."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for at in (0, 2, 3):
            x = self.layers[at](x)
        return x

    torch.manual_seed(0)
    model, x = own(forward, layers=nn.ModuleList(Attention() for _ in range(4))), torch.randn(1, 6, 32)
    with torch.no_grad():
        captured = captured_of(model, x)
        with ablate(model, [(2, head) for head in range(4)]):
            silenced = model(x)
        hidden = model.layers[0](x)
        expected = model.layers[3](hidden + model.layers[2].out.bias)  # type: ignore[union-attr,operator]
        weights = weights_of(model.layers[2], hidden)
    trace = captured.trace
    assert trace.numbers == (0, 2, 3)
    assert [record.name for record in trace.layers] == ["layers.0", "layers.2", "layers.3"]
    torch.testing.assert_close(silenced, expected)
    np.testing.assert_allclose(trace[2].weights[:], weights[0], atol=1e-6)


def test_shared_layers_are_counted_as_they_run() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            for layer in self.layers:
                x = layer(x)
        return x

    a, b, layers = (nn.ModuleList(Attention() for _ in range(count)) for count in (1, 1, 2))
    model, x = own(forward, a=a, b=b, layers=layers), torch.randn(1, 6, 32)
    captured = captured_of(model, x)
    assert captured.trace.numbers == (0, 1, 2, 3, 4, 5)
    assert [record.name for record in captured.trace.layers] == ["layers.0", "layers.1"] * 3


@pytest.mark.parametrize(("channels", "layers"), [(3, 1), (3, 2), (4, 1), (4, 2)])
def test_a_layer_that_runs_its_attention_twice_has_two_stacks(channels: int, layers: int) -> None:
    from transformers import PatchTSTConfig, PatchTSTModel

    torch.manual_seed(0)
    config = PatchTSTConfig(
        num_input_channels=channels,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        num_hidden_layers=layers,
        d_model=32,
        num_attention_heads=4,
        ffn_dim=40,
        channel_attention=True,
        attn_implementation="sdpa",
    )
    model, x = PatchTSTModel(config).eval(), torch.randn(2, 32, channels)
    eager: list[torch.Tensor] = []
    with torch.no_grad():
        captured = captured_of(model, past_values=x)
        model.set_attn_implementation("eager")
        for layer in model.encoder.layers:
            layer.self_attn.register_forward_hook(lambda module, args, output: eager.append(output[1]))
        model(past_values=x, output_attentions=True)
    assert captured.stacks == ("self", "self.2")
    for call, stack in enumerate(captured.stacks):
        for row, trace in enumerate(captured[stack]):
            assert trace.numbers == tuple(range(layers))
            assert trace.verify().agrees
            for layer in range(layers):
                np.testing.assert_allclose(trace[layer, 1].weights[:], eager[2 * layer + call][row, 1], atol=1e-6)


class Block(nn.Module):
    """A layer that runs its attention several times, on the parts that `parts` makes of its input."""

    def __init__(self, parts: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
        super().__init__()
        self.attention, self.parts = Attention(), parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts(x):
            self.attention(part)
        return x.roll(1, 0)


@pytest.mark.parametrize("sides", [(5, 3), (4, 4)])
@torch.no_grad()
def test_rows_and_columns_are_two_stacks(sides: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(lambda x: [x, x.transpose(0, 1).contiguous()]) for _ in range(2))).eval()
    x = torch.randn(*sides, 32)
    captured = captured_of(model, x)
    assert captured.stacks == ("self", "self.2")
    for layer, block in enumerate(model):
        given = x.roll(layer, 0)
        for stack, part in zip(captured.stacks, (given, given.transpose(0, 1)), strict=True):
            weights = weights_of(block.attention, part)
            for row, trace in enumerate(captured[stack]):
                assert trace.numbers == (0, 1)
                np.testing.assert_allclose(trace[layer, 2].weights[:], weights[row, 2], atol=1e-6)


@pytest.mark.parametrize("sizes", [3, [1, 2, 3]])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("copied", [False, True])
@torch.no_grad()
def test_parts_of_a_layers_input_are_not_maps_of_a_layer(sizes: int | list[int], axis: int, copied: bool) -> None:
    """Of equal sizes or not, of tokens or rows, in their memory or copied."""
    model = nn.Sequential(Block(lambda x: [part + 0 if copied else part for part in x.split(sizes, axis)])).eval()
    with capture(model), pytest.raises(UnsupportedError, match="attends several times in one forward pass"):
        model(torch.randn(6, 6, 32))


@pytest.mark.parametrize("second", [[9, 8, 7, 6, 5], [9, 8, 7]])
def test_an_encoder_called_twice_leaves_two_traces(second: list[int]) -> None:
    family = BY_NAME["BertModel"]

    def forward(self: Any, *texts: torch.Tensor) -> torch.Tensor:
        """One encoder called for each of two texts, as in training embeddings."""
        return torch.cat([self.encoder(text).last_hidden_state for text in texts], 1)

    model = own(forward, encoder=family.build())
    texts = [torch.tensor([[4, 5, 6, 7, 8]]), torch.tensor([second])]
    captured = captured_of(model, *texts)
    apart = [trace for text in texts for trace in captured_of(model.encoder, text).traces]
    assert [trace.ids for trace in captured.traces] == [(4, 5, 6, 7, 8), tuple(second)]
    for trace, alone in zip(captured.traces, apart, strict=True):
        assert trace.numbers == (0, 1)
        assert trace.verify().agrees
        for layer in trace.numbers:
            np.testing.assert_allclose(trace[layer, 0].weights[:], alone[layer, 0].weights[:], atol=1e-6)


BERT = BY_NAME["BertModel"]


class UnreadableAttention(Attention):
    """Attention that capture can't see."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.into(x).chunk(3, -1)
        weights: torch.Tensor = torch.softmax(q @ k.transpose(1, 2), -1)
        return weights @ v


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Attention(), Attention())


def traced(model: nn.Module) -> tuple[int, ...]:
    """The layers that a capture records."""
    captured = captured_of(model, torch.randn(1, 5, 32))
    return captured.trace.numbers


def test_a_replaced_module_is_seen() -> None:
    model = two_layers()
    assert traced(model) == (0, 1)
    model[1] = nn.Identity()
    assert traced(model) == (0,)
    model[1] = UnreadableAttention()
    with pytest.raises(UnsupportedError, match="UnreadableAttention computes its attention itself"):
        capture(model)
    model[1] = Attention()
    model.append(Attention())
    assert traced(model) == (0, 1, 2)


def test_a_replaced_child_of_a_child_is_seen() -> None:
    model = BERT.build()
    inputs = BERT.inputs(padded=False)
    dense = model.encoder.layer[0].attention.output
    for _ in range(2):
        captured = captured_of(model, **inputs)
        old = captured.traces[0].source.W_O(0, 1)
        dense.dense = nn.Linear(dense.dense.in_features, dense.dense.out_features)
    assert id(dense.dense) in plan_of(model).readers
    captured = captured_of(model, **inputs)
    d_head = len(old)
    expected = dense.dense.weight.detach().T[d_head : 2 * d_head].numpy()
    np.testing.assert_array_equal(captured.traces[0].source.W_O(0, 1), expected)


def test_a_changed_forward_or_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_layers()
    assert traced(model) == (0, 1)
    with monkeypatch.context() as changed:
        changed.setattr(Attention, "forward", UnreadableAttention.forward)
        with pytest.raises(UnsupportedError):
            capture(model)
    assert traced(model) == (0, 1)
    model[0].__class__ = UnreadableAttention
    with pytest.raises(UnsupportedError, match="UnreadableAttention"):
        capture(model)


def test_a_changed_layer_number_is_seen() -> None:
    model = two_layers()
    assert traced(model) == (0, 1)
    model[0].layer_idx, model[1].layer_idx = 4, 7
    assert traced(model) == (4, 7)


def test_a_changed_setting_of_a_reader_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, captured, _ = pass_of(BY_NAME["MPNetModel"], padded=False)
    assert captured.traces
    from headscope.live.seeing.readers import READERS

    name = next(name for name in READERS if name.endswith("MPNetSelfAttention"))
    refusing = type(READERS[name])(**{**vars(READERS[name]), "refusal": lambda module: "it is told so"})
    monkeypatch.setitem(READERS, name, refusing)
    with pytest.raises(UnsupportedError, match="it is told so"):
        capture(model)


def test_strict_and_lenient_plans_are_apart() -> None:
    model = nn.Sequential(Attention(), UnreadableAttention())
    capture(model, strict=False)
    with pytest.raises(UnsupportedError):
        capture(model)


def test_what_is_remembered_keeps_no_model_alive() -> None:
    model = two_layers()
    captured_of(model, torch.randn(1, 5, 32))
    at, gone = id(model), weakref.ref(model[0])
    assert at in MEMORIES
    del model
    gc.collect()
    assert gone() is None
    assert at not in MEMORIES


def bounds(arrays: list[np.ndarray]) -> tuple[int, int]:
    """Where these arrays begin and end in memory."""
    starts = [array.__array_interface__["data"][0] for array in arrays]
    return min(starts), max(start + array.nbytes for start, array in zip(starts, arrays, strict=True))


def test_copies_of_a_row_lie_in_one_piece() -> None:
    """So they leave no room for temporary tensors between them, and none of another row is kept with them."""
    _, captured, _ = pass_of(BERT, padded=True)
    pieces = []
    for trace in captured.traces:
        queries = [layer.q for layer in trace.layers]
        others = [array for layer in trace.layers for array in (layer.k, layer.v)]
        for arrays in (queries, others):
            begin, end = bounds(arrays)
            assert end - begin == sum(array.nbytes for array in arrays)
            pieces.append((begin, end))
    pieces.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(pieces))

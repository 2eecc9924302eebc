"""Each capture sees the model as it is then; nothing that is remembered of a model keeps it alive."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch
from comparing import Mixer, captured_of, pass_of
from torch import nn

from families import BY_NAME
from headscope.errors import UnsupportedError
from headscope.live import capture
from headscope.live.names.sources import MEMORIES
from headscope.live.plan.plans import plan_of

BERT = BY_NAME["BertModel"]


class Attention(Mixer):
    """Attention over one sequence, as in a hand-written model."""


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

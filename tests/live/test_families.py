"""Live transformers models, architecture by architecture: weights against eager attention, outputs against W_O's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from comparing import PADDABLE, assert_same_weights, eager_attentions, watched
from torch import nn

from families import FAMILIES, IN_GROUPS, Family


@contextmanager
def given_by_projections(model: nn.Module) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Outputs of every Linear and Conv1D by name; nn.MultiheadAttention calls its own without running hooks."""
    given: dict[str, list[torch.Tensor]] = {}

    def note(module: nn.Module, args: Any, output: Any, path: str) -> None:
        given.setdefault(path, []).append(output[0] if isinstance(output, tuple) else output)

    handles = []
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            handles.append(module.register_forward_hook(partial(note, path=f"{path}.out_proj")))
        elif isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            handles.append(module.register_forward_hook(partial(note, path=path)))
    yield given
    for handle in handles:
        handle.remove()


def assert_heads_add_up(captured: Any, model: nn.Module, given: dict[str, list[torch.Tensor]]) -> None:
    """Compare the sum over heads of context W_O, plus the bias, with what the projection gave in another pass."""
    for trace in captured.traces:
        for place, layer in enumerate(trace.numbers):
            total = np.sum([trace[layer, head].output for head in range(trace.heads)], axis=0)
            path = trace.source._projections[layer].paths[0]
            bias: Any = model.get_submodule(path).bias
            calls = given[path]
            theirs = calls[place % len(calls)]
            theirs = theirs.reshape(len(captured.forwards[0]) // len(captured.stacks), trace.cut.sizes[0], -1)
            size = max(1.0, float(theirs.abs().max()))
            total = total + (0 if bias is None else bias.detach().numpy())
            np.testing.assert_allclose(total, theirs[trace.row].numpy()[trace.positions], atol=2e-5 * size)


@pytest.mark.parametrize("family", [*FAMILIES, IN_GROUPS], ids=str)
def test_weights_are_the_eager_ones_and_outputs_the_projections(family: Family) -> None:
    model = family.build()
    inputs = family.inputs(padded=family in PADDABLE)
    with torch.no_grad(), given_by_projections(model) as given:
        model(**inputs)
    captured = watched(model, inputs)
    expected = eager_attentions(model, inputs, family.stacks)
    peak = assert_same_weights(
        captured, expected, 1e-4 if family.name.startswith(("T5", "MT5", "UMT5", "Switch")) else 2e-5
    )
    assert peak > 0.04, "near-uniform attention would hide mistakes"
    assert captured.traces[0].layers[0].stage == family.stage
    if family in PADDABLE and family.takes == "text":
        assert [len(trace) for trace in captured.traces] == [7, 5]
        assert captured.traces[1].ids == tuple(inputs["input_ids"][1, :5].tolist())
    assert_heads_add_up(captured, model, given)

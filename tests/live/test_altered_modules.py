"""Modules of libraries that somebody changed, and contexts that change on their way to the projection."""

from __future__ import annotations

import functools
import warnings
from contextlib import nullcontext
from types import MethodType
from typing import Any

import pytest
import torch
from comparing import captured_of, refused
from knockouts import IDS, REFUSED, Edge, bert, weights_of
from torch import nn

from families import BY_NAME
from headscope.errors import HeadscopeWarning, UnsupportedError
from headscope.live import capture


def mha() -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    with torch.no_grad():
        module.in_proj_weight.mul_(3)
    return module


def without_an_edge(module: nn.MultiheadAttention, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The output of a module of which one head of one query has lost the key that it looks at most."""
    row, head, query, _ = Edge()
    q, k, v = (
        part.unflatten(-1, (4, 8)).transpose(1, 2)
        for part in nn.functional.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    )
    weight, key = weights_of(q, k)[row, head, query].max(-1)
    lost = weight * v[row, head, key]
    output = output.clone()
    output[row, query] -= module.out_proj.weight[:, 8 * head : 8 * head + 8] @ lost
    return output


def by_a_hook(module: Any, context: Any, change: Any) -> None:
    module.register_forward_hook(lambda module, args, output: change(module, args, output))


def by_a_global_hook(module: Any, context: pytest.MonkeyPatch, change: Any) -> None:
    hooks = torch.nn.modules.module._global_forward_hooks
    context.setitem(hooks, -1, lambda part, *given: change(part, *given) if part is module else None)


def by_its_forward(module: Any, context: Any, change: Any) -> None:
    right = module.forward
    module.forward = lambda *args, **options: change(module, args, right(*args, **options))


def without_one(module: Any, args: Any, output: Any) -> Any:
    return without_an_edge(module, args[0], output[0]), output[1]


def by_the_function(module: Any, context: pytest.MonkeyPatch, change: Any) -> None:
    right = nn.functional.multi_head_attention_forward

    def attend(query: torch.Tensor, *given: Any, **options: Any) -> Any:
        output, weights = right(query, *given, **options)
        turned = without_an_edge(module, query.transpose(0, 1), output.transpose(0, 1)).transpose(0, 1)
        return turned.contiguous(), weights

    context.setattr(nn.functional, "multi_head_attention_forward", attend)


@pytest.mark.parametrize("inside", [False, True], ids=["before the block", "inside the block"])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("change", [by_a_hook, by_a_global_hook, by_its_forward, by_the_function])
def test_multihead_attention(change: Any, need_weights: bool, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = mha(), torch.randn(3, 12, 32, generator=torch.Generator().manual_seed(1))
    with monkeypatch.context() as context, torch.no_grad():
        if not inside:
            change(module, context, without_one)
        with capture(module):
            if inside:
                change(module, context, without_one)
            with pytest.raises(UnsupportedError, match=r"something other than[\s\S]*row 1, query 4"):
                module(x, x, x, need_weights=need_weights)


def test_a_forward_that_attends_by_itself_is_refused() -> None:
    module, x = mha(), torch.randn(3, 12, 32)

    def forward(self: Any, query: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, query, query)

    module.forward = MethodType(forward, module)  # type: ignore[method-assign,assignment]
    refused("was replaced", module, x)


def test_weights_leave_the_random_numbers_alone() -> None:
    module, x = mha().train(), torch.randn(3, 12, 32)
    module.dropout, found = 0.5, []
    for watched in (False, True):
        torch.manual_seed(4)
        with capture(module) if watched else nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore", HeadscopeWarning)
            found.append((*module(x, x, x), torch.rand(3)))
    for plain, captured in zip(*found, strict=True):
        assert torch.equal(plain, captured)


def test_hooks_that_only_look_are_no_obstacle() -> None:
    module, x = mha(), torch.randn(3, 12, 32)
    seen = []
    module.register_forward_hook(lambda *given: seen.append(given))
    family = BY_NAME["DebertaV2Model"]
    model = family.build()
    for part in model.modules():
        part.register_forward_hook(lambda *given: seen.append(given))
    with torch.no_grad():
        captured = captured_of(module, x, x, x)
        assert all(trace.verify().agrees for trace in captured.traces)
        captured = captured_of(model, **family.inputs(padded=True))
        assert all(trace.verify().agrees for trace in captured.traces)
    assert seen


def edit(module: Any, args: Any, output: Any) -> Any:
    """A context of 0 for one query of one head, wherever the contexts of all heads are side by side."""
    context = output[0] if isinstance(output, tuple) else output
    context = context.clone()
    context[1, 3, 8:16] = 0
    return (context, *output[1:]) if isinstance(output, tuple) else context


def by_the_class(module: Any, context: pytest.MonkeyPatch, change: Any) -> None:
    right = type(module).forward

    def forward(self: Any, *given: Any, **options: Any) -> Any:
        return change(self, given, right(self, *given, **options))

    context.setattr(type(module), "forward", functools.wraps(right)(forward))


def by_softmax(module: Any, context: pytest.MonkeyPatch, change: Any) -> None:
    for owner in (torch, torch.nn.functional):
        right = owner.softmax

        def softmax(x: torch.Tensor, *given: Any, right: Any = right, **options: Any) -> torch.Tensor:
            weights: torch.Tensor = right(x, *given, **options)
            row = weights.view(2, -1, *weights.shape[-2:])[1, 1, 3]
            row[row.argmax()] = 0
            return weights

        context.setattr(owner, "softmax", softmax)


@pytest.mark.parametrize("change", [by_a_hook, by_its_forward, by_the_class, by_softmax])
@pytest.mark.parametrize("name", ["DebertaModel", "DebertaV2Model", "RoFormerModel"])
def test_classes_with_readers(name: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    family = BY_NAME[name]
    model = family.build()
    part = model.encoder.layer[1].attention.self
    with monkeypatch.context() as context, torch.no_grad():
        change(part, context, edit)
        with pytest.raises(UnsupportedError, match=REFUSED), capture(model):
            model(**family.inputs(padded=False))


@pytest.mark.parametrize("name", ["DebertaModel", "DebertaV2Model", "RoFormerModel"])
def test_hooks_that_come_inside_the_block_are_seen(name: str) -> None:
    """What a capture compares with its reading is what the module returns after all other hooks."""
    family = BY_NAME[name]
    model = family.build()
    with torch.no_grad(), capture(model):
        model(**family.inputs(padded=False))
        model.encoder.layer[1].attention.self.register_forward_hook(edit)
        with pytest.raises(UnsupportedError, match=REFUSED):
            model(**family.inputs(padded=False))


# Contexts that change on their way to the projection.


@pytest.mark.parametrize("inside", [False, True], ids=["before the block", "inside the block"])
@pytest.mark.parametrize("in_place", [False, True])
def test_contexts_that_a_hook_changes_have_no_projection(in_place: bool, inside: bool) -> None:
    """The weights are the module's; what the head writes is not its context times W_O."""
    model = bert()

    def hook(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        context = args[0] if in_place else args[0].clone()
        context[:, 3] = 0
        return (context,)

    projections = [layer.attention.output.dense for layer in model.encoder.layer]
    with torch.no_grad():
        if not inside:
            projections[0].register_forward_pre_hook(hook)
        projections[1].register_forward_pre_hook(lambda *_: None)
        with capture(model) as captured:
            if inside:
                projections[0].register_forward_pre_hook(hook)
            model(input_ids=IDS)
    trace = captured.traces[0]
    assert trace.verify(reference=False).agrees
    with pytest.raises(UnsupportedError, match="no Linear reads the contexts"):
        trace[0, 0].output
    assert trace[1, 0].output.shape == (12, 32)

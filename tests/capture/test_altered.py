"""Attention functions that change single cells: captured as they ran, or refused; never another map."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from comparing import captured_of
from knockouts import (
    IDS,
    REFUSED,
    SDPA,
    Attend,
    Edge,
    Mixer,
    bert,
    by_hand,
    edited,
    subtracted,
    weights_of,
)
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.bert import modeling_bert

from families import BY_NAME
from headscope.errors import NoteWarning, UnsupportedError
from headscope.live import Consumer, capture, feed

pytestmark = pytest.mark.usefixtures("registered")

EDGES = (Edge(), Edge(0, 0, 0, 0), Edge(2, 3, 10, 11), Edge(0, 1, 3, 5))

# Functions that change what the operator computed.


def subtracted_in_place(edge: Edge) -> Attend:
    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        output = SDPA(q, k, v)
        row, head, query, key = edge
        array = output.detach().float().numpy() if output.dtype == torch.bfloat16 else output.detach().numpy()
        array[row, head, query] -= (weights_of(q, k)[row, head, query, key] * v[row, head, key]).float().numpy()
        return torch.from_numpy(array).to(output.dtype).transpose(1, 2).contiguous(), None

    return attend


def zeroed(edge: Edge) -> Attend:
    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        output = SDPA(q, k, v).transpose(1, 2).contiguous()
        output[edge.row, edge.query, edge.head] = 0
        return output, None

    return attend


def swapped(edge: Edge) -> Attend:
    """Two heads of one query change places."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        output = SDPA(q, k, v).transpose(1, 2).contiguous()
        output[edge.row, edge.query, [0, edge.head or 1]] = output[edge.row, edge.query, [edge.head or 1, 0]]
        return output, None

    return attend


def in_chunks(edge: Edge) -> Attend:
    """Two operators, of which the second leaves out a key."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        allowed = torch.ones(3, 4, 6, 12, dtype=torch.bool)
        allowed[edge.row, edge.head, edge.query % 6, edge.key] = False
        parts = [SDPA(q[:, :, at : at + 6], k, v, attn_mask=allowed) for at in (0, 6)]
        return torch.cat(parts, 2).transpose(1, 2).contiguous(), None

    return attend


CHANGING = {
    "subtracted": subtracted,
    "in place": subtracted_in_place,
    "weights set to 0": by_hand,
    "nothing returned": lambda edge: by_hand(edge, returned=False),
    "renormalised": lambda edge: by_hand(edge, returned=False, renormalised=True),
    "a context of 0": zeroed,
    "two heads swapped": swapped,
    "in chunks": in_chunks,
}


@pytest.mark.parametrize("edge", EDGES, ids=str)
@pytest.mark.parametrize("how", CHANGING)
def test_a_function_that_changes_one_edge(how: str, edge: Edge) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED) as error:
        captured_of(bert(CHANGING[how](edge)), IDS)
    if how != "in chunks":
        assert f"layer 0, row {edge.row}, head " in str(error.value)
        assert f"query {edge.query}\n" in str(error.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "how", [how for how in CHANGING if how not in ("in place", "renormalised", "nothing returned")]
)
def test_the_same_in_half_precision(how: str, dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED):
        captured_of(bert(CHANGING[how](Edge()), dtype), IDS)


def test_a_small_weight_in_half_precision_is_missed_nowhere_that_weights_are_returned() -> None:
    """One of 0.1 %, which contexts in bf16 don't show."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        weights = weights_of(q, k)
        flat = weights[1, 2, 4]
        flat[(flat - 1e-3).abs().argmin()] = 0
        return (weights @ v).transpose(1, 2).contiguous(), weights

    with pytest.raises(UnsupportedError, match=r"row 1, head 2, query 4"):
        captured_of(bert(attend, torch.bfloat16), IDS)


# Functions that change what the operator is given: they are read there.


def masked(q: Any, k: Any, v: Any, given: dict[str, Any], edge: Edge) -> tuple[Any, Any, Any, dict[str, Any]]:
    allowed = torch.ones(3, 4, 12, 12, dtype=torch.bool)
    allowed[edge] = False
    return q, k, v, {"attn_mask": allowed}


def shifted(q: Any, k: Any, v: Any, given: dict[str, Any], edge: Edge) -> tuple[Any, Any, Any, dict[str, Any]]:
    added = torch.zeros(3, 4, 12, 12, dtype=q.dtype)
    added[edge] = -1.5
    return q, k, v, {"attn_mask": added}


def moved(q: Any, k: Any, v: Any, given: dict[str, Any], edge: Edge) -> tuple[Any, Any, Any, dict[str, Any]]:
    q, k = q.clone(), k.clone()
    q[edge.row, edge.head, edge.query] = q[edge.row, edge.head, edge.query + 1]
    k[edge.row, edge.head, edge.key] *= -1
    return q, k, v.roll(1, 2), {"scale": 0.2}


INPUTS = {"a mask": masked, "numbers": shifted, "queries, keys, values and scale": moved}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", INPUTS)
def test_what_a_function_gives_the_operator_is_what_is_captured(how: str, dtype: torch.dtype) -> None:
    seen: list[torch.Tensor] = []

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        q, k, v, options = INPUTS[how](q, k, v, given, Edge())
        added = options.get("attn_mask", torch.zeros(1))
        added = torch.where(added, 0, -torch.inf) if added.dtype == torch.bool else added.float()
        raw = q.float() @ k.float().mT * options.get("scale", 8**-0.5) + added
        seen.append((raw - raw.logsumexp(-1, keepdim=True)).exp())
        output = SDPA(q, k, v, **options)
        for tensor in (q, k, v, options.get("attn_mask")):
            if tensor is not None:
                tensor.zero_()  # after the operator, nothing of this counts
        return output.transpose(1, 2).contiguous(), None

    captured = captured_of(bert(attend, dtype), IDS)
    for trace in captured.traces:
        for number in range(2):
            np.testing.assert_allclose(trace[number].weights[...], seen[number][trace.row], atol=1e-5)
        report = trace.verify()
        assert report.agrees, report
        assert any("own changes what it is given" in reason for _, reason in report.skipped)
    if how == "a mask":
        assert captured.traces[1][0].weights[Edge()[1:]] == 0


@pytest.mark.parametrize("enable_gqa", [True, False])
def test_keys_that_a_function_repeats_are_kept_once(enable_gqa: bool) -> None:
    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        if not enable_gqa:
            k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        allowed = torch.ones(7, 7, dtype=torch.bool).tril()
        allowed[4, 2] = False
        return SDPA(q, k, v, attn_mask=allowed, enable_gqa=enable_gqa).transpose(1, 2).contiguous(), None

    family = BY_NAME["LlamaModel"]
    model = family.build()
    AttentionInterface.register("own", attend)
    model.set_attn_implementation("own")
    captured = captured_of(model, **family.inputs(padded=False))
    trace = captured.traces[0]
    assert trace.layers[0].k.shape == (2, 7, 8)
    assert (np.asarray(trace[0].weights)[:, 4, 2] == 0).all()
    assert trace.verify().agrees


# Every call is looked at, whatever changes in between.


def test_a_knockout_that_is_switched_on_later() -> None:
    on = False

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        output = SDPA(q, k, v)
        return (edited(Edge(), output, q, k, v) if on else output).transpose(1, 2).contiguous(), None

    model = bert(attend)
    with torch.no_grad(), capture(model) as captured:
        model(input_ids=IDS)
        model(input_ids=IDS)
        on = True
        with pytest.raises(UnsupportedError, match=REFUSED):
            model(input_ids=IDS)
        on = False
        model(input_ids=IDS)
    assert len(captured.traces) == 9
    assert all(trace.verify().agrees for trace in captured.traces)


def test_in_the_last_layer_only() -> None:
    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        output = SDPA(q, k, v)
        return (edited(Edge(), output, q, k, v) if module is last else output).transpose(1, 2).contiguous(), None

    model = bert(attend)
    last = model.encoder.layer[1].attention.self
    with pytest.raises(UnsupportedError, match=r"layer\.1\.attention\.self, layer 1, row 1, head 2, query 4"):
        captured_of(model, IDS)


def wrapped(q: Any, k: Any, v: Any, *rest: Any, **given: Any) -> torch.Tensor:
    """In the place of PyTorch's function."""
    return edited(Edge(), SDPA(q, k, v, *rest, **given), q, k, v)


class ByFunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return edited(Edge(), result, *args[:3]) if func is SDPA else result


class ByDispatchMode(TorchDispatchMode):
    """Below the operator: PyTorch's own observer sees nothing of it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "scaled_dot_product_flash" in str(func):
            return (edited(Edge(), result[0], *args[:3]), *result[1:])
        if func is torch.ops.aten._softmax.default and result.dim() == 4:
            result[Edge()] = 0
        return result


class Subclass(torch.Tensor):
    """A tensor whose attention leaves out an edge."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return edited(Edge(), result, *args[:3]) if func is SDPA else result


@pytest.mark.parametrize(
    ("mode", "implementation"), [(ByFunctionMode, "sdpa"), (ByDispatchMode, "sdpa"), (ByDispatchMode, "eager")]
)
def test_modes_that_change_what_operators_do(mode: Callable[[], Any], implementation: str) -> None:
    model = bert()
    model.set_attn_implementation(implementation)
    with mode(), pytest.raises(UnsupportedError, match=REFUSED):
        captured_of(model, IDS)


def test_a_mode_below_the_operator_of_a_class_of_one_s_own() -> None:
    torch.manual_seed(0)
    with ByDispatchMode(), torch.no_grad(), pytest.raises(UnsupportedError, match=REFUSED), capture(model := Mixer()):
        model(3 * torch.randn(3, 12, 32))


@pytest.mark.parametrize("how", ["a function", "an object", "a mode", "tensors"])
def test_what_stands_between_a_class_of_one_s_own_and_the_operator(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it returns is seen by nobody, so it is refused; helpers of the class's author are part of the class."""

    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(3, 4, 12, 8)
    model = Looking()
    with monkeypatch.context() as context, torch.no_grad(), ByFunctionMode() if how == "a mode" else nullcontext():
        if how in ("a function", "an object"):
            replaced = wrapped if how == "a function" else Callables(wrapped)
            context.setattr(torch.nn.functional, "scaled_dot_product_attention", replaced)
        with pytest.raises(UnsupportedError, match="stands between Looking"), capture(model):
            model(x.as_subclass(Subclass) if how == "tensors" else x)
    captured = captured_of(model, x)
    assert len(captured.traces) == 3


def test_tensors_of_another_class() -> None:
    class Dressed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert()

        def forward(self, ids: torch.Tensor) -> Any:
            return self.bert(inputs_embeds=self.bert.embeddings.word_embeddings(ids).as_subclass(Subclass))

    with torch.no_grad(), pytest.raises(UnsupportedError, match=REFUSED), capture(model := Dressed()):
        model(IDS)


def changed_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", wrapped)


def changed_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", by_hand(Edge()))


def changed_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.nn.functional.softmax

    def softmax(x: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        weights = right(x, *given, **options)
        weights[Edge()] = 0
        return weights

    monkeypatch.setattr(torch.nn.functional, "softmax", softmax)


def changed_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", subtracted(Edge()))


def changed_locally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(modeling_bert.ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", subtracted(Edge()))


def changed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def sdpa_attention_forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **given: Any) -> Any:
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous()
        output[1, 4, 2] = 0
        return output, None

    function = transformers.integrations.sdpa_attention.sdpa_attention_forward
    monkeypatch.setattr(function, "__code__", sdpa_attention_forward.__code__)


PATCHES = {
    changed_sdpa: "sdpa",
    changed_eager: "eager",
    changed_softmax: "eager",
    changed_entry: "sdpa",
    changed_locally: "sdpa",
    changed_code: "sdpa",
}


@pytest.mark.parametrize("inside", [False, True], ids=["before the block", "inside the block"])
@pytest.mark.parametrize("patch", PATCHES)
def test_a_library_s_function_that_somebody_changed(
    patch: Callable[[pytest.MonkeyPatch], None], inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bert()
    model.set_attn_implementation(PATCHES[patch])
    with monkeypatch.context() as context, torch.no_grad():
        if not inside:
            patch(context)
        with capture(model):
            if inside:
                model(input_ids=IDS)
                patch(context)
            with pytest.raises(UnsupportedError, match=REFUSED):
                model(input_ids=IDS)
    captured = captured_of(model, IDS)
    assert all(trace.verify().agrees for trace in captured.traces)


class Callables:
    """A function in the form of an object."""

    def __init__(self, attend: Attend) -> None:
        self.attend = attend
        self.__name__ = "sdpa_attention_forward"
        self.__module__ = "transformers.integrations.sdpa_attention"

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.attend(*given, **options)


@functools.wraps(sdpa_attention_forward)
def disguised(*given: Any, **options: Any) -> Any:
    return subtracted(Edge())(*given, **options)


@pytest.mark.parametrize(
    "function",
    [functools.partial(subtracted(Edge())), Callables(subtracted(Edge())), disguised],
    ids=["a partial", "an object", "a disguise"],
)
def test_names_prove_nothing(function: Any) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED):
        captured_of(bert(function), IDS)


def test_a_function_that_calls_the_interface_s_own() -> None:
    """The inner call is part of the outer one, not a layer of its own."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        allowed = torch.ones(1, 1, 12, 12, dtype=torch.bool)
        allowed[..., 4, 7] = False
        function = modeling_bert.ALL_ATTENTION_FUNCTIONS["sdpa"]
        return function(module, q, k, v, allowed, **given)

    captured = captured_of(bert(attend), IDS)
    assert [trace.stack for trace in captured.traces] == ["self"] * 3
    for trace in captured.traces:
        assert trace.numbers == (0, 1)
        assert (np.asarray(trace[1].weights)[:, 4, 7] == 0).all()
        assert trace.verify().agrees


def test_every_consumer_is_spared() -> None:
    """Statistics and surveys, too: a call is compared before anybody gets it."""

    class Nobody(Consumer):
        def take(self, *_: Any) -> None:
            pytest.fail("this call has a changed edge")

    model = bert(subtracted(Edge()))
    with torch.no_grad(), pytest.raises(UnsupportedError, match=REFUSED), feed(model, Nobody()):
        model(input_ids=IDS)


def test_dropout_leaves_nothing_to_compare() -> None:
    model = bert(by_hand(Edge())).train()
    refused = pytest.raises(UnsupportedError, match="applies dropout")
    with torch.no_grad(), pytest.warns(NoteWarning, match="in training mode"), refused, capture(model):
        model(input_ids=IDS)

"""Functions, modules and hooks that change single cells: captured as they ran, or refused; never another map."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from comparing import Mixer, assert_weights, captured_of, own, parts_of, refused, softmax_of
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.bert import modeling_bert

from families import BY_NAME, built
from headscope.errors import HeadscopeWarning, NoteWarning, UnsupportedError
from headscope.live import Consumer, capture, checking, feed
from headscope.live.seeing import observed
from products import in_turn, pairwise

IDS = torch.randint(3, 99, (3, 12), generator=torch.Generator().manual_seed(1))
SDPA = scaled_dot_product_attention
REFUSED = "computes something other than softmax"

Attend = Callable[..., tuple[torch.Tensor, Any]]


class Edge(NamedTuple):
    """A cell of a map. Of 12 queries in three rows, captures sample 2, 5, 8 and 11 of rows 0 and 2."""

    row: int = 1
    head: int = 2
    query: int = 4
    key: int = 7


def bert(function: Attend | str = "", dtype: torch.dtype = torch.float32, sharpen: float = 1.0) -> Any:
    """A BERT of two layers with this attention function, or one of transformers by its name."""
    name = function if isinstance(function, str) else "own"
    if not isinstance(function, str):
        AttentionInterface.register("own", function)
    return replace(BY_NAME["BertModel"], factor=4.0, sharpen=sharpen).build(dtype, name)


def interface(contexts: Callable[..., torch.Tensor]) -> Attend:
    """A function of transformers' interface that computes (batch, heads, queries, d) so, from q, k and v."""
    return lambda module, q, k, v, mask, **given: (contexts(q, k, v).transpose(1, 2).contiguous(), None)


def subtracted(edge: Edge) -> Attend:
    """transformers' own function, and then the context without what one key contributes: its weight has become 0."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        output = sdpa_attention_forward(module, q, k, v, mask, **given)[0].transpose(1, 2)
        return edited(edge, output, q, k, v).transpose(1, 2).contiguous(), None

    return attend


def by_hand(edge: Edge, returned: bool = True, renormalised: bool = False) -> Attend:
    """Weights by the formula, with one set to 0."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        weights = softmax_of(q, k)
        weights[edge] = 0
        weights = weights / weights.sum(-1, keepdim=True) if renormalised else weights
        return (weights @ v).transpose(1, 2).contiguous(), weights if returned else None

    return attend


def edited(edge: Edge, output: torch.Tensor, q: Any, k: Any, v: Any) -> torch.Tensor:
    """(batch, heads, queries, d) without what one key contributes."""
    output = output.clone()
    output[edge[:3]] -= softmax_of(q, k)[edge] * v[edge.row, edge.head, edge.key]
    return output


pytestmark = pytest.mark.usefixtures("registered", "no_grad")

EDGES = (Edge(), Edge(0, 0, 0, 0), Edge(2, 3, 10, 11), Edge(0, 1, 3, 5))

# Functions that change what the operator computed.


def changing(change: Callable[..., torch.Tensor]) -> Callable[[Edge], Attend]:
    """A function that changes PyTorch's contexts, (batch, heads, queries, d)."""
    return lambda edge: interface(lambda q, k, v: change(edge, SDPA(q, k, v), q, k, v))


def subtracted_in_place(edge: Edge, output: torch.Tensor, q: Any, k: Any, v: Any) -> torch.Tensor:
    array = output.detach().numpy()
    array[edge[:3]] -= (softmax_of(q, k)[edge] * v[edge.row, edge.head, edge.key]).numpy()
    return output


def zeroed(edge: Edge, output: torch.Tensor, *qkv: Any) -> torch.Tensor:
    output[edge[:3]] = 0
    return output


def swapped(edge: Edge, output: torch.Tensor, *qkv: Any) -> torch.Tensor:
    """Two heads of one query change places."""
    two = [0, edge.head or 1]
    output[edge.row, two, edge.query] = output[edge.row, two[::-1], edge.query]
    return output


def in_chunks(edge: Edge) -> Attend:
    """Two operators, of which the second leaves out a key."""

    allowed = torch.ones(3, 4, 6, 12, dtype=torch.bool)
    allowed[edge.row, edge.head, edge.query % 6, edge.key] = False
    return interface(lambda q, k, v: torch.cat([SDPA(part, k, v, attn_mask=allowed) for part in q.split(6, 2)], 2))


CHANGING = {
    "subtracted": subtracted,
    "in place": changing(subtracted_in_place),
    "weights set to 0": by_hand,
    "nothing returned": lambda edge: by_hand(edge, returned=False),
    "renormalised": lambda edge: by_hand(edge, returned=False, renormalised=True),
    "a context of 0": changing(zeroed),
    "two heads swapped": changing(swapped),
    "in chunks": in_chunks,
}


@pytest.mark.parametrize(("how", "edge"), in_turn(tuple(CHANGING), EDGES))
def test_a_function_that_changes_one_edge(how: str, edge: Edge) -> None:
    error = refused(REFUSED, bert(CHANGING[how](edge)), IDS)
    if how != "in chunks":
        assert f"layer 0, row {edge.row}, head " in str(error)
        assert f"query {edge.query}\n" in str(error)


IN_HALF = [how for how in CHANGING if how not in ("in place", "renormalised", "nothing returned")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", IN_HALF)
def test_the_same_in_half_precision(how: str, dtype: torch.dtype) -> None:
    refused(REFUSED, bert(CHANGING[how](Edge()), dtype), IDS)


def test_a_small_weight_in_half_precision_is_missed_nowhere_that_weights_are_returned() -> None:
    """One of 0.1 %, which contexts in bf16 don't show."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        weights = softmax_of(q, k)
        flat = weights[1, 2, 4]
        flat[(flat - 1e-3).abs().argmin()] = 0
        return (weights @ v).transpose(1, 2).contiguous(), weights

    refused(r"row 1, head 2, query 4", bert(attend, torch.bfloat16), IDS)


# Functions that change what the operator is given: they are read there.


def but_one(others: float, cell: float, dtype: torch.dtype) -> torch.Tensor:
    """A mask of one number, and another in the one cell."""
    mask = torch.full((3, 4, 12, 12), others, dtype=dtype)
    mask[Edge()] = cell
    return mask


def moved(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    q, k, (row, head, query, key) = q.clone(), k.clone(), Edge()
    q[row, head, query] = q[row, head, query + 1]
    k[row, head, key] *= -1
    return q, k, v.roll(1, 2), {"scale": 0.2}


INPUTS: dict[str, Callable[..., Any]] = {
    "a mask": lambda *qkv: (*qkv, {"attn_mask": but_one(True, False, torch.bool)}),
    "numbers": lambda *qkv: (*qkv, {"attn_mask": but_one(0, -1.5, qkv[0].dtype)}),
    "queries, keys, values and scale": moved,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", INPUTS)
def test_what_a_function_gives_the_operator_is_what_is_captured(how: str, dtype: torch.dtype) -> None:
    seen: list[torch.Tensor] = []

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        q, k, v, options = INPUTS[how](q, k, v)
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
    assert_weights(captured.traces, seen[:2], 1e-5)
    for trace in captured.traces:
        report = trace.verify()
        assert report.agrees, report
        assert any("own changes what it is given" in reason for _, reason in report.skipped)
    if how == "a mask":
        assert captured.traces[1][0].weights[Edge()[1:]] == 0


@pytest.mark.parametrize("enable_gqa", [True, False])
def test_keys_that_a_function_repeats_are_kept_once(enable_gqa: bool) -> None:
    def contexts(q: torch.Tensor, *kv: torch.Tensor) -> torch.Tensor:
        k, v = kv if enable_gqa else (x.repeat_interleave(2, 1) for x in kv)
        allowed = torch.ones(7, 7, dtype=torch.bool).tril()
        allowed[4, 2] = False
        return SDPA(q, k, v, attn_mask=allowed, enable_gqa=enable_gqa)

    AttentionInterface.register("own", interface(contexts))
    model, inputs = built("LlamaModel", attention="own")
    trace = captured_of(model, **inputs).traces[0]
    assert trace.layers[0].k.shape == (2, 7, 8)
    assert (np.asarray(trace[0].weights)[:, 4, 2] == 0).all()
    assert trace.verify().agrees


# Every call is looked at, whatever changes in between.


def test_a_knockout_that_is_switched_on_later() -> None:
    on = False

    model = bert(interface(lambda q, k, v: edited(Edge(), SDPA(q, k, v), q, k, v) if on else SDPA(q, k, v)))
    with capture(model) as captured:
        model(input_ids=IDS)
        model(input_ids=IDS)
        on = True
        with pytest.raises(UnsupportedError, match=REFUSED):
            model(input_ids=IDS)
        on = False
        model(input_ids=IDS)
    assert len(captured.traces) == 9
    assert all(trace.verify(reference=False).agrees for trace in captured.traces)


def test_in_the_last_layer_only() -> None:
    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        output = SDPA(q, k, v)
        return (edited(Edge(), output, q, k, v) if module is last else output).transpose(1, 2).contiguous(), None

    model = bert(attend)
    last = model.encoder.layer[1].attention.self
    refused(r"layer\.1\.attention\.self, layer 1, row 1, head 2, query 4", model, IDS)


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
    """Those of a library's model, and, below the operator, those of a class of one's own."""
    model = bert(implementation)
    with mode():
        refused(REFUSED, model, IDS)
        if mode is ByDispatchMode:
            refused(REFUSED, Mixer(), 3 * torch.randn(3, 12, 32))


@pytest.mark.parametrize("how", ["a function", "an object", "a mode", "tensors"])
def test_what_stands_between_a_class_of_one_s_own_and_the_operator(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it returns is seen by nobody, so it is refused; helpers of the class's author are part of the class."""

    x = torch.randn(3, 4, 12, 8)
    model = own(lambda self, x: torch.nn.functional.scaled_dot_product_attention(x, x, x))
    with monkeypatch.context() as context, ByFunctionMode() if how == "a mode" else nullcontext():
        if how in ("a function", "an object"):
            replaced = wrapped if how == "a function" else Callables(wrapped)
            context.setattr(torch.nn.functional, "scaled_dot_product_attention", replaced)
        with pytest.raises(UnsupportedError, match="stands between Own"), capture(model):
            model(x.as_subclass(Subclass) if how == "tensors" else x)
    assert len(captured_of(model, x).traces) == 3


def test_tensors_of_another_class() -> None:
    def forward(self: Any, ids: torch.Tensor) -> Any:
        return self.bert(inputs_embeds=self.bert.embeddings.word_embeddings(ids).as_subclass(Subclass))

    refused(REFUSED, own(forward, bert=bert()), IDS)


def changed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def sdpa_attention_forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **given: Any) -> Any:
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous()
        output[1, 4, 2] = 0
        return output, None

    function = transformers.integrations.sdpa_attention.sdpa_attention_forward
    monkeypatch.setattr(function, "__code__", sdpa_attention_forward.__code__)


PATCHES: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "sdpa": ("sdpa", lambda patch: patch.setattr(torch.nn.functional, "scaled_dot_product_attention", wrapped)),
    "eager": ("eager", lambda patch: patch.setattr(modeling_bert, "eager_attention_forward", by_hand(Edge()))),
    "softmax": ("eager", lambda patch: by_softmax(None, patch, None)),
    "entry": ("sdpa", lambda patch: patch.setitem(AttentionInterface._global_mapping, "sdpa", subtracted(Edge()))),
    "locally": (
        "sdpa",
        lambda patch: patch.setitem(modeling_bert.ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", subtracted(Edge())),
    ),
    "code": ("sdpa", changed_code),
}


@pytest.mark.parametrize("inside", [False, True], ids=["before the block", "inside the block"])
@pytest.mark.parametrize("changed", PATCHES)
def test_a_library_s_function_that_somebody_changed(
    changed: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation, patch = PATCHES[changed]
    model = bert(implementation)
    with monkeypatch.context() as context:
        if not inside:
            patch(context)
        with capture(model):
            if inside:
                model(input_ids=IDS)
                patch(context)
            with pytest.raises(UnsupportedError, match=REFUSED):
                model(input_ids=IDS)
    captured = captured_of(model, IDS)
    assert all(trace.verify(reference=False).agrees for trace in captured.traces)


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


def test_names_prove_nothing() -> None:
    for function in (functools.partial(subtracted(Edge())), Callables(subtracted(Edge())), disguised):
        refused(REFUSED, bert(function), IDS)


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
    with pytest.raises(UnsupportedError, match=REFUSED), feed(model, Nobody()):
        model(input_ids=IDS)


def test_dropout_leaves_nothing_to_compare() -> None:
    with pytest.warns(NoteWarning, match="in training mode"):
        refused("applies dropout", bert(by_hand(Edge())).train(), IDS)


# The comparison of every query: what it accepts, what it sees, and when it runs.


def naive(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
    weights = softmax_of(q, k)
    return (weights @ v).transpose(1, 2).contiguous(), weights


@interface
def in_other_order(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Scaled queries, powers divided at the end, head by head."""
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    contexts = [(powers[:, h] @ v[:, h]) / powers[:, h].sum(-1, keepdim=True) for h in range(q.shape[1])]
    return torch.stack(contexts, 1)


def in_parts_of(size: int) -> Attend:
    return interface(lambda q, k, v: torch.cat([SDPA(part, k, v) for part in q.split(size, 2)], 2))


def through_sdpa(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float | None = None, **given: Any) -> Any:
    return sdpa_attention_forward(module, q, k, v, mask, scaling=scaling)


AUTOCAST = torch.float32, torch.bfloat16
PRECISIONS = (torch.float64, torch.float32, AUTOCAST, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("function", "precision", "sharpen"),
    pairwise((naive, in_other_order, in_parts_of(5), through_sdpa), PRECISIONS, (0.3, 1.0, 3.0)),
)
def test_right_attention_is_accepted(function: Attend, precision: Any, sharpen: float) -> None:
    """Of flat, usual and sharp weights, in every precision; autocast computes fp32 in bf16."""
    dtype, casts = precision, nullcontext()
    if precision is AUTOCAST:
        dtype, casts = torch.float32, torch.autocast("cpu", dtype=torch.bfloat16)
    with casts:
        captured = captured_of(bert(function, dtype, sharpen), IDS)
    assert [trace.numbers for trace in captured.traces] == [(0, 1)] * 3


class Long(nn.Module):
    """Attention of transformers' interface over any q, k and v."""

    is_causal = False

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        attend: Any = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["own"]
        return attend(self, q, k, v, None)[0]


Long.__module__ = "transformers.long"


@pytest.mark.parametrize(
    ("function", "dtype"),
    in_turn((naive, in_other_order, in_parts_of(5)), (torch.float32, torch.bfloat16, torch.float16)),
)
def test_long_rows_and_large_numbers_are_accepted(function: Attend, dtype: torch.dtype) -> None:
    AttentionInterface.register("own", function)
    generator = torch.Generator().manual_seed(0)
    model = Long()
    longest = 3000 if function is naive else 1200  # how a function adds matters more than how much
    for size, length in ((1.0, longest), (6.0, 600), (1.0, 600)):
        q, k = (size * torch.randn(1, 2, length, 64, generator=generator) for _ in range(2))
        v = torch.randn(1, 2, length, 64, generator=generator) * torch.tensor([1e-3, 50.0])[:, None, None]
        q[..., 5, :] *= 4
        assert len(captured_of(model, *(x.to(dtype) for x in (q, k, v))).traces) == 1


def test_small_values_beside_large_ones() -> None:
    """A head whose values are ten thousand times smaller than another's is compared by its own."""
    model = bert(subtracted(Edge()))
    for layer in model.encoder.layer:
        layer.attention.self.value.weight[:8] *= 1e4
    refused(r"row 1, head 2, query 4", model, IDS)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_libraries_own_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more: a full comparison of each call would cost as much as the attention itself."""

    def too_much(call: Any) -> None:
        pytest.fail(f"{call.path} is PyTorch's or transformers' own")

    monkeypatch.setattr(observed, "refuse_altered", too_much)
    for implementation in ("sdpa", "eager", "flex_attention"):
        assert len(captured_of(bert(implementation), IDS).traces) == 3
    for name in ("LlamaModel", "T5Model", "GptOssModel", "DebertaV2Model", "MPNetModel", "FalconModel"):
        model, inputs = built(name, padded=True)
        with torch.device("cpu"):
            assert captured_of(model, **inputs).traces
    x = torch.randn(3, 12, 32)
    layer = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)
    for module in (nn.TransformerEncoder(layer, 2).eval(), layer.self_attn.eval(), Mixer()):
        given = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
        assert len(captured_of(module, *given).traces) == 3


def test_memory_is_linear() -> None:
    """A function of any code over 6,000 tokens: nothing as large as a sixteenth of a map is allocated."""

    AttentionInterface.register("own", in_parts_of(1000))
    x = torch.randn(1, 1, 6000, 8)
    with torch.profiler.profile(profile_memory=True) as profile:
        assert len(captured_of(Long(), x, x, x).traces) == 1
    largest = max(event.self_cpu_memory_usage for event in profile.events() or ())
    assert checking.CELLS["cpu"] <= largest < 6000 * 6000 * 4 / 4


# Modules of libraries that somebody changed.


def mha() -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    module.in_proj_weight.mul_(3)
    return module


def without_an_edge(module: nn.MultiheadAttention, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The output of a module of which one head of one query has lost the key that it looks at most."""
    row, head, query, _ = Edge()
    q, k, v = parts_of(module, x)
    weight, key = softmax_of(q, k)[row, head, query].max(-1)
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
    with monkeypatch.context() as context:
        if not inside:
            change(module, context, without_one)
        with capture(module):
            if inside:
                change(module, context, without_one)
            with pytest.raises(UnsupportedError, match=r"something other than[\s\S]*row 1, query 4"):
                module(x, x, x, need_weights=need_weights)


def test_a_forward_that_attends_by_itself_is_refused() -> None:
    module: Any = mha()
    module.forward = MethodType(lambda self, x: nn.functional.scaled_dot_product_attention(x, x, x), module)
    refused("was replaced", module, torch.randn(3, 12, 32))


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
    model, inputs = built("DebertaV2Model", padded=True)
    for part in model.modules():
        part.register_forward_hook(lambda *given: seen.append(given))
    for captured in (captured_of(module, x, x, x), captured_of(model, **inputs)):
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
            row = (weights if weights.dim() == 4 else weights.unflatten(0, (2, -1)))[1, 1, 3]
            row[row.argmax()] = 0
            return weights

        context.setattr(owner, "softmax", softmax)


@pytest.mark.parametrize(
    ("change", "inside"),
    [*((change, False) for change in (by_a_hook, by_its_forward, by_the_class, by_softmax)), (by_a_hook, True)],
)
@pytest.mark.parametrize("name", ["DebertaModel", "DebertaV2Model", "RoFormerModel"])
def test_classes_with_readers(name: str, change: Any, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a capture compares with its reading is what the module returns after all other hooks, whenever they came."""
    model, inputs = built(name)
    part = model.encoder.layer[1].attention.self
    with monkeypatch.context() as context:
        if not inside:
            change(part, context, edit)
        with capture(model):
            if inside:
                model(**inputs)
                change(part, context, edit)
            with pytest.raises(UnsupportedError, match=REFUSED):
                model(**inputs)


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

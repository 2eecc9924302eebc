"""Hand-written attention around scaled_dot_product_attention, against its weights by the formula."""

from __future__ import annotations

import functools
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import make_dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from comparing import Mixer, Residual, assert_weights, captured_of, own, passed, refused, softmax_of, weights_of
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import headscope as hs
from families import BY_NAME, DECODER, Family, built
from headscope.errors import InputError, UnsupportedError
from headscope.live import ablate, capture
from headscope.live.plan.classes import calls_sdpa, kind_of
from headscope.live.seeing import sdpa_watch
from headscope.live.seeing.operators import KEY
from products import in_turn

pytestmark = pytest.mark.usefixtures("no_grad")


class OneHead(Mixer):
    """A single head, without an axis of heads."""

    def __init__(self) -> None:
        super().__init__(heads=0)


class Inherits(Mixer):
    """Whose attention runs by super() alone."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, mask)


class InheritsTwice(Inherits):
    """The same, a class further down."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, mask)


LOWER = torch.ones(6, 6, dtype=torch.bool).tril()
OF_KEYS = torch.randn(4, 1, 6, generator=torch.Generator().manual_seed(2))
MASKS = {
    "none": None,
    "2d": LOWER,
    "per head": torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(1)),
    "per head and key": OF_KEYS,
    "per head and key, and lower": OF_KEYS.masked_fill(~LOWER, float("-inf")),
    "4d": (torch.arange(6) < 4)[None, None, None],
    "a column": torch.zeros(6, 1),
    "a bool column": torch.ones(6, 1, dtype=torch.bool),
    "a number": torch.full((1, 1), 2.5),
    "a row": (torch.arange(6) < 4)[None],
    "expanded": LOWER.expand(2, 1, 6, 6),
    "causal from the left": causal_upper_left(6, 6),
    "causal from the right": causal_lower_right(6, 6),
    "per row": torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        *((Mixer, kind) for kind in MASKS if kind != "per row"),
        *((OneHead, kind) for kind in ("none", "2d", "per row")),
        *((cls, "2d") for cls in (Inherits, InheritsTwice)),
    ],
)
def test_any_class_and_any_mask(cls: type[Mixer], kind: str) -> None:
    """Numbers in a mask become a table if they follow a rule."""
    mixer, x, mask = cls().eval(), torch.randn(2, 6, 32), MASKS[kind]
    alone, expected = mixer(x, mask), weights_of(mixer, x, LOWER if "causal" in kind else mask)
    watched, captured = passed(mixer, x, mask)
    assert torch.equal(alone, watched)
    with ablate(mixer, [(0, head) for head in range(mixer.heads or 1)]):
        torch.testing.assert_close(mixer(x, mask), mixer.out.bias.expand(2, 6, -1))
    for row, trace in enumerate(captured.traces):
        kept = slice(0, len(trace.keys))
        np.testing.assert_allclose(trace[0].weights[:], expected[row, :, kept, kept], atol=1e-6)
        total = sum(trace[0, head].output for head in range(trace.heads)) + mixer.out.bias.detach().numpy()
        np.testing.assert_allclose(total, alone[row, kept], atol=1e-5)
        assert trace.verify().agrees
        if "per head" in kind:
            by_key = "key" in kind
            assert trace[0].terms.named == ("by_key",) * by_key
            assert (trace[0].mask.bias is None) == by_key
            assert trace[0].mask.causal == ("lower" in kind)


def test_more_axes_than_a_trace_has_are_refused() -> None:
    model = own(lambda self, x: scaled_dot_product_attention(x, x, x))
    refused(r"Own calls[\s\S]*5 dimensions", model, torch.randn(1, 2, 3, 4, 8))


EMPTY: dict[str, nn.Module] = {
    "a class of its own": nn.Sequential(
        OrderedDict(embedding=nn.Embedding(50, 32), layers=nn.Sequential(Mixer(), Mixer()))
    ),
    "torch.nn": nn.Sequential(
        nn.Embedding(50, 32), nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 40, batch_first=True), 2)
    ),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", [(0, 6), (2, 0), (0, 0)])
@pytest.mark.parametrize("name", EMPTY)
def test_no_rows_or_no_tokens_leave_no_trace(name: str, shape: tuple[int, int], grad: bool) -> None:
    model, ids = EMPTY[name].eval(), torch.zeros(shape, dtype=torch.long)
    with torch.set_grad_enabled(grad):
        alone = model(ids)
        with capture(model) as captured:
            assert model(ids).shape == alone.shape
        with ablate(model, {(0, 1)}):
            assert model(ids).shape == alone.shape
    assert captured.traces == []
    with pytest.raises(InputError, match="attended to any token"):
        _ = captured.trace


def across(x: torch.Tensor, memory: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values of one head."""
    return [part[:, None] for part in (x, memory, memory)]


CROSSED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a class of its own": lambda self, *given: sdpa(*across(*given)),
    "torch.nn": lambda self, x, memory: self.mha(x, memory, memory, need_weights=False)[0],
    "torch.nn with weights": lambda self, x, memory: self.mha(x, memory, memory)[0],
    "any function": lambda self, *given: ALL_ATTENTION_FUNCTIONS["any"](self, *across(*given), None)[0],
}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", CROSSED)
def test_no_keys_leave_no_trace(name: str) -> None:
    """The contexts of cross-attention to nothing are 0."""
    AttentionInterface.register("any", lambda module, q, k, v, *_: ((q @ k.mT @ v).transpose(1, 2), None))
    model = own(CROSSED[name], mha=nn.MultiheadAttention(32, 4, batch_first=True))
    assert captured_of(model, torch.randn(2, 6, 32), torch.randn(2, 0, 32), options={"strict": False}).traces == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_in_a_class_of_its_own_are_listed(layout: torch.layout) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [one(x).view(x.size(0), -1, 4, 8).transpose(1, 2) for one in (self.q, self.k, self.v)]
        if x.layout == torch.strided:
            parts = [part.contiguous() for part in parts]
        return scaled_dot_product_attention(*parts).transpose(1, 2)

    model = own(forward, **{name: nn.Linear(32, 32) for name in "qkv"})
    x = torch.nested.nested_tensor([torch.randn(n, 32) for n in (3, 5)], layout=layout)
    raised = refused("attention ran that was not recorded", model, x)
    assert "x.to_padded_tensor(0)" in str(raised)
    captured = captured_of(model, x, options={"strict": False})
    assert captured.traces == []
    assert "scaled_dot_product_attention" in captured.unrecorded[0].operator


@pytest.fixture
def two_processes() -> Iterator[Any]:
    """A mesh of two processes, of which this is the second; nothing is sent between them."""
    store = FakeStore()  # type: ignore[no-untyped-call]
    distributed.init_process_group("fake", store=store, rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("part", ["into.weight", "table"])
def test_a_model_in_parts_over_processes_is_refused(two_processes: Any, part: str) -> None:
    model = nn.Sequential(Mixer())
    if part == "table":
        whole = torch.ones(4, 4)
        model[0].register_buffer(part, distribute_tensor(whole, two_processes, [Shard(0)], src_data_rank=None))
    else:
        parallelize_module(model, two_processes, {"0.into": ColwiseParallel()})
    for block in (lambda: capture(model), lambda: ablate(model, {(0, 1)})):
        with pytest.raises(UnsupportedError, match=rf"0\.{part} is a DTensor over 2 processes \(S\(0\)\)"):
            block()


def test_a_model_in_parts_over_processes_is_not_opened(two_processes: Any) -> None:
    model = BY_NAME["BertModel"].build()
    total = hs.describe(model).total
    fully_shard(model, mesh=two_processes)
    for face in (hs.open, capture):
        with pytest.raises(UnsupportedError, match=r"BertModel: embeddings\.\S+ is a DTensor over 2 processes"):
            face(model)
    assert hs.describe(model).total == total


def test_an_output_whose_model_was_parallelised_after_the_pass(two_processes: Any) -> None:
    model = nn.Sequential(Mixer())
    trace = captured_of(model, torch.randn(1, 6, 32)).trace
    parallelize_module(model, two_processes, {"0.out": ColwiseParallel()})
    with pytest.raises(UnsupportedError, match=r"0\.out\.weight is a DTensor over 2 processes"):
        trace[0, 1].output


class AttentionClassifier(nn.Module):
    """Named like attention, with a softmax that isn't; two of its parts are attention."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mixer = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True), Mixer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixer(self.encoder(x)).mean(1).softmax(-1)


class Uncalled(Mixer):
    """Code that calls scaled_dot_product_attention, and a forward that doesn't."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.out(x)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(x, x, x)


def test_a_softmax_that_is_not_attention_is_ignored() -> None:
    model = nn.Sequential(Uncalled(), AttentionClassifier()).eval()
    captured = captured_of(model, torch.randn(1, 5, 32))
    assert sorted(trace.layers[0].name for trace in captured.traces) == ["1.encoder.self_attn", "1.mixer"]
    assert all(trace.verify().agrees for trace in captured.traces)


def test_a_softmax_on_top_of_a_transformers_model_is_ignored() -> None:
    """The tokens are pooled with softmax weights."""

    def forward(self: Any, ids: torch.Tensor) -> torch.Tensor:
        found = self.bert(ids).last_hidden_state
        return (self.weigh(found).softmax(1) * found).sum(1)

    model = own(forward, bert=BY_NAME["BertModel"].build(), weigh=nn.Linear(32, 1))
    captured = captured_of(model, torch.tensor([[4, 5, 6]]))
    assert captured.trace.ids == (4, 5, 6)
    assert captured.trace.verify().agrees


class Choices:
    """A record with an attribute of that name."""

    __slots__ = ("flex_attention",)


class Chosen(NamedTuple):
    """The same, as a named tuple."""

    flex_attention: bool = False


class Stored:
    """A plain class that sets and removes attributes of these names."""

    def __init__(self, fused: bool = True) -> None:
        self.flex_attention = self.scaled_dot_product_attention = fused
        del self.flex_attention


RECORDS = [
    Choices,
    Chosen,
    Stored,
    make_dataclass("Plain", [("flex_attention", bool, False)]),
    make_dataclass("Frozen", [("scaled_dot_product_attention", bool, False)], frozen=True, order=True, slots=True),
    attrs.make_class("Made", {"flex_attention": attrs.field(default=False)}, slots=True),
]


class Names(nn.Module):
    """A linear layer with attributes that are called as PyTorch's attention; Python 3.13 lists them in its class."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled_dot_product_attention = False
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if isinstance(x, Choices) else self.layer(x)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_fields_of_a_record_and_names_of_attributes_are_not_calls(record: Any) -> None:
    assert not kind_of(Names).calls_sdpa
    assert not kind_of(layer("Reads", lambda self, *qkv: qkv[0] if record else qkv[1])).calls_sdpa
    module = nn.Linear(8, 8)
    module.record, module.choices = record, record()
    assert not calls_sdpa(module)


def test_what_a_record_holds_may_be_called() -> None:
    holds = make_dataclass("Holds", [("kernel", Any, sdpa)])
    assert kind_of(layer("Calls", lambda self, *qkv: holds().kernel(*qkv))).calls_sdpa


class Unlisted(list[Any]):
    """As pandas' FrozenList: what adds it to a list raises."""

    def __radd__(self, other: Any) -> Any:
        raise TypeError("'Unlisted' does not support mutable operations")


class Lazy(dict[str, Any]):
    """As transformers' mapping of configs to models: its values import all of them."""

    def values(self) -> Any:
        raise AssertionError("all models would be imported")


@pytest.mark.parametrize("table", [Unlisted([sdpa]), Lazy(attend=sdpa)], ids=["list", "dict"])
def test_tables_that_do_not_behave_as_tables(table: Any) -> None:
    attend = layer("InTable", lambda self, *qkv: table[0 if isinstance(table, list) else "attend"](*qkv))
    assert captured_of(attend().eval(), torch.randn(1, 5, 32)).trace.numbers == (0,)


def test_a_model_that_was_changed_before_the_block_opened() -> None:
    model = nn.Sequential(Mixer(), Mixer())
    captured = capture(model)
    model[1] = Mixer()
    with pytest.raises(InputError, match="replaced after this capture was created"), captured:
        pass


@pytest.mark.parametrize("name", ["query.weight", "value.bias"])
def test_numbers_that_are_not_finite_are_reported(name: str) -> None:
    model = BY_NAME["BertModel"].build()
    model.encoder.layer[1].attention.self.get_parameter(name).data.view(-1)[3] = float("nan")
    refused(r"not finite[\s\S]*layer 1", model, **BY_NAME["BertModel"].inputs(padded=False))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, "expected a list of numbers"),
        ({"heads": "12"}, "expected a list of numbers"),
        ({"layers": []}, "no layers to keep"),
        ({"device": "nowhere"}, "can't be kept on nowhere"),
        ({"padding": "cut"}, "unknown way to treat padding"),
    ],
)
def test_invalid_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        capture(Mixer(), **options)
    assert caught.value.advice
    with pytest.raises(InputError, match=r"expected heads as .*got 3"):
        ablate(Mixer(), [3])  # type: ignore[list-item]


def checkpointed(reentrant: bool) -> Any:
    """A model whose second and third parts are called again in the backward pass, around the model itself."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for part in (self.first, self.second):
            x = checkpoint(part, x, use_reentrant=reentrant)
        return self.third(x)

    return own(forward, first=Mixer(), second=Mixer(), third=Mixer())


@pytest.mark.parametrize("reentrant", [True, False])
@torch.enable_grad()
def test_recomputation_for_gradients_is_not_recorded(reentrant: bool) -> None:
    model, x = checkpointed(reentrant), torch.randn(2, 6, 32, requires_grad=True)
    expected = torch.autograd.grad(model.third(model.second(model.first(x))).sum(), x)[0]
    with capture(model) as captured:
        model(x).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert [len(forward) for forward in captured.forwards] == [6]
    assert captured.unrecorded == ()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("way", ["zero", "uniform"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_heads_of_a_layer_that_is_run_again_for_gradients_can_not_be_silenced(reentrant: bool, way: str) -> None:
    """The backward pass would run it with all its heads, and give other gradients."""
    model, x = checkpointed(reentrant), torch.randn(2, 6, 32)
    expected = model(x)
    with ablate(model, {(0, 0): way}, stack="second"):
        assert not torch.equal(model(x), expected)
        with torch.enable_grad(), pytest.raises(UnsupportedError, match="gradient checkpointing"):
            model(x.requires_grad_())
    with torch.enable_grad():
        with ablate(model, {(0, 0): way}, stack="third"):
            model(x).sum().backward()
        with ablate(model.third, {(0, 0): way}):
            hidden = model.third(model.second(model.first(x)))
        torch.testing.assert_close(torch.autograd.grad(hidden.sum(), x)[0], x.grad)


# Attention under other names, by hand, or in kernels that capture can't read: recorded or listed, never missing.


KERNELS = {"fast": scaled_dot_product_attention}
BY_PARTIAL = functools.partial(sdpa, dropout_p=0.0)


def first(*given: torch.Tensor) -> torch.Tensor:
    return second(*given)


def second(*given: torch.Tensor) -> torch.Tensor:
    return sdpa(*given)


class Backend:
    """A class of functions, as in libraries with several backends."""

    @staticmethod
    def run(*given: torch.Tensor) -> torch.Tensor:
        return sdpa(*given)


def layer(name: str, attend: Callable[..., torch.Tensor], **attributes: Any) -> type[Residual]:
    """A class of this name that attends so, with these attributes."""
    return type(name, (Residual,), {"attend": attend, **attributes})


# The function is in an object that is not looked into.
SETTINGS = SimpleNamespace(kernel=sdpa)
InSettings, SettingsAttention = (
    layer(name, lambda self, *qkv: self.settings.kernel(*qkv), settings=SETTINGS)
    for name in ("InSettings", "SettingsAttention")
)


class Given(Residual):
    """The constructor is given the function, or what leads to it, so no code of the class names it."""

    def __init__(self, kernel: Any = sdpa) -> None:
        super().__init__()
        self.kernel = kernel

    def attend(self, *qkv: torch.Tensor) -> torch.Tensor:
        return self.kernel(*qkv)


def given(name: str, kernel: Callable[[], Any]) -> type[Residual]:
    """A class of this name that makes its function so."""
    return type(name, (Given,), {"__init__": lambda self: Given.__init__(self, kernel())})


class Caller:
    def __init__(self) -> None:
        self.way = sdpa

    def __call__(self, *given: torch.Tensor) -> torch.Tensor:
        return self.way(*given)

    def run(self, *given: torch.Tensor) -> torch.Tensor:
        return second(*given)


def _scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but models still use it

        def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        return torch.jit.script(kernel)


BY_NAME_OF_THE_FUNCTION: dict[str, Callable[..., torch.Tensor]] = {
    "Alias": lambda self, *qkv: sdpa(*qkv),
    "HelperOfHelper": lambda self, *qkv: first(*qkv),
    "Table": lambda self, *qkv: KERNELS["fast"](*qkv),
    "Partial": lambda self, *qkv: BY_PARTIAL(*qkv),
    "ByGetattr": lambda self, *qkv: getattr(F, "scaled_dot_product" + "_attention")(*qkv),
    "ByOperator": lambda self, *qkv: torch.ops.aten.scaled_dot_product_attention(*qkv),
    "ByBackend": lambda self, *qkv: Backend.run(*qkv),
}
READ = [layer(name, attend) for name, attend in BY_NAME_OF_THE_FUNCTION.items()]
READ += [layer("InTable", lambda self, *qkv: self.kernels["fast"](*qkv), kernels={"fast": sdpa, "other": None}), Given]
READ += [given("GivenPartial", lambda: functools.partial(first)), given("GivenMethod", lambda: Caller().run)]
READ += [given("GivenObject", Caller), given("Scripted", _scripted)]


# A softmax, in a class whose name doesn't mention attention.
ByHand = layer("ByHand", lambda self, q, k, v: torch.softmax(q @ k.mT / 8**0.5, -1) @ v)


class ByBias(Residual):
    """Scores made by an operator that adds a bias."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = [x.flatten(0, 1) for x in (q, k, v)]
        scores = torch.baddbmm(torch.ones(1), heads[0], heads[1].mT)
        return torch.bmm(torch.clamp(scores, 0, 1), heads[2]).view(q.shape)


class ByFastPath(Residual):
    """PyTorch's fused kernel of a whole multi-head attention."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        into, out = self.into, self.out
        found = torch._native_multi_head_attention(
            x, x, x, 32, 4, into.weight, into.bias, out.weight, out.bias, need_weights=False
        )
        return x + found[0]


EINSUM, FLASH = torch.einsum, "_scaled_dot_product_flash_attention_for_cpu"
OTHERS: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    # Queries before heads, as in code from JAX.
    "ByEinsum": (
        lambda self, q, k, v: EINSUM("bqhk,bhkd->bhqd", EINSUM("bhqd,bhkd->bqhk", q, k).div(8**0.5).softmax(-1), v),
        "_softmax",
    ),
    "ByLogSumExp": (
        lambda self, q, k, v: ((s := q @ k.mT / 8**0.5) - s.logsumexp(-1, keepdim=True)).exp() @ v,
        "logsumexp",
    ),
    "BySigmoid": (lambda self, q, k, v: torch.sigmoid(q @ k.mT / 8**0.5) @ v, "bmm"),
    "ByReluAndEinsum": (
        lambda self, q, k, v: EINSUM("bqhk,bhkd->bhqd", EINSUM("bhqd,bhkd->bqhk", q, k).relu(), v),
        "bmm",
    ),
    # A softmax written with exp and a sum.
    "ByExp": (lambda self, q, k, v: (w := (q @ k.mT / 8**0.5).exp()) / w.sum(-1, keepdim=True) @ v, "bmm"),
    # Linear attention makes no map at all.
    "Linearly": (
        lambda self, q, k, v: EINSUM("bhqd,bhde->bhqe", q.softmax(-1), EINSUM("bhkd,bhke->bhde", k, v)),
        "bmm",
    ),
    # A softmax over fewer keys than any recorded call has.
    "InWindows": (
        lambda self, *qkv: torch.cat(
            [torch.softmax(q @ k.mT, -1) @ v for q, k, v in zip(*(x.split(4, 2) for x in qkv), strict=True)], 2
        ),
        "_softmax",
    ),
    "ByKernel": (lambda self, *qkv: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*qkv)[0], FLASH),
}
included = torch._C._dispatch_tls_is_dispatch_key_included
LISTED = {
    ByHand: "aten::_softmax",
    ByBias: "aten::bmm",
    ByFastPath: "aten::_native_multi_head_attention",
    **{layer(name, attend): f"aten::{operator}" for name, (attend, operator) in OTHERS.items()},
}


def model_of(*classes: type[Residual]) -> nn.Sequential:
    return nn.Sequential(*(cls() for cls in classes)).eval()


def by_hand(one: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's output and weights by the formula."""
    q, k, v = one.parts(x)
    weights = softmax_of(q, k)
    return x + one.out((weights @ v).transpose(1, 2).flatten(2)), weights


MODES = ("enable_grad", "no_grad", "inference_mode")


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with getattr(torch, request.param)():
        yield


@pytest.mark.parametrize(("cls", "mode"), in_turn(READ, MODES), indirect=["mode"])
def test_pytorchs_attention_is_read_and_silenced_by_whatever_name_it_is_called(cls: type[Residual], mode: None) -> None:
    """The layer is between others that are read: none may be missing or take another's number."""
    model, x = model_of(Residual, cls, Residual), torch.randn(2, 7, 32)
    alone, (watched, captured) = model(x), passed(model, x)
    assert torch.equal(alone, watched)
    assert captured.unrecorded == ()
    assert [trace.numbers for trace in captured.traces] == [(0, 1, 2)] * 2
    hidden = x
    for layer, one in enumerate(model):
        hidden, weights = by_hand(one, hidden)
        assert_weights(captured, {layer: weights})
        assert all(trace.layers[layer].name == str(layer) for trace in captured.traces)
    assert all(trace.verify().agrees for trace in captured.traces)
    with ablate(model, [(1, head) for head in range(4)]):
        silenced = model(x)
    torch.testing.assert_close(silenced, model[2](model[0](x) + model[1].out.bias))  # type: ignore[union-attr,operator]
    if torch.is_grad_enabled():
        gradients = (torch.autograd.grad(output.sum(), list(model.parameters())) for output in (alone, watched))
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b)


def test_what_no_code_names_is_read_where_its_layer_can_be_told() -> None:
    """Alone it is a stack; among others that were numbered without it, it is listed; its name may give it a number."""
    model, x = model_of(InSettings, InSettings), torch.randn(1, 7, 32)
    blocks = nn.ModuleDict({"seen": Residual(), "others": model}).eval()
    blocks.forward = lambda x: blocks["others"](blocks["seen"](x))  # type: ignore[method-assign]
    captured = captured_of(blocks, x)
    hidden = blocks["seen"](x)
    for layer, one in enumerate(model):
        hidden, weights = by_hand(one, hidden)
        assert_weights(captured["others"], {layer: weights})
    mixed = model_of(Residual, InSettings, Residual)
    refused(r"in 1 \(InSettings\)", mixed, x)
    assert captured_of(model_of(Residual, SettingsAttention, Residual), x).trace.numbers == (0, 1, 2)


def test_a_model_whose_only_attention_is_given_to_it() -> None:
    """Its own code names no attention, and neither does that of the models around it."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    model, x = own(forward, layers=nn.Sequential(Given(sdpa), Given(sdpa))), torch.randn(1, 7, 32)
    captured = captured_of(model, x)
    assert (captured.stacks, captured.trace.numbers) == (("self",), (0, 1))
    model.layers[1].kernel = lambda q, k, v: v  # type: ignore[assignment]
    assert captured_of(model, x).trace.numbers == (0,)


@pytest.mark.parametrize(("cls", "mode"), in_turn(tuple(LISTED), MODES), indirect=["mode"])
def test_what_is_not_recorded_raises_at_the_end_of_the_pass_or_is_listed(
    cls: type[Residual], mode: None, tmp_path: Any
) -> None:
    if cls is ByFastPath and torch.is_grad_enabled():
        cls = ByHand  # this kernel has no gradient
    model, x = model_of(Residual, cls, Residual), torch.randn(1, 7, 32)
    alone, captured = model(x), capture(model)
    message = rf"{LISTED[cls]} in 1 \({cls.__name__}\)[\s\S]*strict=False"
    with pytest.raises(UnsupportedError, match=message), captured:
        model(x)
    assert len(captured) == 0
    assert [(one.module, one.kind, one.operator) for one in captured.unrecorded] == [("1", cls.__name__, LISTED[cls])]
    with capture(model, strict=False) as captured:
        assert torch.equal(model(x), alone)
        assert not included(KEY)
        with pytest.raises(RuntimeError):
            model(x[..., 1:])
        assert not included(KEY), "the thread is left alone between passes, and after one that ended in an error"
    assert not included(KEY)
    trace = captured.trace
    last = 2 if kind_of(cls).may_attend else 1
    assert trace.numbers == (0, last)  # the missing layer's number stays unused if its code shows that it may attend
    assert trace.unrecorded == (f"{LISTED[cls]} in 1 ({cls.__name__})",)
    assert f"unrecorded attention: {LISTED[cls]} in 1" in repr(trace)
    assert hs.load(trace.save(tmp_path / "one.safetensors")).unrecorded == trace.unrecorded
    assert "unrecorded" in str(trace.verify())
    hidden, weights = by_hand(model[0], x)
    assert_weights([trace], {0: weights, last: by_hand(model[2], model[1](hidden))[1]})


def test_a_class_that_raises_before_anything_runs_is_listed_too() -> None:
    """Named like attention, so it is known before it runs; its softmax is over other sizes."""
    by_hand = layer("HandAttention", lambda self, q, k, v: torch.softmax(q @ k[..., :3, :].mT, -1) @ v[..., :3, :])
    model, x = model_of(Residual, by_hand), torch.randn(1, 7, 32)
    with pytest.raises(UnsupportedError, match="HandAttention computes its attention itself"):
        capture(model)
    captured = captured_of(model, x, options={"strict": False})
    assert [one.kind for one in captured.unrecorded] == ["HandAttention"]


# A softmax over its channels, beside attention that is read.
Gated = layer("Gated", lambda self, q, k, v: sdpa(q, k, v) * torch.softmax(q, -1))


class Experts(Residual):
    """Products of batches of matrices that mix no tokens, one of them as large as a map."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.square = (
            nn.Parameter(torch.randn(2, *size)) for size in ((32, 48), (48, 32), (32, 7))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = super().forward(x).expand(2, -1, -1)
        assert torch.bmm(both, self.square).shape == (2, 7, 7)
        return torch.bmm(torch.bmm(both, self.up).sigmoid(), self.down).mean(0, keepdim=True)


# With as many experts as tokens, a router's softmax has the sizes of a map.
ROUTED = Family("MixtralModel", {**DECODER, "num_local_experts": 6})


@pytest.mark.parametrize("cls", [Gated, Experts, ROUTED], ids=["Gated", "Experts", "Mixtral"])
def test_a_softmax_over_other_axes_is_not_attention(cls: Any) -> None:
    model, x = (cls.build(), torch.arange(6)[None]) if cls is ROUTED else (model_of(cls, cls), torch.randn(1, 7, 32))
    with capture(model) as captured:
        model(x)[0].log_softmax(-1)
    assert captured.unrecorded == ()
    assert captured.trace.numbers == (0, 1)


def test_changes_between_forward_passes_are_noticed() -> None:
    def attend(self: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v) if q.shape[2] < 8 else torch.softmax(q @ k.mT / 8**0.5, -1) @ v

    model = model_of(Residual, layer("Turning", attend))
    with capture(model) as captured:
        model(torch.randn(1, 5, 32))
        with pytest.raises(UnsupportedError, match=r"_softmax in 1 \(Turning\)"):
            model(torch.randn(1, 9, 32))
    assert [trace.numbers for trace in captured.traces] == [(0, 1)]


def test_an_operator_that_is_defined_after_a_capture_is_noticed() -> None:
    """As in a cell of a notebook: nothing is imported between the two captures."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = np.exp(np.einsum("bhqd,bhkd->bhqk", q.numpy(), k.numpy()) / 8**0.5)
        weights /= weights.sum(-1, keepdims=True)
        return torch.from_numpy(np.einsum("bhqk,bhkd->bhqd", weights, v.numpy()))

    in_cell = layer("InCell", lambda self, *qkv: torch.ops.notebook.some_attention(*qkv))
    model, x = model_of(Residual, in_cell), torch.randn(1, 5, 32)
    with capture(model[0]):
        model[0](x)
    modules = len(sys.modules)
    for _ in range(2):  # the cell is run again
        torch.library.custom_op("notebook::some_attention", attend, mutates_args=())
        assert len(sys.modules) == modules
        refused(r"notebook::some_attention in 1 \(InCell\)", model, x)


def test_kernels_of_an_operator_that_nothing_defines_are_no_obstacle() -> None:
    """As of a compiled library whose Python part failed to load, until that part is there."""

    def defined() -> Any:
        library = torch.library.Library("halfloaded", "FRAGMENT")
        library.define("some_attention(Tensor q, Tensor k, Tensor v) -> Tensor")
        return library

    alone = layer("Alone", lambda self, *qkv: torch.ops.halfloaded.some_attention(*qkv))
    model, ids = nn.Sequential(nn.Embedding(9, 32), Residual(), alone()), torch.tensor([[1, 8, 3, 2]])
    library, kernels = defined(), torch.library.Library("halfloaded", "IMPL")
    kernels.impl("some_attention", lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "CPU")
    library._destroy()
    assert "halfloaded::some_attention" in torch._C._dispatch_get_all_op_names()
    assert captured_of(model[:2], ids).trace.ids == (1, 8, 3, 2)
    library = defined()
    refused(r"halfloaded::some_attention in 2 \(Alone\)", model, ids)
    library._destroy()
    kernels._destroy()


def test_a_module_that_the_model_does_not_know_is_listed() -> None:
    """It is in a list of the class, where named_modules() doesn't find it."""
    hiding = layer("Hiding", Residual.attend, forward=lambda self, x: self.hidden[0](Residual.forward(self, x)))
    hiding.hidden = [Residual().eval()]  # type: ignore[attr-defined]
    refused(r"in 1 \(Residual\)", model_of(Residual, hiding), torch.randn(1, 5, 32))


@pytest.mark.parametrize("weights", [False, True])
def test_multihead_attention_called_around_its_hooks_is_read_or_listed(weights: bool) -> None:
    def around() -> nn.Module:
        attention = nn.MultiheadAttention(32, 4, batch_first=True)
        return own(lambda self, x: self.mha.forward(x, x, x, need_weights=weights)[0], mha=attention)

    model, x = nn.Sequential(around(), around()), torch.randn(1, 5, 32)
    listed = pytest.raises(UnsupportedError, match=r"0\.mha") if weights else nullcontext()
    with listed, capture(model) as captured:
        model(x)
    if not weights:
        assert_weights(captured, [model[0].mha(x, x, x, average_attn_weights=False)[1]])
        with pytest.raises(UnsupportedError, match="no W_O"):
            captured.trace[0, 1].output[:]


def test_another_models_forward_inside_a_capture_is_not_watched() -> None:
    """Only operators within the captured model's forward pass count."""
    model, x = model_of(Residual, Residual), torch.randn(1, 5, 32)
    with capture(model) as captured:
        model(x)
        ByHand()(x)
    assert captured.unrecorded == ()


def test_bert_is_not_slowed_by_a_kernel_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface's functions are read without an observer: no operator of a BERT layer passes through one."""
    seen: list[str] = []
    model, inputs = built("BertModel")
    monkeypatch.setattr(sdpa_watch, "_missed", lambda session, running, op, *rest: seen.append(op.name()))
    captured = captured_of(model, **inputs)
    assert seen == []
    assert captured.traces

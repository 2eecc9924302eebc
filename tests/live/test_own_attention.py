"""Hand-written attention around scaled_dot_product_attention, against its weights by the formula."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from comparing import Mixer, captured_of, own, refused, weights_of
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import headscope as hs
from families import BY_NAME
from headscope.errors import InputError, UnsupportedError
from headscope.live import ablate, capture


def attended(*given: Any, **options: Any) -> torch.Tensor:
    """A custom function between the module and PyTorch's."""
    return scaled_dot_product_attention(*given, **options)


class ByFunction(Mixer):
    """The same, through a function of its file."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.out(attended(*self.parts(x), attn_mask=mask).transpose(1, 2).flatten(2))


class Inherits(Mixer):
    """Whose attention runs by super() alone."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, mask)


class InheritsTwice(Inherits):
    """The same, a class further down."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, mask)


LOWER = torch.ones(6, 6, dtype=torch.bool).tril()
MASKS = {
    "none": None,
    "2d": LOWER,
    "per head": torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(1)),
    "4d": (torch.arange(6) < 4)[None, None, None],
    "a column": torch.zeros(6, 1),
    "a bool column": torch.ones(6, 1, dtype=torch.bool),
    "a number": torch.full((1, 1), 2.5),
    "a row": (torch.arange(6) < 4)[None],
    "expanded": LOWER.expand(2, 1, 6, 6),
    "causal from the left": causal_upper_left(6, 6),
    "causal from the right": causal_lower_right(6, 6),
}


@pytest.mark.parametrize(
    ("cls", "kind"),
    [*((Mixer, kind) for kind in MASKS), *((cls, "2d") for cls in (ByFunction, Inherits, InheritsTwice))],
)
def test_any_class_and_any_mask(cls: type[Mixer], kind: str) -> None:
    torch.manual_seed(0)
    mixer, x, mask = cls().eval(), torch.randn(2, 6, 32), MASKS[kind]
    with torch.no_grad():
        alone, expected = mixer(x, mask), weights_of(mixer, x, LOWER if "causal" in kind else mask)
        with capture(mixer) as captured:
            watched = mixer(x, mask)
    assert torch.equal(alone, watched)
    for row, trace in enumerate(captured.traces):
        kept = slice(0, len(trace.keys))
        np.testing.assert_allclose(trace[0].weights[:], expected[row, :, kept, kept], atol=1e-6)
        total = sum(trace[0, head].output for head in range(4)) + mixer.out.bias.detach().numpy()
        np.testing.assert_allclose(total, alone[row, kept], atol=1e-5)
        assert trace.verify().agrees


ADDED = {
    "a number for each head and key": (torch.randn(4, 1, 6, generator=torch.Generator().manual_seed(2)), ("by_key",)),
    "the same, causal": (
        torch.randn(4, 1, 6, generator=torch.Generator().manual_seed(2)).masked_fill(
            ~torch.ones(6, 6, dtype=torch.bool).tril(), float("-inf")
        ),
        ("by_key",),
    ),
    "numbers that follow no rule": (MASKS["per head"], ()),
}


@pytest.mark.parametrize("kind", ADDED)
def test_numbers_in_a_mask_become_a_table_if_they_follow_a_rule(kind: str) -> None:
    torch.manual_seed(0)
    mixer, x = Mixer().eval(), torch.randn(2, 6, 32)
    mask, terms = ADDED[kind]
    captured = captured_of(mixer, x, mask)
    expected = weights_of(mixer, x, mask)
    for row, trace in enumerate(captured.traces):
        np.testing.assert_allclose(trace[0].weights[:], expected[row].detach(), atol=1e-6)
        assert trace[0].terms.named == terms
        assert (trace[0].mask.bias is None) == bool(terms)
        assert trace[0].mask.causal == ("causal" in kind)


@pytest.mark.parametrize("kind", ["none", "2d", "per row"])
def test_one_head_without_an_axis_of_heads(kind: str) -> None:
    torch.manual_seed(0)
    mixer, x = Mixer(heads=0).eval(), torch.randn(2, 6, 32)
    mask = torch.randn(2, 6, 6) if kind == "per row" else MASKS[kind]
    with torch.no_grad():
        alone, expected = mixer(x, mask), weights_of(mixer, x, mask)
        with capture(mixer) as captured:
            assert torch.equal(mixer(x, mask), alone)
        with ablate(mixer, [(0, 0)]):
            torch.testing.assert_close(mixer(x, mask), mixer.out.bias.expand(2, 6, -1))
    for row, trace in enumerate(captured.traces):
        np.testing.assert_allclose(trace[0, 0].weights[:], expected[row, 0], atol=1e-6)


def test_more_axes_than_a_trace_has_are_refused() -> None:
    model = own(lambda self, x: scaled_dot_product_attention(x, x, x))
    with pytest.raises(UnsupportedError, match=r"Own calls[\s\S]*5 dimensions"), capture(model):
        model(torch.randn(1, 2, 3, 4, 8))


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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@torch.no_grad()
def test_nested_tensors_in_a_class_of_its_own_are_listed(layout: torch.layout) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [one(x).view(x.size(0), -1, 4, 8).transpose(1, 2) for one in (self.q, self.k, self.v)]
        if x.layout == torch.strided:
            parts = [part.contiguous() for part in parts]
        return scaled_dot_product_attention(*parts).transpose(1, 2)

    model = own(forward, **{name: nn.Linear(32, 32) for name in "qkv"})
    x = torch.nested.nested_tensor([torch.randn(n, 32) for n in (3, 5)], layout=layout)
    with capture(model), pytest.raises(UnsupportedError, match="attention ran that was not recorded") as raised:
        model(x)
    assert "x.to_padded_tensor(0)" in str(raised.value)
    with capture(model, strict=False) as captured:
        model(x)
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


@torch.no_grad()
def test_an_output_whose_model_was_parallelised_after_the_pass(two_processes: Any) -> None:
    model = nn.Sequential(Mixer())
    captured = captured_of(model, torch.randn(1, 6, 32))
    parallelize_module(model, two_processes, {"0.out": ColwiseParallel()})
    with pytest.raises(UnsupportedError, match=r"0\.out\.weight is a DTensor over 2 processes"):
        captured.trace[0, 1].output


class AttentionClassifier(nn.Module):
    """Named like attention, with a softmax that isn't; two of its parts are attention."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)
        self.mixer = Mixer()

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


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_for_gradients_is_not_recorded(reentrant: bool) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        """Its parts are called again in the backward pass, around the model itself."""
        for part in (self.first, self.second):
            x = checkpoint(part, x, use_reentrant=reentrant)
        return x

    torch.manual_seed(0)
    model, x = own(forward, first=Mixer(), second=Mixer()), torch.randn(2, 6, 32, requires_grad=True)
    expected = torch.autograd.grad(model.second(model.first(x)).sum(), x)[0]
    with capture(model) as captured:
        model(x).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert [len(forward) for forward in captured.forwards] == [4]
    assert captured.unrecorded == ()

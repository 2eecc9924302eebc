"""Layers are numbered as in the model that is there: attention twice, layers skipped or replaced, two calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from comparing import Mixer, Residual, assert_weights, captured_of, own, pass_of, refused, softmax_of, split, weights_of
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.functional import layer_norm, multi_head_attention_forward, scaled_dot_product_attention

from families import BY_NAME, DECODER, Family
from headscope.errors import InputError, UnsupportedError
from headscope.live import ablate, capture
from products import in_turn

pytestmark = pytest.mark.usefixtures("no_grad")


class Twice(Residual):
    """Attends twice each time it runs, the second time from keys to queries."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v) - 0.3 * scaled_dot_product_attention(k, q, v)


def test_diff_llama_has_two_maps_a_layer() -> None:
    settings = {**DECODER, "num_hidden_layers": 3, "num_key_value_heads": 4}
    model = Family("DiffLlamaModel", settings, factor=1.0).build()
    ids = torch.arange(3, 9)[None]
    captured = captured_of(model, ids, use_cache=False)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    eager = model(ids, use_cache=False, output_attentions=True).attentions
    assert [(trace.stack, trace.numbers) for trace in captured.traces] == [("self", (0, 1, 2)), ("self.2", (0, 1, 2))]
    assert_weights(captured, eager)
    assert all(trace.verify().agrees for trace in captured.traces)
    assert captured["self.2"] == captured.traces[1:]


def test_a_part_can_be_silenced_alone() -> None:
    model, x = nn.Sequential(Residual(), Twice()).eval(), torch.randn(1, 6, 32)
    heads = [(1, head) for head in range(4)]
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

    model, x = own(forward, layers=nn.ModuleList(Residual() for _ in range(4))), torch.randn(1, 6, 32)
    trace, hidden = captured_of(model, x).trace, model.layers[0](x)
    assert trace.numbers == (0, 2, 3)
    assert [record.name for record in trace.layers] == ["layers.0", "layers.2", "layers.3"]
    assert_weights([trace], {2: weights_of(model.layers[2], hidden)})
    with ablate(model, [(2, head) for head in range(4)]):
        torch.testing.assert_close(model(x), model.layers[3](hidden + model.layers[2].out.bias))


@pytest.mark.parametrize(
    "wrap",
    [partial(torch.compile, backend="eager"), checkpoint_wrapper, nn.DataParallel],
    ids=["compiled", "", "module"],
)
@pytest.mark.parametrize("inside", [False, True])
def test_wrapped_layers_stay_between_the_others(wrap: Callable[[nn.Module], nn.Module], inside: bool) -> None:
    x, layers = torch.randn(1, 5, 32), [own(lambda self, x: self.mix(x), mix=Residual()) for _ in range(4)]
    expected = captured_of(nn.Sequential(*layers), x).trace
    for at in (0, 2):
        if inside:
            layers[at].mix = wrap(layers[at].mix)
        else:
            layers[at] = wrap(layers[at])
    captured = captured_of(nn.Sequential(*layers), x)
    assert (captured.stacks, captured.trace.numbers) == (("self",), (0, 1, 2, 3))
    for layer in range(4):
        np.testing.assert_array_equal(captured.trace[layer].weights[:], expected[layer].weights[:])


def test_a_part_that_is_called_module_is_no_wrapper_beside_others() -> None:
    parts = [{"module": Residual(), "mix": Residual()} for _ in range(2)]
    model = nn.Sequential(*(own(lambda self, x: self.mix(self.module(x)), **each) for each in parts))
    traces = captured_of(model, torch.randn(1, 5, 32)).traces
    assert {trace.stack: trace.numbers for trace in traces} == {"*.module": (0, 1), "*.mix": (0, 1)}


def test_shared_layers_are_counted_as_they_run() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in [*self.layers] * 3:
            x = layer(x)
        return x

    a, b, layers = (nn.ModuleList(Residual() for _ in range(count)) for count in (1, 1, 2))
    model = own(forward, a=a, b=b, layers=layers)
    trace = captured_of(model, torch.randn(1, 6, 32)).trace
    assert trace.numbers == (0, 1, 2, 3, 4, 5)
    assert [record.name for record in trace.layers] == ["layers.0", "layers.1"] * 3


@pytest.mark.parametrize(("channels", "layers"), in_turn((3, 4), (1, 2)))
def test_a_layer_that_runs_its_attention_twice_has_two_stacks(channels: int, layers: int) -> None:
    sizes = {"num_hidden_layers": layers, "d_model": 32, "num_attention_heads": 4, "ffn_dim": 40}
    patches = {"num_input_channels": channels, "context_length": 32, "patch_length": 8, "patch_stride": 8}
    settings = {**sizes, **patches, "channel_attention": True}
    model, x = Family("PatchTSTModel", settings, factor=1.0).build(), torch.randn(2, 32, channels)
    eager: list[torch.Tensor] = []
    captured = captured_of(model, past_values=x)
    model.set_attn_implementation("eager")
    for layer in model.encoder.layers:
        layer.self_attn.register_forward_hook(lambda module, args, output: eager.append(output[1]))
    model(past_values=x, output_attentions=True)
    assert captured.stacks == ("self", "self.2")
    for call, stack in enumerate(captured.stacks):
        assert_weights(captured[stack], eager[call : 2 * layers : 2])
        for trace in captured[stack]:
            assert trace.numbers == tuple(range(layers))
            assert trace.verify().agrees


def block(parts: Callable[[torch.Tensor], Iterable[torch.Tensor]]) -> Any:
    """A layer that runs its attention several times, on the parts that `parts` makes of its input."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for part in parts(x):
            self.attention(part)
        return x.roll(1, 0)

    return own(forward, attention=Residual())


@pytest.mark.parametrize("sides", [(5, 3), (4, 4)])
def test_rows_and_columns_are_two_stacks(sides: tuple[int, int]) -> None:
    model = nn.Sequential(*(block(lambda x: [x, x.transpose(0, 1).contiguous()]) for _ in range(2))).eval()
    x = torch.randn(*sides, 32)
    captured = captured_of(model, x)
    assert captured.stacks == ("self", "self.2")
    for layer, one in enumerate(model):
        given = x.roll(layer, 0)
        for stack, part in zip(captured.stacks, (given, given.transpose(0, 1)), strict=True):
            assert_weights(captured[stack], {layer: weights_of(one.attention, part)})
            assert all(trace.numbers == (0, 1) for trace in captured[stack])


@pytest.mark.parametrize("sizes", [3, [1, 2, 3]])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("copied", [False, True])
def test_parts_of_a_layers_input_are_not_maps_of_a_layer(sizes: int | list[int], axis: int, copied: bool) -> None:
    """Of equal sizes or not, of tokens or rows, in their memory or copied."""
    model = nn.Sequential(block(lambda x: [part + 0 if copied else part for part in x.split(sizes, axis)])).eval()
    refused("attends several times in one forward pass", model, torch.randn(6, 6, 32))


@pytest.mark.parametrize("second", [[9, 8, 7, 6, 5], [9, 8, 7]])
def test_an_encoder_called_twice_leaves_two_traces(second: list[int]) -> None:
    """One encoder called for each of two texts, as in training embeddings."""

    def forward(self: Any, *texts: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.encoder(text).last_hidden_state for text in texts], 1)

    model = own(forward, encoder=BY_NAME["BertModel"].build())
    texts = [torch.tensor([[4, 5, 6, 7, 8]]), torch.tensor([second])]
    captured = captured_of(model, *texts)
    apart = [trace for text in texts for trace in captured_of(model.encoder, text).traces]
    assert [trace.ids for trace in captured.traces] == [(4, 5, 6, 7, 8), tuple(second)]
    for trace, alone in zip(captured.traces, apart, strict=True):
        assert trace.numbers == (0, 1)
        assert trace.verify().agrees
        assert_weights([trace], [[alone[layer].weights[...]] for layer in trace.numbers])


class Attention(Mixer):
    """A class whose name says that it attends."""


class UnreadableAttention(Mixer):
    """Attention that capture can't see."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.into(x).chunk(3, -1)
        weights: torch.Tensor = torch.softmax(q @ k.transpose(1, 2), -1)
        return weights @ v


def traced(model: nn.Module) -> tuple[int, ...]:
    """The layers that a capture records."""
    return captured_of(model, torch.randn(1, 5, 32)).trace.numbers


def test_a_model_that_has_changed_is_read_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Attention(), Attention())
    assert traced(model) == (0, 1)
    with monkeypatch.context() as changed:
        changed.setattr(Attention, "forward", UnreadableAttention.forward)
        with pytest.raises(UnsupportedError):
            capture(model)
    assert traced(model) == (0, 1)
    model[1] = nn.Identity()
    assert traced(model) == (0,)
    model[1] = UnreadableAttention()
    with pytest.raises(UnsupportedError, match="UnreadableAttention computes its attention itself"):
        capture(model)
    model[1] = Attention()
    model.append(Attention())
    assert traced(model) == (0, 1, 2)
    model[0].layer_idx, model[1].layer_idx, model[2].layer_idx = 4, 7, 8
    assert traced(model) == (4, 7, 8)
    model[0].__class__ = UnreadableAttention
    with pytest.raises(UnsupportedError, match="UnreadableAttention"):
        capture(model)


def bounds(arrays: list[np.ndarray]) -> tuple[int, int]:
    """Where these arrays begin and end in memory."""
    starts = [array.__array_interface__["data"][0] for array in arrays]
    return min(starts), max(start + array.nbytes for start, array in zip(starts, arrays, strict=True))


def test_copies_of_a_row_lie_in_one_piece() -> None:
    """So they leave no room for temporary tensors between them, and none of another row is kept with them."""
    _, captured, _ = pass_of(BY_NAME["BertModel"], padded=True)
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


# Lists of modules: layers that only make q, k and v, for which the model attends; heads that are modules.


WIDTH, HEADS, TOKENS = 32, 4, 6


def merged(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Makes queries, keys and values; the model attends."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [split(part) for part in self.into(x).chunk(3, -1)]


class Loop(nn.Module):
    """Attends for its layers, in the order of `order`."""

    order: Iterable[int] = (0, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x + layer.out(merged(scaled_dot_product_attention(*layer(x))))  # type: ignore[operator]
        return x + layer.mlp(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at in self.order:
            x = self.step(self.layers[at], x)
        return x


class InPlace(Loop):
    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x += layer.out(merged(scaled_dot_product_attention(*layer(x))))  # type: ignore[operator]
        x += layer.mlp(x)  # type: ignore[operator]
        return x


ORDERS = {"Skipping": (0, 2), "Again": (0, 1, 2, 0, 1, 2), "SkippingTheFirst": (1, 2)}
Skipping, Again, SkippingTheFirst = (type(name, (Loop,), {"order": order}) for name, order in ORDERS.items())


class Shared(Loop):
    """One layer attends three times, each followed by an MLP of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.layers[0].out(merged(scaled_dot_product_attention(*self.layers[0](x))))  # type: ignore[operator]
            x = x + layer.mlp(x)  # type: ignore[operator]
        return x


class Functional(Loop):
    """Weights are handed to a function, so nothing runs in the layers before they attend."""

    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y, weights = x.transpose(0, 1), [layer.into.weight, layer.into.bias, None, None, False, 0.0]  # type: ignore
        weights += [layer.out.weight, layer.out.bias]  # type: ignore[union-attr]
        mixed, _ = multi_head_attention_forward(y, y, y, WIDTH, HEADS, *weights, training=False, need_weights=False)
        return x + mixed.transpose(0, 1)


def inside(loop: Loop) -> nn.Module:
    """A model with attention that is read, and a loop in one of its parts."""

    parts = {"first": nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), "encoder": loop}
    return own(lambda self, x: self.encoder(x + self.first(x, x, x, need_weights=False)[0]), **parts)


def build(make: Callable[[], Any]) -> tuple[Any, torch.Tensor]:
    return make().eval(), torch.randn(1, TOKENS, WIDTH)


@pytest.mark.parametrize(
    ("cls", "numbers"), [(Loop, (0, 1, 2)), (InPlace, (0, 1, 2)), (Skipping, (0, 2)), (Again, (0, 1, 2, 3, 4, 5))]
)
def test_layers_of_a_loop_are_numbered_in_order(cls: type[Loop], numbers: tuple[int, ...]) -> None:
    model, x = build(cls)
    trace = captured_of(model, x.clone()).trace
    assert (trace.stack, trace.numbers) == ("self", numbers)
    assert {record.name for record in trace.layers} == {cls.__name__}
    assert trace.verify().agrees
    for number, at in zip(numbers, model.order, strict=True):  # type: ignore[arg-type]
        layer = model.layers[at]  # type: ignore[index]
        q, k, v = layer(x)
        assert_weights([trace], {number: (weights := softmax_of(q, k))})
        for head in range(HEADS):
            output = weights[0, head] @ v[0, head] @ layer.out.weight[:, 8 * head : 8 * head + 8].T
            np.testing.assert_allclose(trace[number, head].output[:], output, atol=1e-5)
        x = model.step(layer, x.clone())  # type: ignore[operator]


def test_a_loop_in_a_part_of_a_model() -> None:
    model, x = build(lambda: inside(Loop()))
    traces = captured_of(model, x).traces
    assert [(trace.stack, trace.numbers) for trace in traces] == [("first", (0,)), ("encoder", (0, 1, 2))]


@pytest.mark.parametrize(("cls", "silenced"), [(Loop, 0), (Loop, 1), (Loop, 2), (Skipping, 2), (Again, 4)])
def test_heads_of_a_loop_s_layers_are_silenced(cls: type[Loop], silenced: int) -> None:
    loop, x = build(cls)
    with ablate(loop, [(silenced, head) for head in range(HEADS)]):
        found = loop(x)
    for turn, at in enumerate(cls.order):
        layer: Layer = loop.layers[at]  # type: ignore[assignment,index]
        if silenced == (turn if cls is Again else at):
            x = x + layer.out.bias
            x = x + layer.mlp(x)
        else:
            x = loop.step(layer, x)  # type: ignore[operator]
    torch.testing.assert_close(found, x)
    with pytest.raises(InputError, match="layer 7 did not run"), ablate(loop, [(7, 0)]):
        loop(x)


def test_self_and_cross_attention_in_one_loop() -> None:
    def forward(self: Any, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            q, k, v, out, cross_q, cross_k, cross_v, cross_out = layer.values()
            x = x + out(merged(scaled_dot_product_attention(split(q(x)), split(k(x)), split(v(x)))))
            given.append((split(cross_q(x)), split(cross_k(memory))))
            x = x + cross_out(merged(scaled_dot_product_attention(*given[-1], split(cross_v(memory)))))
        return x

    names = ("q", "k", "v", "o", "cross_q", "cross_k", "cross_v", "cross_o")
    layers = nn.ModuleList(nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in names}) for _ in range(3))
    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    model, x = build(lambda: own(forward, layers=layers))
    captured = captured_of(model, x, torch.randn(1, 5, WIDTH))
    assert [(trace.stack, trace.numbers) for trace in captured.traces] == [("self", (0, 1, 2)), ("self.2", (0, 1, 2))]
    assert_weights(captured["self.2"], [softmax_of(q, k) for q, k in given])


@pytest.mark.parametrize("sequential", [False, True])
def test_plain_lists_of_linears(sequential: bool) -> None:
    """Projections side by side are two maps of a layer; those that follow each other are layers."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        found = x
        for into, out in zip(self.into, self.out, strict=True):
            parts = into(found if sequential else x).chunk(3, -1)
            found = found + out(merged(scaled_dot_product_attention(*map(split, parts))))
        return found

    into, out = (nn.ModuleList(nn.Linear(WIDTH, width) for _ in range(2)) for width in (3 * WIDTH, WIDTH))
    model, x = build(lambda: own(forward, into=into, out=out))
    captured = captured_of(model, x)
    expected = [("self", (0, 1))] if sequential else [("self", (0,)), ("self.2", (0,))]
    assert [(trace.stack, trace.numbers) for trace in captured.traces] == expected
    assert all(trace.verify().agrees for trace in captured.traces)


@pytest.mark.parametrize("cls", [SkippingTheFirst, Shared, Functional])
def test_a_loop_whose_layers_are_unknown_is_refused(cls: type[Loop]) -> None:
    model, x = build(lambda: inside(cls()))
    raised = refused(f"{cls.__name__} attends several times", model, x)
    assert raised.where == "encoder"
    assert "let each layer's own module attend" in str(raised)


# Heads that are modules of their own, in a list: heads of one layer, if a Linear reads them joined in order.

TEXTS = torch.arange(3, 3 + 2 * TOKENS).view(2, TOKENS)
Mix = Callable[[Any, torch.Tensor], torch.Tensor]


class Head(nn.Module):
    """One causal head of 8."""

    def __init__(self, width: int = WIDTH // HEADS) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, width, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True)

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).mT / self.key.out_features**0.5
        return scores.masked_fill(~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(), -torch.inf).softmax(-1)


class WithAxis(Head):
    """The same with an axis of one head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x)[:, None] for part in (self.query, self.key, self.value))
        return scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]


MIXES: dict[str, Mix] = {
    "side by side": lambda self, x: self.proj(torch.cat([head(x) for head in self.heads], -1)),
    "called backwards": lambda self, x: self.proj(torch.cat([head(x) for head in list(self.heads)[::-1]][::-1], -1)),
    "with a norm each": lambda self, x: self.proj(torch.cat([head(layer_norm(x, [WIDTH])) for head in self.heads], -1)),
    "in another order": lambda self, x: self.proj(torch.cat([head(x) for head in self.heads][::-1], -1)),
    "unjoined": lambda self, x: torch.cat([head(x) for head in self.heads], -1),
    "summed": lambda self, x: torch.stack([head(x) for head in self.heads]).sum(0).repeat(1, 1, HEADS),
    "some": lambda self, x: self.proj(torch.cat([*[head(x) for head in list(self.heads)[:-1]], x[..., :8]], -1)),
}
JOINED = ("side by side", "called backwards", "with a norm each")


def residual(mix: Mix, cls: type[Head]) -> nn.Module:
    """The heads of a layer, as `mix` puts them together, beside what they read."""
    heads = nn.ModuleList(cls() for _ in range(HEADS))
    joined = own(lambda self, x: mix(self, x), heads=heads, proj=nn.Linear(WIDTH, WIDTH))
    return own(lambda self, x: x + self.sa(self.ln(x)), ln=nn.LayerNorm(WIDTH), sa=joined)


def language_model(mix: Mix = MIXES["side by side"], cls: type[Head] = Head) -> Any:
    """A language model with three layers of four heads."""
    blocks = nn.Sequential(*(residual(mix, cls) for _ in range(3)))
    parts = {"embed": nn.Embedding(50, WIDTH), "blocks": blocks, "head": nn.Linear(WIDTH, 50)}
    return own(lambda self, ids: self.head(self.blocks(self.embed(ids))), **parts)


@pytest.mark.parametrize("cls", [Head, WithAxis])
@pytest.mark.parametrize("mix", JOINED)
def test_heads_of_one_layer(mix: str, cls: type[Head]) -> None:
    model = language_model(MIXES[mix], cls)
    captured = captured_of(model, TEXTS)
    assert captured.stacks == ("self",)
    for row, trace in enumerate(captured.traces):
        assert trace.numbers == (0, 1, 2)
        assert [record.name for record in trace.layers] == [f"blocks.{layer}.sa.heads" for layer in range(3)]
        assert trace.verify().agrees
        assert list(trace.tokens) == [str(one) for one in TEXTS[row].tolist()]
        x = model.embed(TEXTS[row : row + 1])
        table = trace.statistics()
        for layer, block in enumerate(model.blocks):
            given = block.ln(x)
            if mix == "with a norm each":
                given = layer_norm(given, [WIDTH])
            total = block.sa.proj.bias
            for number, head in enumerate(block.sa.heads):
                weights = head.weights(given)
                output = weights @ head.value(given) @ block.sa.proj.weight[:, 8 * number : 8 * number + 8].T
                total = total + output
                np.testing.assert_allclose(trace[layer, number].weights[:], weights[0], atol=1e-6)
                np.testing.assert_allclose(trace[layer, number].output[:], output[0], atol=1e-5)
                entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
                assert table["entropy"][layer, number] == pytest.approx(float(entropy), abs=1e-5)
            x = x + total


def test_one_layer_alone_and_one_selected() -> None:
    model = language_model()
    with capture(model.blocks[1].sa) as captured:
        model(TEXTS)
    assert [(trace.numbers, trace.layers[0].k.shape[0]) for trace in captured.traces] == [((0,), HEADS)] * 2
    captured = captured_of(model, TEXTS, options={"layers": [2]})
    assert [(trace.numbers, trace.layers[0].k.shape[0]) for trace in captured.traces] == [((2,), HEADS)] * 2


def test_lists_in_stages_and_lists_that_run_again() -> None:
    def stage() -> nn.Module:
        return nn.Sequential(*(residual(MIXES["side by side"], Head) for _ in range(2)))

    twice: Mix = lambda self, x: self.stages(self.stages(x))  # noqa: E731
    model, x = build(lambda: own(twice, stages=nn.Sequential(stage(), stage())))
    trace = captured_of(model, x).trace
    assert trace.numbers == tuple(range(8))
    for layer in range(8):
        block = model.stages[layer // 2 % 2][layer % 2]
        for number, head in enumerate(block.sa.heads):
            np.testing.assert_allclose(trace[layer, number].weights[:], head.weights(block.ln(x))[0], atol=1e-6)
        x = block(x)


@pytest.mark.parametrize("mix", [name for name in MIXES if name not in JOINED])
def test_side_by_side_but_not_joined(mix: str) -> None:
    model = language_model(MIXES[mix])
    raised = refused(r"not recorded: .* in [34] modules side by side in blocks\.0\.sa\.heads", model, TEXTS)
    assert raised.where == "blocks.0.sa.heads"
    assert "torch.cat" in str(raised)
    assert "one head each" in str(raised)
    captured = captured_of(model, TEXTS, options={"strict": False})
    assert [call.operator for call in captured.unrecorded] == [
        f"scaled_dot_product_attention in {3 if mix == 'some' else 4} modules side by side"
    ] * 3


@pytest.mark.parametrize("in_place", [False, True])
def test_layers_of_one_head_in_a_list_follow_each_other(in_place: bool) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for layer in self.layers:
            x = x.add_(layer(x)) if in_place else x + layer(x)
        return x

    model, x = build(lambda: own(forward, layers=nn.ModuleList(Head(WIDTH) for _ in range(3))))
    trace = captured_of(model, x).trace
    assert [record.name for record in trace.layers] == ["layers.0", "layers.1", "layers.2"]
    for number, layer in enumerate(model.layers):
        np.testing.assert_allclose(trace[number, 0].weights[:], layer.weights(x)[0], atol=1e-6)  # type: ignore[operator]
        x = x + layer(x)


def test_a_head_that_is_a_module_is_silenced_there() -> None:
    model = language_model()
    with ablate(model, [(1, 3)]), pytest.raises(InputError, match="attends with 1 in one call"):
        model(TEXTS)
    with ablate(model, [(1, 0)]), pytest.raises(UnsupportedError, match="one head of several") as raised:
        model(TEXTS)
    assert raised.value.where == "blocks.1.sa.heads"
    assert "register_forward_hook" in str(raised.value)
    with pytest.raises(InputError, match="stack self has layers 0 to 2"):
        ablate(model, [(3, 0)])

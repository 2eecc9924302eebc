"""Flex attention of transformers and of modules of one's own, against eager attention and the formula."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from comparing import (
    PADDABLE,
    assert_same_weights,
    assert_weights,
    captured_of,
    eager_attentions,
    passed,
    refused,
    watched,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_compiled import check_backend
from test_generation import eager, generated, model_of
from torch import nn
from torch.nn.attention import flex_attention as flex
from transformers import AttentionInterface
from transformers.integrations import flex_attention as integration

import headscope as hs
from commands import python
from families import BY_NAME, FAMILIES, built
from headscope.errors import UnsupportedError
from headscope.live import ablate
from headscope.live.masks.analyst import find_rules
from headscope.live.masks.cells import BLOCK_CELLS
from headscope.live.masks.flex import Flexed, read_score_mod
from largest import Largest
from products import in_turn

FLEX = "flex_attention"
NO_FLEX = ("SplinterModel", "LayoutLMModel", "MarkupLMModel", "DPRQuestionEncoder", "GPT2Model", "GPTBigCodeModel")
NO_FLEX += ("StableLmModel", "MiMoV2FlashModel", "SwitchTransformersModel", "BeitModel", "GitModel")
SINKS = ("GptOssModel", "FlintModel", "OpenAIPrivacyFilterModel")
WHOLE = ("BertModel", "LlamaModel", "Gemma2Model")
ONE_ROW = ("T5Model", "MT5Model", "UMT5Model")
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
READ = [family for family in FAMILIES if family.name not in (*NO_FLEX, *SINKS)]


@pytest.fixture(autouse=True)
def but_for_those_named_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests named compiled have a compiler."""
    if "compiled" not in request.node.name:
        request.getfixturevalue("uncompiled")
    yield
    if "compiled" in request.node.name:
        torch._dynamo.reset()


@pytest.mark.parametrize(
    ("family", "padding"),
    [  # what is special about a family is its trap; the others go the ways of BERT and Llama
        pytest.param(family, "right" if family in PADDABLE else "none", marks=[] if family.trap else pytest.mark.slow)
        for family in READ
    ]
    + [(BY_NAME[name], padding) for name in WHOLE for padding in ("none", "left")],
    ids=str,
)
def test_weights_are_the_eager_ones(family: Any, padding: str) -> None:
    """T5's position bias has one row, from which transformers' score_mod takes that of the row of the batch."""
    model, inputs = family.build(attention=FLEX), family.inputs(padded=padding != "none", left=padding == "left")
    if family.name in ONE_ROW:
        inputs = {name: value[:1] for name, value in inputs.items()}
    with torch.compiler.set_stance("force_eager"):
        captured = watched(model, inputs)
    assert_same_weights(captured, eager_attentions(model, inputs, family.stacks), 1e-4)
    # Every query was just compared: other passes of each model, with a mask that is none of its rules, add the ids.
    again = family.name in WHOLE and padding == "left"
    assert all(trace.verify(reference=again and trace.row == 1).agrees for trace in captured.traces)


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_generation(name: str) -> None:
    """Gemma's second layer sees all earlier keys, as Llama's; its others have a window."""
    model = model_of(name, FLEX)
    with torch.compiler.set_stance("force_eager"):
        captured, final, mask = generated(model, 3)
    assert len(captured.generations) == 3
    assert_weights(captured.generations, eager(model, final[:, :-1], mask[:, :-1]), 2e-5)
    for trace in captured.generations:
        assert all(record.mask.bias is None and record.mask.causal for record in trace.layers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["BertModel", "Gemma2Model"])
def test_compiled_by_transformers_as_without_a_capture(name: str) -> None:
    check_backend("inductor")
    family = BY_NAME[name]
    model, inputs = family.build(attention=FLEX), family.inputs(padded=True)
    with torch.no_grad():
        alone, (output, captured) = model(**inputs), passed(model, **inputs)
    torch.testing.assert_close(output.last_hidden_state, alone.last_hidden_state, rtol=0, atol=0)
    assert_same_weights(captured, eager_attentions(model, inputs, family.stacks), 1e-4)


def as_on_a_gpu() -> Callable[..., Any]:
    """transformers' function with the branch that it takes everywhere but on a CPU: it returns log-sum-exps, too."""
    source = inspect.getsource(integration.flex_attention_forward).replace('query.device.type != "cpu"', "True")
    space = vars(integration).copy()
    exec(source, space)
    return space["flex_attention_forward"]


@pytest.mark.parametrize("name", ["BertModel", "LlamaModel", *SINKS])
def test_log_sum_exps_beside_the_output_are_no_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = BY_NAME[name]
    model, inputs = family.build(attention=FLEX), family.inputs(padded=True)
    monkeypatch.setitem(AttentionInterface._global_mapping, FLEX, as_on_a_gpu())
    captured = captured_of(model, **inputs)
    assert_same_weights(captured, eager_attentions(model, inputs, family.stacks), 1e-4)
    assert ("sinks" in captured.traces[0][0].terms.named) == (name in SINKS)


HEADS, TOKENS = 4, 7
SIZES = 1, HEADS, TOKENS, TOKENS
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.randn(HEADS, 2 * TOKENS - 1, generator=torch.Generator().manual_seed(3))
NUMBERS = torch.randn(HEADS, TOKENS, generator=torch.Generator().manual_seed(4))
CAP = torch.tensor(3.0)
LOWER = torch.zeros(TOKENS, TOKENS).masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), float("-inf"))
REAL = torch.ones(2, TOKENS, dtype=torch.bool)
REAL[1, 5:] = False


class Slopes:
    """A score_mod as an object, and as a method."""

    def __call__(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
        return s + SLOPES[h] * (j - i)


Mod = Callable[..., torch.Tensor]

MODS: dict[str, tuple[Mod, tuple[str, ...]]] = {
    "alibi": (lambda s, b, h, i, j: s + SLOPES[h] * (j - i), ("by_distance",)),
    "a method": (Slopes().__call__, ("by_distance",)),
    "an object": (Slopes(), ("by_distance",)),
    "the same distances in all heads": (lambda s, b, h, i, j: s - 0.3 * (i - j).abs(), ("by_distance",)),
    "the same keys in all heads": (lambda s, b, h, i, j: s + NUMBERS[0, j], ("by_key",)),
    "alibi by key": (lambda s, b, h, i, j: s + SLOPES[h] * j, ("by_key",)),
    "relative bias": (lambda s, b, h, i, j: s + TABLE[h, j - i + TOKENS - 1], ("by_distance",)),
    "number of each key": (lambda s, b, h, i, j: NUMBERS[h][j] + s, ("by_key",)),
    "cap": (lambda s, b, h, i, j: 3 * torch.tanh(s / 3), ("cap",)),
    "cap in a tensor": (lambda s, b, h, i, j: CAP * torch.tanh(s / CAP), ("cap",)),
    "cap of the sum": (lambda s, b, h, i, j: torch.tanh((s + SLOPES[h] * (j - i)) * 0.25) * 4, ("by_distance", "cap")),
    "factor": (lambda s, b, h, i, j: s * 0.5 - 1, ("by_key",)),
    "causal": (lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")), ()),
    "causal as numbers": (lambda s, b, h, i, j: s + LOWER[i, j], ()),
    "causal as large numbers": (lambda s, b, h, i, j: s + LOWER.clamp(min=-2e4)[i, j], ()),
    "a partial": (partial(lambda slopes, s, b, h, i, j: s + slopes[h] * (j - i), SLOPES), ("by_distance",)),
    "causal after alibi": (
        lambda s, b, h, i, j: (s + SLOPES[h] * (j - i)).masked_fill(i < j, float("-inf")),
        ("by_distance",),
    ),
    "identity": (lambda s, b, h, i, j: s.float().clone(), ()),
}
"""Functions of scores, and the score terms that they are."""


causal: Mod = lambda b, h, i, j: i >= j  # noqa: E731
window: Mod = lambda b, h, i, j: (i - j).abs() <= 2  # noqa: E731
padding: Mod = lambda b, h, i, j: REAL[b, j]  # noqa: E731
MASKS: dict[str, Any] = {"none": None, "causal": causal, "window": window, "padding": padding}
MASKS["causal and padding"] = flex.and_masks(causal, padding)


class Flexible(nn.Module):
    """Four heads of 8, or fewer of keys and values."""

    def __init__(self, *, kv_heads: int = HEADS, mod: Mod | None = None, mask: Any = None, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kv_heads, self.mod, self.mask, self.options = kv_heads, mod, mask, options
        self.into = nn.Linear(32, 32 + 16 * kv_heads)
        self.out = nn.Linear(32, 32)
        with torch.no_grad():
            self.into.weight.mul_(4)

    def parts(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = (32, 8 * self.kv_heads, 8 * self.kv_heads)
        return tuple(part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in self.into(x).split(sizes, -1))

    def attend(self, *given: Any, **options: Any) -> Any:
        return flex.flex_attention(*given, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared = {"enable_gqa": True} if self.kv_heads < HEADS else {}
        mixed = self.attend(*self.parts(x), score_mod=self.mod, block_mask=self.mask, **shared, **self.options)
        return x + self.out((mixed[0] if isinstance(mixed, tuple) else mixed).transpose(1, 2).flatten(2))


class Compiled(Flexible):
    """As PyTorch's documentation has it."""

    def attend(self, *given: Any, **options: Any) -> Any:
        return COMPILED(*given, **options)


COMPILED: Any = None
"""The compiled function, while a test asks for `compiler`: to import that takes seconds, in every worker."""


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates what its compiler calls
        monkeypatch.setitem(globals(), "COMPILED", torch.compile(flex.flex_attention))


def block_mask(mask_mod: Any, size: int = TOKENS, rows: int | None = 2, blocks: int = 128) -> Any:
    return flex.create_block_mask(mask_mod, rows, None, size, size, device="cpu", BLOCK_SIZE=blocks)


def weights_of(layer: Flexible, x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, queries, keys): the layer's functions called for each cell, and a softmax."""
    q, k, _ = layer.parts(x)
    scores = q @ k.repeat_interleave(HEADS // len(k[0]), 1).mT * layer.options.get("scale", 8**-0.5)
    for place in np.ndindex(*scores.shape):
        at = [torch.tensor(number) for number in place]
        if layer.mod is not None:
            scores[place] = layer.mod(scores[place].clone(), *at)
        if layer.mask is not None and not layer.mask.mask_mod(*at):
            scores[place] = float("-inf")
    return scores.softmax(-1)


def assert_as_the_functions(layers: list[Flexible], names: Any) -> None:
    """Capture these layers in a row, and compare every cell of each."""
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, TOKENS, 32)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        alone, (output, captured) = model(x), passed(model, x)
        assert torch.equal(output, alone)
        for number, layer in enumerate(layers):
            after = layer(x)
            assert_weights(captured, {number: weights_of(layer, x)}, 2e-6)
            for row, trace in enumerate(captured.traces):
                kept = slice(0, len(trace.keys))
                assert trace[number].terms.named == names[number]
                assert trace[number].mask.bias is None
                written = sum(trace[number, head].output for head in range(HEADS)) + layer.out.bias.numpy()
                np.testing.assert_allclose(written, (after - x)[row, kept], atol=1e-5)
            x = after
    assert captured.unrecorded == ()
    assert all(trace.verify().agrees for trace in captured.traces)


TWO = tuple(zip(tuple(MODS)[::2], tuple(MODS)[1::2], strict=True))
"""The score_mods of two layers."""


@pytest.mark.parametrize(("two", "mask", "kv_heads"), in_turn(TWO, tuple(MASKS), (4, 2)))
def test_score_mods_that_are_score_terms(two: tuple[str, str], mask: str, kv_heads: int) -> None:
    """Each under every mask, and with keys for each head and for two: what one layer's rules say is not another's."""
    given = None if MASKS[mask] is None else block_mask(MASKS[mask])
    mods, terms = zip(*(MODS[name] for name in two), strict=True)
    assert_as_the_functions([Flexible(kv_heads=kv_heads, mod=mod, mask=given) for mod in mods], terms)


@pytest.mark.parametrize("cls", [Flexible, Compiled])
@pytest.mark.parametrize("options", [{}, {"scale": 0.2}, {"return_aux": flex.AuxRequest(lse=True)}], ids=str)
def test_ways_to_call_it(cls: type[Flexible], options: dict[str, Any], compiler: None) -> None:
    mod, terms = MODS["cap of the sum"]
    assert_as_the_functions([cls(mod=mod, mask=block_mask(causal), **options)], [terms])
    assert_as_the_functions([cls(**options)], [()])


def test_the_same_distances_in_some_of_the_heads(tmp_path: Any) -> None:
    layer, x = Flexible(mod=MODS["the same distances in all heads"][0]).eval(), torch.randn(1, TOKENS, 32)
    captured = captured_of(layer, x, options={"heads": [1, 3]})
    trace = hs.load(captured.trace.save(tmp_path / "one.safetensors"))
    for head in (1, 3):
        np.testing.assert_allclose(trace[0, head].weights[:], weights_of(layer, x)[0, head].detach(), atol=2e-6)


FIRST = """
import sys, threading
import torch, headscope as hs
model, ready = torch.nn.MultiheadAttention(16, 2, batch_first=True), threading.Barrier(4)
x, counts = torch.ones(1, 3, 16), []
def run():
    ready.wait()
    with hs.capture(model) as captured:
        model(x, x, x)
    counts.append(len(captured.trace))
threads = [threading.Thread(target=run) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
class Block(torch.nn.Module):
    def forward(self, x):
        import importlib
        library = importlib.import_module(".".join(["torch.nn.attention", {name}]))
        x = x.unflatten(-1, (2, 16)).transpose(1, 2)
        return getattr(library, {name})(x, x, x)
stacks = []
for model in (Block(), torch.nn.TransformerEncoderLayer(32, 2, batch_first=True).eval()):
    with torch.no_grad(), hs.capture(model) as captured:
        model(torch.randn(1, 5, 32))
    assert all(trace.verify().agrees for trace in captured.traces)
    stacks.append([trace.stack for trace in captured.traces])
print(*counts, *stacks, "transformers" in sys.modules)
"""


@pytest.mark.parametrize(
    "name", ['"flex_attention"', pytest.param('"_".join(["flex", "attention"])', marks=pytest.mark.slow)]
)
def test_the_first_calls_of_a_process(name: str) -> None:
    """Its first blocks may open in several threads. What PyTorch compiles when flex attention is first called is not
    in the way. A name that no code shows is read, too, in a module that is seen to attend.

    For a model of torch.nn, transformers is not imported.
    """
    code = FIRST.format(name=name)
    if "join" in name:
        code = code.replace(
            "(x, x, x)\nstacks", "(x, x, x) + torch.nn.functional.scaled_dot_product_attention(x, x, x)\nstacks"
        )
    stacks = "['self', 'self.2']" if "join" in name else "['self']"
    assert python(code) == f"3 3 3 3 {stacks} ['self'] False\n"


STEPS: tuple[Mod, ...] = (
    lambda s, b, h, i, j: s + 1.5,
    lambda s, b, h, i, j: torch.sub(s, SLOPES[h] * (j - i), alpha=2),
    lambda s, b, h, i, j: TABLE[h, j - i + TOKENS - 1] - s,
    lambda s, b, h, i, j: (i > j) + s,
    lambda s, b, h, i, j: s * -0.5,
    lambda s, b, h, i, j: 3 * s / CAP,
    lambda s, b, h, i, j: -s,
    lambda s, b, h, i, j: torch.tanh(s),
    lambda s, b, h, i, j: s.masked_fill(i < j, float("-inf")),
    lambda s, b, h, i, j: torch.where(j > 2, -float("inf"), s),
    lambda s, b, h, i, j: s.relu(),
    lambda s, b, h, i, j: s * SLOPES[h],
    lambda s, b, h, i, j: torch.where(s > 0, s, -float("inf")),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.sampled_from(range(len(STEPS))), max_size=5))
@example(steps=[0, 0, 12])
@example(steps=[10, 4, 12])
def test_any_chain_of_operators_is_read_truly_or_not_at_all(steps: list[int]) -> None:
    def mod(score: torch.Tensor, *place: torch.Tensor) -> torch.Tensor:
        for step in steps:
            score = STEPS[step](score, *place)
        return score

    try:
        scoring = Flexed(None, (), (1, 1), (), *read_score_mod(mod, (), SIZES, torch.device("cpu"), "here"))
    except UnsupportedError:
        return
    if {10, 11, 12} & {*steps}:  # no sum of terms, unless it masks every cell whatever the score is
        assert not any(scoring.allowed(*map(torch.tensor, place)) for place in np.ndindex(*SIZES))
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):  # random scores and places
        score = torch.randn((), generator=generator) * 10
        place = [torch.randint(0, size, (), generator=generator) for size in SIZES]
        expected = scoring.factor * score + scoring.bias(*place)
        if scoring.cap is not None:
            expected = scoring.cap * torch.tanh(expected / scoring.cap)
        if not scoring.allowed(*place):
            expected = torch.tensor(float("-inf"))
        torch.testing.assert_close(mod(score, *place), expected)


def test_heads_of_ones_own_flex_attention_are_silenced() -> None:
    model, x = Flexible(mask=block_mask(causal)).eval(), torch.randn(2, TOKENS, 32)
    with torch.no_grad(), ablate(model, [(0, head) for head in range(HEADS)]):
        torch.testing.assert_close(model(x), x + model.out.bias)


def test_a_graph_of_the_whole_model_is_read() -> None:
    model, inputs = built("BertModel", padded=True, attention=FLEX)
    graph = torch.compile(model, backend="aot_eager")
    for plain, other in zip(*(captured_of(one, **inputs).traces for one in (model, graph)), strict=True):
        np.testing.assert_allclose(other[0, 1].weights[:], plain[0, 1].weights[:], rtol=0, atol=1e-6)


UNREAD: dict[str, Mod] = {
    "another function": lambda s, b, h, i, j: s.relu(),
    "a factor for each head": lambda s, b, h, i, j: s * SLOPES[h],
    "a number after the cap": lambda s, b, h, i, j: 3 * torch.tanh(s / 3) + SLOPES[h] * j,
    "two scores": lambda s, b, h, i, j: s + s.tanh(),
    "a mask before the cap": lambda s, b, h, i, j: torch.tanh(s.masked_fill(i < j, float("-inf"))),
    "a finite mask": lambda s, b, h, i, j: torch.where(i < j, -5.0, s),
    "no score": lambda s, b, h, i, j: SLOPES[h] * j,
    "numbers far beyond the cap": lambda s, b, h, i, j: 3 * torch.tanh((s + 40 * (j - i)) / 3),
    "whole numbers": lambda s, b, h, i, j: s.to(torch.int32).float(),
    "a mask by the score": lambda s, b, h, i, j: torch.where(s > 0, s, -float("inf")),
}


@pytest.mark.parametrize("name", UNREAD)
def test_other_score_mods_are_named_unless_nobody_wants_their_layer(name: str) -> None:
    model = nn.Sequential(Flexible(mod=UNREAD[name]), Flexible()).eval()
    captured = captured_of(model, torch.randn(2, TOKENS, 32), options={"layers": [1]})
    assert captured.traces[0].numbers == (1,)
    refused(r"not a sum of score terms[\s\S]*where: 0[\s\S]*sdpa", model, torch.randn(2, TOKENS, 32))


DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2, 2]] * 2)


@pytest.mark.parametrize(
    ("mod", "mask"),
    [
        (None, lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j]),
        (None, lambda b, h, i, j: (i >= j) | (h == 0)),
        (lambda s, b, h, i, j: s + LOWER.nan_to_num(neginf=1.0)[i, j] * i, causal),
    ],
    ids=["packed documents", "one head sees more", "numbers without a rule"],
)
def test_what_follows_no_rule_is_never_kept_as_a_map(mod: Any, mask: Any) -> None:
    model = Flexible(mod=mod, mask=flex.create_block_mask(mask, 2, HEADS, TOKENS, TOKENS, device="cpu")).eval()
    refused(r"follows no rule[\s\S]*scaled_dot_product", model, torch.randn(2, TOKENS, 32))


def test_blocks_that_contradict_the_function_are_refused() -> None:
    """Compiled kernels would skip the second block of keys, and the uncompiled form doesn't."""
    count, indices = torch.ones(1, 1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32)
    mask = flex.BlockMask.from_kv_blocks(count, indices, BLOCK_SIZE=128, seq_lengths=(256, 256))
    model = Flexible(mask=mask).eval()
    refused(r"contradicts itself[\s\S]*create_block_mask", model, torch.randn(1, 256, 32))


@pytest.mark.parametrize("mask_mod", [causal, window], ids=["causal", "window"])
def test_a_long_mask_is_read_in_blocks(mask_mod: Any) -> None:
    size = 3000
    mask = block_mask(mask_mod, size, rows=1)
    reading = Flexed.of(mask)
    with Largest() as largest:
        raw = reading.raw((3, 12, size, size), torch.device("cpu"), "here")
        rules = find_rules(raw, 3, size, size, slice(0, size))
    assert rules.shared
    assert rules.row(0).mask.causal == (mask_mod is causal)
    assert rules.row(0).mask.window == (None if mask_mod is causal else (2, 2))
    assert largest.cells <= BLOCK_CELLS < size * size


def test_layers_that_share_a_mask_read_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, read, mask = [], Flexed.read, block_mask(causal)
    monkeypatch.setattr(Flexed, "read", lambda *given: calls.append(1) or read(*given))  # type: ignore[func-returns-value]
    layers = [Flexible(mod=MODS["alibi"][0], mask=mask) for _ in range(3)]
    captured_of(nn.Sequential(*layers).eval(), torch.randn(2, TOKENS, 32))
    assert len(calls) == 1

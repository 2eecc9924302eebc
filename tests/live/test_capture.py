"""A capture leaves the model unchanged, keeps what was requested, and refuses attention that it can't read."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from comparing import (
    Mixer,
    Residual,
    assert_weights,
    captured_of,
    eager_attentions,
    own,
    pass_of,
    passed,
    refused,
    weights_of,
)
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

import headscope as hs
from families import BY_NAME, DEBERTA, DEBERTA_V2, Family, built
from headscope.errors import InputError, UnsupportedError
from headscope.live import Call, Consumer, Forward, Stack, ablate, capture, feed
from headscope.live.names.sources import MEMORIES
from patience import PATIENCE

BERT = BY_NAME["BertModel"]


def state(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that a capture could have changed."""
    found: dict[str, Any] = {
        "attention": dict(AttentionInterface._global_mapping),
        "masks": dict(AttentionMaskInterface._global_mapping),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "grad": torch.is_grad_enabled(),
    }
    for path, module in model.named_modules():
        if hasattr(module, "config"):
            found[f"{path} config"] = copy.deepcopy(module.config.to_dict())
            found[f"{path} config attributes"] = {name: repr(value) for name, value in vars(module.config).items()}
        found[f"{path} hooks"] = [len(getattr(module, name)) for name in vars(module) if name.endswith("_hooks")]
        found[f"{path} names"] = list(vars(module))
        found[f"{path} training"] = module.training
        file = vars(__import__("sys").modules[type(module).__module__])
        found[f"{path} functions"] = {name: id(value) for name, value in file.items() if "attention" in name.lower()}
    for name, tensor in model.state_dict().items():
        found[f"{name} data"] = (tensor.data_ptr(), tensor.sum().item())
    return found


@pytest.mark.parametrize(
    "made",
    [
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda: nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
        BERT.build,
    ],
    ids=["operator", "layer", "interface"],
)
def test_a_model_goes_with_its_last_reference(made: Callable[[], nn.Module]) -> None:
    """Also in the function that captured it, and where no collector looks for circles."""
    for captures in range(2):  # the first may import what it needs, and imports leave circles behind
        gc.disable()
        try:
            model, x = made().eval(), torch.randn(1, 5, 8)
            with capture(model) as captured:
                if hasattr(model, "config"):
                    model(input_ids=torch.arange(4, 9)[None])
                else:
                    model(*[x] * (3 if isinstance(model, nn.MultiheadAttention) else 1))
            trace, gone, at = captured.trace, weakref.ref(model), id(model)
            assert at in MEMORIES
            del model, captured
            assert (gone() is None and at not in MEMORIES) or not captures
            assert len(trace.layers) > 0
        finally:
            gc.enable()


@pytest.mark.parametrize("name", ["BertModel", "LlamaModel", "T5Model", "CLIPModel", "SiglipVisionModel"])
@pytest.mark.parametrize("raises", [False, True])
def test_everything_is_as_before(name: str, raises: bool) -> None:
    family = BY_NAME[name]
    model = family.build()
    inputs = family.inputs(padded=family.takes != "image")
    before = state(model)

    def broken(*_: Any) -> None:
        raise RuntimeError("in the middle of it")

    if raises:
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        handle = last.register_forward_hook(broken)
        with pytest.raises(RuntimeError, match="in the middle"), capture(model) as captured:
            model(**inputs)
        handle.remove()
        assert captured.traces == []
    else:
        captured_of(model, **inputs)
    assert state(model) == before


def test_select_layers_heads_and_precision() -> None:
    model, inputs = BERT.build(), BERT.inputs(padded=False)
    options = {"layers": [1], "heads": [3, 1], "values": False, "dtype": "fp16"}
    trace, reference = (captured_of(model, options=given, **inputs).traces[0] for given in (options, {}))
    assert trace.numbers == (1,)
    assert trace.head_numbers(1) == (1, 3)
    assert trace.layers[0].v is None
    assert trace.layers[0].q.dtype == np.float16
    np.testing.assert_allclose(np.asarray(trace[1, 3].weights), np.asarray(reference[1, 3].weights), atol=2e-2)
    with pytest.raises(InputError, match="not kept"):
        trace[0, 0]


def test_another_device_by_default_changes_nothing() -> None:
    """As a script sets it, torch.set_default_device("cuda"), beside arrays of NumPy; here to one without numbers."""
    model, inputs = BERT.build(), BERT.inputs(padded=True)
    expected = captured_of(model, **inputs).traces
    with torch.device("meta"):
        found = captured_of(model, **inputs).traces
        assert all(trace.verify().agrees for trace in found)
        tables = [trace.statistics(engine="torch")["entropy"].array for trace in found]
        opened = hs.open("-").trace("The cat sat.", "On a mat.")
        assert opened.verify().agrees
        survey = hs.survey("-", ["The cat sat on the mat. " * 5] * 4, effects=2)
    for ours, theirs, table in zip(found, expected, tables, strict=True):
        for number in theirs.numbers:
            np.testing.assert_array_equal(ours[number].weights[...], theirs[number].weights[...])
        np.testing.assert_allclose(table, theirs.statistics()["entropy"].array, atol=1e-5)
    assert np.isfinite(survey["entropy"].array).all()


def test_numbers_beyond_fp16_are_refused() -> None:
    model = BERT.build()
    model.encoder.layer[1].attention.self.value.weight.data.mul_(1e7)
    captured = captured_of(model, options={"dtype": "fp16"}, **BERT.inputs(padded=False))
    with pytest.raises(InputError, match=r"layer 1: v has numbers beyond 65,504"):
        captured.traces


@pytest.mark.parametrize(("name", "kv_heads"), [("BertModel", 4), ("LlamaModel", 2)])
def test_selected_and_silenced_heads(name: str, kv_heads: int) -> None:
    model, inputs = built(name, padded=True)
    whole = captured_of(model, **inputs)
    assert whole.traces[0].layers[0].k.shape[0] == kv_heads
    with ablate(model, [(1, 3)]):
        some = captured_of(model, options={"layers": [1], "heads": [2, 3]}, **inputs)
    for trace, reference in zip(some.traces, whole.traces, strict=True):
        for part in ("k", "weights", "output"):
            np.testing.assert_array_equal(*(np.asarray(getattr(one[1, 2], part)) for one in (trace, reference)))
        assert trace[1, 3].silenced
        assert not trace[1, 3].output.any()
        assert trace.verify().agrees


@pytest.mark.parametrize(("option", "value", "message"), [("heads", [4], "no head 4"), ("layers", [2], "no layer 2")])
def test_missing_layers_and_heads_raise(option: str, value: list[int], message: str) -> None:
    model = BERT.build()
    with pytest.raises(InputError, match=message), torch.no_grad(), capture(model, **{option: value}):
        model(**BERT.inputs(padded=False))
    with pytest.raises(InputError, match="fp8"):
        capture(model, dtype="fp8")


def test_the_only_trace_or_an_error() -> None:
    model = BERT.build()
    with capture(model) as captured:
        pass
    with pytest.raises(InputError, match="no forward pass"):
        captured.trace
    with torch.no_grad(), capture(model) as captured:
        model(torch.tensor([[5, 6, 7]]))
        assert len(captured.trace) == 3
        model(torch.tensor([[5, 6]]))
    assert [len(trace) for trace in captured.traces] == [3, 2]
    assert [*captured] == captured.traces
    assert captured.traces[1] in captured
    assert len(captured) == 2
    with pytest.raises(InputError, match=r"captured\.traces\[0\]"):
        captured[0]  # type: ignore[index]
    with pytest.raises(InputError, match="2 traces"):
        captured.trace
    with pytest.raises(InputError, match="no stack 'cross'"):
        captured["cross"]
    with torch.no_grad(), capture(model) as captured:
        model.encoder.layer[0](torch.randn(1, 3, 32))
    with pytest.raises(InputError, match="outside a forward"):
        captured.trace


@pytest.mark.parametrize("handling", [False, True])
def test_a_model_that_returns_nothing(handling: bool) -> None:
    """Its pass has ended as any other, also where it is called while an exception is handled."""
    model, x = own(lambda self, x: (self.mix(x), None)[1], mix=Mixer()), torch.randn(2, 5, 32)
    try:
        assert not handling
    except AssertionError:
        captured = captured_of(model, x)
    else:
        captured = captured_of(model, x)
    assert_weights(captured, [weights_of(model.mix, x)])
    assert len(captured.traces) == 2


def test_a_model_that_calls_itself() -> None:
    """All its calls are one pass, which ends with the outermost."""

    def forward(self: Any, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        return self.layers[depth](self(x, depth - 1) if depth else x)

    model, x = own(forward, layers=nn.ModuleList(Residual() for _ in range(3))), torch.randn(1, 5, 32)
    given = [x, (first := model.layers[0](x)), model.layers[1](first)]
    captured = captured_of(model, x)
    assert len(captured.forwards) == 1
    assert_weights(captured, [weights_of(*each) for each in zip(model.layers, given, strict=True)])


def test_captures_that_close_in_another_order_leave_nothing_behind() -> None:
    first, second = capture(BERT.build()), capture(nn.MultiheadAttention(8, 2))
    compiled = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: lambda x: (x + 2,))
    with first:
        second.__enter__()
    assert compiled(torch.zeros(1)).item() == 1
    assert not torch.backends.mha.get_fastpath_enabled()
    second.__exit__(None, None, None)
    assert compiled(torch.zeros(1)).item() == 2
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("what", [None, "function", "model"])
def test_a_trace_goes_to_another_process_without_its_model(what: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the arguments of its call, which may be of any kind, or tensors, whose memory ends with a process."""
    model = own(lambda self, ids, given: self.bert(ids), bert=BERT.build())
    captured = captured_of(model, torch.tensor([[4, 5, 6]]), {"function": lambda: None, "model": model}.get(what or ""))
    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", lambda *_: pytest.fail("a tensor was pickled"))
    again = pickle.loads(pickle.dumps(captured.trace))
    monkeypatch.undo()
    np.testing.assert_array_equal(again[1, 2].weights[:], captured.trace[1, 2].weights[:])
    report = again.verify()
    assert report.agrees
    assert dict(report.skipped) == dict.fromkeys(("tokens", "eager weights"), "the model no longer exists")
    assert copy.deepcopy(captured.trace).verify().skipped == captured.trace.verify().skipped


def test_data_parallel_over_one_place_works_and_over_more_is_refused() -> None:
    wrapped = nn.DataParallel(BERT.build())
    assert len(captured_of(wrapped, **BERT.inputs(padded=False)).traces) == 2
    wrapped.device_ids = [0, 1]
    with pytest.raises(UnsupportedError, match=r"2 devices[\s\S]*model\.module"):
        capture(wrapped)


@pytest.mark.parametrize("name", ["TransformerEncoder", "T5Model"])
def test_a_shared_bias_is_kept_once(name: str) -> None:
    """As a map if it follows no rule, otherwise as a number for each distance."""
    if name == "TransformerEncoder":
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model: Any = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        first, second = captured_of(model, torch.randn(1, 5, 16), mask=torch.randn(5, 5)).trace.layers
        assert first.mask.bias is not None
        assert first.mask.bias is second.mask.bias
    else:
        _, captured, _ = pass_of(BY_NAME[name], padded=False)
        assert captured["cross"][0].layers[0].mask.everything
        first, second = captured["encoder"][0].layers
        assert first.mask.bias is None
        assert first.terms.buckets is second.terms.buckets
        np.testing.assert_array_equal(first.terms.by_distance, second.terms.by_distance)


class Counter(Consumer):
    """A custom consumer that computes a number on the tensors' device and keeps only that."""

    def __init__(self) -> None:
        self.masses: dict[int, torch.Tensor] = {}
        self.forwards = 0

    def begin(self, forward: Forward) -> None:
        self.forwards += 1

    def end(self, forward: Forward) -> None:
        assert forward.output is not None

    def drop(self, forward: Forward) -> None:
        raise AssertionError

    def wants(self, stack: Stack, layer: int) -> bool:
        return layer == 1

    def take(self, forward: Forward, call: Call) -> None:
        first = (call.scale * (call.q * call.k[:, :, :1]).sum(-1) - call.lse).exp()
        self.masses[call.layer] = first.mean((0, 2))


def test_consumers_get_live_tensors() -> None:
    model, inputs, counter = BERT.build(), BERT.inputs(padded=False), Counter()
    with torch.no_grad(), feed(model, counter):
        model(**inputs)
    assert list(counter.masses) == [1]
    expected = eager_attentions(model, inputs, BERT.stacks)["self"][1][..., 0].mean((0, 2))
    np.testing.assert_allclose(counter.masses[1].numpy(), expected, atol=1e-6)


OFF_THE_INTERFACE = {
    "XLNetModel": "two streams",
    "LongformerModel": "projections of their own",
    "BigBirdModel": "several times|block-sparse",
    "LukeModel": "four query projections",
    "FunnelModel": "queries are pooled",
    "ReformerModel": "hashed into chunks|in chunks",
    "FNetModel": "Fourier",
    "NystromformerModel": "landmark",
    "SqueezeBertModel": "convolutions",
    "ConvBertModel": "convolutions",
    "LiltModel": "LiltSelfAttention computes",
    "MambaModel": "state-space",
    "RwkvModel": "linear recurrence",
    "MobileViTV2Model": "linear attention",
}
"""Model -> what the error says about it."""


NOT_READ: list[tuple[str, dict[str, Any], str]] = [
    ("DebertaModel", {**DEBERTA, "talking_head": True}, "talking_head"),
    ("DebertaModel", {**DEBERTA, "pos_att_type": ["c2p", "p2p"]}, "pos_att_type p2p"),
    ("DebertaV2Model", {**DEBERTA_V2, "pos_att_type": ["p2p"]}, "pos_att_type p2p"),
    ("BloomModel", {"hidden_size": 36, "n_head": 6, "pretraining_tp": 2, "slow_but_exact": True}, "slow_but_exact"),
]
"""Settings that a reader can't read."""


@pytest.mark.parametrize(
    ("name", "settings", "message"), [*((name, {}, message) for name, message in OFF_THE_INTERFACE.items()), *NOT_READ]
)
def test_models_that_cannot_be_read_raise_before_anything_runs(name: str, settings: Any, message: str) -> None:
    cls = getattr(transformers, name)
    config = cls.config_class(**settings)
    if name not in ("FunnelModel", "ReformerModel"):
        config.num_hidden_layers = 1
    with torch.device("meta"):
        model = cls(config)
    with pytest.raises(UnsupportedError, match=rf"{name}[\s\S]*({message})") as caught:
        capture(model)
    assert caught.value.advice


IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
SEGFORMER = {"hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 2, 2, 2], "depths": [1] * 4}
SEGFORMER |= {"decoder_hidden_size": 8}  # type: ignore[dict-item]
SWIN = {"image_size": 64, "patch_size": 8, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4}


@pytest.mark.parametrize(("name", "settings"), [("SegformerModel", SEGFORMER), ("SwinModel", SWIN)])
def test_layers_over_other_tokens_are_traces_of_their_own(name: str, settings: dict[str, Any]) -> None:
    captured = captured_of(Family(name, settings, takes="image").build(), pixel_values=IMAGES)
    assert len(captured.traces) > 2
    assert all(trace.verify(reference=False).agrees for trace in captured.traces)


@pytest.mark.parametrize("settings", [SWIN, {**SWIN, "depths": [2, 2], "num_heads": [2, 4]}])
def test_attentions_of_some_layers_are_compared_with_these(settings: dict[str, Any]) -> None:
    """transformers returns the last layer of each of Swin's stages."""
    model = Family("SwinModel", settings, takes="image").build(attention="eager")
    output, captured = passed(model, pixel_values=IMAGES, output_attentions=True)
    last = np.cumsum(settings["depths"]) - 1
    for trace in captured.traces:
        report = trace.verify(against=output.attentions)
        assert report.agrees, report
        stage = int(np.searchsorted(last, trace.numbers[0]))
        assert f"array {stage} is layer {last[stage]}" in report.checks[0].compared
        assert f"array {1 - stage} is of no layer here" in report.checks[0].compared
        changed = [attention.clone() for attention in output.attentions]
        changed[stage][trace.row, 0, 0] = changed[stage][trace.row, 0, 0].flip(-1)
        with contextlib.suppress(InputError):
            assert not trace.verify(against=changed).agrees


# Several threads capture one model at the same time: each sees only its own forward passes.


THREADS = 4


Made = tuple[nn.Module, nn.Module, Callable[[int], torch.Tensor]]
"""A model, one of its inner modules, and for each thread an input of another length."""


def ids_of(at: int) -> torch.Tensor:
    return torch.arange(5, 10 + at)[None]


def numbers(at: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 32 * (5 + at)).view(1, 5 + at, 32)


def torch_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 2, 32, batch_first=True)


def encoder() -> Any:
    return nn.TransformerEncoder(torch_layer(), 2, enable_nested_tensor=False).eval()


MODELS: dict[str, Callable[[], Made]] = {
    "transformers": lambda: (model := BERT.build(), model.encoder.layer[1], ids_of),
    "torch": lambda: (model := encoder(), model.layers[1], numbers),
    "own": lambda: (model := nn.Sequential(Mixer(), Mixer()), model[1], numbers),
}


def together(run: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What a function gives in threads that run at the same time."""
    with ThreadPoolExecutor(count) as pool:
        return [given.result(PATIENCE) for given in [pool.submit(run, at) for at in range(count)]]


@pytest.mark.parametrize("name", MODELS)
def test_each_thread_sees_its_own_forward_passes(name: str) -> None:
    """All blocks are open and all forward passes are running at the same time."""
    model, inner, given = MODELS[name]()
    expected = [captured_of(model, given(at)).trace for at in range(THREADS)]
    opened, inside, done = (threading.Barrier(THREADS, timeout=PATIENCE) for _ in range(3))

    def run(at: int) -> Any:
        with torch.no_grad(), hs.capture(model) as captured:
            opened.wait()
            model(given(at))
            done.wait()
        return captured

    inner.register_forward_pre_hook(lambda *_: (inside.wait(), None)[1])
    for captured, alone in zip(together(run), expected, strict=True):
        assert len(captured.forwards) == 1
        assert len(captured.trace.layers) == 2
        for ours, theirs in zip(captured.trace.layers, alone.layers, strict=True):
            np.testing.assert_allclose(ours.q, theirs.q, atol=1e-6)
            np.testing.assert_allclose(ours.k, theirs.k, atol=1e-6)
        assert captured.trace.verify(reference=False).agrees


def test_each_task_sees_its_own_forward_passes() -> None:
    """And those in threads that it waits for; a block around all tasks sees all, and what one silences is its own."""
    model, given = BERT.build(), ids_of
    passes = [(at, given(at).shape[1]) for at in (2, 3)]

    async def run(at: int, opened: asyncio.Event) -> Any:
        with hs.ablate(model, {(0, 0): "zero"}) if at == 2 else nullcontext(), hs.capture(model) as captured:
            opened.set()
            await asyncio.gather(*(each.wait() for each in events))
            model(given(at))
            await asyncio.to_thread(model, given(at))
        return captured

    async def all_runs() -> tuple[Any, list[Any]]:
        events[:] = [asyncio.Event(), asyncio.Event()]
        with hs.capture(model) as around:
            return around, await asyncio.gather(run(2, events[0]), run(3, events[1]))

    events: list[Any] = []
    around, each = asyncio.run(all_runs())
    assert sorted(len(trace) for trace in around.traces) == [length for _, length in passes for _ in range(2)]
    for (at, length), captured in zip(passes, each, strict=True):
        assert [len(trace) for trace in captured.traces] == [length] * 2
        assert all(trace.ablated == ({(0, 0)} if at == 2 else set()) for trace in captured.traces)


@pytest.mark.parametrize("first", ["closes", "opens"])
@pytest.mark.parametrize("name", MODELS)
def test_a_block_opens_or_closes_while_another_thread_is_inside_a_forward_pass(name: str, first: str) -> None:
    model, inner, given = MODELS[name]()
    inside, changed, slow = threading.Event(), threading.Event(), list[int]()

    def wait(*_: Any) -> None:
        if threading.get_ident() in slow:
            inside.set()
            assert changed.wait(PATIENCE)

    def run(at: int) -> Any:
        if at == 0:
            slow.append(threading.get_ident())
            return captured_of(model, given(0))
        try:
            assert first == "closes" or inside.wait(PATIENCE)
            with torch.no_grad(), hs.capture(model) as captured:
                if first == "opens":
                    changed.set()
                model(given(1))
                assert inside.wait(PATIENCE)
        finally:
            changed.set()
        return captured

    hook = inner.register_forward_pre_hook(wait)
    found = together(run, 2)
    hook.remove()
    assert [(len(each.trace.queries), len(each.trace.layers)) for each in found] == [(5, 2), (6, 2)]
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("name", MODELS)
def test_blocks_within_blocks_count_each_call_once(name: str) -> None:
    """Of the whole model, of a part of it, and of some layers."""
    model, part, given = MODELS[name]()
    with hs.capture(model) as outer:
        inner = captured_of(model, given(0))
        with hs.capture(part) as second:
            first = captured_of(model, given(1), options={"layers": [0]})
    assert [len(trace.queries) for trace in outer.traces] == [5, 6]
    assert len(inner.trace.layers) == len(outer.traces[0].layers) == 2
    for one, layer in ((first, 0), (second, 1)):
        assert (len(one.forwards), len(one.trace.layers)) == (1, 1)
        np.testing.assert_array_equal(one.trace.layers[0].q, outer.traces[1].layers[layer].q)


def test_a_forward_pass_of_a_thread_without_a_block() -> None:
    """If one thread has a block, the forward pass belongs to it; if several do, it belongs to none of them."""
    model, given = BERT.build(), ids_of
    opened, ran = threading.Barrier(3, timeout=PATIENCE), threading.Barrier(3, timeout=PATIENCE)

    def run(at: int) -> Any:
        with torch.no_grad(), nullcontext() if at == 2 else hs.capture(model) as captured:
            opened.wait()
            model(given(at))
            ran.wait()
        return captured

    assert [len(captured.trace.queries) for captured in together(run, 3)[:2]] == [5, 6]
    with torch.no_grad(), hs.capture(model) as captured:
        together(lambda at: [model(given(at)) for _ in range(5)] and None)
    assert sorted(trace.ids for trace in captured.traces) == [
        tuple(range(5, 10 + at)) for at in range(THREADS) for _ in range(5)
    ]
    for trace in captured.traces:
        assert trace.numbers == (0, 1)
        assert trace.verify(reference=False).agrees


def divided(layers: Sequence[nn.Module], elsewhere: Collection[int], *, directly: bool = False) -> Any:
    """A model that runs some of its layers in another thread, by calling them or their forward."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            for at, layer in enumerate(self.layers):
                call = layer.forward if directly else layer
                x = pool.submit(call, x).result() if at in elsewhere else layer(x)
        return x

    return own(forward, layers=nn.ModuleList(layers))


X = numbers(0)


@pytest.mark.parametrize("directly", [False, True])
@pytest.mark.parametrize("elsewhere", [{1}, {0, 1, 2}])
@pytest.mark.parametrize("layer", [Mixer, torch_layer])
def test_a_layer_that_another_thread_runs_is_named(
    layer: Callable[[], nn.Module], elsewhere: set[int], directly: bool
) -> None:
    """A forward pass is recorded in one thread: a layer that it has sent to another ends it with an error."""
    model = divided([layer() for _ in range(3)], elsewhere, directly=directly)
    expected, captured = passed(model, X, options={"strict": False})
    assert {call.module.split(".")[1] for call in captured.unrecorded} == {str(at) for at in elsewhere}
    refused(rf"attention in another thread in layers\.{min(elsewhere)}", model, X)
    with hs.capture(model.layers[1]) as captured:
        torch.testing.assert_close(model(X), expected)
    assert directly or len(captured.traces) == 1  # which is captured alone, whichever thread runs it


def test_a_transformers_layer_that_another_thread_runs_is_named() -> None:
    model = BERT.build()
    run = model.encoder.layer[1].forward
    with ThreadPoolExecutor(1) as pool:
        model.encoder.layer[1].forward = lambda *args, **kwargs: pool.submit(run, *args, **kwargs).result()
        refused(r"another thread in encoder\.layer\.1", model, ids_of(0))


def test_layers_without_a_call_are_listed() -> None:
    """A model may skip layers, so that is no error; the trace and its report say so."""
    model = own(lambda self, x: self.layers[1](x), layers=nn.ModuleList([Mixer(), Mixer()]))
    captured = captured_of(model, X)
    note = "no attention of layers.0 was seen in this forward pass"
    assert (captured.trace.numbers, captured.trace.notes) == ((1,), (note,))
    assert note in captured.trace.verify().notes
    assert captured_of(model, X, options={"layers": [1]}).trace.notes == ()

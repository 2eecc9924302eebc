"""Models that aren't whole where they stand: offloaded, meta and quantised weights; and copies made in a block."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from comparing import assert_weights, captured_of, own, tokenizer
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.testing._internal.two_tensor import TwoTensor

import headscope as hs
from families import BY_NAME, TEXT, Family, built
from headscope.errors import NoteWarning, UnsupportedError
from headscope.live import ablate, capture
from headscope.live.progress import WeakStorage
from products import pairwise

pytestmark = pytest.mark.usefixtures("no_grad")

IDS = torch.tensor([[2, 5, 6, 3], [2, 6, 3, 0]])


class OnDisk(dict[str, torch.Tensor]):
    """Tensors that are copied each time they are read, as from a disk."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return super().__getitem__(name).clone()


class Align:
    """accelerate's AlignDevicesHook, as far as it matters: `weights_map`, and parameters that come and go.

    Args:
        weights_map: where they come from.
        inside: bring those of the modules inside, too.
    """

    def __init__(self, weights_map: dict[str, torch.Tensor], *, inside: bool = False) -> None:
        self.weights_map, self.inside = weights_map, inside

    def move(self, module: nn.Module, to: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        for path, part in module.named_modules() if self.inside else [("", module)]:
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    full = f"{path}.{name}" if path else name
                    part._parameters[name] = nn.Parameter(to(full, parameter.detach()))

    def before(self, module: nn.Module) -> None:
        self.move(module, lambda name, _: self.weights_map[name])

    def after(self, module: nn.Module) -> None:
        self.move(module, lambda _, x: x.to("meta"))


def run_with(hook: Align, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    hook.before(module)
    try:
        return forward(*args, **kwargs)
    finally:
        hook.after(module)


def put_on(module: nn.Module, hook: Align, *, sequence: bool = False) -> None:
    # As accelerate's SequentialHook has them.
    module._hf_hook = SimpleNamespace(hooks=(hook,)) if sequence else hook  # type: ignore[assignment]
    module.forward = partial(run_with, hook, module, module.forward)  # type: ignore[method-assign]
    hook.after(module)


def offload(model: nn.Module, *, disk: bool = False, sequence: bool = False) -> nn.Module:
    """A copy of a model with the parameters of each module on the meta device until the module runs."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if kept := {name: x.detach() for name, x in module.named_parameters(recurse=False)}:
            put_on(module, Align(OnDisk(kept) if disk else kept), sequence=sequence)
    assert all(parameter.is_meta for parameter in model.parameters())
    return model


bert = Family("BertForMaskedLM", TEXT, config="BertConfig").build
WAYS: list[dict[str, bool]] = [{}, {"disk": True}, {"sequence": True}]


@pytest.mark.parametrize("way", WAYS)
def test_an_offloaded_model_leaves_the_traces_of_the_model(way: dict[str, bool]) -> None:
    """And is opened and described as the model is."""
    plain = bert()
    model = offload(plain, **way)
    inputs = {"input_ids": IDS, "attention_mask": (IDS > 0).long(), "output_hidden_states": True}
    for expected, trace in zip(*(captured_of(one, **inputs).traces for one in (plain, model)), strict=True):
        assert trace.tokens == expected.tokens
        report = trace.verify()
        assert report.agrees
        assert {"tokens", "weights (eager)"} <= {check.name for check in report.checks}
        for statistic in ("entropy", "norm"):
            np.testing.assert_allclose(trace.statistics()[statistic], expected.statistics()[statistic], atol=1e-6)
        for kind in ("Attn-N", "AttnResLn-N"):
            np.testing.assert_allclose(trace.norm_map(1, kind)[:], expected.norm_map(1, kind)[:], atol=1e-6)
        np.testing.assert_allclose(trace[1, 3].output[:], expected[1, 3].output[:], atol=1e-6)
    weights = [hs.trace(one, "the cat", tokenizer=tokenizer())[1, 2].weights[:] for one in (plain, model)]
    np.testing.assert_allclose(*weights, atol=1e-6)
    with ablate(plain, [(0, 1)]), ablate(model, [(0, 1)]):
        torch.testing.assert_close(model(IDS).logits, plain(IDS).logits)
    assert hs.describe(model).total == hs.describe(plain).total
    opened = hs.open(model)
    for layer in range(2):
        query = plain.bert.encoder.layer[layer].attention.self.query.weight.detach().numpy()
        np.testing.assert_array_equal(np.asarray(opened.layers[layer].heads[1].W_Q), query[8:16].T)


@pytest.mark.parametrize("name", ["MPNetModel", "BloomModel", "GPT2Model"])
def test_families_whose_attention_is_read_from_its_inputs(name: str) -> None:
    plain, inputs = built(name, padded=True)
    model = offload(plain)
    for expected, trace in zip(*(captured_of(one, **inputs).traces for one in (plain, model)), strict=True):
        for layer in expected.numbers:
            np.testing.assert_allclose(trace[layer].weights[...], expected[layer].weights[...], atol=1e-6)


def test_multihead_attention_whose_own_hook_brings_its_weights() -> None:
    def forward(self: Any, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return self.mha(x, x, x, need_weights=False)[0]

    plain = own(forward, embed=nn.Embedding(60, 32), mha=nn.MultiheadAttention(32, 4, batch_first=True))
    model = copy.deepcopy(plain)
    kept = OnDisk({name: x.detach() for name, x in model.mha.named_parameters()})
    put_on(model.mha, Align(kept, inside=True))
    found = [captured_of(one, IDS).traces[0] for one in (plain, model)]
    np.testing.assert_allclose(found[0][0].weights[...], found[1][0].weights[...], atol=1e-6)
    np.testing.assert_allclose(found[0][0, 1].output[:], found[1][0, 1].output[:], atol=1e-6)
    assert all(parameter.is_meta for parameter in model.mha.parameters())
    with ablate(plain, [(0, 1)]), ablate(model, [(0, 1)]):
        torch.testing.assert_close(model(IDS), plain(IDS))


def test_weights_on_the_meta_device_are_refused_by_name() -> None:
    with torch.device("meta"):
        model = bert()
    faces = (
        capture,
        partial(ablate, heads=[(0, 0)]),
        partial(hs.trace, text="the cat", tokenizer=tokenizer()),
        hs.open,
    )
    refused = r"\w+\.weight is on the meta device: it has a shape, but no numbers"
    for face in faces:
        with pytest.raises(UnsupportedError, match=refused):
            face(model)  # type: ignore[operator]
    assert hs.describe(model).total == hs.describe(bert()).total


def test_weights_that_go_to_the_meta_device_after_the_pass() -> None:
    model = bert()
    captured = captured_of(model, IDS)
    model.to("meta")
    with pytest.raises(UnsupportedError, match=r"dense\.weight is on the meta device") as raised:
        captured.traces[0][1, 0].output
    assert raised.value.where == "layer 1, head 0"


# Models that PyTorch quantises (`quantize_dynamic`): what is read of them, and what is refused.

SIX = torch.arange(3, 9)[None]


def quantised(model: nn.Module, dtype: torch.dtype = torch.qint8, kinds: set[type] | None = None) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: nn.Module = torch.ao.quantization.quantize_dynamic(model, kinds or {nn.Linear}, dtype=dtype)
    return found


plain_bert = BY_NAME["BertModel"].build


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_a_quantised_model_is_captured_and_verified(dtype: torch.dtype) -> None:
    """Weights in half precision are those that the model multiplies with; packed ones are refused by name."""
    model = quantised(plain_bert(), dtype)
    captured = captured_of(model, SIX)
    trace, report = captured.trace, captured.trace.verify()
    assert report.agrees
    assert trace.ids == tuple(SIX[0].tolist())
    assert [check.name for check in report.checks] == ["row sums", "module output", "tokens", "weights (eager)"]
    assert not any("training" in str(skipped) for skipped in report.skipped)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")  # type: ignore[operator]
    assert_weights([trace], eager(SIX, output_attentions=True).attentions)
    dense = model.encoder.layer[1].attention.output.dense  # type: ignore[union-attr,index]
    if dtype == torch.float16:
        contexts = torch.cat([torch.as_tensor(trace[1, head].context[:]) for head in range(4)], -1)
        total = sum(torch.as_tensor(trace[1, head].output[:]) for head in range(4)) + dense.bias()
        torch.testing.assert_close(total, dense(contexts), atol=1e-5, rtol=1e-5)
        return
    with pytest.raises(
        UnsupportedError, match=r"layer\.1\.attention\.output\.dense stores packed weights \(torch.qint8"
    ):
        trace[1, 0].output
    with pytest.raises(
        UnsupportedError, match=r"BertModel whose weights are packed can't be opened: encoder\.layer\.0"
    ):
        hs.open(model)


def test_packed_weights_of_many_passes() -> None:
    """PyTorch makes an object of them in each call: one may have the hash of another, to which it can't be compared."""
    model = quantised(plain_bert())
    for _ in range(50):
        assert captured_of(model, SIX).trace.ids == tuple(SIX[0].tolist())


class Codes(torch.Tensor):
    """A weight as torchao quantises it: a tensor whose numbers are in others, with which a Linear can multiply."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)  # type: ignore[attr-defined]

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].held)
        if func in (torch.ops.aten.t.default, torch.ops.aten.addmm.default):
            return func(*(x.held if isinstance(x, Codes) else x for x in args))
        raise NotImplementedError(func)


def test_weights_that_are_tensors_of_tensors_are_refused() -> None:
    model = plain_bert()
    dense = model.encoder.layer[1].attention.output.dense
    dense.weight = nn.Parameter(Codes(dense.weight.detach()), requires_grad=False)
    trace = captured_of(model, SIX).trace
    assert trace.verify().agrees
    assert trace[0, 0].output.shape == (6, 32)
    with pytest.raises(UnsupportedError, match=r"output\.dense stores packed weights \(Codes\)"):
        trace[1, 0].output
    with pytest.raises(UnsupportedError, match=r"output\.dense\.weight is a Codes"):
        hs.open(model)


@pytest.mark.parametrize("silenced", [False, True])
def test_activations_that_are_tensors_of_tensors_are_refused(silenced: bool) -> None:
    """As optimum-quanto quantises them."""
    model = plain_bert()
    for part in ("query", "key", "value"):
        linear = getattr(model.encoder.layer[1].attention.self, part)
        linear.register_forward_hook(lambda module, args, output: TwoTensor(output, output))
    block = ablate(model, {(1, 0)}) if silenced else capture(model)
    message = "BertSelfAttention attends with a TwoTensor"
    with pytest.raises(UnsupportedError, match=message) as raised, block:
        model(SIX)
    assert raised.value.where == "encoder.layer.1.attention.self"


def test_packed_weights_are_counted() -> None:
    plain = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False), nn.Embedding(5, 4)).eval()
    described, before = hs.describe(quantised(plain)), hs.describe(plain)
    assert (described.total, described.frozen) == (before.total, 8 * 4 + 4 + 4 * 2)
    assert [part.count for part in described.components] == [part.count for part in before.components]
    assert [part.count for part in described.tree.children] == [part.count for part in before.tree.children]
    assert {row[:2] for row in described.parameters} == {row[:2] for row in before.parameters}
    assert ("0.weight", (4, 8), "qint8", 32, False) in described.parameters
    assert hs.describe(quantised(plain)[0]).total == 36  # type: ignore[index]
    model = plain_bert()
    assert hs.describe(quantised(model)).total == hs.describe(model).total
    with pytest.raises(UnsupportedError, match="LSTM packs its weights in a form that can't be counted") as raised:
        hs.describe(quantised(nn.Sequential(nn.LSTM(4, 4)), kinds={nn.LSTM}))
    assert raised.value.where == "0"


def test_modules_made_in_training_mode_are_no_reason_to_skip() -> None:
    """A layer that is replaced after eval() is in training mode, for which dropout asks, but not a Linear."""
    model = plain_bert()
    dense = model.encoder.layer[0].attention.output  # type: ignore[union-attr,index]
    dense.dense = nn.Linear(32, 32)
    assert "weights (eager)" in [check.name for check in captured_of(model, SIX).trace.verify().checks]
    dense.dropout = nn.Dropout(0.1)
    with pytest.warns(NoteWarning, match="training mode"):
        captured = captured_of(model, SIX)
    assert any("training mode" in str(skipped) for skipped in captured.trace.verify().skipped)


# Copies of a captured model: made, saved, averaged or quantised inside a block, they run as models by themselves.


NAMES = ["BertModel", "GPT2Model", "DebertaV2Model"]


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()


ENCODED = {"src": torch.linspace(-1, 1, 96).view(1, 6, 16)}
"""What `encoder` takes."""


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIED: dict[str, Callable[[nn.Module], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": saved,
    "averaged": AveragedModel,
}


def output(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


@pytest.mark.parametrize(("name", "way", "silenced"), pairwise((*NAMES, "encoder"), tuple(COPIED), (False, True)))
def test_a_copy_is_a_model_by_itself(name: str, way: str, silenced: bool) -> None:
    """It computes what the model does without a block, in the block and after it, and can be captured itself."""
    build = encoder if name == "encoder" else BY_NAME[name].build
    inputs = ENCODED if name == "encoder" else BY_NAME[name].inputs(padded=False)
    model = build()
    expected = output(model(**inputs))
    with hs.ablate(model, {(0, 0)}) if silenced else hs.capture(model) as block:
        twin = COPIED[way](model)
        torch.testing.assert_close(output(twin(**inputs)), expected, atol=1e-5, rtol=1e-5)
        model(**inputs)
        torch.testing.assert_close(output(twin(**inputs)), expected, atol=1e-5, rtol=1e-5)
    assert silenced or len(block.forwards) == 1
    torch.testing.assert_close(output(twin(**inputs)), expected, atol=1e-5, rtol=1e-5)
    with hs.capture(twin) as captured, hs.capture(build()) as other:
        twin(**inputs)
        other.model(**inputs)
    assert captured.traces[0].verify().agrees
    assert other.traces[0].verify(reference=False).agrees


def test_a_saved_model_needs_no_headscope() -> None:
    """What torch.save writes in a block can be read where nobody has installed headscope."""
    with hs.capture(encoder()) as captured:
        file = pickle.dumps(captured.model)
    assert b"headscope" not in file


def test_a_shallow_copy_shares_its_layers() -> None:
    """A copy.copy of a model has the model's own layers: what they attend to is recorded."""
    model, inputs = built("BertModel")
    with hs.capture(model) as captured:
        copy.copy(model)(**inputs)
    assert captured.traces[0].verify().agrees
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_weak_reference_to_memory_is_its_own_copy() -> None:
    """Copies of PyTorch's own free the memory twice, and the process dies. Another process has no such memory."""
    held = WeakStorage(torch.ones(3))
    assert copy.copy(held) is copy.deepcopy(held) is held
    assert pickle.loads(pickle.dumps(held)) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_pass_that_was_interrupted_is_over(error: type[BaseException]) -> None:
    """The next pass in the same block begins anew, with its own names, and so does a pass of another model."""
    family, stop = BY_NAME["BertModel"], [True]
    model, other, inputs = family.build(), family.build(), family.inputs(padded=False)
    words = [f"w{number}" for number in range(200)]

    def interrupt(module: nn.Module, args: Any) -> None:
        if stop:
            raise error

    model.encoder.layer[1].register_forward_pre_hook(interrupt)
    with hs.capture(model, tokenizer=words) as captured, hs.capture(other, tokenizer=words) as others:
        with pytest.raises(error):
            model(**inputs)
        other(**inputs)
        stop.clear()
        model(**inputs)
    named = tuple(words[number] for number in inputs["input_ids"][0])
    assert captured.traces[0].keys.tokens == others.traces[0].keys.tokens == named
    assert len(captured.forwards) == len(others.forwards) == 1
    assert captured.traces[0].verify().agrees


def test_a_pass_of_a_thread_that_is_gone_is_over() -> None:
    """Another thread may get its number, and captures its pass as if there had been none."""
    model, inputs = built("BertModel")
    stop, lengths = [True], list[int]()

    def leave(module: nn.Module, args: Any) -> None:
        if stop:
            raise KeyboardInterrupt

    def run() -> None:
        with suppress(KeyboardInterrupt):
            model(**inputs)
            lengths.append(len(captured.forwards))

    model.encoder.layer[1].register_forward_pre_hook(leave)
    with hs.capture(model) as captured:
        for _ in range(6):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            stop.clear()
        assert lengths == [1, 2, 3, 4, 5]
    assert all(trace.numbers == (0, 1) and trace.verify(reference=False).agrees for trace in captured.traces)


def test_a_pass_whose_block_another_thread_closed_is_over() -> None:
    """The thread that ran it captures its next pass as if there had been none."""
    model, inputs = built("BertModel")
    words = [f"w{number}" for number in range(200)]
    inside, closed = threading.Event(), threading.Event()
    traces: list[Any] = []

    def wait(module: nn.Module, args: Any) -> None:
        inside.set()
        closed.wait()

    def run() -> None:
        handle = model.encoder.layer[1].register_forward_pre_hook(wait)
        model(**inputs)
        handle.remove()
        captured = captured_of(model, options={"tokenizer": words}, **inputs)
        traces.extend(captured.traces)

    thread = threading.Thread(target=run)
    with hs.capture(model):
        thread.start()
        inside.wait()
    closed.set()
    thread.join()
    assert traces[0].keys.tokens == tuple(words[number] for number in inputs["input_ids"][0])

"""Offloaded models, whose weights a hook brings back while a module runs, as accelerate's do; and meta weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from comparing import captured_of
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

import headscope as hs
from families import BY_NAME
from headscope.errors import UnsupportedError
from headscope.live import ablate, capture

IDS = torch.tensor([[2, 5, 6, 3], [2, 6, 3, 0]])
VOCABULARY = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])}


class Kept(Mapping[str, torch.Tensor]):
    """Tensors under a prefix; copied each time they are read, as from a disk."""

    def __init__(self, tensors: dict[str, torch.Tensor], prefix: str, disk: bool) -> None:
        self.tensors, self.prefix, self.disk = tensors, prefix, disk

    def __getitem__(self, name: str) -> torch.Tensor:
        x = self.tensors[self.prefix + name]
        return x.clone() if self.disk else x

    def __iter__(self) -> Iterator[str]:
        return iter(name for name in self.tensors if name.startswith(self.prefix))

    def __len__(self) -> int:
        return len(self.tensors)


class Align:
    """accelerate's AlignDevicesHook, as far as it matters: `weights_map`, and parameters that come and go."""

    def __init__(self, weights_map: Kept) -> None:
        self.weights_map = weights_map

    def before(self, module: nn.Module) -> None:
        for name in module._parameters:
            if module._parameters[name] is not None:
                module._parameters[name] = nn.Parameter(self.weights_map[name])

    def after(self, module: nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.detach().to("meta"))


class Sequence:
    """accelerate's SequentialHook."""

    def __init__(self, *hooks: Align) -> None:
        self.hooks = hooks


def run_with(hook: Align, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    hook.before(module)
    try:
        return forward(*args, **kwargs)
    finally:
        hook.after(module)


def offload(model: nn.Module, *, disk: bool = False, sequence: bool = False) -> nn.Module:
    """A copy of a model with the parameters of each module on the meta device until the module runs."""
    model = copy.deepcopy(model)
    tensors = {name: x.detach() for name, x in model.named_parameters(remove_duplicate=False)}
    for path, module in model.named_modules():
        if not any(parameter is not None for parameter in module._parameters.values()):
            continue
        hook = Align(Kept(tensors, f"{path}." if path else "", disk))
        module._hf_hook = Sequence(hook) if sequence else hook  # type: ignore[assignment]
        module.forward = partial(run_with, hook, module, module.forward)  # type: ignore[method-assign]
        hook.after(module)
    assert all(parameter.is_meta for parameter in model.parameters())
    return model


def bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertForMaskedLM(BertConfig(vocab_size=60, **sizes)).eval()


WAYS: list[dict[str, bool]] = [{}, {"disk": True}, {"sequence": True}]


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_an_offloaded_model_leaves_the_traces_of_the_model(way: dict[str, bool]) -> None:
    plain = bert()
    model = offload(plain, **way)
    inputs = {"input_ids": IDS, "attention_mask": (IDS > 0).long(), "output_hidden_states": True}
    found = []
    for one in (plain, model):
        captured = captured_of(one, **inputs)
        found.append(captured.traces)
    for expected, trace in zip(*found, strict=True):
        assert trace.tokens == expected.tokens
        report = trace.verify()
        assert report.agrees
        assert {"tokens", "weights (eager)"} <= {check.name for check in report.checks}
        for statistic in ("entropy", "norm"):
            np.testing.assert_allclose(trace.statistics()[statistic], expected.statistics()[statistic], atol=1e-6)
        for kind in ("Attn-N", "AttnResLn-N"):
            np.testing.assert_allclose(trace.norm_map(1, kind)[:], expected.norm_map(1, kind)[:], atol=1e-6)
        np.testing.assert_allclose(trace[1, 3].output[:], expected[1, 3].output[:], atol=1e-6)
    tokenizer = BertTokenizerFast(vocab=VOCABULARY)
    weights = [hs.trace(one, tokenizer, "a b")[1, 2].weights[:] for one in (plain, model)]
    np.testing.assert_allclose(*weights, atol=1e-6)
    with ablate(plain, [(0, 1)]), ablate(model, [(0, 1)]):
        torch.testing.assert_close(model(IDS).logits, plain(IDS).logits)


@pytest.mark.parametrize("way", WAYS)
def test_an_offloaded_model_is_opened_and_described(way: dict[str, bool]) -> None:
    plain = bert()
    model = offload(plain, **way)
    assert hs.describe(model).total == hs.describe(plain).total
    opened = hs.open(model)
    for layer in range(2):
        query = plain.bert.encoder.layer[layer].attention.self.query.weight.detach().numpy()
        np.testing.assert_array_equal(np.asarray(opened.layers[layer].heads[1].W_Q), query[8:16].T)


@pytest.mark.parametrize("name", ["MPNetModel", "BloomModel", "GPT2Model"])
@torch.no_grad()
def test_families_whose_attention_is_read_from_its_inputs(name: str) -> None:
    family = BY_NAME[name]
    plain, inputs = family.build().eval(), family.inputs(padded=True)
    model, found = offload(plain), []
    for one in (plain, model):
        captured = captured_of(one, **inputs)
        found.append(captured.traces)
    for expected, trace in zip(*found, strict=True):
        for layer in expected.numbers:
            np.testing.assert_allclose(trace[layer].weights[...], expected[layer].weights[...], atol=1e-6)


@torch.no_grad()
def test_multihead_attention_whose_own_hook_brings_its_weights() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mha = nn.Embedding(60, 32), nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            return self.mha(x, x, x, need_weights=False)[0]

    torch.manual_seed(0)
    plain = Layer().eval()
    model = copy.deepcopy(plain)
    kept = {name: x.detach() for name, x in model.mha.named_parameters()}
    model.mha._hf_hook = Align(Kept(kept, "", disk=True))  # type: ignore[assignment]
    run = model.mha.forward

    def move(to: Callable[[str, nn.Parameter], torch.Tensor]) -> None:
        for path, part in model.mha.named_modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    part._parameters[name] = nn.Parameter(to(f"{path}.{name}" if path else name, parameter.detach()))

    def new_forward(*args: Any, **kwargs: Any) -> Any:
        move(lambda name, _: kept[name])
        try:
            return run(*args, **kwargs)
        finally:
            move(lambda _, x: x.to("meta"))

    model.mha.forward = new_forward  # type: ignore[method-assign]
    move(lambda _, x: x.to("meta"))
    found = []
    for one in (plain, model):
        captured = captured_of(one, IDS)
        found.append(captured.traces[0])
    np.testing.assert_allclose(found[0][0].weights[...], found[1][0].weights[...], atol=1e-6)
    np.testing.assert_allclose(found[0][0, 1].output[:], found[1][0, 1].output[:], atol=1e-6)
    assert all(parameter.is_meta for parameter in model.mha.parameters())
    with ablate(plain, [(0, 1)]), ablate(model, [(0, 1)]):
        torch.testing.assert_close(model(IDS), plain(IDS))


def test_weights_on_the_meta_device_are_refused_by_name() -> None:
    with torch.device("meta"):
        model = bert()
    tokenizer = BertTokenizerFast(vocab=VOCABULARY)
    faces: list[Callable[[], Any]] = [
        lambda: capture(model),
        lambda: ablate(model, [(0, 0)]),
        lambda: hs.trace(model, tokenizer, "a b"),
        lambda: hs.open(model),
    ]
    for face in faces:
        with pytest.raises(
            UnsupportedError, match=r"\w+\.weight is on the meta device: it has a shape, but no numbers"
        ):
            face()
    assert hs.describe(model).total == hs.describe(bert()).total


@torch.no_grad()
def test_weights_that_go_to_the_meta_device_after_the_pass() -> None:
    model = bert()
    captured = captured_of(model, IDS)
    model.to("meta")
    with pytest.raises(UnsupportedError, match=r"dense\.weight is on the meta device") as raised:
        captured.traces[0][1, 0].output
    assert raised.value.where == "layer 1, head 0"

"""Copies of a captured model: made, saved, averaged or quantised inside a block, they run as models by themselves."""

from __future__ import annotations

import copy
import io
import pickle
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import headscope as hs
from commands import python
from families import BY_NAME, built
from products import pairwise

NAMES = ["BertModel", "GPT2Model", "DebertaV2Model"]


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()


ENCODED = {"src": torch.linspace(-1, 1, 96).view(1, 6, 16)}
"""What `encoder` takes."""


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": saved,
    "averaged": AveragedModel,
}


def output(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


@pytest.mark.parametrize(("name", "way", "silenced"), pairwise((*NAMES, "encoder"), tuple(WAYS), (False, True)))
def test_a_copy_is_a_model_by_itself(name: str, way: str, silenced: bool) -> None:
    """It computes what the model does without a block, in the block and after it, and can be captured itself."""
    build = encoder if name == "encoder" else BY_NAME[name].build
    inputs = ENCODED if name == "encoder" else BY_NAME[name].inputs(padded=False)
    model = build()
    with torch.no_grad():
        expected = output(model(**inputs))
        with hs.ablate(model, {(0, 0)}) if silenced else hs.capture(model) as block:
            twin = WAYS[way](model)
            torch.testing.assert_close(output(twin(**inputs)), expected, atol=1e-5, rtol=1e-5)
            model(**inputs)
            torch.testing.assert_close(output(twin(**inputs)), expected, atol=1e-5, rtol=1e-5)
        assert silenced or len(block.forwards) == 1
        torch.testing.assert_close(output(twin(**inputs)), expected, atol=1e-5, rtol=1e-5)
        with hs.capture(twin) as captured, hs.capture(build()) as other:
            twin(**inputs)
            other.model(**inputs)
    assert captured.traces[0].verify().agrees
    assert other.traces[0].verify().agrees


def test_a_saved_model_needs_no_headscope() -> None:
    """What torch.save writes in a block can be read where nobody has installed headscope."""
    with hs.capture(encoder()) as captured:
        file = pickle.dumps(captured.model)
    assert b"headscope" not in file


def test_a_shallow_copy_shares_its_layers() -> None:
    """A copy.copy of a model has the model's own layers: what they attend to is recorded."""
    family = BY_NAME["BertModel"]
    model = family.build()
    with torch.no_grad(), hs.capture(model) as captured:
        copy.copy(model)(**family.inputs(padded=False))
    assert captured.traces[0].verify().agrees
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_hook_that_copies_layers_leaves_memory_alone() -> None:
    """The copies' weak references to memory were freed twice, and the process died; so this runs in another one."""
    script = """
        import copy, gc
        import torch
        from transformers import BertConfig, BertModel
        import headscope as hs

        config = BertConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32)
        model, kept = BertModel(config).eval(), []
        for layer in model.encoder.layer:
            layer.attention.output.register_forward_hook(lambda module, args, out: kept.append(copy.deepcopy(module)))
        with torch.no_grad(), hs.capture(model) as captured:
            for _ in range(8):
                model(torch.arange(6)[None])
        kept += [copy.deepcopy(captured.traces)]
        kept.clear()
        gc.collect()
        print([torch.ones(1 << at).sum().item() for at in range(12)][-1], len(captured.traces))
    """
    assert python(textwrap.dedent(script)).split() == ["2048.0", "8"]


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
    with torch.no_grad(), hs.capture(model, tokenizer=words) as captured, hs.capture(other, tokenizer=words) as others:
        with pytest.raises(error):
            model(**inputs)
        other(**inputs)
        stop.clear()
        model(**inputs)
    named = tuple(words[number] for number in inputs["input_ids"][0])
    assert captured.traces[0].keys.tokens == others.traces[0].keys.tokens == named
    assert len(captured.forwards) == len(others.forwards) == 1
    assert captured.traces[0].verify().agrees


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
        with torch.no_grad():
            model(**inputs)
            handle.remove()
            with hs.capture(model, tokenizer=words) as captured:
                model(**inputs)
        traces.extend(captured.traces)

    thread = threading.Thread(target=run)
    with hs.capture(model):
        thread.start()
        inside.wait()
    closed.set()
    thread.join()
    assert traces[0].keys.tokens == tuple(words[number] for number in inputs["input_ids"][0])

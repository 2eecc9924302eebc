"""Models with compiled or wrapped parts, against transformers on the same weights; and advice about saving, tried."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

import headscope as hs
from headscope.anatomy.refusals import NOT_LOADED, SAVE_PLAIN
from headscope.checkpoint.pickle_header import RESAVE

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
WIDTHS = {**SIZES, "hidden_size": 32, "intermediate_size": 64}
MODELS: dict[str, Callable[[], Any]] = {
    "BERT": lambda: BertForMaskedLM(BertConfig(**WIDTHS)),
    "RoBERTa": lambda: RobertaForMaskedLM(RobertaConfig(**WIDTHS)),
    "DistilBERT": lambda: DistilBertForMaskedLM(DistilBertConfig(**SIZES, dim=32, hidden_dim=64)),
}
IDS = [5, 9, 7, 30, 12, 6]


class Around(nn.Module):
    """A wrapper that keeps a module under some name, as FSDP and checkpointing do."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)


def wrap_layers(model: Any, wrap: Callable[[nn.Module], nn.Module]) -> None:
    base = model.base_model
    layers = (base.encoder if hasattr(base, "encoder") else base.transformer).layer
    for at, layer in enumerate(layers):
        layers[at] = wrap(layer)


def wrap_base(model: Any, wrap: Callable[[nn.Module], nn.Module]) -> None:
    setattr(model, model.base_model_prefix, wrap(model.base_model))


def wrap_head(model: Any, wrap: Callable[[nn.Module], nn.Module]) -> None:
    name = next(name for name in ("cls", "lm_head", "vocab_transform") if hasattr(model, name))
    setattr(model, name, wrap(getattr(model, name)))


PARTS = {"layers": wrap_layers, "base": wrap_base, "head": wrap_head}
WRAPS: dict[str, Callable[[nn.Module], Any]] = {
    "compiled": lambda inner: torch.compile(inner, backend="eager"),
    "DataParallel": nn.DataParallel,
    "FSDP": lambda inner: Around("_fsdp_wrapped_module", inner),
    "checkpointing": lambda inner: Around("_fsdp_wrapped_module", Around("_checkpoint_wrapped_module", inner)),
}


def same_as_transformers(opened: Any, expected: Any) -> None:
    trace = opened.trace(ids=IDS)
    np.testing.assert_allclose(trace.weights[:], torch.cat(expected.attentions).numpy(), atol=1e-5)
    assert opened.anatomy.tops[0].suffix == "ForMaskedLM"
    np.testing.assert_allclose(trace.outputs["logits"].array, expected.logits[0].numpy(), atol=1e-4)
    assert (opened.anatomy.problems, opened.anatomy.missing) == ((), ())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("wrap", WRAPS)
def test_wrapped_parts_are_read_as_what_they_wrap(name: str, part: str, wrap: str, tmp_path: Path) -> None:
    """From a file with the wrapped names, and from the model in memory."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(torch.tensor([IDS]), output_attentions=True)
    PARTS[part](model, WRAPS[wrap])
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    same_as_transformers(hs.open(tmp_path), expected)
    same_as_transformers(hs.open(model), expected)


@pytest.mark.parametrize("wrap", ["compiled", "DataParallel"])
def test_a_wrapped_model_in_memory(wrap: str) -> None:
    torch.manual_seed(0)
    model = MODELS["BERT"]().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(torch.tensor([IDS]), output_attentions=True)
    same_as_transformers(hs.open(WRAPS[wrap](model)), expected)


def bert(folder: Path, rename: Callable[[str], str] = str, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """Save a BertModel, its tensors renamed, with more of them; return its own tensors."""
    torch.manual_seed(1)
    model = BertModel(BertConfig(**WIDTHS)).eval()
    model.save_pretrained(folder)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file({**{rename(name): tensor for name, tensor in own.items()}, **more}, folder / "model.safetensors")
    return own


def holds(folder: Path, own: dict[str, torch.Tensor]) -> bool:
    opened = hs.open(folder)
    return all(np.array_equal(opened.checkpoint.read(row.stored), own[row.name].numpy()) for row in opened.parameters)


def test_saving_the_plain_model_keeps_its_weights(tmp_path: Path) -> None:
    own = bert(tmp_path, **{"encoder.layer.0.attention.self.gate.weight": torch.ones(3)})
    (refusal,) = hs.open(tmp_path).anatomy.refusals
    assert refusal.advice == SAVE_PLAIN.format(base="BertModel")
    BertModel.from_pretrained(tmp_path).save_pretrained(tmp_path / "other")
    assert holds(tmp_path / "other", own)
    assert not hs.open(tmp_path / "other").anatomy.refusals


@pytest.mark.parametrize("before", ["module.", "model.bert.", "encoder."])
def test_what_transformers_would_not_load_is_not_to_be_saved(before: str, tmp_path: Path) -> None:
    """from_pretrained would start these weights at random."""
    own = bert(tmp_path, lambda name: before + name, **{f"{before}encoder.layer.0.attention.self.gate": torch.ones(3)})
    (refusal,) = hs.open(tmp_path).anatomy.refusals
    assert refusal.advice == NOT_LOADED.format(base="BertModel")
    loaded = BertModel.from_pretrained(tmp_path).state_dict()
    assert not torch.equal(loaded["encoder.layer.1.output.dense.weight"], own["encoder.layer.1.output.dense.weight"])


def test_the_wrapped_model_is_saved_whole(tmp_path: Path) -> None:
    for wrap, attribute in (("compiled", "_orig_mod"), ("DataParallel", "module")):
        model = BertModel(BertConfig(**WIDTHS))
        wrapped, folder = WRAPS[wrap](model), tmp_path / wrap
        model.config.save_pretrained(folder)
        torch.save(wrapped.state_dict(), folder / "pytorch_model.bin")
        (note,) = hs.open(folder).fit("BertModel").notes
        assert f"model.{attribute}" in note
        getattr(wrapped, attribute).save_pretrained(folder / "other")
        assert holds(folder / "other", model.state_dict())
        assert hs.open(folder / "other").fit("BertModel").complete


def test_one_of_two_models_is_saved_alone(tmp_path: Path) -> None:
    own = bert(
        tmp_path, **{f"encoder2.{n}": t.clone() for n, t in BertModel(BertConfig(**WIDTHS)).state_dict().items()}
    )
    (refusal,) = hs.open(tmp_path).anatomy.refusals
    assert "model.encoder.save_pretrained(folder)" in refusal.advice
    both = nn.Module()
    both.encoder = BertModel(BertConfig(**WIDTHS))
    both.encoder.load_state_dict(own)
    both.encoder.save_pretrained(tmp_path / "other")
    assert holds(tmp_path / "other", own)


def test_a_pickle_saved_as_safetensors_keeps_its_weights(tmp_path: Path) -> None:
    assert RESAVE == "load it with torch and save it as model.safetensors"
    own = bert(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    save_file(torch.load(tmp_path / "pytorch_model.bin"), tmp_path / "model.safetensors")
    assert holds(tmp_path, own)


TRIED = {
    "fit.py": 2,
    "reading.py": 1,
    "refusals.py": 1,
}
"""Advice to load a model of transformers, or a part of one, and save it: the tests above try each."""


def test_every_advice_about_saving_a_model_is_tried() -> None:
    folder = Path(hs.__file__).parent
    counts: dict[str, int] = {}
    for file in sorted((folder / "anatomy").rglob("*.py")):
        texts = [node.value for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Constant)]
        found = [t for t in texts if isinstance(t, str) and re.search(r"\bsave (it to|the (wrapped )?model)", t)]
        if found:
            counts[file.name] = len(found)
    assert counts == TRIED

"""Models with compiled or wrapped parts, against transformers on the same weights; and advice about saving, tried."""

from __future__ import annotations

import ast
import gzip
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import unpack_archive
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

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
from headscope.anatomy.refused_checkpoints import NOT_LOADED, SAVE_PLAIN
from headscope.checkpoint.pickle_header import RESAVE
from headscope.errors import HeadscopeError
from products import pairwise

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


def plain(name: str) -> tuple[Any, Any]:
    """A model, and what it gives for IDS."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model, model(torch.tensor([IDS]), output_attentions=True)


def same_as_transformers(opened: Any, expected: Any) -> None:
    trace = opened.trace(ids=IDS)
    np.testing.assert_allclose(trace.weights[:], torch.cat(expected.attentions).numpy(), atol=1e-5)
    assert opened.anatomy.tops[0].suffix == "ForMaskedLM"
    np.testing.assert_allclose(trace.outputs["logits"].array, expected.logits[0].numpy(), atol=1e-4)
    assert (opened.anatomy.problems, opened.anatomy.missing) == ((), ())


@pytest.mark.parametrize(("name", "part", "wrap"), pairwise(tuple(MODELS), tuple(PARTS), tuple(WRAPS)))
def test_wrapped_parts_are_read_as_what_they_wrap(name: str, part: str, wrap: str, tmp_path: Path) -> None:
    """From a file with the wrapped names, and from the model in memory."""
    model, expected = plain(name)
    PARTS[part](model, WRAPS[wrap])
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    same_as_transformers(hs.open(tmp_path), expected)
    same_as_transformers(hs.open(model), expected)


@pytest.mark.parametrize("wrap", ["compiled", "DataParallel"])
def test_a_wrapped_model_in_memory(wrap: str) -> None:
    model, expected = plain("BERT")
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


def as_pickle(folder: Path, name: str = "pytorch_model.bin", *, whole: bool = False) -> None:
    model = BertModel(BertConfig(**WIDTHS))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    torch.save(model if whole else model.state_dict(), folder / name)


def compressed(folder: Path) -> None:
    """The archive that torch.save writes, with its entries compressed."""
    as_pickle(folder)
    with ZipFile(folder / "pytorch_model.bin") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(folder / "pytorch_model.bin", "w", ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def zipped(folder: Path) -> None:
    with ZipFile(folder / "model.zip", "w") as archive:
        archive.write(folder / "model.safetensors", "model.safetensors")
    (folder / "model.safetensors").unlink()


def unzipped(folder: Path) -> None:
    unpack_archive(folder / "model.zip", folder)


def through(change: Callable[[bytes], bytes], folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))


def as_program(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    model.config.return_dict = False
    torch.jit.trace(model, torch.tensor([IDS]), check_trace=False).save(str(folder / "pytorch_model.bin"))
    (folder / "model.safetensors").unlink()


def from_program(folder: Path) -> None:
    state = torch.jit.load(folder / "pytorch_model.bin").state_dict()
    save_file({name: tensor.clone() for name, tensor in state.items()}, folder / "model.safetensors")


def resaved(folder: Path) -> None:
    torch.save(torch.load(folder / "pytorch_model.bin"), folder / "pytorch_model.bin")


def renamed(before: str, after: str) -> Callable[[Path], object]:
    return lambda folder: (folder / before).rename(folder / after)


ADVICE: dict[str, tuple[Callable[[Path], object], str, Callable[[Path], object]]] = {
    "compressed": (compressed, "load it with torch and save it again", resaved),
    "zip": (
        zipped,
        "unpack model.zip and pass the unpacked folder",
        unzipped,
    ),
    "gzip": (partial(through, gzip.compress), "unpack it", partial(through, gzip.decompress)),
    "a pickle's content": (
        lambda folder: as_pickle(folder, "model.safetensors"),
        "rename it to pytorch_model.bin",
        renamed("model.safetensors", "pytorch_model.bin"),
    ),
    "a safetensors file's content": (
        renamed("model.safetensors", "pytorch_model.bin"),
        "rename it to model.safetensors",
        renamed("pytorch_model.bin", "model.safetensors"),
    ),
    "program": (as_program, "load it with torch.jit.load and save its state_dict() as model.safetensors", from_program),
    "whole model": (
        lambda folder: as_pickle(folder, whole=True),
        "If it is your own, save model.state_dict() instead of the model",
        lambda folder: torch.save(
            torch.load(folder / "pytorch_model.bin", weights_only=False).state_dict(), folder / "pytorch_model.bin"
        ),
    ),
}
"""A file that can't be read, the advice, and what it says, done."""


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning",
    "ignore:`is_gradient_check:FutureWarning",
    "ignore::torch.jit.TracerWarning",  # what is traced depends on which mask functions ran before
)
@pytest.mark.parametrize("kind", ADVICE)
def test_advice_about_files_keeps_the_weights(tmp_path: Path, kind: str) -> None:
    own = bert(tmp_path)
    spoil, advice, follow = ADVICE[kind]
    spoil(tmp_path)
    with pytest.raises(HeadscopeError) as error:
        hs.open(tmp_path)
    assert advice in error.value.advice
    follow(tmp_path)
    assert holds(tmp_path, own)


def test_an_adapter_is_merged_and_not_loaded_by_name(tmp_path: Path) -> None:
    """peft's names; its merge is W + (alpha / r) B A. from_pretrained starts the wrapped weights at random."""
    query = "encoder.layer.1.attention.self.query"
    a, b = torch.randn(4, 32), torch.randn(32, 4)
    adapter = {f"{query}.lora_A.default.weight": a, f"{query}.lora_B.default.weight": b}
    own = bert(tmp_path, lambda name: name.replace(f"{query}.", f"{query}.base_layer."), **adapter)
    opened = hs.open(tmp_path)
    with pytest.raises(HeadscopeError, match="merge it with peft") as error:
        opened.trace(ids=IDS)
    assert "from_pretrained would start these weights at random" in str(error.value.advice)
    loaded = BertModel.from_pretrained(tmp_path)
    assert not torch.equal(loaded.state_dict()[f"{query}.weight"], own[f"{query}.weight"])
    own[f"{query}.weight"] = own[f"{query}.weight"] + 8 / 4 * b @ a
    loaded.load_state_dict(own)
    loaded.save_pretrained(tmp_path / "merged")
    assert holds(tmp_path / "merged", own)
    assert hs.open(tmp_path / "merged").trace(ids=IDS).verify().agrees


TRIED = {
    "fit.py": 2,
    "read_anatomy.py": 1,
    "refused_checkpoints.py": 1,
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

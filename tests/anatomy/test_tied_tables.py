"""Files that keep a tied table once, and files like AntiBERTy's, against transformers' own reading of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import safetensors
import torch
import transformers
from safetensors.torch import save_file, save_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, BertTokenizer

import headscope as hs
from headscope.anatomy.fit import fit
from headscope.errors import CheckpointError
from random_models import FAMILIES, SIZES, random_model

TEXT = "a cat sat on the mat near one dog"
REWRITTEN = {"NomicBert", "Gte"}
"""`save_model` writes the names that these classes have in memory, which no file of them has."""
TIED = [stem for stem in FAMILIES if stem not in REWRITTEN and hasattr(transformers, f"{stem}ForMaskedLM")]


def one_file(module: Any, folder: Path) -> None:
    save_model(module, str(folder / "model.safetensors"))


def shards(module: Any, folder: Path) -> None:
    huggingface_hub.save_torch_model(module, folder, max_shard_size=20_000)
    assert len(list(folder.glob("*.safetensors"))) > 1


def pickled(module: Any, folder: Path) -> None:
    kept = {name: part for name, part in module.state_dict().items() if not name.endswith("word_embeddings.weight")}
    torch.save(kept, folder / "pytorch_model.bin")


def saved(stem: str, folder: Path, way: Callable[[Any, Path], None] = one_file) -> Any:
    """A random masked LM, of which this way has made the files."""
    module = random_model(stem, "ForMaskedLM")
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(folder)
    way(module, folder)
    return module


def same_as_transformers(module: Any, folder: Path) -> None:
    """The logits and the last hidden state of a folder are those of the class that transformers loads from it."""
    loaded, report = type(module).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    ids = [3, 5, 6, 7, 8]
    with torch.no_grad():
        expected = loaded.eval()(torch.tensor([ids]), output_hidden_states=True)
    assert torch.equal(loaded.get_input_embeddings().weight, module.get_input_embeddings().weight)
    trace = hs.open(folder).trace(ids=ids)
    np.testing.assert_allclose(trace.outputs["logits"].array, expected.logits[0].numpy(), atol=1e-4)
    np.testing.assert_allclose(
        trace.outputs["last_hidden_state"].array, expected.hidden_states[-1][0].numpy(), atol=1e-4
    )
    anatomy = hs.open(folder).anatomy
    assert not anatomy.missing
    assert fit(anatomy, type(module).__name__).complete


@pytest.mark.parametrize("stem", TIED)
def test_save_model_keeps_a_table_once(stem: str, tmp_path: Path) -> None:
    same_as_transformers(saved(stem, tmp_path), tmp_path)


@pytest.mark.parametrize("way", [shards, pickled])
@pytest.mark.parametrize("stem", ["Roberta", "DebertaV2"])
def test_so_do_shards_and_pickles(stem: str, way: Callable[[Any, Path], None], tmp_path: Path) -> None:
    same_as_transformers(saved(stem, tmp_path, way), tmp_path)


def test_a_survey_reads_the_table(tmp_path: Path) -> None:
    module = saved("Roberta", tmp_path)
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, **{word: 5 + at for at, word in enumerate(TEXT.split())}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")
    wrapped.save_pretrained(tmp_path)
    table = hs.survey(tmp_path, [TEXT], out=tmp_path / "survey").table()
    with torch.no_grad():
        maps = module(**wrapped(TEXT, return_tensors="pt"), output_attentions=True).attentions
    expected = [-(layer[0] * layer[0].log()).sum(-1).mean(-1).numpy() for layer in maps]
    np.testing.assert_allclose(table["entropy"].array, expected, atol=1e-4)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod."])
def test_names_may_have_a_wrapper_s_prefix(wrapper: str, tmp_path: Path) -> None:
    saved("Roberta", tmp_path)
    plain = hs.open(tmp_path).trace(ids=[3, 5, 6])
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        tensors = {wrapper + name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    wrapped = hs.open(tmp_path).trace(ids=[3, 5, 6])
    np.testing.assert_array_equal(wrapped.outputs["logits"].array, plain.outputs["logits"].array)


def test_an_untied_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    module = saved("Roberta", tmp_path)
    module.config.tie_word_embeddings = False
    module.config.save_pretrained(tmp_path)
    _, report = type(module).from_pretrained(tmp_path, output_loading_info=True)
    assert "roberta.embeddings.word_embeddings.weight" in report["missing_keys"]
    with pytest.raises(CheckpointError, match=r"embeddings\.word_embeddings\.weight"):
        hs.open(tmp_path).trace(ids=[3, 5, 6])


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
SEQUENCE = "E V Q L V E S G G G"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = BertConfig(**{**SIZES, "vocab_size": 25, "num_hidden_layers": 2})
    model = BertModel(config, add_pooling_layer=False)
    tensors = {f"bert.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors["species_head.weight"], tensors["species_head.bias"] = torch.randn(6, 32), torch.zeros(6)
    tensors["chain_head.weight"], tensors["chain_head.bias"] = torch.randn(2, 32), torch.zeros(2)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["AntiBERTy"]}))
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *RESIDUES]) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    )
    return tmp_path


def test_every_parameter_is_there_and_the_heads_on_top_apart(folder: Path) -> None:
    model = hs.open(folder)
    config = BertConfig.from_pretrained(folder)
    assert model.parameters.total == sum(p.numel() for p in BertModel(config, add_pooling_layer=False).parameters())
    extra = {row.name for row in model.anatomy.extra}
    assert extra == {"species_head.weight", "species_head.bias", "chain_head.weight", "chain_head.bias"}


def test_its_heads_are_those_of_transformers(folder: Path) -> None:
    trace = hs.open(folder).trace(SEQUENCE)
    assert trace.tokens == ("[CLS]", *SEQUENCE.split(), "[SEP]")
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False)
    module = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False)
    from safetensors.torch import load_file

    base = {name[5:]: tensor for name, tensor in load_file(folder / "model.safetensors").items() if name[:5] == "bert."}
    module.load_state_dict(base)
    module.set_attn_implementation("eager")
    with torch.no_grad():
        output = module.eval()(**tokenizer(SEQUENCE, return_tensors="pt"), output_attentions=True)
    for layer, head in np.ndindex(2, 4):
        np.testing.assert_allclose(trace[layer, head].weights[:], output.attentions[layer][0, head].numpy(), atol=2e-6)
    assert trace.verify().agrees

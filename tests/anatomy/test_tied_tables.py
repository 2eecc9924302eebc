"""Files that keep a tied table once, against transformers' own reading of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import safetensors
import torch
import transformers
from safetensors.torch import save_model
from tokenizers import Tokenizer, models, pre_tokenizers

import headscope as hs
from headscope.anatomy.fit import fit
from headscope.errors import CheckpointError
from random_models import FAMILIES, random_model

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

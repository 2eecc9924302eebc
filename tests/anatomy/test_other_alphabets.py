"""Checkpoints like AntiBERTy: BERT over 25 tokens of amino acids, with heads of its own on top of the base model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel, BertTokenizer

import headscope as hs

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
SEQUENCE = "E V Q L V E S G G G"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=25,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
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

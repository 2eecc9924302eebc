"""A special token that is null: the tokenizer has none, though its class has one. Files are transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    EsmConfig,
    EsmForMaskedLM,
    EsmTokenizer,
)

import headscope as hs
from headscope.errors import UnsupportedError

MERS = [f"{a}{b}{c}" for a in "ACGT" for b in "ACGT" for c in "ACGT"]
NUCLEOTIDES = ["<unk>", "<pad>", "<mask>", "<cls>", *MERS, *"ACGTN", "<eos>", "<bos>"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DNA = "ACGTACCGTNAG"


@pytest.fixture
def nucleotides(tmp_path: Path) -> tuple[Path, Any, Any]:
    """As the Nucleotide Transformer is saved: an EsmTokenizer with "eos_token": null."""
    (tmp_path / "vocab.txt").write_text("\n".join(NUCLEOTIDES))
    tokenizer = EsmTokenizer(tmp_path / "vocab.txt", eos_token=None)
    config = EsmConfig(
        vocab_size=len(NUCLEOTIDES), pad_token_id=1, mask_token_id=2, max_position_embeddings=64, **SIZES
    )
    model = EsmForMaskedLM(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path, AutoTokenizer.from_pretrained(tmp_path), model


def test_no_end_is_added_to_a_text(nucleotides: tuple[Path, Any, Any]) -> None:
    folder, tokenizer, model = nucleotides
    assert tokenizer.eos_token is None
    ids = tokenizer(DNA).input_ids
    opened = hs.open(folder)
    trace = opened.trace(DNA)
    assert list(trace.ids) == ids
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    assert torch.allclose(torch.tensor(trace.outputs["logits"].array), expected, atol=1e-4)
    live = hs.trace(model, tokenizer, DNA)
    assert list(live.ids) == ids
    assert live.special.tolist() == trace.special.tolist() == [True] + [False] * (len(ids) - 1)
    with pytest.raises(ValueError, match="multiple sequences"):
        tokenizer(DNA, DNA)
    with pytest.raises(UnsupportedError, match="eos_token is null, so nothing ends a text of a pair"):
        opened.trace(DNA, DNA)


@pytest.mark.parametrize("only_vocabulary", [False, True])
def test_no_mask_is_found(tmp_path: Path, only_vocabulary: bool) -> None:
    tokenizer = saved(tmp_path, only_vocabulary, mask_token=None)
    model = hs.open(tmp_path)
    assert tokenizer.mask_token is None
    assert model.tokenizer.mask_token is None
    text = "the [MASK] sat"
    assert list(model.trace(text).ids) == tokenizer(text).input_ids
    with pytest.raises(UnsupportedError, match="the tokenizer has no mask token"):
        model.fill(text)


@pytest.mark.parametrize("name", ["cls_token", "sep_token"])
def test_a_template_without_its_token_is_refused(tmp_path: Path, name: str) -> None:
    """transformers puts the word "None" there."""
    tokenizer = saved(tmp_path, True, **{name: None})
    assert "None" in tokenizer("the cat").tokens()
    with pytest.raises(UnsupportedError, match=f"{name} is null, and this tokenizer puts that token around every text"):
        hs.open(tmp_path).trace("the cat")
    assert hs.open(tmp_path).trace(ids=[2, 5, 3]).tokens == ("[CLS]", "the", "[SEP]")


def saved(folder: Path, only_vocabulary: bool, **options: Any) -> Any:
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertForMaskedLM(BertConfig(vocab_size=len(WORDS), **SIZES)).save_pretrained(folder)
    BertTokenizer(vocab=str(folder / "vocab.txt"), **options).save_pretrained(folder)
    if only_vocabulary:
        (folder / "tokenizer.json").unlink()
    return AutoTokenizer.from_pretrained(folder)

"""A checkpoint of GPT-2's shape with random weights, where a hub's cache has `gpt2`: some tools load by name only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "0" * 40
"""Of the snapshot."""


def snapshot(home: Path) -> Path:
    """The checkpoint's folder within a cache; a loader finds it as `gpt2` where HF_HOME is the cache."""
    return home / "hub" / "models--gpt2" / "snapshots" / NAME


def make_gpt2(home: Path, **config: Any) -> None:
    """Write the checkpoint; each byte of a text is a token."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = snapshot(home)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**config)).save_pretrained(folder)
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces += [f"<unused{at}>" for at in range(50256 - len(pieces))] + ["<|endoftext|>"]
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end).save_pretrained(
        folder
    )
    (home / "hub" / "models--gpt2" / "refs").mkdir(exist_ok=True)
    (home / "hub" / "models--gpt2" / "refs" / "main").write_text(NAME)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "n_ctx": settings["n_positions"]}))

"""A small BERT whose heads are known: made by hand, without torch, the same on every machine.

Layer 0, head 0 looks at the token before; layer 0, head 1 at the token itself; layer 1, head 0 at the token after;
layer 1, head 1 at the first token. Positions are one-hot in the first 24 of 48 numbers, words are in the others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from making import BERT_CONFIG, bert_header, write_config, write_safetensors

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on mat . hat she took off her and down tir ##ed ##ing dog , ! 猫"
VOCABULARY = tuple(WORDS.split())
HEAD = 24
SIZES = {"hidden_size": 2 * HEAD, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SIZES |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": HEAD, "type_vocab_size": 2}
SHARP = 0.75


def small_bert(folder: Path, *, masked_lm: bool = True, vocabulary: tuple[str, ...] = VOCABULARY) -> Path:
    """A folder with config.json, vocab.txt and model.safetensors; with a masked-LM head or with nothing on top."""
    generator, prefix = np.random.default_rng(0), "bert." if masked_lm else ""
    header = bert_header(SIZES, prefix=prefix, pretraining=masked_lm)
    arrays = {
        name: generator.normal(size=shape, scale=0.05).astype(np.float32)
        for name, (_, shape) in header.items()
        if "seq_relationship" not in name
    }
    for name in arrays:
        if "LayerNorm" in name:
            arrays[name][:] = float(name.endswith("weight"))
        elif name.endswith("bias"):
            arrays[name][:] = 0
    arrays[f"{prefix}embeddings.position_embeddings.weight"] = np.eye(HEAD, 2 * HEAD, dtype=np.float32)
    arrays[f"{prefix}embeddings.token_type_embeddings.weight"][:] = 0
    first = np.zeros((HEAD, HEAD))
    first[0] = 1
    before, after = np.eye(HEAD, k=1), np.eye(HEAD, k=-1)
    looks = {(0, 0): before, (0, 1): np.eye(HEAD), (1, 0): after, (1, 1): first}
    for (layer, head), asked in looks.items():
        rows = slice(head * HEAD, (head + 1) * HEAD)
        for part, wanted in (("query", asked), ("key", np.eye(HEAD))):
            weight = arrays[f"{prefix}encoder.layer.{layer}.attention.self.{part}.weight"]
            weight[rows] = 0
            weight[rows, :HEAD] = SHARP * wanted
    for layer in range(2):
        for part in ("attention.output.dense", "output.dense"):
            arrays[f"{prefix}encoder.layer.{layer}.{part}.weight"] *= 0.1
    write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})
    write_config(folder, {**BERT_CONFIG, **SIZES, "architectures": ["BertForMaskedLM" if masked_lm else "BertModel"]})
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return folder


# The same with one number that is none.


LAYER = "bert.encoder.layer."
PLACES = {
    "query": (f"{LAYER}0.attention.self.query.weight", (3, 5), np.nan),
    "query of the last head": (f"{LAYER}1.attention.self.query.weight", (HEAD + 3, 5), np.nan),
    "infinite query": (f"{LAYER}0.attention.self.query.weight", (3, 5), np.inf),
    "overflowing query": (f"{LAYER}0.attention.self.query.weight", (3, 5), 1e38),
    "key bias": (f"{LAYER}1.attention.self.key.bias", (0,), -np.inf),
    "value": (f"{LAYER}0.attention.self.value.weight", (3, 5), np.nan),
    "embedding": ("bert.embeddings.word_embeddings.weight", (6, 5), np.nan),
    "embedding norm": ("bert.embeddings.LayerNorm.weight", (5,), np.nan),
    "layer norm": (f"{LAYER}0.output.LayerNorm.bias", (5,), np.nan),
    "last norm": (f"{LAYER}1.output.LayerNorm.weight", (5,), np.nan),
}
"""By a word for it: the tensor, the place, and what is written there."""


def broken_bert(folder: Path, place: str) -> Path:
    """The small BERT, one number of which is broken."""
    from safetensors.numpy import load_file

    folder.mkdir(exist_ok=True)
    name, index, value = PLACES[place]
    arrays = dict(load_file(small_bert(folder) / "model.safetensors"))
    arrays[name] = arrays[name].copy()
    arrays[name][index] = value
    write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})
    return folder

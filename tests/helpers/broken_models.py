"""Checkpoints with one number that is none: the small BERT with NaN or infinity written into one of its tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from making import write_safetensors
from small_bert import HEAD, small_bert

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

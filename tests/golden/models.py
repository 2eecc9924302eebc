"""A masked LM whose heads, and what each writes, are set by hand: no label, order or token hangs on a rounding error.

Embeddings are one-hot, as in known_heads.py: positions first, then words, then the clusters of near synonyms. Each of
two layers has five of those heads. A head writes the words that it looks at, times its STRENGTH, into a block of its
own, which no head reads; the blocks' sum, each with its VOTE, is the masked LM's guess.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from known_heads import CLUSTERS, LENGTH, VOCABULARY, WIDTH, noise_scores, wanted_scores
from making import BERT_CONFIG, bert_header, write_config, write_safetensors

WORDS = len(VOCABULARY)
HEADS = 5
HIDDEN = HEADS * WIDTH
BLOCKS = LENGTH + 2 * WORDS
"""The number at which the blocks begin."""
READ = slice(LENGTH, LENGTH + WORDS)
"""The numbers that words are one-hot in."""
SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 8,
    "vocab_size": WORDS,
    "max_position_embeddings": LENGTH,
    "type_vocab_size": 2,
}
TOKENIZER = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": True,
    "model_max_length": LENGTH,
    **{f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "mask", "pad", "unk")},
}
ACTS = ((0, 1, 3, 10, None), (5, 6, 7, 9, 2))
"""Of each layer, which heads of known_heads.py it has; None is noise."""
SHARPER = ((1.0, 0.85, 1.1, 1.0, 1.0), (2.0, 1.6, 1.0, 1.8, 1.4))
"""What each head's scores are multiplied by: no two heads are alike, and the norm before layer 1 makes them smaller."""
FINE = 0.1
"""Of noise in scores and votes, so that no two pairs of words have the same weight, and no two words the same logit."""
STRENGTHS = ((0.39, 0.57, 0.54, 0.91, 0.59), (0.36, 0.95, 0.74, 0.38, 0.38))
VOTES = ((1.0, 0.5, 1.2, 1.1, 0.4), (0.6, 0.4, 0.5, -1.6, -1.2))
"""With these, the head that a survey removes is cheaper than any other by at least 0.01 nats."""
TEXTS = (
    "The horse often chased the red mouse, and the tired sheep heard the horse.",
    "The queen liked the big table.",
    "The tiger found the mouse, and the mouse found the tiger.",
    "The tired queen often heard the sheep.",
)
"""Texts of known words."""
OPTIONS = ("--set", "length=32", "--set", "threads=1", "--labels", "--effects", "5")
"""Of `headscope survey`, for both models."""
MORE = ("--examples", "1", "--set", "head_distances=2")
"""Of the survey that has everything."""


def golden_model(folder: Path, *, tuned: bool = False) -> Path:
    """A folder with the checkpoint of a BertForMaskedLM and its tokenizer, the same bytes on every machine.

    Args:
        folder: is made.
        tuned: change all heads a little, as training might, and two of them much: head 0.0 looks at the next word, and
            1.1 writes twice as much.
    """
    header = bert_header(SIZES, prefix="bert.", pretraining=True)
    arrays = {
        name: np.full(shape, (3 / HIDDEN) ** 0.5 if "LayerNorm.weight" in name else 0, np.float32)
        for name, (_, shape) in header.items()
        if "seq_relationship" not in name
    }
    _embed(arrays)
    arrays["cls.predictions.transform.LayerNorm.weight"][:] = 0.3
    for layer in range(2):  # of a feed-forward network whose inner numbers are 0, but which can be compared
        arrays[f"bert.encoder.layer.{layer}.output.dense.weight"][:] = 2.0 if tuned and layer else 1.0
    arrays["bert.pooler.dense.weight"][:] = (1.5 if tuned else 1) * np.eye(HIDDEN)
    known, noise, *fine = wanted_scores(), *noise_scores(1, 1 + 2 * HEADS)
    fine_votes = FINE * np.random.default_rng(8).normal(size=(WORDS, 2 * HEADS, WORDS))
    for layer, head in np.ndindex(2, HEADS):
        place = layer * HEADS + head
        act = 1 if tuned and place == 0 else ACTS[layer][head]
        scores = noise if act is None else known[act] + FINE * fine[place]
        sharper = SHARPER[layer][head] * (1 + 0.02 * (place + 1) * tuned)
        strength = STRENGTHS[layer][head] * (2 if tuned and place == 6 else 1 + 0.01 * (10 - place) * tuned)
        stem, first, block = f"bert.encoder.layer.{layer}.attention", head * WIDTH, BLOCKS + place * WORDS
        rows, own, written = (
            slice(at, at + size) for at, size in ((first, len(scores)), (first, WORDS), (block, WORDS))
        )
        arrays[f"{stem}.self.query.weight"][rows, : len(scores)] = scores.T * WIDTH**0.5 * sharper
        arrays[f"{stem}.self.key.weight"][rows, : len(scores)] = np.eye(len(scores))
        arrays[f"{stem}.self.value.weight"][own, READ] = np.eye(WORDS)
        arrays[f"{stem}.output.dense.weight"][written, own] = strength * np.eye(WORDS)
        votes = VOTES[layer][head] * (np.eye(WORDS) + fine_votes[:, place])
        arrays["cls.predictions.transform.dense.weight"][READ, written] = votes
    write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})
    write_config(folder, {**BERT_CONFIG, **SIZES, "architectures": ["BertForMaskedLM"]})
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    return folder


def _embed(arrays: dict[str, np.ndarray]) -> None:
    """Positions, words and clusters, one-hot."""
    arrays["bert.embeddings.position_embeddings.weight"][:, :LENGTH] = np.eye(LENGTH)
    words = arrays["bert.embeddings.word_embeddings.weight"]
    words[:, LENGTH : LENGTH + WORDS] = np.eye(WORDS)
    first = {other: word for word, other in CLUSTERS}
    for place, word in enumerate(VOCABULARY):
        words[place, LENGTH + WORDS + VOCABULARY.index(first.get(word, word))] = 1

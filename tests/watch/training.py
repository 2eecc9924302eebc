"""A tiny BERT, its tokenizer and texts to train on: all made here, in a blink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from small_bert import VOCABULARY

TEXTS = ["the cat sat on the mat .", "she took off her hat , and sat down !", "the dog sat ."]
"""What is watched."""
TRAINED = ["the dog took the hat .", "her cat sat down on the mat and sat .", "she sat ."]


def tokenizer(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"))


def classifier(*, dropout: float = 0.1) -> Any:
    """A BertForSequenceClassification of 2 layers of 2 heads, in training mode."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        num_labels=2,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return transformers.BertForSequenceClassification(config).train()


class Examples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows for a Trainer."""

    def __init__(self, tokenizer: Any, repeats: int = 4) -> None:
        encoded = tokenizer(TRAINED * repeats, padding=True, return_tensors="pt")
        labels = torch.arange(len(TRAINED) * repeats) % 2
        self.rows = [
            {**{name: tensor[at] for name, tensor in encoded.items()}, "labels": labels[at]}
            for at in range(len(labels))
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return self.rows[at]

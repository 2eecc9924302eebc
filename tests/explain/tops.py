"""Random checkpoints with a vocabulary and something on top, for the tests of targets, effects and attributions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from random_models import Made, made
from small_bert import VOCABULARY

WORDS = (*VOCABULARY, *(f"word{at}" for at in range(60 - len(VOCABULARY))))
TEXT = "the cat [MASK] on the mat and sat down ."
NAMES = {"0": "bad", "1": "fair", "2": "good"}


def readable(folder: Path, stem: str, suffix: str, **config: Any) -> Made:
    """A random checkpoint whose tokenizer is BERT's with the words of the small one; labels have names."""
    if suffix in ("ForSequenceClassification", "ForTokenClassification") and "num_labels" not in config:
        config["id2label"] = NAMES
    checkpoint = made(folder, stem, suffix, **config)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return checkpoint

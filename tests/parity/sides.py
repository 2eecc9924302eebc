"""Small checkpoints with a tokenizer, and copies with one fault each, for tests of parity and doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from random_models import SPECIAL_IDS, made

SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
TEXTS = (
    "the cat sat on the mat",
    "the old dog was not tired",
    "a red boat under the bank of water",
    "rain day and night on the river",
    "she was tired it was not",
)
WORDS = (*dict.fromkeys(" ".join(TEXTS).split()), "paper", "price")


def with_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of 60 words beside a checkpoint."""
    vocabulary = [*SPECIALS, *WORDS]
    vocabulary += [f"word{at}" for at in range(60 - len(vocabulary))]
    specials = [
        {"id": at, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False} for at, token in enumerate(SPECIALS)
    ]  # fmt: skip
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]  # fmt: skip
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, *second],
            "special_tokens": {
                token: {"id": token, "ids": [at], "tokens": [token]} for at, token in enumerate(SPECIALS)
            },
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: at for at, word in enumerate(vocabulary)},
            "unk_token": "[UNK]",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    names = ("pad", "cls", "sep", "unk", "mask")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64,
                **{f"{name}_token": f"[{name.upper()}]" for name in names}}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def small(folder: Path, stem: str = "Bert", suffix: str = "Model", **config: Any) -> Any:
    """A random checkpoint of a family with a tokenizer; the module that wrote it."""
    extra = {name: value for name, value in SPECIAL_IDS.items() if stem in ("ModernBert", "EuroBert")}
    module = made(folder, stem, suffix, **extra, **config).module
    with_tokenizer(folder)
    return module

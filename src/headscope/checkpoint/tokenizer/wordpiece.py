"""BERT's WordPiece as plain data, for another implementation of it: web/src/encoder/wordpiece.ts."""

from __future__ import annotations

from typing import Any

from headscope.checkpoint.tokenizer.encoded import Layout, Special
from headscope.checkpoint.tokenizer.face import Tokenizer
from headscope.errors import UnsupportedError

PARTS = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}
"""Part of tokenizer.json -> the only type of it that is described."""


def described(tokenizer: Tokenizer) -> dict[str, Any]:
    """The vocabulary and the rules of a WordPiece tokenizer, as JSON.

    Raises:
        UnsupportedError: a part of the tokenizer is of another type, or has options that BERT's lacks.
    """
    state = tokenizer.library_state() or {}
    steps = (state.get("normalizer") or {}).get("normalizers", ())
    if lowered := [step["type"] for step in steps] == ["Lowercase", PARTS["normalizer"]]:
        state["normalizer"] = steps[1]  # sentence-transformers put the lower case before it
    for part, wanted in PARTS.items():
        if (kind := (state.get(part) or {}).get("type")) != wanted:
            raise _unsupported(tokenizer, f"its {part} is {kind or 'none'}, not {wanted}")
    model, normalizer = state["model"], state["normalizer"]
    vocabulary: dict[str, int] = model["vocab"]
    added = {piece["content"]: piece["id"] for piece in state["added_tokens"]}
    for piece in state["added_tokens"]:
        if options := [name for name in ("single_word", "lstrip", "rstrip", "normalized") if piece[name]]:
            raise _unsupported(tokenizer, f"its added token {piece['content']!r} has the option {options[0]}")
    by_id = {index: token for token, index in (*vocabulary.items(), *added.items())}
    if sorted(by_id) != list(range(len(by_id))) or len(by_id) < len({*vocabulary, *added}):
        raise _unsupported(tokenizer, "its ids don't run from 0 without a gap")
    unknown = vocabulary.get(model["unk_token"])
    if unknown is None:
        raise _unsupported(tokenizer, f"its vocabulary lacks the unknown token {model['unk_token']!r}")
    lowercase, strip = normalizer["lowercase"], normalizer["strip_accents"]
    return {
        "tokens": [by_id[index] for index in range(len(by_id))],
        "added": sorted(added.values()),
        "only_added": sorted(index for token, index in added.items() if token not in vocabulary),
        "unknown": unknown,
        "prefix": model["continuing_subword_prefix"],
        "longest": model["max_input_chars_per_word"],
        "clean": normalizer["clean_text"],
        "ideographs": normalizer["handle_chinese_chars"],
        "strip": lowercase if strip is None else strip,
        "lowercase": lowercase or lowered,
        "single": _slots(tokenizer.layout(1)),
        "pair": _slots(tokenizer.layout(2)),
    }


def _slots(layout: Layout) -> list[dict[str, int]]:
    return [
        {"id": slot.id, "segment": slot.segment}
        if isinstance(slot, Special)
        else {"text": slot.text, "segment": slot.segment}
        for slot in layout
    ]


def _unsupported(tokenizer: Tokenizer, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"the tokenizer is not BERT's WordPiece: {reason}",
        where=tokenizer.source or "the tokenizer",
        advice="choose a checkpoint with BERT's tokenizer; `headscope view` shows the others from a server",
    )

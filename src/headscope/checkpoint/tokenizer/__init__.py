"""Text, words or ids in; the ids, pieces, segments and spans that a checkpoint's own tokenizer gives out."""

from __future__ import annotations

from headscope.checkpoint.tokenizer.encoded import Encoded
from headscope.checkpoint.tokenizer.face import Tokenizer
from headscope.checkpoint.tokenizer.load import load_tokenizer

__all__ = ["Encoded", "Tokenizer", "load_tokenizer"]

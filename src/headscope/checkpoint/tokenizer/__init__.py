"""A checkpoint's tokenizer: from text, words or ids to ids, tokens, segments and spans."""

from __future__ import annotations

from headscope.checkpoint.tokenizer.encoded import Encoded
from headscope.checkpoint.tokenizer.face import Tokenizer
from headscope.checkpoint.tokenizer.load import load_tokenizer

__all__ = ["Encoded", "Tokenizer", "load_tokenizer"]

"""A checkpoint's tokenizer: from text, words or ids to ids, tokens, segments and spans.

Read `face.py`, the `Tokenizer`, then `load.py`, which chooses files and the engine that reads them correctly, by
`tokenizer_config.py` and the tables in `known.py`. Engines are in `vocabularies.py` (tokenizer.json, vocabularies),
`sentencepiece.py`, and `japanese.py`; `backend.py` calls the tokenizers library, and catches its crashes.

    load_tokenizer(checkpoint).encode("The cat sat on the mat.").tokens
"""

from __future__ import annotations

from headscope.checkpoint.tokenizer.encoded import Prepared
from headscope.checkpoint.tokenizer.face import Tokenizer
from headscope.checkpoint.tokenizer.load import borrowed_tokenizer, load_tokenizer

__all__ = ["Prepared", "Tokenizer", "borrowed_tokenizer", "load_tokenizer"]

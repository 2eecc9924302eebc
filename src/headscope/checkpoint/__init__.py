"""Checkpoints on disk or on the hub: names are resolved, headers and configs read, and tensors read on access.

Read `open_checkpoint.py`, the `Checkpoint`, then `resolve.py`, from a name to a weight file in a `FileTree`
(`raw_files.py` on disk, `hub.py` on the hub). `safetensors_header.py` and `pickle_header.py` read the header of a file,
and `pickle_machine.py` interprets a pickle, which is never run. `entry.py` has the dtypes, and makes arrays of the
bytes that `raw_files.py` gives by span. `json_text.py` bounds every JSON; `sentence.py` reads what
sentence-transformers adds; `tokenizer/` turns text into ids. Anything may call it; it knows nothing of models.

    checkpoint = open_checkpoint("google-bert/bert-base-uncased")
    checkpoint.read("embeddings.word_embeddings.weight", rows=slice(100, 104))
"""

from __future__ import annotations

from headscope.checkpoint.entry import TensorEntry
from headscope.checkpoint.open_checkpoint import Checkpoint, open_checkpoint
from headscope.checkpoint.resolve import called, model_name

__all__ = ["Checkpoint", "TensorEntry", "called", "model_name", "open_checkpoint"]

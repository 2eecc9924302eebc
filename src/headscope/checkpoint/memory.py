"""Models that somebody holds in memory, as checkpoints: each is saved once, in its library's own form."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from headscope.errors import InputError

KINDS = {
    "sentence_transformers": "sentence-transformers",
    "transformers.pipelines": "pipeline",
    "transformers.modeling_utils": "transformers",
}
"""The module in which a class, or one that it inherits from, stands -> the library's form."""


WRAPPERS = (
    "_orig_mod",
    "module",
    "_fsdp_wrapped_module",
    "_fpw_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
)
"""The attributes in which torch.compile, DataParallel, FSDP, checkpointing and DeepSpeed keep what they wrap.

The names of its tensors have them as parts."""


WRAPPED = re.compile(rf"(^|\.)({'|'.join(WRAPPERS)})\.")
"""Finds a part of a name that a wrapper added."""


def unwrapped(name: str) -> str:
    """Return a name without the parts that wrappers add, wherever they stand."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS) if WRAPPED.search(name) else name


MOST_WRAPPERS = 8
"""Maximum number of wrappers around one another."""


def within(held: Any) -> Any:
    """The model in wrappers; the object itself if it is one of `KINDS`, or wraps none."""
    inner = held
    for _ in range(MOST_WRAPPERS):
        if kind_of(inner) is not None:
            return inner
        inner = next((part for name in WRAPPERS if (part := getattr(inner, name, None)) is not None), None)
    return held


def kind_of(held: Any) -> str | None:
    """The form of a model in memory; None for anything else. No library is imported for it."""
    modules = [base.__module__ for base in type(held).__mro__]
    found = [kind for start, kind in KINDS.items() if any(f"{module}.".startswith(f"{start}.") for module in modules)]
    return found[0] if found else None


def save_held(held: Any, tokenizer: Any = None) -> tuple[Path, str]:
    """Save a model to a new temporary folder, as it is now: its weights, its config, and its tokenizer if it has one.

    Args:
        held: an object of sentence-transformers, a pipeline of transformers, or a model of transformers.
        tokenizer: for a model of transformers: its tokenizer.

    Returns:
        The folder, which the caller deletes; and a name of the model for answers.

    Raises:
        InputError: it is none of these.
    """
    held = within(held)
    kind = kind_of(held)
    if kind is None:
        raise InputError(
            f"a {type(held).__name__} can't be opened",
            where="open",
            advice="pass a hub id, a folder or a file, or a model of transformers or sentence-transformers; "
            "for another model in memory, use hs.capture",
        )
    folder = Path(tempfile.mkdtemp(prefix="headscope-"))
    try:
        if kind == "sentence-transformers":
            held.save(str(folder))
        else:
            model, words = (within(held.model), held.tokenizer) if kind == "pipeline" else (held, tokenizer)
            # transformers doesn't find tied weights by the names that wrappers inside the model give them.
            state = {unwrapped(name): tensor for name, tensor in model.state_dict().items()}
            model.save_pretrained(folder, state_dict=state)
            if words is not None and not isinstance(words, (str, os.PathLike)):
                words.save_pretrained(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, _name_of(held, kind)


def _name_of(held: Any, kind: str) -> str:
    """The name that a model was loaded by, else its class."""
    model = held.model if kind == "pipeline" else held
    config = getattr(model, "config", None)
    return str(getattr(config, "_name_or_path", "") or f"a {type(model).__name__} in memory")

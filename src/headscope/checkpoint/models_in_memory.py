"""Models that somebody holds in memory, as checkpoints: each is saved once, in its library's own form."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscope.checkpoint.open_checkpoint import Checkpoint, open_checkpoint
from headscope.checkpoint.weights_elsewhere import is_wrapped, refuse_meta, refuse_sharded, with_numbers
from headscope.errors import InputError, UnsupportedError

KINDS = {
    "sentence_transformers": "sentence-transformers",
    "transformers.pipelines": "pipeline",
    "transformers.modeling_utils": "transformers",
}
"""The module in which a class, or one that it inherits from, stands -> the library's form."""


WRAPPERS = ("_orig_mod", "module", *(f"_{kind}_module" for kind in ("fsdp_wrapped", "checkpoint_wrapped", "forward")))
"""The attributes, and parts of names, of torch.compile, DataParallel, FSDP, checkpointing and DeepSpeed."""
PLAIN = ("torch", "transformers", "transformers_modules", "sentence_transformers", "accelerate", "headscope")
"""The packages whose forwards and hooks compute what the config and the weights say."""
OPENED = itertools.count(1)
"""Numbers that tell objects of one class apart."""
WRAPPED = re.compile(rf"(?<![^.])(?:{'|'.join(WRAPPERS)})\.")


def unwrapped(name: str) -> str:
    """Return a name without the parts that wrappers add, wherever they stand."""
    return WRAPPED.sub("", name)


def within(held: Any, most: int = 8) -> Any:
    """The model in wrappers, or what the innermost of them holds."""
    inner = next((part for name in WRAPPERS if (part := getattr(held, name, None)) is not None), None)
    return held if kind_of(held) is not None or inner is None or not most else within(inner, most - 1)


def kind_of(held: Any) -> str | None:
    """The form of a model in memory; None for anything else. No library is imported for it."""
    modules = [base.__module__ for base in type(held).__mro__]
    found = [kind for start, kind in KINDS.items() if any(f"{module}.".startswith(f"{start}.") for module in modules)]
    return found[0] if found else None


def unpacked(held: Any, tokenizer: Any = None) -> tuple[Any, Any]:
    """The model in a pipeline of transformers, else what was passed; and the tokenizer that comes with it.

    Args:
        held: a model in memory, or anything else.
        tokenizer: one that was passed, which goes before its own.
    """
    kind = kind_of(held)
    own = held.tokenizer if kind in ("pipeline", "sentence-transformers") and tokenizer is None else tokenizer
    return (within(held.model) if kind == "pipeline" else held), own


def to_open(held: Any, way: str) -> InputError:
    """Return the error for a model that must be opened first: it is a path, or an object of sentence-transformers.

    Args:
        held: the model.
        way: what to do instead, with `hs.open(model)` in it.
    """
    return InputError(
        f"expected a model of transformers, got {type(held).__name__}",
        where="model",
        advice=f"{way}, which takes it with its tokenizer",
    )


def _refuse_graphs(held: Any) -> None:
    """Raise an error for what PyTorch makes of a model.

    Raises:
        InputError: a model was traced, scripted or exported.
    """
    modules = [base.__module__ for base in type(held).__mro__]
    kinds = {"torch.jit": "traced or scripted", "torch.fx.graph_module": "exported", "torch.export": "exported"}
    for made in (kinds[kind] for kind in kinds for module in modules if module.startswith(kind)):
        raise InputError(
            f"{type(held).__name__} can't be opened: it has no config, and its weights may have other names",
            where="open",
            advice=f"open the model before it is {made}",
        )


def _refuse_adapted(held: Any) -> None:
    """Raise an error for a model in whose layers adapters of peft stand: transformers would save these alone.

    Raises:
        UnsupportedError: there are some.
    """
    for name, _ in held.named_modules() if hasattr(held, "named_modules") else ():
        if name.endswith(".base_layer"):
            adapted = name.removesuffix(".base_layer")
            raise UnsupportedError(
                f"a {type(held).__name__} with adapters can't be opened: one is added to {adapted}",
                where="open",
                advice="merge them (peft: model.merge_and_unload()) and open the result; hs.capture and hs.trace take "
                "the model as it is",
            )


def _own_code(held: Any) -> tuple[str, str]:
    """Name and class of the first part of a base model that runs code of its user; empty if none does.

    The code is a forward, a hook, or an attention function; that of torch.compile and its like runs what it wraps.
    """
    wrappers = [name for name in WRAPPERS if name.startswith("_")]  # anybody's class may have a `module`
    for model in filter(lambda part: kind_of(part) == "transformers", within(held).modules()):
        functions = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS
        attends = functions.get(model.config._attn_implementation)
        for name, part in model.base_model.named_modules():
            calls = [*part._forward_hooks.values(), *part._forward_pre_hooks.values(), *([] if name else [attends])]
            calls += [] if any(hasattr(part, wrapper) for wrapper in wrappers) else [part.forward]
            if not all(map(_is_plain, calls)):
                return name or model.base_model_prefix, type(part).__name__
    return "", ""


def _is_plain(call: Any) -> bool:
    """Return True if a function, or what is called in a `partial`, is of one of the PLAIN packages."""
    call = getattr(call, "func", call)
    return str(getattr(call, "__module__", None) or PLAIN[0]).partition(".")[0] in PLAIN


@contextmanager
def _without_bars() -> Iterator[None]:
    """Let transformers draw no progress bars.

    Its own switch would also forget which bars of huggingface_hub the user has switched off. A release without this
    private flag draws its bars.
    """
    from transformers.utils import logging

    bars = getattr(logging, "_tqdm_active", True)
    logging._tqdm_active = False
    try:
        yield
    finally:
        logging._tqdm_active = bars


def open_held(held: Any, tokenizer: Any = None) -> Checkpoint:
    """Save a model to a temporary folder, as it is now: its weights, its config, and its tokenizer if it has one.

    Args:
        held: an object of sentence-transformers, a pipeline of transformers, or a model of transformers.
        tokenizer: for a model of transformers: its tokenizer; for another: one instead of its own.

    Returns:
        The folder as a checkpoint, with which it is deleted.

    Raises:
        InputError, UnsupportedError: it is none of these, or packs its weights, as `quantize_dynamic` does.
    """
    _refuse_graphs(held)
    held, tokenizer = unpacked(within(held), tokenizer)
    _refuse_adapted(held)
    kind = kind_of(held)
    if kind is None:
        parts = getattr(held, "__dict__", {})
        parts = parts | (parts.get("_modules") or {})  # of an nn.Module
        inner = next((name for name, part in parts.items() if kind_of(part) is not None), None)
        raise InputError(
            f"{type(held).__name__} can't be opened",
            where="open",
            advice=f"pass the model in it: hs.open(model.{inner})"
            if inner is not None
            else "pass a hub id, a folder or a file, or a model of transformers or sentence-transformers; "
            "for another model in memory, use hs.capture",
        )
    named = tokenizer is None or isinstance(tokenizer, (str, os.PathLike))
    if not named and (kind_of(tokenizer) is not None or not hasattr(tokenizer, "save_pretrained")):
        raise InputError(
            f"expected a tokenizer, got {type(tokenizer).__name__}",
            where="tokenizer",
            advice="pass a tokenizer of transformers (of a tokenizers.Tokenizer: "
            "transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)), a folder with its files, or a "
            "checkpoint's name",
        )
    _refuse_packed(held, may_be_meta=kind != "sentence-transformers")
    folder = Path(tempfile.mkdtemp(prefix="headscope-"))
    try:
        _save(held, kind, tokenizer, folder)
        checkpoint = open_checkpoint(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(checkpoint, shutil.rmtree, folder, ignore_errors=True)
    checkpoint.held, checkpoint.name = _names_of(held)
    checkpoint.own_code = _own_code(held)
    return checkpoint


@_without_bars()
def _save(held: Any, kind: str, tokenizer: Any, folder: Path) -> None:
    """Save a model, and its tokenizer if it has one, as its library does.

    Raises:
        UnsupportedError: a tensor is on the meta device, and nothing keeps its numbers.
    """
    if kind == "sentence-transformers":
        held.save(str(folder), create_model_card=False)  # a card asks the hub about the model that this one came from
        tokenizer = None if tokenizer is held.tokenizer else tokenizer  # its own is saved already
    else:
        state = held.state_dict()
        state = {unwrapped(name): with_numbers(held, name, "open") if x.is_meta else x for name, x in state.items()}
        held.save_pretrained(folder, state_dict=state)
    if tokenizer is not None and not isinstance(tokenizer, (str, os.PathLike)):
        tokenizer.save_pretrained(folder)


def _refuse_packed(model: Any, *, may_be_meta: bool) -> None:
    """Raise an error for a model of which some weights are no plain tensors.

    Args:
        model: the model.
        may_be_meta: True if those on the meta device are read from where they are kept.

    Raises:
        UnsupportedError: there are some.
    """
    for name, value in within(model).state_dict().items():
        refuse_sharded(value, unwrapped(name), type(model).__name__)
        if not may_be_meta:
            refuse_meta(value, name, "open")
        if not hasattr(value, "data_ptr") or value.is_quantized or is_wrapped(value):
            raise UnsupportedError(
                f"a {type(model).__name__} whose weights are packed can't be opened: {unwrapped(name)} is a "
                f"{type(value).__name__}",
                where="open",
                advice="open the model before quantising it; hs.capture and hs.describe take it as it is",
            )


def _names_of(model: Any) -> tuple[str, str]:
    """Its class, and a name of its own, with that of the model that it was loaded from."""
    loaded_by = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    loaded_by = Path(loaded_by).name if os.path.isdir(loaded_by) else loaded_by
    own = f"{type(model).__name__} in memory {next(OPENED)}"
    return type(model).__name__, f"{loaded_by} ({own})" if loaded_by else own

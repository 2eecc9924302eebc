"""Models of transformers, built from what headscope has read: transformers opens no weights and runs no foreign code.

A config can make transformers fetch code and run it (`auto_map`, kernels of the hub), patch its own classes, or build
modules until memory ends. `configured` drops or refuses such fields; every model that is built passes through it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import transformers

from headscope.anatomy.refused_checkpoints import QUANTISED
from headscope.anatomy.sizes import MOST_LAYERS, SAVED_CONFIG
from headscope.checkpoint.json_text import brief, shortened
from headscope.errors import CheckpointError, ConfigError, HeadscopeError, UnsupportedError

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint

IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
"""Fields that select an implementation, and those that transformers brings along; it fetches any other from the hub."""

PATCHES = ("fusion_config", "kernel_config", "distributed_config", *QUANTISED)
"""Fields with which a config replaces the modules of a class, or describes codes instead of weights."""

LOOPS = re.compile(r"(?:^|_)(?:layers?|blocks?|stages|depths?|groups?(?:_num)?|experts|heads?|labels)$")
MOST_LABELS = 100_000
"""Fields that count modules or names, and the largest counts: no class has more of them than its checkpoint tensors."""

SPARE = 1 << 26
"""Numbers beyond twice those of the checkpoint: a pooler that it lacks, masks that follow from a size."""


def configured(kind: Any, settings: Mapping[str, Any], *, where: str, tensors: int = 0) -> Any:
    """A config of transformers.

    Args:
        kind: its class.
        settings: the content of config.json.
        where: the checkpoint, for messages.
        tensors: number of tensors in the checkpoint.

    Raises:
        UnsupportedError: a field that makes transformers fetch code or patch its classes, or a config that it rejects.
        ConfigError: a count that is larger than any model's.
    """
    fields = _plain(settings, where, max(tensors, MOST_LAYERS))
    with quiet(), foreign_errors(f"{where}: config.json", SAVED_CONFIG):
        return kind(**fields)


def check_size(cls: Any, config: Any, checkpoint: Checkpoint) -> None:
    """Build a class without memory for its weights, and check that it has no more of them than its checkpoint.

    Raises:
        UnsupportedError: the class rejects the config.
        CheckpointError: it has more.
    """
    held = sum(prod(entry.shape) for entry in checkpoint.tensors.values())
    with quiet(), foreign_errors(f"{checkpoint.where}: config.json", SAVED_CONFIG), torch.device("meta"):
        model = cls(config)
    wanted = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if wanted > 2 * held + SPARE:
        raise CheckpointError(
            f"by its config, {cls.__name__} has {wanted:,} parameters, and the checkpoint holds {held:,}",
            where=checkpoint.where,
            advice=SAVED_CONFIG,
        )


def base_class(settings: Mapping[str, Any], *, where: str) -> tuple[Any, Any]:
    """The classes of transformers for a config and its base model.

    Raises:
        UnsupportedError: transformers doesn't know the model type, which then is code in the checkpoint, or nothing.
    """
    model_type: Any = settings.get("model_type")
    known = isinstance(model_type, str) and model_type in transformers.CONFIG_MAPPING
    kind: Any = transformers.CONFIG_MAPPING[model_type] if known else None
    classes: Any = transformers.MODEL_MAPPING.get(kind, None) if known else None
    if classes is None:
        code = ", and headscope doesn't run the code that auto_map names" if settings.get("auto_map") else ""
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no model of type {brief(model_type)}{code}",
            where=f"{where}: config.json",
            advice="load the model yourself, and pass it: hs.survey(model, …, tokenizer=…), hs.capture(model)",
        )
    if isinstance(classes, (list, tuple)):  # several classes, of which `architectures` may name one
        named = settings.get("architectures")
        wanted = named if isinstance(named, list) else []
        return kind, next((cls for cls in classes if cls.__name__ in wanted), classes[0])
    return kind, classes


def _plain(value: Any, where: str, most: int) -> Any:
    """The fields of a config, and of the configs inside it, without those that would run code."""
    if isinstance(value, list):
        return [_plain(item, where, most) for item in value]
    if not isinstance(value, Mapping):
        return value
    fields = {}
    for name, field in value.items():
        names = list(field.values()) if isinstance(field, Mapping) else [field]
        foreign = [item for item in names if item is not None and item not in IMPLEMENTATIONS]
        if (name in PATCHES and field) or (IMPLEMENTATION.fullmatch(name) and foreign):
            raise UnsupportedError(
                f"config.json asks for {name} = {brief(field)}, which may run other code than transformers' class",
                where=f"{where}: config.json",
                advice="remove the field, or load the model yourself and capture it",
            )
        limit = MOST_LABELS if name.endswith("labels") else most
        counts = field if isinstance(field, list) else [field]
        if LOOPS.search(name) and any(isinstance(count, int) and count > limit for count in counts):
            raise ConfigError(
                f"config.json says {name} = {brief(field)}, more than the {limit:,} that such a model can have",
                where=f"{where}: config.json",
                advice=SAVED_CONFIG,
            )
        if name != "auto_map":
            fields[name] = _plain(field, where, most)
    return fields


@contextmanager
def foreign_errors(where: str, advice: str) -> Iterator[None]:
    """Turn any exception of transformers, or of its classes, into an UnsupportedError that says what it raised."""
    try:
        yield
    except HeadscopeError:
        raise
    except Exception as error:
        message = shortened(" ".join(str(error).split()) or type(error).__name__, 400)
        raise UnsupportedError(
            f"transformers {transformers.__version__} raised: {message}", where=where, advice=advice
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bar, and its reports of weights that a class doesn't use."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()

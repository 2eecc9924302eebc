"""Loading the model of a survey with transformers, or checking a live one; what it takes; its weights' hash."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import nn

from headscope._survey.documents import spelled
from headscope._survey.settings import DTYPES, LENGTH
from headscope.anatomy import Family, family_of
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError, NotFoundError, UnsupportedError, first_line
from headscope.model import open_model

if TYPE_CHECKING:
    from headscope._survey.windows import Window


@dataclass(frozen=True, eq=False)
class Source:
    """The origin of a model.

    Attributes:
        name: a hub id, a folder, or `-`; for a live model, its name.
        revision: a branch, tag or commit of a hub id.
        live: the model and its tokenizer, if they are in memory.
    """

    name: str
    revision: str | None = None
    live: tuple[nn.Module, Any] | None = None

    @property
    def public_name(self) -> str:
        """The name, reduced to the last folder of a local path."""
        name = Path(self.name).resolve().name if self.name != "-" and os.path.isdir(self.name) else self.name
        return spelled(name)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model ready to run.

    Attributes:
        model: the base model, without what sits on top.
        tokenizer: its tokenizer.
        sha256: of its weights, before any conversion to another dtype.
        parameters: their number.
    """

    model: nn.Module
    tokenizer: Any
    sha256: str
    parameters: int


def takes_segments(model: nn.Module, tokenizer: Any) -> bool:
    """Return True if a tokenizer gives token_type_ids and a model's forward has that argument, or takes any."""
    known = inspect.signature(model.forward).parameters.values()
    takes = any(one.name == "token_type_ids" or one.kind is one.VAR_KEYWORD for one in known)
    return takes and "token_type_ids" in tokenizer.model_input_names


def inputs_of(windows: Sequence[Window], device: torch.device, *, segments: bool) -> dict[str, torch.Tensor]:
    """The arguments of a model's forward for windows of one length; with `segments`, token_type_ids too."""
    inputs = {"input_ids": np.stack([window.ids for window in windows])}
    if segments:
        inputs["token_type_ids"] = np.stack([window.segments for window in windows])
    return {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}


def load(source: Source, *, device: str, dtype: str) -> Loaded:
    """Load the model onto its device and convert it. A live model is used as it is.

    Raises:
        NotFoundError: there is no such model.
        UnsupportedError: transformers doesn't support it, or the checkpoint lacks weights.
        InputError: there is no such device, or a live model is on another device or has another dtype.
    """
    if source.live is not None:
        model, tokenizer = source.live
        model = getattr(model, "base_model", model)
        _check_live(model, device, dtype)
        count = sum(tensor.numel() for tensor in model.state_dict().values())
        return Loaded(model, tokenizer, weights_digest(model), count)
    model, tokenizer = _pretrained(source)
    digest, count = weights_digest(model), _parameters_of(source, model)
    try:
        model = model.to(device=device, dtype=getattr(torch, DTYPES[dtype]))
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"the model can't be moved to {device!r}: {first_line(error)}",
            where="device",
            advice="name a device that this machine has: cpu, cuda, cuda:1, mps",
        ) from error
    return Loaded(model.eval(), tokenizer, digest, count)


def device_and_dtype(model: nn.Module) -> tuple[str, str]:
    """The device and dtype of a live model.

    Raises:
        InputError: the model has no parameters, or a dtype that surveys don't support.
    """
    parameter = next((weight for weight in model.parameters() if weight.is_floating_point()), None)
    if parameter is None:
        raise InputError("the model has no parameters", where="model", advice="pass a model with weights")
    names = {getattr(torch, long): short for short, long in DTYPES.items()}
    if parameter.dtype not in names:
        raise InputError(
            f"the model's dtype is {str(parameter.dtype).removeprefix('torch.')}",
            where="model",
            advice=f"convert it to one of {', '.join(DTYPES.values())}",
        )
    return str(parameter.device), names[parameter.dtype]


def _check_live(model: nn.Module, device: str, dtype: str) -> None:
    actual = device_and_dtype(model)
    if actual != (device, dtype):
        raise InputError(
            f"the model is on {actual[0]} in {actual[1]}, but {device} in {dtype} was requested",
            where="model",
            advice="move the model yourself, or omit device and dtype",
        )


def longest(loaded: Loaded) -> int | None:
    """The most tokens that the model accepts; None if it has no limit."""
    config = getattr(loaded.model, "config", None)
    limits = []
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        family = _family(config)
        counted = family is None or family.rotary is None
        offset = family.position_offset if family is not None and counted else None
        first = 0 if offset is None else int(getattr(config, "pad_token_id", 0) or 0) + offset
        limits.append(positions - first)
    tokenizer_limit = getattr(loaded.tokenizer, "model_max_length", None)
    if isinstance(tokenizer_limit, int) and 0 < tokenizer_limit < 2**31:
        limits.append(tokenizer_limit)
    return min(limits, default=None)


def window_length(loaded: Loaded, requested: int | None) -> int:
    """Tokens per window.

    Raises:
        InputError: the model doesn't accept that many.
    """
    limit = longest(loaded)
    if requested is None:
        return LENGTH if limit is None else min(LENGTH, limit)
    if limit is not None and requested > limit:
        raise InputError(
            f"windows of {requested} tokens are longer than the model's limit of {limit}",
            where="length",
            advice=f"use at most {limit}",
        )
    return requested


def _family(config: Any) -> Family | None:
    match = family_of({"model_type": getattr(config, "model_type", "")})
    return match[0] if match else None


def _parameters_of(source: Source, model: nn.Module) -> int:
    """The checkpoint's number of parameters, as `hs.open(…).parameters.total` has it.

    In families that headscope doesn't know, that of the loaded model without its pooler, which may be random.
    """
    opened = open_model(source.name, revision=source.revision)
    if opened.anatomy.family is not None:
        return opened.parameters.total
    return sum(tensor.numel() for name, tensor in model.state_dict().items() if not name.startswith("pooler."))


def weights_digest(model: nn.Module) -> str:
    """The sha256 of names, dtypes, shapes and bytes of all weights and buffers but the pooler's."""
    digest = hashlib.sha256()
    for name, tensor in sorted({**dict(model.named_buffers()), **model.state_dict()}.items()):
        if name.startswith("pooler."):
            continue  # attention doesn't depend on it, and if a checkpoint has none it is random
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(memoryview(data))
    return digest.hexdigest()


def _pretrained(source: Source) -> tuple[nn.Module, Any]:
    name = str(BUNDLED) if source.name == "-" else source.name
    with _quiet():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, revision=source.revision or "main")
            model, loading = transformers.AutoModel.from_pretrained(
                name, revision=source.revision or "main", output_loading_info=True
            )
        except OSError as error:
            raise NotFoundError(
                f"transformers finds no model: {first_line(error)}",
                where=source.name,
                advice="name a hub id, a folder with config.json, weights and tokenizer, or - for the bundled model",
            ) from error
        except (ValueError, KeyError, ImportError, RuntimeError) as error:
            raise UnsupportedError(
                f"transformers {transformers.__version__} can't load it: {first_line(error)}",
                where=source.name,
                advice="load it yourself and pass it: hs.survey(model, documents, tokenizer=tokenizer)",
            ) from error
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise UnsupportedError(
            f"the checkpoint lacks {len(missing)} of the model's weights, which would be initialised at random: "
            + ", ".join(missing[:5])
            + (", …" if len(missing) > 5 else ""),
            where=source.name,
            advice="use a complete checkpoint",
        )
    return model, tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bar and its report of weights that the base model doesn't use."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]

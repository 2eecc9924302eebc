"""The model that a survey runs: loaded by transformers, or passed in live; what it is, and where its W_O stands."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from headscope._survey.documents import spelled
from headscope._survey.settings import DTYPES, LENGTH
from headscope.anatomy import Family, family_of
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError, NotFoundError, UnsupportedError, first_line


@dataclass(frozen=True, eq=False)
class Source:
    """Where a model comes from.

    Attributes:
        name: a hub id, a folder, or `-`; for a live model what it is called.
        revision: a branch, tag or commit of a hub id.
        live: the model and its tokenizer, where they are in memory.
    """

    name: str
    revision: str | None = None
    live: tuple[nn.Module, Any] | None = None

    @property
    def said(self) -> str:
        """The name without this machine's folders."""
        name = Path(self.name).resolve().name if self.name != "-" and os.path.isdir(self.name) else self.name
        return spelled(name)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model ready to run.

    Attributes:
        model: the base model, without what sits on top.
        tokenizer: its tokenizer.
        sha256: of its weights, as they were before they were brought to another precision.
        parameters: how many numbers they are.
    """

    model: nn.Module
    tokenizer: Any
    sha256: str
    parameters: int


def load(source: Source, *, device: str, dtype: str) -> Loaded:
    """The model on its device, in its precision. A live model is left as it is.

    Raises:
        NotFoundError: there is no such model.
        UnsupportedError: transformers doesn't know it, or the checkpoint lacks weights.
        InputError: there is no such device; a live model is elsewhere or in another precision.
    """
    if source.live is not None:
        model, tokenizer = source.live
        model = getattr(model, "base_model", model)
        _check_live(model, device, dtype)
        digest, count = weights_digest(model)
        return Loaded(model, tokenizer, digest, count)
    model, tokenizer = _pretrained(source)
    digest, count = weights_digest(model)
    try:
        model = model.to(device=device, dtype=getattr(torch, DTYPES[dtype]))
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"the model can't be brought to {device!r}: {first_line(error)}",
            where="device",
            advice="name a device that this machine has: cpu, cuda, cuda:1, mps",
        ) from error
    return Loaded(model.eval(), tokenizer, digest, count)


def own_place(model: nn.Module) -> tuple[str, str]:
    """The device and precision of a live model.

    Raises:
        InputError: a precision that a survey can't run in.
    """
    parameter = next((one for one in model.parameters() if one.is_floating_point()), None)
    if parameter is None:
        raise InputError("the model has no parameters", where="model", advice="pass a model with weights")
    names = {getattr(torch, long): short for short, long in DTYPES.items()}
    if parameter.dtype not in names:
        raise InputError(
            f"the model is in {str(parameter.dtype).removeprefix('torch.')}",
            where="model",
            advice=f"bring it to one of {', '.join(DTYPES.values())}",
        )
    return str(parameter.device), names[parameter.dtype]


def _check_live(model: nn.Module, device: str, dtype: str) -> None:
    own = own_place(model)
    if own != (device, dtype):
        raise InputError(
            f"the model is on {own[0]} in {own[1]}, and {device} in {dtype} was asked for",
            where="model",
            advice="move the model yourself, or leave out device and dtype",
        )


def longest(loaded: Loaded) -> int | None:
    """The most tokens that the model takes; None where it sets no limit."""
    config = getattr(loaded.model, "config", None)
    limits = []
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        family = _family(config)
        offset = None if family is None else family.position_offset
        first = 0 if offset is None else int(getattr(config, "pad_token_id", 0) or 0) + offset
        limits.append(positions - first)
    said = getattr(loaded.tokenizer, "model_max_length", None)
    if isinstance(said, int) and 0 < said < 2**31:
        limits.append(said)
    return min(limits, default=None)


def window_length(loaded: Loaded, asked: int | None) -> int:
    """Tokens of a window.

    Raises:
        InputError: the model doesn't take so many.
    """
    most = longest(loaded)
    if asked is None:
        return LENGTH if most is None else min(LENGTH, most)
    if most is not None and asked > most:
        raise InputError(
            f"windows of {asked} tokens were asked for, and the model takes {most}",
            where="length",
            advice=f"give at most {most}",
        )
    return asked


def _family(config: Any) -> Family | None:
    found = family_of({"model_type": getattr(config, "model_type", "")})
    return found[0] if found else None


def weights_digest(model: nn.Module) -> tuple[str, int]:
    """sha256 over names, precisions, shapes and bytes of all weights but the pooler's; how many numbers they are.

    Buffers that are not saved (rotations, slopes) are in the hash, not in the count.
    """
    digest = hashlib.sha256()
    count = 0
    saved = model.state_dict()
    for name, tensor in sorted({**dict(model.named_buffers()), **saved}.items()):
        if name.startswith("pooler."):
            continue  # no attention depends on it, and where a checkpoint has none it is made of random numbers
        count += tensor.numel() if name in saved else 0
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(memoryview(data))
    return digest.hexdigest(), count


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
                f"transformers finds no model there: {first_line(error)}",
                where=source.name,
                advice="name a hub id, a folder with config.json, weights and tokenizer, or - for the bundled model",
            ) from error
        except (ValueError, KeyError, ImportError, RuntimeError) as error:
            raise UnsupportedError(
                f"transformers {transformers.__version__} can't load it: {first_line(error)}",
                where=source.name,
                advice="load it yourself and pass it: hs.survey(model, documents, tokenizer=tokenizer)",
            ) from error
    lacking = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if lacking:
        raise UnsupportedError(
            f"the checkpoint lacks {len(lacking)} of the model's weights, which would be random: "
            + ", ".join(lacking[:5])
            + (", …" if len(lacking) > 5 else ""),
            where=source.name,
            advice="use a checkpoint that was saved whole",
        )
    return model, tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers without its progress bar and its report of weights that a base model doesn't use."""
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

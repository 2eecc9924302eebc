"""Loading the model of a survey with transformers, or checking a live one; the record that identifies it.

A run resumes a survey only if the record is equal. It has everything that a number may depend on: the weights' hash
alone doesn't determine the numbers, as another activation, another epsilon or a cased tokenizer gives others. So the
record also has the config, the tokenizer, and how attention and matrix products are computed; not the code of modules
and hooks, which only a live model can have of its own. Short values are spelled out, so that an error can name the
difference; long ones are SHA-256 hashes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from tokenizers import normalizers
from torch import nn

from headscope.atlas.documents import spelled
from headscope.atlas.survey_settings import DTYPES
from headscope.attention.precision import matmul_precision
from headscope.checkpoint import model_name, open_checkpoint
from headscope.checkpoint.json_text import few
from headscope.checkpoint.models_in_memory import unwrapped
from headscope.checkpoint.tokenizer.backend import library_errors
from headscope.errors import CheckpointError, InputError, UnsupportedError, first_line
from headscope.heads.windows import not_fast
from headscope.live.built import base_class, check_size, configured, foreign_errors, quiet
from headscope.model import Model, open_model

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class ModelSource:
    """The origin of a model.

    Attributes:
        name: a hub id, a folder, or `-`; for a live model, its name.
        revision: a branch, tag or commit of a hub id.
        live: the model and its tokenizer, if they are in memory.
        tokenizer, segments: as hs.open was given them.
        called: the name of a model that was saved to a temporary folder; empty for others.
    """

    name: str
    revision: str | None = None
    live: tuple[nn.Module, Any] | None = None
    tokenizer: str | os.PathLike[str] | None = None
    segments: str = "own"
    called: str = ""

    def opened(self) -> Model:
        """The checkpoint, opened."""
        return open_model(self.name, revision=self.revision, tokenizer=self.tokenizer, segments=self.segments)

    @property
    def public_name(self) -> str:
        """The name as people say it, without the path of a local folder."""
        if self.called:
            return self.called
        local = self.name != "-" and os.path.exists(self.name)
        return spelled(model_name(os.path.abspath(self.name)) if local else self.name)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model ready to run.

    Attributes:
        model: the base model, without what sits on top.
        tokenizer: its tokenizer.
        sha256: of its weights, before any conversion to another dtype.
        parameters: their number.
        opened: the checkpoint, as headscope opens it; None for a live model.
    """

    model: nn.Module
    tokenizer: Any
    sha256: str
    parameters: int
    opened: Model | None = None


def load(source: ModelSource, *, device: str, dtype: str) -> Loaded:
    """Load the model onto its device and convert it. A live model is used as it is.

    Raises:
        NotFoundError: there is no such model.
        CheckpointError: its files are damaged or contradict each other.
        ConfigError: config.json is damaged.
        UnsupportedError: transformers doesn't support it, or the checkpoint lacks weights.
        InputError: there is no such device, or a live model is on another device or has another dtype.
    """
    if source.live is not None:
        model, tokenizer = source.live
        model = getattr(model, "base_model", model)
        if (actual := device_and_dtype(model)) != (device, dtype):
            found = f"the model is on {actual[0]} in {actual[1]}, but {device} in {dtype} was requested"
            raise InputError(found, where="model", advice="move the model yourself, or omit device and dtype")
        return Loaded(model, tokenizer, weights_digest(model), sum(x.numel() for x in model.state_dict().values()))
    opened = source.opened()
    model, tokenizer = pretrained(opened)
    digest, count = weights_digest(model), _parameters_of(opened, model)
    try:
        model = model.to(device=device, dtype=getattr(torch, DTYPES[dtype]))
    except (RuntimeError, AssertionError) as error:
        found = f"the model can't be moved to {device!r}: {first_line(error)}"
        advice = "name a device that this machine has: cpu, cuda, cuda:1, mps"
        raise InputError(found, where="device", advice=advice) from error
    return Loaded(model.eval(), tokenizer, digest, count, opened)


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
        found = f"the model's dtype is {str(parameter.dtype).removeprefix('torch.')}"
        raise InputError(found, where="model", advice=f"convert it to one of {', '.join(DTYPES.values())}")
    return str(parameter.device), names[parameter.dtype]


def _parameters_of(opened: Model, model: nn.Module) -> int:
    """The checkpoint's number of parameters, as `hs.open(…).parameters.total` has it.

    In families that headscope doesn't know, that of the loaded model without its pooler, which may be random.
    """
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


def pretrained(opened: Model) -> tuple[nn.Module, Any]:
    """The base model and its tokenizer, from the files that headscope's own readers have checked.

    transformers gets a config and tensors; the only files that it opens are the tokenizer's.
    """
    checkpoint, where = opened.checkpoint, opened.checkpoint.where
    for refusal in opened.anatomy.refusals:
        if refusal.damaged:
            raise refusal.error(where)
    kind, cls = base_class(checkpoint.config, where=where)
    config = configured(kind, checkpoint.config, where=where, tensors=len(checkpoint.tensors))
    check_size(cls, config, checkpoint)
    tokenizer = _tokenizer(opened, config)
    advice = "load it yourself and pass it: hs.survey(model, documents, tokenizer=tokenizer)"
    with quiet(), foreign_errors(where, advice), torch.device("cpu"):
        model, loading = cls.from_pretrained(None, config=config, state_dict=_state(opened), output_loading_info=True)
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise UnsupportedError(
            f"the checkpoint lacks {len(missing)} of the model's weights, which would be initialised at random: "
            + few(missing, 5),
            where=where,
            advice="use a complete checkpoint",
        )
    return model, tokenizer


def _tokenizer(opened: Model, config: Any) -> Any:
    """The tokenizer as transformers loads it, once headscope has read the same files within its limits.

    Raises:
        CheckpointError: a tokenizer file is damaged.
        UnsupportedError: transformers can't load the tokenizer without foreign code, or it isn't a fast one.
    """
    given = opened.tokenizer_from
    named = "" if given is None or not os.path.isdir(given) else os.fspath(given)
    checkpoint = opened.checkpoint if given is None or named else open_checkpoint(given)
    where = named or checkpoint.where
    name, _, commit = where.rpartition("@") if checkpoint.origin == "hub" and not named else (where, "", "main")
    kind = getattr(transformers, opened.tokenizer.kind or "", transformers.PreTrainedTokenizerFast)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedTokenizerFast)):
        raise not_fast(str(opened.tokenizer.kind))  # before it is made: such classes load dictionaries of other engines
    advice = "load it yourself and pass it: hs.survey(model, documents, tokenizer=tokenizer)"
    with quiet(), library_errors(f"{where}: tokenizer", advice, library="transformers", kind=UnsupportedError):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            name, config=config, revision=commit, trust_remote_code=False
        )
    if opened.text_rule.stated and opened.text_rule.lowercase:  # as sentence-transformers does, before the tokenizer
        backend = tokenizer.backend_tokenizer
        steps = [normalizers.Lowercase(), *filter(None, [backend.normalizer])]
        backend.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _state(opened: Model) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, copied, without wrappers' parts in its name; bfloat16 as it is stored.

    A tied table has its own name, too.
    """
    checkpoint, anatomy = opened.checkpoint, opened.anatomy
    checkpoint.fetch()
    state = {}
    for name, entry in checkpoint.tensors.items():
        tensor = torch.from_numpy(np.array(checkpoint.read(name)))
        state[unwrapped(name)] = tensor.to(torch.bfloat16) if entry.dtype == "BF16" else tensor
    prefix = anatomy.prefix or ""
    stored = ((row.name, unwrapped(row.stored)) for row in anatomy.parameters)
    state |= {prefix + name: state[kept] for name, kept in stored if not kept.startswith(prefix)}
    return state


UNRELATED = {"_name_or_path", "name_or_path", "transformers_version", "id2label", "label2id"}
"""Fields of a config that attention doesn't depend on: paths, versions (recorded elsewhere), class labels."""

SHORT = 400
"""Most characters of a value that is spelled out."""

CONSTANT = (bool, int, float, str, type(None))


def config_record(model: nn.Module) -> dict[str, Any]:
    """The fields of a model's config; empty for a model without a transformers config."""
    config: Any = getattr(model, "config", None)
    fields: dict[str, Any] = _plain(config.to_dict()) if hasattr(config, "to_dict") else {}
    return fields


def tokenizer_record(tokenizer: Any) -> dict[str, Any]:
    """The settings of a tokenizer: each section of a fast tokenizer, and what transformers adds."""
    record: dict[str, Any] = {
        "class": type(tokenizer).__name__,
        "inputs": list(tokenizer.model_input_names),
        "truncation_side": tokenizer.truncation_side,
        "special": _short(_plain(tokenizer.special_tokens_map)),
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return record
    try:
        with library_errors("tokenizer", "use a tokenizer that can be saved"):
            sections = json.loads(backend.to_str())
    except CheckpointError:  # a component written in Python can't be saved; record its class
        parts = ("normalizer", "pre_tokenizer", "post_processor", "model")
        sections = {name: type(getattr(backend, name)).__qualname__ for name in parts}
        sections["vocabulary"] = sorted(backend.get_vocab().items())
    # A survey sets truncation and padding itself, and decodes nothing.
    return record | {
        name: _short(section)
        for name, section in sections.items()
        if name not in ("version", "truncation", "padding", "decoder")
    }


def running_record(model: nn.Module, device: str) -> dict[str, Any]:
    """The way the model runs: attention implementation, precision of matrix products, autocast."""
    kind = device.partition(":")[0]
    autocast = torch.is_autocast_enabled(kind) if torch.amp.is_autocast_available(kind) else False
    return {
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "matmul": matmul_precision().get(kind, "highest"),
        "autocast": str(torch.get_autocast_dtype(kind)).removeprefix("torch.") if autocast else None,
    }


def _plain(value: Any) -> Any:
    """A value that JSON can represent, the same in every process."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items() if name not in UNRELATED}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, CONSTANT):
        return value
    if hasattr(value, "to_dict"):
        return _plain(value.to_dict())
    return str(value) if isinstance(value, torch.dtype) else type(value).__qualname__


def _short(value: Any) -> Any:
    """A value, or the hash of its JSON if that is long."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= SHORT else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


DIRECTIONS = 2
"""Main directions that are removed: they hold how frequent a token is, hardly what it means (Mu and Viswanath 2018)."""


def token_vectors(model: Any, ids: Sequence[int]) -> Float[np.ndarray, "ids d_model"]:
    """The centred input embeddings of some tokens; of width 0 for a model without a table of them.

    Args:
        model: a model of transformers.
        ids: of the tokens.
    """
    try:
        weight = getattr(model.get_input_embeddings(), "weight", None)
    except (AttributeError, NotImplementedError):
        weight = None
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        return np.zeros((len(ids), 0), dtype=np.float32)
    with torch.inference_mode():
        table = weight.detach().float()
        mean = table.mean(0)
        rows = table[torch.tensor(list(ids), dtype=torch.int64, device=table.device)] - mean
        spread = (table.T @ table).double() - len(table) * torch.outer(mean, mean).double()
        main = torch.linalg.eigh(spread)[1][:, -DIRECTIONS:].float()
        numbers: np.ndarray = (rows - rows @ main @ main.T).cpu().numpy()
    return numbers

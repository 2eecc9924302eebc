"""The record that identifies a model: everything a number may depend on. A run resumes a survey only if it is equal.

The weights alone don't determine the numbers: another activation, another epsilon or a cased tokenizer gives others.
So the record has the config, the settings of each module, the tokenizer, and how attention and matrix products are
computed. Short values are spelled out, so that an error can name the difference; long ones are SHA-256 hashes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headscope.checkpoint.tokenizer.panics import library_errors
from headscope.errors import CheckpointError
from headscope.statistics.compiled_way import INSTALLED

UNRELATED = {"_name_or_path", "name_or_path", "transformers_version", "id2label", "label2id"}
"""Fields of a config that attention doesn't depend on: paths, versions (recorded elsewhere), class labels."""

PASSING = {"training", "layer_idx", "max_seq_len_cached"}
"""Attributes of modules to ignore: a survey runs in eval mode, the path has the layer, and a cache may grow."""

SHORT = 400
"""Most characters of a value that is spelled out."""

CONSTANT = (bool, int, float, str, type(None))


def config_record(model: nn.Module) -> dict[str, Any]:
    """The fields of a model's config; empty for a model without a transformers config."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return {}
    fields: dict[str, Any] = _plain(config.to_dict())
    return fields


def modules_record(model: nn.Module) -> dict[str, Any]:
    """Path with numbers as `*` -> the modules there: class, settings, functions, hooks, and hashes of user code."""
    descriptions: dict[str, list[str]] = {}
    digest = hashlib.sha256()
    for path, module in model.named_modules():
        if path.split(".")[0] == "pooler":
            continue  # attention doesn't depend on it
        spelled = _module(module)
        digest.update(f"{path}\0{spelled}\n".encode("utf-8", "surrogatepass"))
        at_path = descriptions.setdefault(re.sub(r"\b\d+\b", "*", path), [])
        if spelled not in at_path:
            at_path.append(spelled)
    # The paths let an error say what differs; the hash also covers which of the numbered modules is which.
    return {path: _short(" | ".join(at_path)) for path, at_path in descriptions.items()} | {
        "sha256": digest.hexdigest()
    }


def _module(module: nn.Module) -> str:
    """A description of a module, without its submodules."""
    kind = type(module)
    home = kind.__module__.partition(".")[0]
    words = [f"{kind.__qualname__}({module.extra_repr()})"]
    if home not in ("torch", "transformers"):
        words.append(f"code {_code(kind)}")
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or name in PASSING | UNRELATED:
            continue
        if isinstance(value, CONSTANT) and home != "torch":  # for PyTorch's modules extra_repr has them
            words.append(f"{name}={value!r}")
        elif callable(value):
            words.append(f"{name}={_called(value)}")
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    words += [f"hook {_called(hook)}" for hook in hooks]
    return ", ".join(words)


def _called(function: Callable[..., Any]) -> str:
    """A function's name, with a hash of its code if it isn't a library's."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    home = (getattr(function, "__module__", "") or "").partition(".")[0]
    return str(name) if home in ("torch", "transformers", "headscope") else f"{name} {_code(function)}"


def _code(thing: Any) -> str:
    """A short hash of the source of a class or function; `unknown` if the source isn't available."""
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return "unknown"
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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
    """The way the model runs: attention implementation, precision of matrix products, autocast; what compiles sums."""
    kind = device.partition(":")[0]
    autocast = torch.is_autocast_enabled(kind) if torch.amp.is_autocast_available(kind) else False
    return {
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "matmul": torch.get_float32_matmul_precision(),
        "autocast": str(torch.get_autocast_dtype(kind)).removeprefix("torch.") if autocast else None,
        "numba": importlib.metadata.version("numba") if INSTALLED else None,
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

"""The record of a model that two runs must share to resume each other's survey: whatever a number may depend on.

Weights alone don't say which numbers they give: the same weights with another activation, another epsilon or a
tokenizer that keeps capitals give others. So the record holds the config, what each module is set to, the tokenizer
and how attention and matrix products are computed. It is spelled out where that is short, so that a difference can be
named, and is a SHA-256 where it is long.
"""

from __future__ import annotations

import hashlib
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

UNRELATED = {"_name_or_path", "name_or_path", "transformers_version", "id2label", "label2id"}
"""Fields of a config that no attention depends on: where it lay, who wrote it (versions are recorded), class labels."""

PASSING = {"training", "layer_idx", "max_seq_len_cached"}
"""Attributes of modules that say nothing: a survey runs in eval mode, the place is known, and a cache may grow."""

SHORT = 400
"""Most characters of a record that is spelled out."""

CONSTANT = (bool, int, float, str, type(None))


def config_record(model: nn.Module) -> dict[str, Any]:
    """The fields of a model's config; nothing for a model without one in transformers' manner."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return {}
    found: dict[str, Any] = _plain(config.to_dict())
    return found


def modules_record(model: nn.Module) -> dict[str, Any]:
    """Path with numbers as `*` -> what is there: class, settings, functions, hooks, and a user's own code."""
    found: dict[str, list[str]] = {}
    digest = hashlib.sha256()
    for path, module in model.named_modules():
        if path.split(".")[0] == "pooler":
            continue  # as its weights: no attention depends on it
        spelled = _module(module)
        digest.update(f"{path}\0{spelled}\n".encode("utf-8", "surrogatepass"))
        among = found.setdefault(re.sub(r"\b\d+\b", "*", path), [])
        if spelled not in among:
            among.append(spelled)
    # The paths say what differs; the hash also says which of the numbered modules is which.
    return {path: _short(" | ".join(among)) for path, among in found.items()} | {"sha256": digest.hexdigest()}


def _module(module: nn.Module) -> str:
    """A module in words, without what is inside it."""
    kind = type(module)
    home = kind.__module__.partition(".")[0]
    words = [f"{kind.__qualname__}({module.extra_repr()})"]
    if home not in ("torch", "transformers"):
        words.append(f"code {_code(kind)}")
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or name in PASSING | UNRELATED:
            continue
        if isinstance(value, CONSTANT) and home != "torch":  # PyTorch's own modules say these in extra_repr
            words.append(f"{name}={value!r}")
        elif callable(value):
            words.append(f"{name}={_called(value)}")
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    words += [f"hook {_called(hook)}" for hook in hooks]
    return ", ".join(words)


def _called(function: Callable[..., Any]) -> str:
    """A function's name, and its code where that isn't a library's."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    home = (getattr(function, "__module__", "") or "").partition(".")[0]
    return str(name) if home in ("torch", "transformers", "headscope") else f"{name} {_code(function)}"


def _code(thing: Any) -> str:
    """A short hash of the source of a class or function; `unknown` where there is none to be found."""
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return "unknown"
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def tokenizer_record(tokenizer: Any) -> dict[str, Any]:
    """How a text becomes tokens: each section of a fast tokenizer, and what transformers adds."""
    found: dict[str, Any] = {
        "class": type(tokenizer).__name__,
        "inputs": list(tokenizer.model_input_names),
        "truncation_side": tokenizer.truncation_side,
        "special": _short(_plain(tokenizer.special_tokens_map)),
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return found
    try:
        with library_errors("tokenizer", "use a tokenizer that can be saved"):
            sections = json.loads(backend.to_str())
    except CheckpointError:  # a normalizer or pre-tokenizer written in Python can't be saved: its class is known
        parts = ("normalizer", "pre_tokenizer", "post_processor", "model")
        sections = {name: type(getattr(backend, name)).__qualname__ for name in parts}
        sections["vocabulary"] = sorted(backend.get_vocab().items())
    # A survey sets truncation and padding itself, and nothing is decoded.
    return found | {
        name: _short(section)
        for name, section in sections.items()
        if name not in ("version", "truncation", "padding", "decoder")
    }


def running_record(model: nn.Module, device: str) -> dict[str, Any]:
    """How the model runs: which attention it calls, how exact matrix products are, autocast."""
    kind = device.partition(":")[0]
    autocast = torch.is_autocast_enabled(kind) if torch.amp.is_autocast_available(kind) else False
    return {
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "matmul": torch.get_float32_matmul_precision(),
        "autocast": str(torch.get_autocast_dtype(kind)).removeprefix("torch.") if autocast else None,
    }


def _plain(value: Any) -> Any:
    """A value as JSON can hold it, the same in every process."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items() if name not in UNRELATED}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
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
    """A value, or the hash of its JSON where that is long."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= SHORT else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"

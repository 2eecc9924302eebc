"""A reader's result: a module's inputs as queries, keys, values, a mask and score terms; and what readers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from headscope.attention.terms import NO_TERMS, Terms
from headscope.errors import UnsupportedError
from headscope.live.masks.analyst import RawMask

SYNONYMS = {"input": "hidden_states", "mask": "attention_mask", "context": "encoder_hidden_states"}
"""Names of arguments in some classes -> those that most have."""


class Arguments(dict[str, Any]):
    """The arguments of a call by name, defaults filled in; one that the library's class doesn't have is refused."""

    def __init__(self, module: nn.Module, by_name: Mapping[str, Any]) -> None:
        super().__init__({SYNONYMS.get(name, name): x for name, x in by_name.items()})
        self.module = module

    def __missing__(self, name: str) -> Any:
        raise UnsupportedError(
            f"{type(self.module).__name__} has no argument {name!r}; it has {', '.join(self)}",
            where=f"{type(self.module).__module__} (transformers {version('transformers')})",
            advice="install a version of transformers that headscope is tested with (see .ci/constraints.txt)",
        )

    @property
    def seen(self) -> torch.Tensor | None:
        """The hidden states of another sequence that keys are made of; None in self-attention."""
        other = self.get("encoder_hidden_states")
        return None if other is self["hidden_states"] else other

    @property
    def cache(self) -> Any:
        """The cache, whatever its name; None without one."""
        return next((x for x in self.values() if hasattr(x, "get_seq_length")), None)


RunPart = Callable[[Any, torch.Tensor], torch.Tensor]
"""Applies a part of the module to an input: with the output that it had in this call, if it had this input."""


@dataclass(frozen=True, eq=False)
class Reading:
    """One call of an attention module, recomputed from its inputs.

    Attributes:
        q: (batch, heads, queries, d_head).
        k, v: (batch, kv_heads, keys, d_head) and (batch, kv_heads, keys, d_value).
        scale: factor of q . k.
        mask: the mask, and what is added to the scores beside the terms.
        terms: the layer's own score terms, as torch tensors.
        cross: True if the keys come from another sequence.
        stage: what q and k are: projected, scaled or rotated.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    mask: RawMask
    terms: Terms = NO_TERMS
    cross: bool = False
    stage: str = "projected"


def _nothing(module: Any, implementation: str = "") -> str | None:
    return None


@dataclass(frozen=True)
class Reader:
    """Instructions for reading the calls of one class of attention modules.

    Attributes:
        read: turns a call's arguments into a reading, after the module has run. It gets the module, its arguments and
            a function that runs its parts. None if this call uses PyTorch's scaled_dot_product_attention, which is
            read where it is called.
        projection: name of the module's part that multiplies the contexts by W_O; None if the module returns contexts.
        refusal: the reason why a module with these settings can't be read; None if it can.
        dropouts: names of the module's dropouts that change its contexts.
        differs: the reason why the attention that returns weights is not the one that ran; None if it is. Called with
            the module and the name of the implementation that ran.
    """

    read: Callable[[Any, Arguments, RunPart], Reading | None]
    projection: str | None = None
    refusal: Callable[[Any], str | None] = _nothing
    dropouts: tuple[str, ...] = ("dropout",)
    differs: Callable[[Any, str], str | None] = _nothing


def heads_of(x: torch.Tensor, d_head: int) -> torch.Tensor:
    """(batch, tokens, heads * d_head) to (batch, heads, tokens, d_head)."""
    return x.reshape(*x.shape[:-1], -1, d_head).transpose(1, 2)


def cached(
    module: Any, arguments: Arguments, k: torch.Tensor, v: torch.Tensor, *, cross: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """A call's keys and values: those in its cache, which the module has already updated, if it was given one."""
    cache = arguments.cache
    if cache is None:
        return k, v
    if hasattr(cache, "cross_attention_cache"):
        cache = cache.cross_attention_cache if cross else cache.self_attention_cache
    held = cache.layers[module.layer_id if hasattr(module, "layer_id") else module.layer_idx]
    return held.keys, held.values


def dropout_of(module: nn.Module, names: tuple[str, ...]) -> float:
    """The largest probability of a module's dropouts; 0 outside training."""
    if not module.training:
        return 0.0
    parts = [getattr(module, name, None) for name in names]
    return max(float(getattr(part, "p", part or 0.0)) for part in parts)

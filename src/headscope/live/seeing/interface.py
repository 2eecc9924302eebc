"""transformers: observe every attention function of its attention interface.

Models look up their attention function by the name in their config (sdpa, flash_attention_2, …), or use the
`eager_attention_forward` of their modeling file. While a capture is open, each of these functions is replaced by a
wrapper that calls the original with exactly the same arguments and delivers what it observed. Configs, masks and the
choice of implementation are left as the model has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any

import torch
from torch import nn

from headscope.live.genuine import is_own, undisturbed
from headscope.live.hooks import LOCK, Shared
from headscope.live.names import following
from headscope.live.plan.classes import FLEX_NAME, kind_of
from headscope.live.seeing.observed import run_observed
from headscope.live.seeing.operators import Unwatched
from headscope.live.sessions import RUNNING, register_call

TABLES: dict[str, tuple[dict[str, Any], str]] = {}
"""The tables whose functions are wrapped while a capture is open, and how the names of these functions end."""

SWAPPED: list[tuple[dict[str, Any], str, Any, Any]] = []
"""Tables and keys of the functions that are wrapped, each with the function and its wrapper."""


def _restore() -> None:
    for table, key, original, wrapper in reversed(SWAPPED):
        if table.get(key) is wrapper:
            table[key] = original
    SWAPPED.clear()
    TABLES.clear()


INSTALLED = Shared(lambda: _restore)
"""The wrappers in transformers' tables, shared by all open captures."""


def wrap(attention: Iterable[nn.Module] = ()) -> None:
    """Wrap the interface's functions, and the eager functions of these modules' modeling files.

    Called again, it wraps what was registered since: by transformers when it loads a kernel, or by anybody in a block.
    """
    with LOCK:
        for file in {type(module).__module__ for module in attention if kind_of(type(module)).uses_interface}:
            _add_tables_of(sys.modules.get(file))
        for table, ending in TABLES.values():
            for key, function in list(table.items()):
                if key.endswith(ending) and function not in WRAPPERS:
                    table[key] = wrapper = watched(function, _known_as(function, key))
                    SWAPPED.append((table, key, function, wrapper))


def _add_tables_of(module: ModuleType | None) -> None:
    """The table of the whole interface, and those of a modeling file: its functions, and its own interface."""
    from transformers import AttentionInterface

    TABLES["interface"] = AttentionInterface._global_mapping, ""
    if module is not None:
        TABLES[module.__name__] = vars(module), "eager_attention_forward"
        local = getattr(vars(module).get("ALL_ATTENTION_FUNCTIONS"), "_local_mapping", {})
        TABLES[f"{module.__name__}, interface"] = local, ""


WRAPPERS: set[Callable[..., Any]] = set()
"""All wrappers ever made."""

FLASH = "flash_attention"
"""The name of transformers' function for FlashAttention, whatever the names of its kernels."""


def _known_as(original: Callable[..., Any], key: str) -> str:
    """The name that says how a function masks. Kernels from the hub are called by their repositories."""
    names = {"flash_attention_forward": FLASH, "flex_attention_forward": FLEX_NAME}
    function: Any = original.func if isinstance(original, partial) else original
    if getattr(function, "__module__", "").startswith("transformers.integrations."):
        return names.get(getattr(function, "__name__", ""), key)
    return key


@cache
def watched(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap an attention function: the same result, but sessions that cover the module observe the call.

    A function always gets the same wrapper.
    """

    @wraps(original)
    def attention(
        module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        def run() -> Any:
            return original(module, query, key, value, attention_mask, *args, **kwargs)

        if RUNNING.inside:
            return run()
        seats = register_call(module, query, key, may_be_part=True)
        seen = None
        if id(getattr(module, "config", None)) in RUNNING.switched:
            attention_mask, seen = _as_meant(attention_mask, query, key, filled=kwargs.get("position_bias") is not None)
        if seats:
            implementation = str(getattr(getattr(module, "config", None), "_attn_implementation", ""))
            of_hub = _known_as(original, "") == FLASH and not implementation.startswith(FLASH)  # a kernel of the hub
            proven = is_own(original) and not of_hub and undisturbed(query, key, value)
            settings = kwargs
            if name == "sdpa" and kwargs.get("softcap") is not None and is_own(original):
                settings = {**kwargs, "softcap": None}  # left out by transformers 5.20, and refused by 5.24
            RUNNING.inside = True
            try:
                with Unwatched():
                    tensors = (query, key, value)
                    result = run_observed(run, name, proven, seats, module, tensors, attention_mask, settings)
            finally:
                RUNNING.inside = False
            if seen is not None:
                result[0].mul_(seen)
            following.attended(result[0], query, (0, 2, -1, -1))
        else:
            result = run()
        if name == FLASH:
            wrap()
        return result

    WRAPPERS.add(attention)
    return attention


def _as_meant(mask: Any, query: torch.Tensor, key: torch.Tensor, *, filled: bool) -> tuple[Any, torch.Tensor | None]:
    """A boolean mask as numbers to add, for eager attention, which adds True as 1 and False as 0.

    Args:
        mask: the mask. One of numbers that the model itself has made for eager attention is a boolean one elsewhere.
        query, key: (batch, heads, tokens, d_head).
        filled: True if the attention that takes booleans writes the lowest number over hidden scores, as it does
            where there is a position bias.

    Returns:
        The mask, any other as it is; and, of a boolean one, (batch, queries, heads, 1), False for queries that see no
        key, whose context is 0 in the attention that takes booleans; None if there it isn't.
    """
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4:
        return mask, None
    lowest = torch.finfo(query.dtype).min
    if mask.dtype == torch.bool:
        allowed = mask = mask[..., : key.shape[2]]
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(~mask, lowest)
    elif RUNNING.own_masks:
        allowed = mask > lowest
    else:
        return mask, None
    return mask, None if filled else allowed.any(-1).transpose(1, 2)[..., None]

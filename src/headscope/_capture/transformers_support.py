"""transformers: observe every attention function of its attention interface.

Models look up their attention function by the name in their config (sdpa, flash_attention_2, …), or use the
`eager_attention_forward` of their modeling file. While a capture is open, each of these functions is replaced by a
wrapper that calls the original with exactly the same arguments and delivers what it observed. Configs, masks and the
choice of implementation are left as the model has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from headscope._capture import in_graph
from headscope._capture.cells import BatchCells
from headscope._capture.classes import FLEX_NAME, kind_of, stage_of
from headscope._capture.flex import Flexed
from headscope._capture.masks import RawMask, Rules
from headscope._capture.operators import Noting, Unwatched
from headscope._capture.projections import Awaited
from headscope._capture.rows import kept_queries, score_bound
from headscope._capture.sessions import (
    LOCK,
    RUNNING,
    Seat,
    deliver,
    heads_to_silence,
    recording,
    register_call,
    silence,
)
from headscope.errors import UnsupportedError
from headscope.kernels import autocast_dtype
from headscope.terms import NO_TERMS, Terms


class Installed:
    """The wrappers in transformers' tables, shared by all open captures. One instance for the whole process."""

    def __init__(self) -> None:
        self._users = 0
        self._undo: list[Callable[[], None]] = []
        self._renew: list[Callable[[], None]] = []
        self._modeling: set[str] = set()

    def enter(self, attention: Iterable[nn.Module]) -> None:
        """Wrap the interface's functions, and the eager functions of these modules' modeling files."""
        with LOCK:
            self._users += 1
            try:
                for file in {type(module).__module__ for module in attention if kind_of(type(module)).uses_interface}:
                    if not self._undo:
                        self._replace_in_tables()
                    self._replace_in_file(sys.modules.get(file))
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        """Restore the original functions when the last capture closes."""
        with LOCK:
            self._users -= 1
            if self._users == 0:
                for undo in reversed(self._undo):
                    undo()
                self._undo.clear()
                self._renew.clear()
                self._modeling.clear()

    def renew(self) -> None:
        """Replace functions again that were registered anew: transformers does so when it loads a kernel."""
        with LOCK:
            for renew in self._renew:
                renew()

    def _replace_in_tables(self) -> None:
        from transformers import AttentionInterface

        table = AttentionInterface._global_mapping
        for key in list(table):
            self._swap(table, key)

    def _replace_in_file(self, module: ModuleType | None) -> None:
        if module is None or module.__name__ in self._modeling:
            return
        self._modeling.add(module.__name__)
        space = vars(module)
        for name in [name for name in space if name.endswith("eager_attention_forward")]:
            self._swap(space, name)
        local = getattr(space.get("ALL_ATTENTION_FUNCTIONS"), "_local_mapping", {})
        for key in list(local):
            self._swap(local, key)

    def _swap(self, table: dict[str, Any], key: str) -> None:
        original = table[key]
        replacement = watched(original, _known_as(original, key))
        table[key] = replacement

        def undo() -> None:
            if table.get(key) is replacement:
                table[key] = original

        def renew() -> None:
            if table.get(key) is original:
                table[key] = replacement

        self._undo.append(undo)
        self._renew.append(renew)


INSTALLED = Installed()

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

    A function always gets the same wrapper, so that a graph compiled in one capture is valid in the next.
    """

    @wraps(original)
    def attention(
        module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if torch.compiler.is_compiling() or RUNNING.compiled is not None:
            return in_graph.attention(original, name, module, query, key, value, attention_mask, args, kwargs)
        seats = register_call(module, query.shape[2], key.shape[2], (query.shape, key.shape))
        if seats:
            with Unwatched():
                result = run_observed(original, name, seats, module, query, key, value, attention_mask, *args, **kwargs)
        else:
            result = original(module, query, key, value, attention_mask, *args, **kwargs)
        if name == FLASH:
            INSTALLED.renew()
        return result

    return attention


def run_observed(
    original: Callable[..., Any],
    name: str,
    seats: list[Seat],
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run the model's own attention function for sessions that record the call or silence heads in it.

    Args:
        original: the attention function.
        name: the name under which the interface knows it.
        seats: the sessions that cover the module.
        module, query, key, value, attention_mask, args, kwargs: the arguments of `original`.

    Returns:
        The result of `original`, with the contexts of silenced heads replaced.

    Raises:
        UnsupportedError: the call uses a mask that can't be read.
    """
    recorders, silenced = recording(seats), heads_to_silence(seats)
    if not recorders and not silenced:
        return original(module, query, key, value, attention_mask, *args, **kwargs)
    with _as_compiled() if name == FLEX_NAME else Noting() as notes:
        result = original(module, query, key, value, attention_mask, *args, **kwargs)
    with torch.no_grad():
        batch = max(len(query), len(key))
        masking = _masking(name, seats[0], module, query, key, attention_mask, kwargs)
        if recorders:
            dtype = (notes and notes.dtype) or product_dtype(name, module, query)
            q = _read(query, query.shape[2], dtype, batch)
            k, v = _read(key, masking.keys, dtype, batch), _read(value, masking.keys, dtype, batch)
            deliver(
                module,
                recorders,
                q=q,
                k=k,
                v=v,
                kernel_lse=notes and notes.lse(*q.shape[:3]),
                context=result[0].detach().transpose(1, 2),
                scale=masking.scale,
                rules=masking.rules,
                stage=stage_of(module, masking.scale, query.shape[-1]),
                own=masking.same_tokens,
                weights=_weights(result),
                silenced=frozenset(silenced),
                dropout=float(kwargs.get("dropout") or 0.0),
                layer_terms=_layer_terms(kwargs),
            )
    if silenced:
        kept = kept_queries(masking.rules, batch, query)
        result = (silence(result[0].transpose(1, 2), silenced, kept).transpose(1, 2).contiguous(), *result[1:])
    for _, forward, place in recorders:
        forward.awaited = Awaited.of(result[0], place.stack, place.layer, reused=RUNNING.compiled is not None)
    return result


def _read(x: torch.Tensor, tokens: int, dtype: torch.dtype, batch: int) -> torch.Tensor:
    """The first tokens of queries, keys or values, as the product of queries and keys reads them."""
    x = x.detach()
    if x.shape[2] > tokens:
        x = x[:, :, :tokens]
    if x.dtype != dtype:
        x = x.to(dtype)
    return x if len(x) == batch else x.expand(batch, -1, -1, -1)


@contextmanager
def _as_compiled() -> Iterator[None]:
    """Let transformers compile flex attention as it does outside of a capture: uncompiled, it builds the whole map."""
    with torch.compiler.set_stance("default"):
        yield


def _weights(result: tuple[Any, ...]) -> torch.Tensor | None:
    """(batch, heads, queries, keys) if a function returns them; flex attention returns log-sum-exps instead."""
    second = result[1] if len(result) > 1 else None
    return second if isinstance(second, torch.Tensor) and second.dim() == 4 else None


def _layer_terms(kwargs: dict[str, Any]) -> Terms:
    """The soft cap and the sinks that a call passes to its attention function."""
    cap, sinks = kwargs.get("softcap"), kwargs.get("s_aux")
    if cap is None and sinks is None:
        return NO_TERMS
    return Terms(
        cap=None if cap is None else float(cap), sinks=None if sinks is None else sinks.detach().reshape(-1).float()
    )


class _Masking(NamedTuple):
    """The mask and the scale of a call.

    Attributes:
        rules: the mask's rule for each row of the batch.
        keys: number of keys that the call uses, counted from the first.
        scale: factor of q . k.
        same_tokens: True if queries and keys are the same tokens.
    """

    rules: Rules
    keys: int
    scale: float
    same_tokens: bool


def _masking(
    name: str,
    seat: Seat,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: Any,
    kwargs: dict[str, Any],
) -> _Masking:
    """Read the mask and the scale of a call from its arguments."""
    if query.dtype == torch.float64 and isinstance(mask, torch.Tensor) and mask.is_floating_point():
        mask = mask.double()  # the precision in which it is added
    queries = query.shape[2]
    raw, keys = raw_mask(name, module, query, key, mask, kwargs)
    cross = seat.place.stack.cross
    if not cross and queries < keys:
        raw = raw.read()
    if not cross and queries < keys and raw.mask is not None:
        keys = used_keys(raw.mask[..., :keys] if isinstance(raw.mask, torch.Tensor) else raw.mask, queries)
    same_tokens = not cross and queries <= keys
    scaling = kwargs.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    rules = seat.forward.analyst.rules(
        raw,
        max(len(query), len(key)),
        queries,
        keys,
        slice(keys - queries, keys) if same_tokens else None,
        reach=partial(score_bound, query, key, scale),
        where=seat.session.plan.paths[id(module)],
    )
    return _Masking(rules, keys, scale, same_tokens)


def product_dtype(name: str, module: nn.Module, query: torch.Tensor) -> torch.dtype:
    """Precision in which an attention function of this name multiplies queries and keys.

    Flash attention does not accept fp32: if autocast is off, transformers casts to the precision of the module's
    weights.
    """
    dtype = autocast_dtype(query)
    if not name.startswith("flash") or dtype != torch.float32:
        return dtype
    config: Any = getattr(module, "config", None)
    if hasattr(config, "_is_quantized"):
        quantized: torch.dtype = config.dtype
        return quantized
    weights = (part.weight.dtype for part in module.modules() if isinstance(part, nn.Linear))
    return next(weights, dtype)


def raw_mask(
    name: str, module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, kwargs: dict[str, Any]
) -> tuple[RawMask, int]:
    """The mask that an attention function applies for these arguments, and how many of the keys it uses.

    Raises:
        UnsupportedError: the mask is not a tensor.
    """
    queries, keys = query.shape[2], key.shape[2]
    bias = kwargs.get("position_bias")
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    flexed = Flexed.of(mask)
    if flexed is not None:
        sizes = (max(len(query), len(key)), query.shape[1], queries, keys)
        raw = flexed.raw(sizes, query.device, type(module).__name__)
        return (raw if bias is None else replace(raw, bias=bias)), keys
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise UnsupportedError(
            f"{name} masks with a {type(mask).__name__}, which capture can't read",
            where=type(module).__name__,
            advice='switch the attention implementation first: model.set_attn_implementation("sdpa")',
        )
    if name == FLEX_NAME:
        # Only a block mask masks: a tensor is added, whatever its type, the same for all heads, and nothing is causal.
        added = None if mask is None else mask[:, :1, :, :keys]
        return RawMask(mask=added if added is None or added.is_floating_point() else added.float(), bias=bias), keys
    if name.startswith("flash") or (mask is not None and mask.dim() == 2):
        keys = keys if mask is None else min(keys, mask.shape[-1])
        width = kwargs.get("sliding_window")
        window = None if width is None or keys <= width else (int(width) - 1, None if causal else int(width) - 1)
        return RawMask(keys=mask, causal=bool(causal) and queries > 1, window=window, bias=bias), keys
    if name.endswith(("eager_attention_forward", "eager")):
        return RawMask(mask=mask, bias=bias), keys
    if mask is None and bool(causal) and queries > 1:
        used = min(queries, keys)
        return RawMask.causal_from_the_first(queries, used, None if bias is None else bias[..., :used]), used
    return RawMask(mask=mask, bias=bias), keys


def used_keys(mask: torch.Tensor | BatchCells, queries: int) -> int:
    """Number of keys without the trailing ones that no query sees, which are the unused slots of a static cache.

    In a numeric mask, only -inf and the lowest finite number count as masked, and only in rows that also hold other
    values.
    """
    if isinstance(mask, torch.Tensor):
        last = _last_seen(mask)
    else:
        last = max(_last_seen(block) for cells in mask.rows() for _, block in cells.blocks())
    return max(queries, last + 1 if last >= 0 else mask.shape[-1])


def _last_seen(mask: torch.Tensor) -> int:
    """The last key that a query sees; -1 if none sees any."""
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    if mask.dtype != torch.bool:
        seen = seen | ~seen.any(-1, keepdim=True)
    places = seen.flatten(0, -2).any(0).nonzero()
    return int(places[-1]) if len(places) else -1

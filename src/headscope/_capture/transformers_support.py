"""transformers: every attention function of the interface, looked on while it runs.

Models look their attention function up by the name in their config: sdpa, flash_attention_2, …, or use the
`eager_attention_forward` of their modeling file. While a capture is open, each of these is replaced in its table by one
that calls it with exactly the same arguments and hands over what it saw. Configs, masks and the choice of
implementation are the model's own and are not touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch
from torch import nn

from headscope._capture.classes import kind_of, stage_of
from headscope._capture.masks import Given
from headscope._capture.operators import Unwatched
from headscope._capture.projections import Awaited
from headscope._capture.refusals import refuse_sinks, refuse_softcap
from headscope._capture.rows import kept_queries, score_bound
from headscope._capture.sessions import LOCK, Seat, asked, covering, hand_over, silence
from headscope.errors import UnsupportedError
from headscope.kernels import KernelWatch, autocast_dtype


class Installed:
    """The attention functions that have been replaced, and how to put them back. One for the whole process."""

    def __init__(self) -> None:
        self._users = 0
        self._undo: list[Callable[[], None]] = []
        self._modeling: set[str] = set()

    def enter(self, attention: Iterable[nn.Module]) -> None:
        """Replace the interface's functions, and the eager ones of these modules' modeling files."""
        with LOCK:
            self._users += 1
            try:
                for file in {type(one).__module__ for one in attention if kind_of(type(one)).uses_interface}:
                    if not self._undo:
                        self._replace_in_tables()
                    self._replace_in_file(sys.modules.get(file))
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        """Put everything back when the last capture closes."""
        with LOCK:
            self._users -= 1
            if self._users == 0:
                for undo in reversed(self._undo):
                    undo()
                self._undo.clear()
                self._modeling.clear()

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
        replacement = watched(original, key)
        table[key] = replacement

        def undo() -> None:
            if table.get(key) is replacement:
                table[key] = original

        self._undo.append(undo)


INSTALLED = Installed()


def watched(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """An attention function that does what `original` does, and hands over what it saw."""

    @wraps(original)
    def attention(
        module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        seats = covering(module, query.shape[2], key.shape[2], (query.shape, key.shape))
        if not seats:
            return original(module, query, key, value, attention_mask, *args, **kwargs)
        with Unwatched():
            return look_on(original, name, seats, module, query, key, value, attention_mask, *args, **kwargs)

    if "torch._dynamo" not in sys.modules:
        return attention
    untraced: Callable[..., Any] = torch.compiler.disable(attention)  # type: ignore[no-untyped-call]
    return untraced


def look_on(
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
    """Run the model's own attention function, silence what is to be silenced, and hand over."""
    name_of_model, path = type(seats[0].session.model).__name__, seats[0].session.plan.paths[id(module)]
    if kwargs.get("softcap") is not None:
        refuse_softcap(name_of_model, path, kwargs["softcap"])
    if kwargs.get("s_aux") is not None:
        refuse_sinks(name_of_model, path)
    wanted, silenced = asked(seats)
    if not wanted and not silenced:
        return original(module, query, key, value, attention_mask, *args, **kwargs)
    watch = KernelWatch()
    with watch:
        result = original(module, query, key, value, attention_mask, *args, **kwargs)
    with torch.no_grad():
        batch = max(len(query), len(key))
        mask = attention_mask
        if query.dtype == torch.float64 and isinstance(mask, torch.Tensor) and mask.is_floating_point():
            mask = mask.double()  # the precision in which it is added
        given, used = given_mask(name, module, query, key, mask, kwargs)
        cross = seats[0].place.stack.cross
        if not cross and query.shape[2] < used and given.mask is not None:
            used = used_keys(given.mask[..., :used], query.shape[2])
        own = not cross and query.shape[2] <= used
        tokens = slice(used - query.shape[2], used) if own else None
        scaling = kwargs.get("scaling")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        rules = seats[0].forward.analyst.rules(
            given, batch, query.shape[2], used, tokens, reach=partial(score_bound, query, key, scale), where=path
        )
        if wanted:
            dtype = watch.dtype or product_dtype(name, module, query)
            q = query.detach().to(dtype).expand(batch, -1, -1, -1)
            k, v = (x.detach()[:, :, :used].to(dtype).expand(batch, -1, -1, -1) for x in (key, value))
            hand_over(
                module,
                wanted,
                q=q,
                k=k,
                v=v,
                kernel_lse=watch.lse(*q.shape[:3]),
                context=result[0].detach().transpose(1, 2),
                scale=scale,
                rules=rules,
                stage=stage_of(module, scale, query.shape[-1]),
                own=own,
                weights=result[1] if len(result) > 1 and isinstance(result[1], torch.Tensor) else None,
                silenced=frozenset(silenced),
                dropout=float(kwargs.get("dropout") or 0.0),
            )
    if silenced:
        kept = kept_queries(rules, batch, query)
        result = (silence(result[0].transpose(1, 2), silenced, kept).transpose(1, 2).contiguous(), *result[1:])
    for _, forward, place in wanted:
        forward.awaited = Awaited.of(result[0], place.stack, place.layer)
    return result


def product_dtype(name: str, module: nn.Module, query: torch.Tensor) -> torch.dtype:
    """What queries and keys are when an attention function of this name multiplies them.

    Flash attention takes no fp32: where autocast is off, transformers casts to the precision of the module's weights.
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


def given_mask(
    name: str, module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, kwargs: dict[str, Any]
) -> tuple[Given, int]:
    """The mask that an attention function applies when it is called so, and how many of the keys it looks at.

    Raises:
        UnsupportedError: the function's masks are of a kind that can't be read.
    """
    queries, keys = query.shape[2], key.shape[2]
    bias = kwargs.get("position_bias")
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise UnsupportedError(
            f"{name} masks by {type(mask).__name__}, which capture can't read",
            where=type(module).__name__,
            advice='switch first: model.set_attn_implementation("sdpa")',
        )
    if name.startswith("flash"):
        width = kwargs.get("sliding_window")
        window = None if width is None or keys <= width else (int(width) - 1, None if causal else int(width) - 1)
        return Given(keys=mask, causal=bool(causal) and queries > 1, window=window, bias=bias), keys
    if name.endswith(("eager_attention_forward", "eager")):
        return Given(mask=mask, bias=bias), keys
    if mask is None and bool(causal) and queries > 1:
        used = min(queries, keys)
        return Given.causal_from_the_first(queries, used, None if bias is None else bias[..., :used]), used
    return Given(mask=mask, bias=bias), keys


def used_keys(mask: torch.Tensor, queries: int) -> int:
    """How many keys there are when those at the end are left out that no query sees: the free room of a static cache.

    A mask of numbers is taken at its word only where it says -inf or the least finite number, in a row with others.
    """
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    if mask.dtype != torch.bool:
        seen = seen | ~seen.any(-1, keepdim=True)
    places = seen.flatten(0, -2).any(0).nonzero()
    return max(queries, int(places[-1]) + 1 if len(places) else mask.shape[-1])

"""Classes that call PyTorch's scaled_dot_product_attention by themselves, looked on while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from headscope.capture.classes import kind_of
from headscope.capture.sessions import COVERED, HookedOnce, covering
from headscope.capture.transformers_support import look_on
from headscope.errors import UnsupportedError

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""scaled_dot_product_attention's parameters in order."""


class SdpaWatch(TorchFunctionMode):
    """While a module runs, looks on at its calls of scaled_dot_product_attention.

    Attributes:
        calls: how many it has seen.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = {**dict(zip(NAMES, args, strict=False)), **kwargs}
        seats = covering(self.module)
        self.calls += 1
        if not seats:
            return func(*args, **kwargs)
        q, k, v = (given[name] for name in NAMES[:3])
        if q.dim() not in (3, 4) or not q.dim() == k.dim() == v.dim():
            raise UnsupportedError(
                f"{type(self.module).__name__} calls scaled_dot_product_attention with tensors of "
                f"{q.dim()}, {k.dim()} and {v.dim()} dimensions",
                where=seats[0][0].plan.paths[id(self.module)],
                advice="give it (batch, heads, tokens, d_head), or (batch, tokens, d) for one head",
            )
        one_head = q.dim() == 3

        def run(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[Any, None]:
            # In memory as the interface's functions leave it, so that the class need not copy it for its projection.
            output = func(*args, **kwargs)
            return (output.unsqueeze(2) if one_head else output.transpose(1, 2)).contiguous(), None

        result = look_on(
            run,
            "scaled_dot_product_attention",
            seats,
            self.module,
            *(x.unsqueeze(1) if one_head else x for x in (q, k, v)),
            _of_four_dimensions(given.get("attn_mask"), one_head),
            dropout=given.get("dropout_p", 0.0),
            scaling=given.get("scale"),
            is_causal=bool(given.get("is_causal", False)),
        )
        return result[0].squeeze(2) if one_head else result[0].transpose(1, 2)


def _of_four_dimensions(mask: torch.Tensor | None, one_head: bool) -> torch.Tensor | None:
    """A mask as (1 or batch, 1 or heads, queries, keys), by PyTorch's rules of broadcasting."""
    if mask is None:
        return None
    if one_head and mask.dim() == 3:
        return mask.unsqueeze(1)
    return mask[(None,) * (4 - mask.dim())]


def _hook(module: nn.Module) -> list[Callable[[], None]]:
    """Keep an SdpaWatch active while this module runs within a captured forward pass, in each thread its own."""
    active: dict[int, list[SdpaWatch]] = {}

    def enter(module: nn.Module, args: Any) -> None:
        if all(session.forward() is None for session in COVERED.get(id(module), ())):
            return
        watch = SdpaWatch(module)
        active.setdefault(threading.get_ident(), []).append(watch)
        watch.__enter__()  # type: ignore[no-untyped-call]

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if not active.get(threading.get_ident()):
            return  # it was not watched as it began
        watch = active[threading.get_ident()].pop()
        watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if output is None or watch.calls or not kind_of(type(module)).also_otherwise:
            return
        if any(session.forward() is not None for session in COVERED.get(id(module), ())):
            raise UnsupportedError(
                f"{type(module).__name__} computed its attention by itself in this call, out of sight",
                where=type(module).__name__,
                advice="let it call torch's scaled_dot_product_attention: in transformers attn_implementation='sdpa' "
                "as the model is made, and no output_attentions or head_mask; in timm "
                "timm.layers.set_fused_attn(True, experimental=True) before the model is made",
            )

    return [
        module.register_forward_pre_hook(enter).remove,
        module.register_forward_hook(leave, always_call=True).remove,
    ]


WATCHED = HookedOnce(_hook)
"""The modules that call scaled_dot_product_attention by themselves."""

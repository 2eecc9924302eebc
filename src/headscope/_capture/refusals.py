"""Errors for attention that capture can't read, raised before the model runs."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from headscope._capture.classes import kind_of
from headscope._capture.readers import reader_of
from headscope.errors import UnsupportedError

ADVICE_FOR_TRANSFORMERS = (
    "capture a part of it that uses transformers' attention interface (hs.capture(model.that_part)), use a related "
    "model that does, or get the weights from the model itself: model(..., output_attentions=True)"
)
ADVICE_FOR_OTHERS = (
    "call torch.nn.functional.scaled_dot_product_attention in it, or use nn.MultiheadAttention: capture reads both. "
    "Or capture a part of the model that does"
)


def is_opaque(module: nn.Module) -> bool:
    """Return True if, judging by its class, a module computes attention in a way that capture can't see."""
    if reader_of(type(module)) is not None:
        return False
    kind = kind_of(type(module))
    in_transformers = type(module).__module__.startswith("transformers.")
    return kind.computes_own_attention and (in_transformers or not _holds_attention(module))


def refuse_unreadable(name: str, modules: Iterable[tuple[str, nn.Module]], *, strict: bool) -> None:
    """Raise an error, before anything runs, for attention that capture can't see.

    Args:
        name: the model's class.
        modules: all modules of the model, with their names.
        strict: True to include attention that capture can't see.

    Raises:
        UnsupportedError: attention outside the interface.
    """
    for path, module in modules:
        cls = type(module)
        if strict and is_opaque(module):
            in_transformers = cls.__module__.startswith("transformers.")
            how = "outside transformers' attention interface" if in_transformers else "where capture can't see it"
            raise UnsupportedError(
                f"{name} can't be captured: {cls.__name__} computes its attention itself, {how}",
                where=path or name,
                advice=ADVICE_FOR_TRANSFORMERS if in_transformers else ADVICE_FOR_OTHERS,
            )


def _holds_attention(module: nn.Module) -> bool:
    """Return True if a module contains attention that capture reads; its own softmax is then probably not attention."""
    parts = [part for part in module.modules() if part is not module]
    kinds = [kind_of(type(part)) for part in parts]
    return any(kind.uses_interface or kind.calls_sdpa for kind in kinds) or any(
        isinstance(part, nn.MultiheadAttention) for part in parts
    )

"""Models that capture can't read, refused by name before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from headscope._capture.classes import kind_of
from headscope.errors import UnsupportedError

WAY_OUT = (
    "capture a part of it that goes through transformers' attention interface (hs.capture(model.that_part)), use a "
    "relative that does, or ask the model itself: model(..., output_attentions=True)"
)
OWN_WAY_OUT = (
    "let it call torch.nn.functional.scaled_dot_product_attention, or use nn.MultiheadAttention: capture reads both. "
    "Or capture a part of the model that does"
)


def out_of_sight(module: nn.Module) -> bool:
    """Whether a module computes its attention by itself, as far as its class tells."""
    kind = kind_of(type(module))
    theirs = type(module).__module__.startswith("transformers.")
    return kind.computes_its_own and (theirs or not _holds_attention(module))


def refuse_what_cannot_be_read(name: str, modules: Iterable[tuple[str, nn.Module]], *, strict: bool) -> None:
    """Refuse, by name and before anything runs, attention that capture can't see or can't put into a trace.

    Args:
        name: the model's class.
        modules: all of its modules with their names in it.
        strict: whether attention that can't be seen is refused, too.

    Raises:
        UnsupportedError: attention off the interface, soft caps, sinks.
    """
    for path, module in modules:
        cls = type(module)
        kind = kind_of(cls)
        theirs = cls.__module__.startswith("transformers.")
        if strict and out_of_sight(module):
            off = ", off transformers' attention interface" if theirs else ", out of sight"
            raise UnsupportedError(
                f"{name} can't be captured: {cls.__name__} computes its attention by itself{off}",
                where=path or name,
                advice=WAY_OUT if theirs else OWN_WAY_OUT,
            )
        if not kind.uses_interface:
            continue
        cap = getattr(module, "attn_logit_softcapping", None)
        if cap is not None:
            refuse_softcap(name, path, cap)
        if getattr(module, "sinks", None) is not None:
            refuse_sinks(name, path)


def _holds_attention(module: nn.Module) -> bool:
    """Whether attention that capture reads is among its parts: a softmax of its own is then likely none."""
    parts = [one for one in module.modules() if one is not module]
    kinds = [kind_of(type(one)) for one in parts]
    return any(kind.uses_interface or kind.calls_sdpa for kind in kinds) or any(
        isinstance(one, nn.MultiheadAttention) for one in parts
    )


def refuse_softcap(name: str, path: str, cap: Any) -> None:
    """Refuse scores that go through tanh before the softmax."""
    raise UnsupportedError(
        f"{name} can't be captured: it caps its scores softly (at {cap}), and a trace's scores are scale * q . k",
        where=path,
        advice="ask the model itself: eager attention with output_attentions=True",
    )


def refuse_sinks(name: str, path: str) -> None:
    """Refuse a softmax with one more term than there are keys."""
    raise UnsupportedError(
        f"{name} can't be captured: its softmax has attention sinks, so that a row of weights sums to less than 1",
        where=path,
        advice="ask the model itself: eager attention with output_attentions=True",
    )

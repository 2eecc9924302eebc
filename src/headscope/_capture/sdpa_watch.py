"""Attention outside of transformers' interface and nn.MultiheadAttention, met as it runs.

Calls of PyTorch's scaled_dot_product_attention are read, whichever module makes them and by whatever name. Other fused
attention, and softmaxes that may be attention, are noted in the forward pass, which says at its end what was not read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headscope._capture import torch_nn
from headscope._capture.operators import OPERATORS, SDPA, SOFTMAX, Run
from headscope._capture.progress import Missed
from headscope._capture.sessions import HERE, Seat, Session, covering
from headscope._capture.transformers_support import look_on
from headscope.errors import UnsupportedError

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""scaled_dot_product_attention's parameters in order."""


def install() -> None:
    """Observe every operator of attention that is registered by now, in threads that are watched."""
    OPERATORS.install(observe)


def observe(op: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read or note an operator that was called in a forward pass, and run it."""
    if not HERE.open:
        return run(*args, **kwargs)
    running = list(_modules_that_run())
    if op is SDPA and running:
        module = running[0]
        seats = _seats(module, args, kwargs)
        if seats:
            return _read(run, seats, module, args, kwargs)
    for session, forward in HERE.open:
        missed = _missed(session, running, op, args, kwargs)
        if missed is not None:
            forward.missed[missed] = None
    return run(*args, **kwargs)


def _modules_that_run() -> Iterator[nn.Module]:
    """The modules that this thread's functions under way were given as their first argument, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module):
                yield first
        frame = frame.f_back  # type: ignore[assignment]


def _seats(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Seat]:
    """The sessions that read this call of scaled_dot_product_attention."""
    if torch_nn.is_attention(module):
        return []  # it is read whole when it returns
    covered = [session.admit(module) for session, _ in HERE.open if id(module) in session.plan.known]
    if not covered or not all(covered):
        return []
    query, key = ({**dict(zip(NAMES, args, strict=False)), **kwargs}[name] for name in ("query", "key"))
    return covering(module, query.shape[-2], key.shape[-2], (tuple(query.shape), tuple(key.shape)))


def _read(run: Run, seats: list[Seat], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(NAMES, args, strict=False)), **kwargs}
    q, k, v = (given[name] for name in NAMES[:3])
    if q.dim() not in (3, 4) or not q.dim() == k.dim() == v.dim():
        raise UnsupportedError(
            f"{type(module).__name__} calls scaled_dot_product_attention with tensors of "
            f"{q.dim()}, {k.dim()} and {v.dim()} dimensions",
            where=seats[0].session.plan.paths[id(module)],
            advice="give it (batch, heads, tokens, d_head), or (batch, tokens, d) for one head",
        )
    one_head = q.dim() == 3

    def as_the_interface(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[Any, None]:
        # In memory as the interface's functions leave it, so that the class need not copy it for its projection.
        output = run(*args, **kwargs)
        return (output.unsqueeze(2) if one_head else output.transpose(1, 2)).contiguous(), None

    result = look_on(
        as_the_interface,
        "scaled_dot_product_attention",
        seats,
        module,
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


def _missed(
    session: Session, running: list[nn.Module], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Missed | None:
    """What is noted of an operator that is not read; None where it is no attention for sure."""
    module = next((one for one in running if id(one) in session.plan.known), session.model)
    path, kind = session.plan.known[id(module)], type(running[0] if running else module)
    if op not in SOFTMAX:
        return Missed(id(module), path, kind.__name__, op.name())
    if kind.__module__.startswith("transformers.") and "ttention" not in kind.__name__:
        return None  # a router, a pooler: whatever attends is called so there
    sizes, dims = list(args[0].shape), _softmax_dims(op, args, kwargs)
    if not sizes or len(dims) != 1:
        return None
    over = sizes.pop(dims[0])
    return Missed(
        id(module), path, kind.__name__, op.name(), over, frozenset(sizes), surely=id(module) in session.surely
    )


def _softmax_dims(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The dimensions that a softmax or a log-sum-exp runs over."""
    at = 2 if op.name() == "aten::_masked_softmax" else 1
    given = args[at] if len(args) > at else kwargs.get("dim")
    if given is None:
        return (-1,)
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)

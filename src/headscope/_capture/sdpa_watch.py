"""Attention outside transformers' interface and nn.MultiheadAttention, observed as it runs.

Calls of PyTorch's scaled_dot_product_attention and flex_attention are read, whichever module makes them and under
whatever name. Other
fused attention, and softmaxes that may be attention, are noted in the forward pass, which reports at its end what was
not read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headscope._capture import torch_nn
from headscope._capture.classes import FLEX_NAME
from headscope._capture.flex import Flexed
from headscope._capture.operators import OPERATORS, SDPA, SOFTMAX, Run
from headscope._capture.progress import Missed
from headscope._capture.sessions import RUNNING, Seat, Session, heads_to_silence, recording, register_call
from headscope._capture.transformers_support import run_observed
from headscope.errors import UnsupportedError

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""The parameters of scaled_dot_product_attention, in order."""


def install() -> None:
    """Observe every attention operator registered so far, in watched threads."""
    OPERATORS.install(observe)


def observe(op: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator; if a forward pass called it, read it or note it first."""
    if not RUNNING.forwards:
        return run(*args, **kwargs)
    running = list(_modules_that_run())
    flexes = op.name() == FLEX_NAME
    if (op is SDPA or flexes) and running:
        module = running[0]
        seats = _seats(module, args, kwargs)
        if seats:
            return (_read_flex if flexes else _read)(run, seats, module, args, kwargs)
    for session, forward in RUNNING.forwards:
        missed = _missed(session, running, op, args, kwargs)
        if missed is not None:
            forward.missed[missed] = None
    return run(*args, **kwargs)


def _modules_that_run() -> Iterator[nn.Module]:
    """The modules whose functions are on this thread's call stack (as their first argument), innermost first."""
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
        return []  # read as a whole when it returns
    covered = [session.admit(module) for session, _ in RUNNING.forwards if id(module) in session.plan.known]
    if not covered or not all(covered):
        return []
    query, key = ({**dict(zip(NAMES, args, strict=False)), **kwargs}[name] for name in ("query", "key"))
    return register_call(module, query.shape[-2], key.shape[-2], (tuple(query.shape), tuple(key.shape)))


def _read(run: Run, seats: list[Seat], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run scaled_dot_product_attention and let its sessions observe it as a call of transformers' interface."""
    arguments = {**dict(zip(NAMES, args, strict=False)), **kwargs}
    q, k, v = (arguments[name] for name in NAMES[:3])
    if q.dim() not in (3, 4) or not q.dim() == k.dim() == v.dim():
        raise UnsupportedError(
            f"{type(module).__name__} calls scaled_dot_product_attention with tensors of "
            f"{q.dim()}, {k.dim()} and {v.dim()} dimensions",
            where=seats[0].session.plan.paths[id(module)],
            advice="pass tensors of (batch, heads, tokens, d_head), or (batch, tokens, d) for a single head",
        )
    one_head = q.dim() == 3

    def as_the_interface(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[Any, None]:
        # The memory layout of the interface's functions, so that the class needs no copy for its projection.
        output = run(*args, **kwargs)
        return (output.unsqueeze(2) if one_head else output.transpose(1, 2)).contiguous(), None

    result = run_observed(
        as_the_interface,
        "scaled_dot_product_attention",
        seats,
        module,
        *(x.unsqueeze(1) if one_head else x for x in (q, k, v)),
        _with_four_axes(arguments.get("attn_mask"), one_head),
        dropout=arguments.get("dropout_p", 0.0),
        scaling=arguments.get("scale"),
        is_causal=bool(arguments.get("is_causal", False)),
    )
    return result[0].squeeze(2) if one_head else result[0].transpose(1, 2)


def _read_flex(run: Run, seats: list[Seat], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run flex_attention's operator and let its sessions observe it as a call of transformers' interface."""
    if not recording(seats) and not heads_to_silence(seats):
        return run(*args, **kwargs)
    reading = Flexed.of_operator(args, seats[0].session.plan.paths[id(module)])
    others: list[Any] = []

    def as_the_interface(*_: Any, **__: Any) -> tuple[Any, None]:
        output, *others[:] = run(*args, **kwargs)
        return output.transpose(1, 2).contiguous(), None

    result = run_observed(
        as_the_interface,
        "scaled_dot_product_attention",
        seats,
        module,
        *args[:3],
        reading,
        scaling=args[5] * reading.scoring.factor,
        softcap=reading.scoring.cap,
        is_causal=False,
    )
    return result[0].transpose(1, 2), *others


def _with_four_axes(mask: torch.Tensor | None, one_head: bool) -> torch.Tensor | None:
    """A mask as (1 or batch, 1 or heads, queries, keys), by PyTorch's broadcasting rules."""
    if mask is None:
        return None
    if one_head and mask.dim() == 3:
        return mask.unsqueeze(1)
    return mask[(None,) * (4 - mask.dim())]


def _missed(
    session: Session, running: list[nn.Module], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Missed | None:
    """Note an operator that is not read; None if it is certainly not attention."""
    module = next((candidate for candidate in running if id(candidate) in session.plan.known), session.model)
    path, kind = session.plan.known[id(module)], type(running[0] if running else module)
    if op not in SOFTMAX:
        return Missed(id(module), path, kind.__name__, op.name())
    if kind.__module__.startswith("transformers.") and "ttention" not in kind.__name__:
        return None  # a router or a pooler: in transformers, every class that attends says so in its name
    sizes, dims = list(args[0].shape), _softmax_dims(op, args, kwargs)
    if not sizes or len(dims) != 1:
        return None
    over = sizes.pop(dims[0])
    return Missed(
        id(module), path, kind.__name__, op.name(), over, frozenset(sizes), certain=id(module) in session.plan.opaque
    )


def _softmax_dims(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The dimensions that a softmax or a log-sum-exp reduces."""
    at = 2 if op.name() == "aten::_masked_softmax" else 1
    dims = args[at] if len(args) > at else kwargs.get("dim")
    if dims is None:
        return (-1,)
    return tuple(dims) if isinstance(dims, (list, tuple)) else (dims,)

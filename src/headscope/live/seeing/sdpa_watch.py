"""Attention outside transformers' interface and nn.MultiheadAttention, observed as it runs.

Calls of PyTorch's scaled_dot_product_attention and flex_attention are read, whichever module makes them and under
whatever name. Other fused attention, and softmaxes that may be attention, are noted in the forward pass, which reports
at its end what was not read.
"""

from __future__ import annotations

from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from headscope.errors import UnsupportedError
from headscope.live.genuine import code_in_place_of, of_library, undisturbed
from headscope.live.hooks import frames, of_thread
from headscope.live.masks.flex import Flexed
from headscope.live.masks.given import with_four_axes
from headscope.live.names import following
from headscope.live.plan.classes import FLEX_NAME, SDPA_NAME
from headscope.live.seeing.missed import Missed
from headscope.live.seeing.multihead import READ, Given, given_now, keys_of
from headscope.live.seeing.observed import SDPA_ARGUMENTS, run_observed, sdpa_arguments, settings_of
from headscope.live.seeing.operators import PRODUCTS, SDPA, SOFTMAX, Run
from headscope.live.sessions import RUNNING, Seat, Session, heads_to_silence, recording, register_call


def observe(op: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator; if a forward pass called it, read it or note it first."""
    if not RUNNING.forwards:
        return run(*args, **kwargs)
    running = _running()
    flexes = op.name() == FLEX_NAME
    traced = flexes and isinstance(args[0], FakeTensor)  # what PyTorch compiles from it may not come here
    if (op is SDPA or flexes) and running and not traced and _is_covered(running[0], args):
        module, given, arguments = running[0], given_now(running[0]), sdpa_arguments(args, kwargs)
        q, k = arguments["query"], arguments["key"]
        if given is not None:
            seats = register_call(module, *given, 1 if given[0].dim() == 3 else None, 0)
        else:
            one_head = q.dim() == 3 or q.shape[1] == 1
            seats = register_call(module, q, k, 0, q.dim() - 2, may_be_part=True, one_head=one_head)
        if seats:
            _refuse_between(module, seats[0].session.plan.paths[id(module)])
            if flexes:
                return _read_flex(run, seats, module, args, kwargs)
            return _read(partial(run, *args, **kwargs), seats, module, given, arguments)
    for session, forward in RUNNING.forwards:
        missed = _missed(session, running, op, args, kwargs)
        if missed is not None:
            forward.missed[missed] = forward.missed.get(missed, 0) + 1
    return run(*args, **kwargs)


def _running() -> list[nn.Module]:
    """The modules whose functions run in this thread, innermost first, as far as the models that are captured.

    The frames beyond are a user's: reading their locals would make a list of these that outlives a `del model`.
    """
    wanted, found = {id(session.model) for session, _ in RUNNING.forwards}, []
    for frame in frames():
        if isinstance(first := _first_argument(frame), nn.Module):
            found.append(first)
            wanted.discard(id(first))
            if not wanted:
                break
    return found


def _first_argument(frame: FrameType) -> Any:
    """The first argument of the function that runs in a frame; None if it has none."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _refuse_between(module: nn.Module, where: str) -> None:
    """Raise an error if code that stands in for PyTorch's function called the operator: it may change the result.

    Raises:
        UnsupportedError: a replacement of PyTorch's function, a mode, or a tensor class called the operator.
    """
    replaced = code_in_place_of(functional.scaled_dot_product_attention)
    for frame in frames():
        code = frame.f_code
        if _first_argument(frame) is module:
            return
        if code in replaced or (code.co_name == "__torch_function__" and not of_library(frame.f_globals)):
            name = f"{frame.f_globals.get('__name__')}.{code.co_name}"
            raise UnsupportedError(
                f"{name} stands between {type(module).__name__} and scaled_dot_product_attention, and may change its "
                "result",
                where=where,
                advice="change the mask, queries, keys or values in the module, and call PyTorch's own function",
            )


def _is_covered(module: nn.Module, args: tuple[Any, ...]) -> bool:
    """Return True if a module's calls are read; those with nested tensors are listed."""
    if any(isinstance(x, torch.Tensor) and x.is_nested for x in args):
        return False
    covered = [session.admit(module) for session, _ in RUNNING.forwards if id(module) in session.plan.known]
    return bool(covered) and all(covered)


def _read(run: Run, seats: list[Seat], module: nn.Module, given: Given | None, arguments: dict[str, Any]) -> Any:
    """Run scaled_dot_product_attention and let its sessions observe it as a call of transformers' interface."""
    q, k, v = (arguments[name] for name in SDPA_ARGUMENTS[:3])
    if q.dim() not in (3, 4) or not q.dim() == k.dim() == v.dim():
        raise UnsupportedError(
            f"{type(module).__name__} calls scaled_dot_product_attention with tensors of "
            f"{q.dim()}, {k.dim()} and {v.dim()} dimensions",
            where=seats[0].session.plan.paths[id(module)],
            advice="pass tensors of (batch, heads, tokens, d_head), or (batch, tokens, d) for a single head",
        )
    one_head = q.dim() == 3

    def as_the_interface() -> tuple[Any, None]:
        # The memory layout of the interface's functions, so that the class needs no copy for its projection.
        output = run()
        return (output.unsqueeze(2) if one_head else output.transpose(1, 2)).contiguous(), None

    tensors = (q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)) if one_head else (q, k, v)
    mask, settings = with_four_axes(arguments.get("attn_mask"), one_head, k.shape[-2]), settings_of(arguments)
    if given is not None:
        settings |= keys_of(module, *given)
    proven = undisturbed(q, k, v)
    result = run_observed(as_the_interface, SDPA_NAME, proven, seats, module, tensors, mask, settings)
    if given is not None:
        READ[of_thread(module)] = seats, (q, k, v), result[0].flatten(2)
        for seat in recording(seats):
            seat.forward.awaited = None  # the function multiplies by W_O itself, no module does
    contexts = result[0].squeeze(2) if one_head else result[0].transpose(1, 2)
    following.attended(contexts, q, (0, 1, -1) if one_head else (0, -1, 2, -1))
    return contexts


def _read_flex(run: Run, seats: list[Seat], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run flex_attention's operator and let its sessions observe it as a call of transformers' interface."""
    if not recording(seats) and not heads_to_silence(seats):
        return run(*args, **kwargs)
    reading = Flexed.of_operator(args, seats[0].session.plan.paths[id(module)])
    others: list[Any] = []

    def as_the_interface() -> tuple[Any, None]:
        output, *others[:] = run(*args, **kwargs)
        return output.transpose(1, 2).contiguous(), None

    proven = undisturbed(*args[:3]) and reading.is_fixed()
    settings = {"scaling": args[5] * reading.factor, "softcap": reading.cap, "is_causal": False}
    result = run_observed(as_the_interface, SDPA_NAME, proven, seats, module, args[:3], reading, settings)
    contexts = result[0].transpose(1, 2)
    following.attended(contexts, args[0], (0, -1, 2, -1))
    return contexts, *others


def _missed(
    session: Session, running: list[nn.Module], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Missed | None:
    """Note an operator that is not read; None if it is certainly not attention."""
    module = next((candidate for candidate in running if id(candidate) in session.plan.known), session.model)
    path, kind = session.plan.known[id(module)], type(running[0] if running else module)
    if op not in SOFTMAX and op not in PRODUCTS:
        nested = any(isinstance(x, torch.Tensor) and x.is_nested for x in args)
        return Missed(id(module), path, kind.__name__, op.name(), reason="nested" if nested else "")
    if kind.__module__.startswith("transformers.") and "ttention" not in kind.__name__:
        return None  # a router or a pooler: in transformers, every class that attends says so in its name
    if op in PRODUCTS:
        batch, rows, inner = args[-2].shape
        factors = batch, rows, inner, args[-1].shape[2]
        return Missed(id(module), path, kind.__name__, op.name(), factors=factors, certain=False)
    at = 2 if op.name() == "aten::_masked_softmax" else 1
    dim = args[at] if len(args) > at else kwargs.get("dim")
    dims = list(dim) if isinstance(dim, (list, tuple)) else [-1 if dim is None else dim]
    sizes = list(args[0].shape)
    if not sizes or len(dims) != 1:
        return None
    over = sizes.pop(dims[0])
    return Missed(
        id(module), path, kind.__name__, op.name(), over, frozenset(sizes), certain=id(module) in session.plan.opaque
    )

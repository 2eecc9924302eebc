"""torch.nn: MultiheadAttention in all its forms, including inside Transformer encoders and decoders.

Its forward calls scaled_dot_product_attention, where it is read, unless it returns weights: then it attends step by
step. A call that returns weights is run a second time without them, and read there; its own result stays. PyTorch's
inference fast path would hide the call, so it is off while a capture is open.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from headscope.checkpoint.json_text import few
from headscope.checkpoint.weights_elsewhere import with_numbers
from headscope.errors import UnsupportedError
from headscope.live.checking import share_of
from headscope.live.genuine import is_unchanged
from headscope.live.hooks import Hooks, Shared, frames, of_thread
from headscope.live.keeping.projections import Output
from headscope.live.masks.analyst import RowRule
from headscope.live.names import following
from headscope.live.plan.refusals import TRANSFORMS, refuse, refuse_transforms
from headscope.live.seeing.operators import Unwatched
from headscope.live.sessions import PADDED, Seat, covering, heads_to_silence, recording

NAMES = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
"""The parameters of MultiheadAttention.forward, in order."""


def _switch_fast_path_off() -> Callable[[], None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    return lambda: torch.backends.mha.set_fastpath_enabled(before)


FAST_PATH = Shared(_switch_fast_path_off)
"""Switches off PyTorch's inference fast path."""

Given = tuple[torch.Tensor, torch.Tensor]
"""Queries and keys as a MultiheadAttention is given them: (tokens, batch, d), or (tokens, d) without a batch."""


def keys_of(mha: Any, query: torch.Tensor, key: torch.Tensor) -> dict[str, Any]:
    """Settings that the operator in a call doesn't show: if keys are the queries' tokens, and names of any that aren't.

    These are bias_k, and the zero key that add_zero_attn appends.
    """
    names = (("[bias_k]",) if mha.bias_k is not None else ()) + (("[zero]",) if mha.add_zero_attn else ())
    return {"same_tokens": query is key or _place_of(query) == _place_of(key), "extra_keys": names}


def _place_of(x: torch.Tensor) -> tuple[Any, ...]:
    """The place of a tensor's numbers in memory."""
    return x.data_ptr(), x.shape, [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def given_now(module: nn.Module) -> Given | None:
    """Inputs of the MultiheadAttention whose forward runs in this thread; None if a module or its class attends itself.

    The forward puts the tokens before the batch.

    Raises:
        UnsupportedError: another function than its class's runs as its forward, and attends by itself.
    """
    if not isinstance(module, nn.MultiheadAttention):
        return None
    own = (frame for frame in frames() if frame.f_code is FORWARD and frame.f_locals["self"] is module)
    frame = next(own, None)
    if frame is None and type(module).forward.__code__ is not FORWARD:
        return None
    if frame is None:
        raise UnsupportedError(
            "the forward of an nn.MultiheadAttention was replaced by one that attends by itself",
            where=type(module).__name__,
            advice="make it a class of its own, derived from nn.Module",
        )
    return frame.f_locals["query"], frame.f_locals["key"]


FORWARD = nn.MultiheadAttention.forward.__code__

Read = tuple[list[Seat], tuple[torch.Tensor, ...], torch.Tensor]
"""A call that was read at its operator: the sessions that saw it; the operator's queries, keys and values, (batch,
heads, tokens, d_head); and the contexts, (batch, queries, heads * d_head), that were projected."""

READ: dict[tuple[int, int], Read] = {}
"""The calls that were read: see `of_thread`."""


def _after_call(mha: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Note a call's tokens; if it returns weights, run it again to read it or to silence heads (a forward hook).

    Raises:
        UnsupportedError: the call can't be read, or its output isn't what its contexts are projected to.
    """
    if type(mha).forward.__code__ is not FORWARD:
        READ.pop(of_thread(mha), None)
        return None  # a class of somebody's own, which may be given and return anything
    given: dict[str, Any] = {"need_weights": True, **dict(zip(NAMES, args, strict=False)), **kwargs}
    axes = (0, 1, -1) if given["query"].dim() == 3 else (0, -1)
    following.attended(output[0], given["query"], axes)
    sessions = [session for session in covering(mha) if session.forward() is not None]
    if not sessions:
        return None
    silencing = [session.consumer.silencing for session in sessions]
    refuse_transforms(mha, {"Vmap"} if all(silencing) else TRANSFORMS)
    drops = mha.training and mha.dropout > 0
    again = _again(mha, args, kwargs, drops, gradients=any(silencing)) if given["need_weights"] else None
    read = READ.pop(of_thread(mha), None)
    if read is None:
        return None
    seats = read[0]
    for seat in seats:
        seat.forward.forget(mha)
    recorders, silenced = recording(seats), heads_to_silence(seats)
    changed = None
    if silenced and again is not None:
        if drops:
            raise UnsupportedError(
                "heads of an nn.MultiheadAttention that returns weights can't be silenced while it applies dropout",
                where=seats[0].session.plan.paths[id(mha)],
                advice="call model.eval() first, set its dropout to 0, or call it with need_weights=False",
            )
        following.attended(again[0], given["query"], axes)
        changed = again[0], output[1]
    elif recorders and not silenced and not drops and (again is not None or not is_unchanged(mha)):
        _refuse_other_output(mha, read, output[0].detach())
    for session, forward, place, *_ in recorders:
        path = ".".join(filter(None, (session.plan.paths[id(mha)], "out_proj")))
        forward.projections[place.stack, place.layer] = Output((path,), mha.head_dim)
    return changed


def _again(
    mha: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], drops: bool, *, gradients: bool
) -> Any:
    """Run a call again without weights, and leave the random numbers that come next as they are."""
    x, at = args[0] if args else kwargs["query"], NAMES.index("need_weights")
    changes = {**dict(zip(NAMES[at:], args[at:], strict=False)), "need_weights": False, "is_causal": False}
    with ExitStack() as undo:
        undo.enter_context(torch.set_grad_enabled(gradients and torch.is_grad_enabled()))
        if drops:
            undo.enter_context(torch.random.fork_rng([x.device] if x.is_cuda else []))
        return mha.forward(*args[:at], **{**kwargs, **changes})


def _refuse_other_output(mha: nn.MultiheadAttention, read: Read, output: torch.Tensor) -> None:
    """Raise an error if a call's output isn't what its contexts are projected to.

    Args:
        mha: the module.
        read: what was read of the call.
        output: of the run that the model goes on with, as the module returns it.

    Raises:
        UnsupportedError: code of somebody else changed it, or a head sees no key and is NaN where weights are returned.
    """
    output = output[None] if output.dim() == 2 else output if mha.batch_first else output.transpose(0, 1)
    ((session, forward, place, *_), *_), (q, k, v), contexts = read
    if not k.numel():
        return  # it leaves no trace
    kind, path, rules = type(mha).__name__, session.plan.paths[id(mha)], forward.analyst.latest
    with Unwatched(), torch.no_grad(), torch.autocast(output.device.type, enabled=False):
        wide = torch.promote_types(output.dtype, torch.float32)
        W, b = (
            None if x is None else with_numbers(mha, f"out_proj.{name}", path or kind).to(output.device, wide)
            for name, x in (("weight", mha.out_proj.weight), ("bias", mha.out_proj.bias))
        )
        assert W is not None
        expected = functional.linear(contexts.to(wide), W, b)
        share = share_of(q, k, max(torch.finfo(x.dtype).eps for x in (output, contexts)))
        largest = functional.linear(v.abs().amax(2).flatten(1).to(wide), W.abs())
        tolerance = share * (largest[:, None] + expected.abs())
        times = ((output.to(wide) - expected).abs() / tolerance.clamp(min=1e-30)).amax(-1)
        for row, of_row in enumerate(times):
            unseen = rules.row(row).unseen
            if unseen is not None:  # the trace has no weights for a query that sees no key
                of_row[torch.from_numpy(unseen).to(of_row.device) & of_row.isnan()] = 0
        if not bool((times <= 1).all()):
            worst, (row, query) = float(times.max()), divmod(int(times.argmax()), times.shape[1])
            where = f"{path or kind}, layer {place.layer}, row {row}"
            refuse(worst, kind, f"{where}, query {query}", _hidden_from_a_head(rules.row(row)))


def _hidden_from_a_head(rule: RowRule) -> str:
    """The first head from which its mask hides every key, and for which queries, in words; empty if there is none."""
    if rule.mask.bias is None:
        return ""
    hidden = rule.mask.bias == float("-inf")
    if rule.mask.keys is not None:
        hidden = hidden | ~torch.from_numpy(rule.mask.keys).to(hidden.device)
    for head, queries in enumerate(hidden.all(-1)):
        if places := queries.nonzero().flatten().tolist():
            some = f"quer{'y' if len(places) == 1 else 'ies'} {few(list(map(str, places)), 4)}"
            return f"head {head} for {'every query' if len(places) == len(queries) else some}"
    return ""


def _refuse_nested(mha: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise an error for nested tensors (a forward pre-hook): only PyTorch's fast path, which is off, takes them.

    Raises:
        UnsupportedError: an argument is one.
    """
    if any(isinstance(x, torch.Tensor) and x.is_nested for x in (*args, *kwargs.values())):
        raise UnsupportedError(
            "nn.MultiheadAttention attends over nested tensors, which are not read",
            where=type(mha).__name__,
            advice=PADDED,
        )


def _hook(mha: nn.Module) -> Callable[[], None]:
    hooks = Hooks()
    hooks.before(mha, _refuse_nested)
    hooks.after(mha, _after_call)

    def undo() -> None:
        hooks.remove()
        READ.pop(of_thread(mha), None)

    return undo


WATCHED = Shared(_hook)
"""The hooks on nn.MultiheadAttention, shared by all open captures."""

"""Run an attention function and read the call: its queries, keys, values, mask, scale and terms.

The function may be one of transformers' interface, PyTorch's operator in the form of one, or anybody's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from headscope.attention.kernels import KernelNotes, autocast_dtype
from headscope.attention.patterns import name_of
from headscope.attention.precision import exact_products, rounding_of
from headscope.attention.terms import NO_TERMS, Terms
from headscope.checkpoint.weights_elsewhere import is_wrapped
from headscope.errors import InputError, UnsupportedError
from headscope.live.calls import UNREAD, Call
from headscope.live.checking import refuse_altered
from headscope.live.genuine import undisturbed
from headscope.live.keeping.projections import Awaited, mark_of
from headscope.live.masks.analyst import score_bound
from headscope.live.masks.given import raw_mask, used_keys, with_four_axes
from headscope.live.plan.classes import FLEX_NAME, SDPA_NAME, stage_of
from headscope.live.seeing.operators import noting
from headscope.live.seeing.parts import Ran
from headscope.live.sessions import Seat, heads_to_silence, recording
from headscope.live.silencing import silence

SDPA_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""The parameters of scaled_dot_product_attention, in order."""

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values."""


def run_observed(
    run: Callable[[], Any],
    name: str,
    proven: bool,
    seats: list[Seat],
    module: nn.Module,
    tensors: Tensors,
    mask: Any,
    settings: dict[str, Any],
) -> Any:
    """Run the model's own attention function for sessions that record the call or silence heads in it.

    A function that is not proven is read at the operator if it calls scaled_dot_product_attention once and returns the
    result: what it does to queries, keys, values and mask before that is then seen, too.

    Args:
        run: runs the attention function.
        name: the name under which the interface knows it.
        proven: True if it is a library's own, unchanged.
        seats: the sessions that cover the module.
        module, tensors, mask, settings: its arguments: queries, keys and values, and others by name.

    Returns:
        Its result, with the contexts of silenced heads replaced.

    Raises:
        UnsupportedError: the call uses a mask that can't be read, or its contexts don't follow from what was read.
    """
    recorders, silenced = recording(seats), heads_to_silence(seats)
    if not recorders and not silenced:
        return run()
    query, key, value = tensors
    if any(map(is_wrapped, tensors)):
        raise UnsupportedError(
            f"{type(module).__name__} attends with a {type(query).__name__}, whose numbers are in other tensors",
            where=seats[0].session.plan.paths[id(module)],
            advice="capture the model before its activations are quantised",
        )
    if silenced and max(silenced) >= query.shape[1]:
        raise InputError(
            f"there is no head {max(silenced)}: {type(module).__name__} attends with {query.shape[1]} in one call",
            where=seats[0].session.plan.paths[id(module)],
            advice="heads count from 0; those of a module that calls its attention head by head can't be silenced",
        )
    held = [one for seat in seats if (silenced or seat in recorders) and (one := seat.held) is not None]
    whole = [seat for seat in recorders if seat.held is None]
    reader = seats[0] if whole or silenced else None
    inner = None if proven else _Inner(module, (key, value), reader, copies_mask=bool(held))
    # transformers compiles flex attention as outside of a capture: uncompiled, it builds the whole map.
    with torch.compiler.set_stance("default") if name == FLEX_NAME else noting() as notes:
        if inner is not None and notes is not None:
            notes.attended = partial(inner.read, notes)
        result = run()
    with torch.no_grad():
        ran = None if inner is None else inner.ran_with(result[0].detach().transpose(1, 2))
        if ran is not None:
            for seat in recorders:
                seat.forward.changed_inside = name
        else:
            context, weights = result[0].transpose(1, 2), result[1] if len(result) > 1 else None
            if not isinstance(weights, torch.Tensor) or weights.dim() != 4:
                weights = None  # flex attention returns log-sum-exps instead
            ran = _ran(name, module, tensors, mask, settings, context, notes, proven, weights, not proven)
        if silenced:
            ran = replace(ran, silenced={head: name_of(way) for head, way in silenced.items()})
        ran = ran if reader is None else _masked(ran, reader)
        ran = replace(ran, mark=mark_of(result[0]) if whole else None)
        _deliver(ran, whole)
    if silenced:
        call = _call_to_silence(ran, seats)
        keys = ran.k[:, :, : ran.used]
        call = replace(call, q=ran.q, k=keys, v=_with_gradient(ran, value, call.path)[:, :, : ran.used])
        changed = silence(result[0].transpose(1, 2), silenced, call)
        result = (changed.transpose(1, 2).contiguous(), *result[1:])
        ran = replace(ran, returned=changed.detach(), mark=None)
    for each in held:
        each.add(ran, _deliver)
    for _, forward, place, *_ in recorders:
        forward.awaited = Awaited.of(result[0], place, ran.mark)
    return result


def _ran(
    name: str,
    module: nn.Module,
    tensors: Tensors,
    mask: Any,
    kwargs: dict[str, Any],
    context: torch.Tensor,
    notes: KernelNotes | None,
    proven: bool,
    weights: torch.Tensor | None = None,
    unfused: bool = False,
) -> Ran:
    """A call, as its arguments, its contexts and the kernels that ran in it tell."""
    q, k, v, context = (x.detach() for x in (*tensors, context))
    raw, keys = raw_mask(name, module, q, k, mask, kwargs)
    scale, cap, sinks = (kwargs.get(setting) for setting in ("scaling", "softcap", "s_aux"))
    cap, sinks = None if cap is None else float(cap), None if sinks is None else sinks.detach().reshape(-1).float()
    return Ran(
        module,
        *(q, k, v, context),
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        extra_keys=kwargs.get("extra_keys", ()),
        dropout=float(kwargs.get("dropout") or 0.0),
        fused=notes is not None and notes.queries[:3] == (max(len(q), len(k)), *q.shape[1:3]),
        weights=weights,
        layer_terms=NO_TERMS if cap is None and sinks is None else Terms(cap=cap, sinks=sinks),
        unfused=unfused,
        proven=proven,
        name=name,
        raw=raw,
        keys=keys,
        same_tokens=kwargs.get("same_tokens"),
        returned=context,
        dtype=(notes.dtype if notes else None) or product_dtype(name, module, q),
    )


def _with_gradient(ran: Ran, value: torch.Tensor, where: str) -> torch.Tensor:
    """The values that a call mixes, with their gradient.

    Args:
        ran: the call.
        value: what the attention function was given as values.
        where: the module's name.

    Raises:
        UnsupportedError: the values that the operator in it was given are others, so their gradient is unknown.
    """
    if not torch.is_grad_enabled() or not value.requires_grad:
        return ran.v
    if not torch.equal(ran.v, value.detach()):
        raise UnsupportedError(
            f"{ran.name} changes the values before it attends, so gradients under another map are unknown",
            where=where,
            advice="run the model in torch.no_grad(), or silence the head: zero or mean",
        )
    return value


def _deliver(ran: Ran, seats: list[Seat]) -> None:
    """Read a call, and pass it on to the consumers of the sessions that record it.

    Raises:
        UnsupportedError: the call is not proven, and its contexts are not softmax(scale Q K^T + mask) V.
    """
    if seats := recording(seats):
        calls = _calls(_masked(ran, seats[0]), seats)
        with exact_products():
            if not ran.proven and not all(seat.session.consumer.silencing for seat in seats):
                refuse_altered(calls[0])
            for (session, forward, *_), call in zip(seats, calls, strict=True):
                if call.own:
                    forward.own[call.turn, len(call.q), call.q.shape[2]] = call.rules
                session.consumer.take(forward, call)


def deliver_read(ran: Ran, seats: list[Seat]) -> Call | None:
    """Deliver a call that was read from its inputs; return it, as who silences heads sees it, if anybody does."""
    ran = _masked(ran, seats[0])
    _deliver(ran, seats)
    return _call_to_silence(ran, seats) if ran.silenced else None


def _call_to_silence(ran: Ran, seats: list[Seat]) -> Call:
    """The call as the first session sees it that silences heads."""
    silencing = [seat for seat in seats if seat.session.consumer.silencing]
    seat = next((seat for seat in silencing if seat.forward.own), silencing[0])  # it knows padding, if any does
    return _calls(ran, [seat])[0]


def _calls(ran: Ran, seats: list[Seat]) -> list[Call]:
    """The call as each of these seats sees it: with its stack and layer, and tensors as they were multiplied."""
    batch = max(len(ran.q), len(ran.k))
    q = _read(ran.q, ran.q.shape[2], ran.dtype, batch)
    k, v = (_read(x, ran.used, ran.dtype, batch) for x in (ran.k, ran.v))
    stage, rounded = ran.stage or stage_of(ran.module, ran.scale, q.shape[-1]), rounding_of(q)
    return [
        replace(
            ran,
            path=path or session.plan.paths[id(ran.module)],
            stack=place.stack,
            layer=place.layer,
            turn=place.turn,
            q=q,
            k=k,
            v=v,
            stage=stage,
            rounded=rounded,
            beside=None if ran.own else forward.own.get((place.turn, batch, q.shape[2])),
            followed=followed,
        )
        for session, forward, place, path, followed in seats
    ]


@dataclass(eq=False)
class _Inner:
    """The operator in a function of any code, read right after it ran, before its tensors can change.

    Attributes:
        module: the attention module.
        given: keys and values, (batch, kv_heads, keys, width) each, that the function was called with.
        seat: the first session that needs to know the mask now; None if none does.
        copies_mask: True if the call may be a part, whose mask is read later.
        calls: the calls, of which the first is read.
    """

    module: nn.Module
    given: tuple[torch.Tensor, torch.Tensor]
    seat: Seat | None
    copies_mask: bool
    calls: list[Ran | None] = field(default_factory=list)

    def read(self, notes: KernelNotes, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        """Read a call of scaled_dot_product_attention, if it is the first."""
        self.calls.append(None)
        given = sdpa_arguments(args, kwargs)
        query, key, value = (given[name].detach() for name in SDPA_ARGUMENTS[:3])
        if len(self.calls) > 1 or not query.dim() == key.dim() == value.dim() == 4:
            return
        proven = undisturbed(query, key, value)
        mask = with_four_axes(given.get("attn_mask"), False, key.shape[2])
        with torch.no_grad():
            tensors = (query, *map(_unrepeated, (key, value), self.given))
            ran = _ran(SDPA_NAME, self.module, tensors, mask, settings_of(given), result, notes, proven)
            ran = (ran if self.seat is None else _masked(ran, self.seat)).kept(mask=self.copies_mask)
            self.calls[0] = replace(ran, k=ran.k.clone(), v=ran.v.clone())

    def ran_with(self, context: torch.Tensor) -> Ran | None:
        """The only call, if the function returns its contexts as they are, to the bit."""
        ran = self.calls[0] if len(self.calls) == 1 else None
        if ran is None or (context.shape, context.dtype) != (ran.context.shape, ran.context.dtype):
            return None
        return ran if torch.equal(context, ran.context) else None


def _unrepeated(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The keys or values that a function was given, if it only repeated them for the heads that share them."""
    shared = x.shape[1] // max(1, given.shape[1])
    if shared < 2 or x.dtype != given.dtype or x.shape[2:] != given.shape[2:]:
        return x
    repeated = given.detach().repeat_interleave(shared, 1)
    return given.detach() if torch.equal(x, repeated) else x


def sdpa_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of scaled_dot_product_attention by name."""
    return {**dict(zip(SDPA_ARGUMENTS, args, strict=False)), **kwargs}


def settings_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings of scaled_dot_product_attention, by their names in transformers' interface."""
    causal, dropout = bool(arguments.get("is_causal", False)), arguments.get("dropout_p", 0.0)
    return {"scaling": arguments.get("scale"), "is_causal": causal, "dropout": dropout}


def _read(x: torch.Tensor, tokens: int, dtype: torch.dtype, batch: int) -> torch.Tensor:
    """The first tokens of queries, keys or values, as the product of queries and keys reads them."""
    x = x.detach()
    if x.shape[2] > tokens:
        x = x[:, :, :tokens]
    if x.dtype != dtype:
        x = x.to(dtype)
    return x if len(x) == batch else x.expand(batch, -1, -1, -1)


def _masked(ran: Ran, seat: Seat) -> Ran:
    """A call with its mask, read from its arguments unless it has been."""
    if ran.rules is not UNREAD:
        return ran
    query, key, raw, keys = ran.q, ran.k, ran.raw, ran.keys
    if query.dtype == torch.float64 and isinstance(raw.mask, torch.Tensor) and raw.mask.is_floating_point():
        raw = replace(raw, mask=raw.mask.double())  # the precision in which it is added
    batch, queries = max(len(query), len(key)), query.shape[2]
    same_tokens, first = ran.same_tokens, 0
    if same_tokens is None:
        cross = seat.place.stack.cross
        if not cross and queries < keys:
            raw = raw.read()
        if not cross and queries < keys and raw.mask is not None:
            where = seat.session.plan.paths[id(ran.module)] if seat.session.consumer.keeps_padding else None
            keys = used_keys(raw.mask[..., :keys] if isinstance(raw.mask, torch.Tensor) else raw.mask, queries, where)
        chosen = seat.forward.is_chosen(ran.module, seat.followed, batch, queries, keys)
        same_tokens = not cross and queries <= keys and not chosen
        first = keys - queries
    tokens = slice(first, first + queries) if same_tokens else None
    if ran.layer_terms.sinks is not None:
        raw = replace(raw, sinks=True)
    rules = seat.forward.analyst.rules(
        raw,
        batch,
        queries,
        keys,
        tokens,
        reach=partial(score_bound, query, key, ran.scale),
        where=seat.session.plan.paths[id(ran.module)],
    )
    return replace(ran, rules=rules, used=keys, own=tokens is not None)


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

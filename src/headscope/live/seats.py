"""A call of attention and the sessions that see it: who records it, who silences its heads, and who is told."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import nn

from headscope.attention.precision import exact_products, rounding_of
from headscope.live.calls import Call
from headscope.live.checking import refuse_altered
from headscope.live.names.axes import Followed
from headscope.live.plan.refusals import refuse_transforms
from headscope.live.plan.stacks import Place
from headscope.live.seeing.held import Held, settle
from headscope.live.sessions import COVERED, Pass, Session


class Seat(NamedTuple):
    """One session's view of a call: the session, its forward pass, and the stack and layer of the call.

    Attributes:
        session, forward, place: these.
        path: the layer's name, if it isn't that of the module that attends.
    """

    session: Session
    forward: Pass
    place: Place
    path: str = ""

    @property
    def may_be_head(self) -> bool:
        """True if its layer is unknown until the call is delivered: it may be one head of several beside it."""
        held = self.forward.held
        return held is not None and held.seat is self and bool(held.heads)


def register_call(
    module: nn.Module,
    batch: int,
    queries: int,
    keys: int,
    sizes: Hashable,
    followed: Followed = (None, None),
    *,
    may_be_part: bool = False,
    one_head: bool = False,
) -> list[Seat]:
    """Register a call of attention with every session that covers its module.

    Args:
        module: the attention module.
        batch, queries, keys: number of rows, and of queries and keys in each.
        sizes: shapes of the call; layers are counted separately for each.
        followed: the numbers of its queries' and its keys' tokens.
        may_be_part: True if the module may attend to its tokens in several calls: one with fewer is held back.
        one_head: True if the call has one head and may be one of several: it is held back, too.

    Returns:
        One seat for each session that is in a forward pass in this thread.

    Raises:
        UnsupportedError: the module ran before, for another part of its tokens.
    """
    seats = []
    for session in list(COVERED.get(id(module), ())):
        forward = session.forward()
        if forward is None:
            session.stray += session.sees_this_thread()
            session.note_outside(module)
            continue
        if not session.consumer.silencing:
            refuse_transforms(module)
        progress, held = forward.progress, forward.held
        progress.sizes.add((queries, keys))
        progress.read.add(id(module))
        entries = progress.entered.get(id(module), 0)
        whole = not may_be_part or forward.is_whole(module, batch, queries)
        if held is not None and (one_head or not whole):
            if held.is_beside(module, progress.given):
                held.add_head(module, sizes)
            if held.continues(module, entries):
                held.followed = followed
                seats.append(held.seat)
                continue
        settle(forward)
        place = progress.place(session.plan, module, sizes, not whole or forward.is_fewer(batch, queries))
        forward.followed[place] = followed
        seats.append(Seat(session, forward, place))
        if one_head or not whole:
            heads = session.plan.beside(module) if one_head and not place.stack.call else ()
            heads = heads if len(heads) > 1 else ()
            forward.held = Held(seats[-1], module, entries, followed, heads, progress.given if heads else [])
    return seats


def recording(seats: list[Seat]) -> list[Seat]:
    """The seats whose sessions record this call, or may when its layer is known."""
    return [
        seat for seat in seats if seat.may_be_head or seat.session.consumer.wants(seat.place.stack, seat.place.layer)
    ]


def heads_to_silence(seats: list[Seat]) -> dict[int, str]:
    """The heads that any session silences in this call: head -> "zero" or "mean"."""
    silenced: dict[int, str] = {}
    for seat in seats:
        silenced.update(seat.session.consumer.silences(seat.place.stack, seat.place.layer))
    return silenced


def deliver(module: nn.Module, seats: list[Seat], **tensors: Any) -> None:
    """Pass a call to the consumer of each seat, as a `Call` with that seat's stack and layer.

    Args:
        tensors: the other fields of `Call`, the same for all seats.

    Raises:
        UnsupportedError: the call is not proven, and its contexts are not softmax(scale Q K^T + mask) V.
    """
    rounded = rounding_of(tensors["q"])
    calls = [
        Call(
            module=module,
            path=path or session.plan.paths[id(module)],
            stack=place.stack,
            layer=place.layer,
            turn=place.turn,
            rounded=rounded,
            **tensors,
        )
        for session, _, place, path in seats
    ]
    with exact_products():
        if not calls[0].proven:
            refuse_altered(calls[0])
        for (session, forward, *_), call in zip(seats, calls, strict=True):
            session.consumer.take(forward, call)


def silence(context: torch.Tensor, silenced: dict[int, str], kept: torch.Tensor | None) -> torch.Tensor:
    """Return a copy of the contexts with heads silenced.

    Args:
        context: (batch, heads, queries, d_value).
        silenced: head -> "zero", or "mean" for the mean of the head's contexts over the queries.
        kept: (batch, queries) bool, True for positions that are not padding: means are taken over these. None for all.
    """
    context = context.clone()
    for head, way in silenced.items():
        if way == "zero":
            context[:, head] = 0
            continue
        contexts = context[:, head]
        share = contexts.new_ones(contexts.shape[:2]) if kept is None else kept.to(contexts)
        mean = (contexts * share[..., None]).sum(1, keepdim=True) / share.sum(1)[:, None, None].clamp(min=1)
        context[:, head] = mean.expand_as(contexts)
    return context

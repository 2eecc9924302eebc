"""The tokens of compiled models, whose operators can't be followed: the model runs once more, uncompiled.

Every attention function in a graph has a number, so those that ran tell which graphs ran. What such graphs do with
tensors of given shapes they always do, unless it depends on the numbers in them. So the first time that they run with
arguments of these shapes, the model runs again as it is, and is followed. From then on it is known for which queries
and keys each of the ids stands that its graphs look up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope.live.calls import Forward, Listener
from headscope.live.memory import Proof
from headscope.live.sessions import OPEN, Session
from headscope.live.tokens.lookups import is_plain, tensors_of

if TYPE_CHECKING:
    from headscope.live.sessions import Graph


class _Follow(Listener):
    """Only lets tokens be followed.

    Attributes:
        forward: the forward pass, once it is over.
    """

    follows = True
    forward: Forward | None = None

    def end(self, forward: Forward) -> None:
        """Keep the forward pass."""
        self.forward = forward


def name(model: nn.Module, graph: Graph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note which tokens the queries and keys of a compiled call stand for, if that can be shown.

    Args:
        model: the model that is compiled.
        graph: what its graphs have done in the call.
        args, kwargs: the call's arguments.
    """
    if not any(graph.calls) or model.training or not is_plain((args, kwargs)):
        return
    arguments = list(tensors_of(model, args, kwargs))
    session = next(session for session in graph.sessions if session.listener.follows)
    key = id(model), tuple(graph.numbers), tuple((at, x.shape, x.dtype) for at, x in arguments)
    proofs = session.plan.memory.graphs
    if key not in proofs:
        proofs[key] = _proof(model, session, args, kwargs)
    proof, types = proofs[key], next((x for at, x in arguments if at == "token_type_ids"), None)
    tokens = None if proof is None else proof.tokens_of(graph.lookups, types)
    if proof is None or tokens is None or len(proof.calls) != len(graph.calls):
        return
    bases: dict[int, int] = {}
    for numbers, seats in zip(proof.calls, graph.calls, strict=True):
        for forward, place in seats:
            assert forward.tokens is not None
            if id(forward) not in bases:
                bases[id(forward)] = forward.tokens.extend(tokens)
            base = bases[id(forward)]
            queries, keys = (None if x is None else np.where(x < 0, x, x + base) for x in numbers)
            forward.followed[place] = queries, keys


def _proof(model: nn.Module, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proof | None:
    """Follow an uncompiled call; None if its tokens are moved to places that depend on numbers."""
    listener = _Follow()
    plan = session.plan.over(session.plan.modules)
    own = Session(model, plan, listener, strict=False, may_bypass=frozenset(), prepare=lambda _: None)
    strays = [(other, other.stray) for other in OPEN]
    own.open([model])
    try:
        with torch.no_grad():
            model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    finally:
        own.close()
        for other, stray in strays:
            other.stray = stray
    forward, follower = listener.forward, own.follower
    if forward is None or (tokens := forward.tokens) is None or follower.valued:
        return None
    given = [(x.first, x.ids.flatten().cpu().numpy()) for x in follower.lookups]
    if not all(np.array_equal(tokens.ids[first : first + len(ids)], ids) for first, ids in given):
        return None  # the model looks up other ids than it is given
    return Proof(list(forward.followed.values()), tokens, follower.lookups)

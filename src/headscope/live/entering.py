"""The tokens whose embeddings enter a stack, by experiment: the captured pass runs again, and other ids are looked up.

Each token has a code, a set of trials in which the next id of its table is looked up instead of its own. No code is
part of another, so the trials in which a query changes say which token it stands for. This knows nothing of how the
model moves tokens: it does not depend on headscope.live.names.following, except for what is looked up.

Each trial is a forward pass of its own, up to the stack's first layer: nothing is assumed about what rows do.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import combinations, count
from math import comb
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from headscope.errors import HeadscopeError
from headscope.live.calls import Call, Consumer, Forward
from headscope.live.captured import Watching
from headscope.live.plan.classes import in_training
from headscope.live.plan.stacks import Stack
from headscope.live.replay import as_then, why_not

if TYPE_CHECKING:
    from headscope.live.keeping.source import CapturedModel
    from headscope.live.names.lookups import Replace
    from headscope.traces import Trace

UNDECIDED = -2
"""Instead of an id: none, or more than one, changes what enters at this place."""

Sides = tuple[np.ndarray, np.ndarray]
"""The queries and the keys of one row, (tokens, numbers) each."""


class _Reached(BaseException):
    """Ends a forward pass once the layer has been seen; not an Exception, which the model's code may catch."""


class _Entrance(Consumer):
    """Other ids are looked up, and the pass ends at a stack's first layer.

    Attributes:
        source: the model and the stack.
        replace: changes the ids.
        forward: the forward pass.
        sides: the queries and the keys of the trace's row; None if the layer did not run.
        eps: the spacing of numbers around 1 in their precision.
    """

    follows = True

    def __init__(self, source: CapturedModel, replace: Replace) -> None:
        self.source = source
        self.replace = replace
        self.forward: Forward | None = None
        self.sides: Sides | None = None
        self.eps = 0.0

    def begin(self, forward: Forward) -> None:
        """Keep the forward pass."""
        self.forward = forward

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True for the stack's layers."""
        return stack == self.source.stack

    def take(self, forward: Forward, call: Call) -> None:
        """Keep the queries and keys, and end the pass."""
        if (call.turn, call.q.shape[2], call.k.shape[2]) == (self.source.turn, *self.source.cut.sizes):
            of_row = (x[self.source.cut.row].transpose(0, 1).flatten(1) for x in (call.q, call.k))
            q, k = (x.float().cpu().numpy() for x in of_row)
            self.sides, self.eps = (q, k), torch.finfo(call.q.dtype).eps
            raise _Reached


Ids = tuple[np.ndarray, np.ndarray]
"""The ids for each query and for each key of a trace."""


def entering_ids(trace: Trace, source: CapturedModel) -> Ids | str:
    """The ids whose embeddings enter the first layer of a trace's stack.

    Args:
        trace: the trace.
        source: the model that it was captured from.

    Returns:
        For each query and for each key of the trace, the id that was looked up for it, or UNDECIDED; or the reason why
        it can't be found out.
    """
    model, called = source.model, source.called
    if model is None or called is None:
        return "the model no longer exists"
    if reason := why_not(trace, source, called, training=True):
        return reason
    try:
        return _by_trials(trace, source, called)
    except HeadscopeError as error:
        return error.found


def _by_trials(trace: Trace, source: CapturedModel, called: nn.Module) -> Ids | str:
    """The ids that enter; or the reason why they can't be found out."""
    before = _entrance(source, lambda ids, first, rows: ids)
    if before.sides is None or before.forward is None or before.forward.tokens is None:
        return "the layer did not run again with the same numbers of queries and keys"
    if in_training(called):
        again = _entrance(source, lambda ids, first, rows: ids)
        if again.sides is None or any(flags.any() for flags in _changes(before.sides, again.sides, before.eps)):
            return "the model is in training mode, and two forward passes differ"
    ids = before.forward.tokens.ids
    codes = _codes(len(ids))
    changes: list[Sides] = []
    for flags in torch.from_numpy(codes.T):
        after = _entrance(source, partial(_exchanged, flags))
        if after.sides is None:
            return "the layer did not run again with other ids"
        changes.append(_changes(before.sides, after.sides, before.eps))
    found = []
    for side, axis, kept in ((0, trace.queries, source.cut.queries), (1, trace.keys, source.cut.keys)):
        changed = np.stack([trial[side] for trial in changes], axis=1).take(kept, axis=0)
        found.append(np.array([_id_of(*pair, ids, codes) for pair in zip(axis.ids, changed, strict=False)]))
    return found[0], found[1]


def _changes(before: Sides, after: Sides, eps: float) -> Sides:
    """For queries and for keys, (tokens,): True where they changed in a trial, by more than other rounding changes."""
    queries, keys = (
        np.abs(y - x).max(axis=1) > eps**0.5 / 8 * np.abs(x).max() for x, y in zip(before, after, strict=True)
    )
    return queries, keys


def _codes(tokens: int) -> np.ndarray:
    """(tokens, passes): the code of each token, none of which is part of another."""
    size = next(size for size in count(2) if comb(size, size // 2) >= tokens)
    codes = np.zeros((tokens, size), dtype=bool)
    for code, places in zip(codes, combinations(range(size), size // 2), strict=False):
        code[list(places)] = True
    return codes


def _entrance(source: CapturedModel, replace: Replace) -> _Entrance:
    """The queries and keys of the layer if ids are replaced."""
    consumer = _Entrance(source, replace)
    assert source.model is not None
    assert source.called is not None
    watching = Watching(source.model, consumer, strict=False)
    with as_then(source), watching, suppress(_Reached):
        try:
            source.called(*source.args, **source.kwargs)
        except RuntimeError:  # what TorchScript makes of any error
            if consumer.sides is None:
                raise
    return consumer


def _exchanged(flags: torch.Tensor, ids: torch.Tensor, first: int, rows: int) -> torch.Tensor:
    """The ids to look up: the next one of the table for each token whose flag is set."""
    chosen = flags[first : first + ids.numel()].reshape(ids.shape).to(ids.device)
    return torch.where(chosen, (ids + 1) % rows, ids)


def _id_of(named: int, changed: np.ndarray, ids: np.ndarray, codes: np.ndarray) -> int:
    """The id that was looked up for a token; UNDECIDED if none changed it, or several did that may be the named one.

    Args:
        named: the id of the token's name.
        changed: (passes,): True for the passes in which the token changed.
        ids: all ids that were looked up.
        codes: (ids, passes): the passes in which another id was looked up instead of each.
    """
    possible = ids[~(codes & ~changed).any(axis=1)]
    alone = len(possible) == 1 and changed.sum() == codes.shape[1] // 2
    if not len(possible) or not changed.any() or (not alone and named in possible):
        return UNDECIDED
    return int(possible[0])

"""The tokens whose embeddings enter a stack, by experiment: the captured pass runs again, and other ids are looked up.

Each token has a code, a set of trials in which the next id of its table is looked up instead of its own. No code is
part of another, so the trials in which a query changes say which token it stands for. This knows nothing of how the
model moves tokens: it does not depend on headscope.live.names.following, except for what is looked up.

All trials are rows of one forward pass, each a copy of the batch. So the numbers that a pass computes of all its rows,
such as the step by which activations are quantised, are the same in all trials. If the model doesn't take the copies,
or doesn't confirm the tokens' names so, each trial is a forward pass of its own: nothing is assumed about what rows do.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import combinations, count
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope.errors import HeadscopeError
from headscope.live.calls import Call, Consumer, Forward
from headscope.live.captured import Watching
from headscope.live.names.facts import INTEGERS
from headscope.live.names.lookups import NOT_WORDS, tensors_of
from headscope.live.plan.classes import in_training
from headscope.live.plan.stacks import Stack
from headscope.live.progress import is_plain
from headscope.live.replay import FAILS, as_then, why_not

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
        copies: number of copies of the batch that the model is given.
        forward: the forward pass.
        sides: for each copy, the queries and the keys of the trace's row, (tokens, numbers) each; empty if the layer
            did not run.
        eps: the spacing of numbers around 1 in their precision.
    """

    follows = True

    def __init__(self, source: CapturedModel, replace: Replace, copies: int) -> None:
        self.source = source
        self.replace = replace
        self.copies = copies
        self.forward: Forward | None = None
        self.sides: list[Sides] = []
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
            batch, self.eps = len(call.q) // self.copies, torch.finfo(call.q.dtype).eps
            for row in range(self.source.cut.row, len(call.q), batch):
                q, k = (x[row].transpose(0, 1).flatten(1).float().cpu().numpy() for x in (call.q, call.k))
                self.sides.append((q, k))
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
        found = None if in_training(called) else _in_rows(trace, source, called)
        return found if found is not None and _confirms(trace, found) else _in_passes(trace, source, called)
    except HeadscopeError as error:
        return error.found


MOST_IN_ROWS = 1 << 15
"""Maximum number of tokens in one forward pass, over all copies of the batch."""


def _in_rows(trace: Trace, source: CapturedModel, called: nn.Module) -> Ids | None:
    """The ids that enter, the trials side by side in one batch; in several, if there are too many for one.

    Returns:
        None if the model isn't given its ids as (rows, tokens), or doesn't take more rows.
    """
    words = [
        x
        for name, x in tensors_of(called, source.args, source.kwargs)
        if x.dtype in INTEGERS and x.dim() == 2 and not NOT_WORDS.search(name)
    ]
    given = sum(x.numel() for x in words)
    room = MOST_IN_ROWS // max(1, given) - 1
    if not given or room < 2:
        return None
    codes, ids = _codes(2 * given), np.empty(0, int)  # a decoder may be given the encoder's ids
    changes: list[Sides] = []
    for start in range(0, codes.shape[1], room):
        flags = np.pad(codes[:, start : start + room], ((0, 0), (1, 0)))  # the first copy stays as it is
        looked_up: dict[int, range] = {}
        try:
            after = _entrance(source, _exchanging(torch.from_numpy(flags), looked_up), len(words[0]), flags.shape[1])
        except FAILS:
            return None
        if len(after.sides) != flags.shape[1] or not looked_up or after.forward is None or after.forward.tokens is None:
            return None
        named = after.forward.tokens.ids
        ids = np.concatenate([named[first : first + len(places)] for first, places in looked_up.items()])
        changes += [_changes(after.sides[0], trial, after.eps) for trial in after.sides[1:]]
    return _decided(trace, source, ids, codes[: len(ids)], changes)


def _repeated(source: CapturedModel, rows: int, copies: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the captured pass, with copies of its batch one after another.

    Raises:
        ValueError: an argument is not a batch's.
    """
    values = []
    for x in (*source.args, *source.kwargs.values()):
        tensor = isinstance(x, torch.Tensor)
        if isinstance(x, (Mapping, list, tuple)) or (tensor and not is_plain(x)):
            raise ValueError("not a batch")
        values.append(torch.cat([x] * copies) if tensor and x.dim() and len(x) == rows else x)
    at = len(source.args)
    return tuple(values[:at]), dict(zip(source.kwargs, values[at:], strict=True))


def _exchanging(flags: torch.Tensor, looked_up: dict[int, range]) -> Replace:
    """Return a function that exchanges ids in copies of a batch; those that are not looked up by rows stay.

    Args:
        flags: (tokens, copies), True for the tokens of each copy that are exchanged.
        looked_up: the number of a look-up's first token, and the places of one copy's tokens in `flags`, are added.
    """

    def exchange(ids: torch.Tensor, first: int, rows: int) -> torch.Tensor:
        known = sum(map(len, looked_up.values()))
        places = looked_up.get(first, range(known, known + ids.numel() // flags.shape[1]))
        if len(ids) % flags.shape[1] or places.stop > len(flags):
            return ids
        looked_up[first] = places
        return _exchanged(flags[places.start : places.stop].T.flatten(), ids, 0, rows)

    return exchange


def _in_passes(trace: Trace, source: CapturedModel, called: nn.Module) -> Ids | str:
    """The ids that enter, each trial in a forward pass of its own; or the reason why they can't be found out."""
    before = _entrance(source, lambda ids, first, rows: ids)
    if not before.sides or before.forward is None or before.forward.tokens is None:
        return "the layer did not run again with the same numbers of queries and keys"
    if in_training(called):
        again = _entrance(source, lambda ids, first, rows: ids)
        if not again.sides or any(flags.any() for flags in _changes(before.sides[0], again.sides[0], before.eps)):
            return "the model is in training mode, and two forward passes differ"
    ids = before.forward.tokens.ids
    codes = _codes(len(ids))
    changes: list[Sides] = []
    for flags in torch.from_numpy(codes.T):
        after = _entrance(source, partial(_exchanged, flags))
        if not after.sides:
            return "the layer did not run again with other ids"
        changes.append(_changes(before.sides[0], after.sides[0], before.eps))
    return _decided(trace, source, ids, codes, changes)


def _changes(before: Sides, after: Sides, eps: float) -> Sides:
    """For queries and for keys, (tokens,): True where they changed in a trial, by more than other rounding changes."""
    queries, keys = (
        np.abs(y - x).max(axis=1) > eps**0.5 / 8 * np.abs(x).max() for x, y in zip(before, after, strict=True)
    )
    return queries, keys


def _decided(trace: Trace, source: CapturedModel, ids: np.ndarray, codes: np.ndarray, changes: list[Sides]) -> Ids:
    """The ids that enter, by the trials in which queries and keys changed."""
    found = []
    for side, axis, kept in ((0, trace.queries, source.cut.queries), (1, trace.keys, source.cut.keys)):
        flags = np.stack([trial[side] for trial in changes], axis=1).take(kept, axis=0)
        found.append(np.array([_id_of(*pair, ids, codes) for pair in zip(axis.ids, flags, strict=False)]))
    return found[0], found[1]


def _confirms(trace: Trace, found: Ids) -> bool:
    """Return True if these ids are those of a trace's tokens, as far as both are known, and some are."""
    known = []
    for axis, entered in zip((trace.queries, trace.keys), found, strict=True):
        named = np.array(axis.ids)[: len(entered)]
        known.append((named == entered)[(named >= 0) & (entered != UNDECIDED)])
    agree = np.concatenate(known)
    return bool(agree.size and agree.all())


def _codes(tokens: int) -> np.ndarray:
    """(tokens, passes): the code of each token, none of which is part of another."""
    size = next(size for size in count(2) if comb(size, size // 2) >= tokens)
    codes = np.zeros((tokens, size), dtype=bool)
    for code, places in zip(codes, combinations(range(size), size // 2), strict=False):
        code[list(places)] = True
    return codes


def _entrance(source: CapturedModel, replace: Replace, rows: int = 0, copies: int = 1) -> _Entrance:
    """The queries and keys of the layer if ids are replaced, in copies of the batch, which has this many rows."""
    args, kwargs = _repeated(source, rows, copies) if copies > 1 else (source.args, source.kwargs)
    consumer = _Entrance(source, replace, copies)
    assert source.model is not None
    assert source.called is not None
    watching = Watching(source.model, consumer, strict=False)
    with as_then(source), watching, suppress(_Reached):
        try:
            source.called(*args, **kwargs)
        except RuntimeError:  # what TorchScript makes of any error
            if not consumer.sides:
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

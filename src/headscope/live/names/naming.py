"""The tokens that queries and keys stand for, each followed to where it is used: see `following`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.live.keeping.cached_sequences import KeySpan
from headscope.live.names.axes import Tokens, Vocabulary, in_common, joined, part, with_extras

if TYPE_CHECKING:
    from headscope.live.calls import Forward
    from headscope.live.keeping.copies import Group
    from headscope.results.tokens import TokenAxis


class Naming:
    """The tokens of one capture's forward passes, each looked up once."""

    def __init__(self, words: Vocabulary) -> None:
        self.words = words
        self._numbers: dict[tuple[int, int], np.ndarray] = {}
        self._rows: dict[tuple[int, int], TokenAxis] = {}

    def numbers(self, group: Group, side: int) -> np.ndarray:
        """(batch, tokens): the numbers of the queries' tokens (side 0) or of the keys', padding included.

        A token that is not the same in all layers of the group is -1, like one that is not known.
        """
        place = (id(group), side)
        if place not in self._numbers:
            batch, *sizes = group.sizes
            size = sizes[side] - (len(group.extras) if side else 0)
            tables = []
            for layer in group.rows[0]:
                tables.append(np.full((batch, size), -1))
                if (followed := layer.followed[side]) is not None and followed.shape[1] >= size:
                    tables[-1][:] = followed[:, :size]
            self._numbers[place] = in_common(tables)
        return self._numbers[place]

    def ids(self, forward: Forward, group: Group) -> np.ndarray | None:
        """(batch, queries): the ids of the queries' tokens, padding included; None if any is not known."""
        numbers = self.numbers(group, 0)
        if forward.tokens is None or (numbers < 0).any():
            return None
        ids: np.ndarray = forward.tokens.ids[numbers]
        return ids if (ids >= 0).all() else None

    def queries(self, forward: Forward, group: Group, row: int) -> TokenAxis:
        """The queries of one row, without padding."""
        place = (id(group), row)
        if place not in self._rows:
            self._rows[place] = self._axis(forward, group, 0, row)
        return self._rows[place]

    def keys(self, forward: Forward, group: Group, row: int) -> TokenAxis:
        """The keys of one row; the same object as the queries if they are the same tokens."""
        span = group.rows[row][0].tensors["k"]
        assert isinstance(span, KeySpan)
        queries, keys = (self.numbers(group, side)[row] for side in (0, 1))
        origin = span.origins[0]
        if group.own and np.array_equal(keys[-len(queries) :], queries):
            axis = self.queries(forward, group, row) if len(keys) == len(queries) else self.of_span(span)
        else:
            axis = self._axis(forward, group, 1, row)
            if not group.own and origin.forward is not None and origin.group is not None and (keys < 0).all():
                first = self._axis(origin.forward, origin.group, 1, origin.row)  # the keys are in the cache since then
                axis = first if len(first) == len(axis) else axis
        return with_extras(axis, group.extras) if group.extras else axis

    def of_span(self, span: KeySpan) -> TokenAxis:
        """The tokens of a span, each named by the forward pass that computed it."""
        parts = []
        for origin in span.origins:
            start, stop = max(origin.start, span.start), min(origin.stop, span.stop)
            if start >= stop:
                continue
            if origin.forward is None or origin.group is None:
                places = np.arange(start, stop) - span.start
                parts.append(Tokens().axis(np.full(stop - span.start, -1), places, self.words))
            else:
                axis = self.queries(origin.forward, origin.group, origin.row)
                parts.append(part(axis, start - origin.start, stop - origin.start))
        return joined(parts)

    def _axis(self, forward: Forward, group: Group, side: int, row: int) -> TokenAxis:
        numbers = self.numbers(group, side)[row]
        kept = (group.keys_kept if side else group.queries_kept)[row]
        at = np.arange(len(numbers)) if kept is None else np.flatnonzero(kept[: len(numbers)])
        return (forward.tokens or Tokens()).axis(numbers, at, self.words)

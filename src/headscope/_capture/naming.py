"""The tokens that queries and keys stand for: those of this forward pass, of an earlier one, or of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headscope._capture.strands import Stretch
from headscope._capture.tokens import Axis, Vocabulary, axis_of, joined, part, with_extras

if TYPE_CHECKING:
    from headscope._capture.building import Group
    from headscope._capture.calls import Forward
    from headscope._trace import TokenAxis

Pass = tuple["Forward", "list[Group]"]
"""A forward pass and its copies."""


class Naming:
    """The tokens of one capture's forward passes, each looked up once."""

    def __init__(self, words: Vocabulary) -> None:
        self.words = words
        self._axes: dict[int, Axis] = {}
        self._rows: dict[tuple[int, int], TokenAxis] = {}

    def batch_queries(self, forward: Forward, group: Group) -> Axis:
        """The queries of a whole batch, padding included."""
        if id(group) not in self._axes:
            batch, queries, _ = group.sizes
            self._axes[id(group)] = axis_of(forward, group.before, batch, queries, cross=False)
        return self._axes[id(group)]

    def queries(self, forward: Forward, group: Group, row: int) -> TokenAxis:
        """The queries of one row, without padding."""
        place = (id(group), row)
        if place not in self._rows:
            axis = self.batch_queries(forward, group)
            self._rows[place] = axis.row(row, group.sizes[1], group.queries_kept[row], self.words)
        return self._rows[place]

    def keys(self, forward: Forward, groups: list[Group], at: int, row: int, earlier: Sequence[Pass]) -> TokenAxis:
        """The keys of one row of `groups[at]`; the same object as the queries if they are the same tokens.

        Args:
            forward: the forward pass.
            groups: its copies.
            at: index of the group.
            row: the row of the batch.
            earlier: the passes before this one.
        """
        group = groups[at]
        batch, queries, keys = group.sizes
        tokens = keys - len(group.extras)
        if group.own and tokens == queries:
            axis = self.queries(forward, group, row)
        elif group.own:
            stretch = group.rows[row][0].tensors["k"]
            assert isinstance(stretch, Stretch)
            axis = self.of_stretch(stretch)
        else:
            kept = group.keys_kept[row]
            kept = None if kept is None else kept[:tokens]
            attended = [other for other in groups[:at] if other.own and other.sizes[1] == tokens]
            sources = [self.batch_queries(forward, other) for other in attended] or [
                axis_of(forward, group.before, batch, tokens, cross=True)
            ]
            encoded = self._encoded(forward, tokens, row, earlier) if sources[0].ids is None else []
            axis = (encoded or sources)[0].row(row, tokens, kept, self.words)
        return with_extras(axis, group.extras) if group.extras else axis

    def of_stretch(self, stretch: Stretch) -> TokenAxis:
        """The tokens of a stretch, each named by the forward pass that computed it."""
        parts = []
        for origin in stretch.origins:
            start, stop = max(origin.start, stretch.start), min(origin.stop, stretch.stop)
            if start >= stop:
                continue
            if origin.forward is None or origin.group is None:
                unknown = Axis(None).row(0, stop - stretch.start, None, self.words)
                parts.append(part(unknown, start - stretch.start, stop - stretch.start))
            else:
                axis = self.queries(origin.forward, origin.group, origin.row)
                parts.append(part(axis, start - origin.start, stop - origin.start))
        return joined(parts)

    def _encoded(self, forward: Forward, tokens: int, row: int, earlier: Sequence[Pass]) -> list[Axis]:
        """The tokens of the earlier pass that computed this one's encoder_outputs; empty if no pass did."""
        encoded = _states(forward.kwargs.get("encoder_outputs"))
        if encoded is None or row >= len(encoded):
            return []
        for known, groups in reversed(earlier):
            states = _states(known.output)
            if states is None or states.shape[1:] != encoded.shape[1:]:
                continue
            for place in (row * len(states) // len(encoded), *range(len(states))):
                self_attention = [group for group in groups if group.own and group.sizes[1] == tokens]
                if self_attention and torch.equal(states[place], encoded[row]):
                    axis = self.batch_queries(known, self_attention[0])
                    if axis.ids is None:
                        return []
                    # generate() repeats the rows of the encoder's output for each beam.
                    at = place * len(axis.ids) // len(states)
                    return [Axis(np.repeat(axis.ids[at : at + 1], len(encoded), 0))]
        return []


def _states(output: Any) -> torch.Tensor | None:
    states = getattr(output, "last_hidden_state", None)
    return states if isinstance(states, torch.Tensor) and states.dim() == 3 else None

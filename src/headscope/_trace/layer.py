"""One layer of a trace: its q, k and v, and the scores, weights and contexts of all its heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headscope import upward
from headscope._trace.arrays import LazyMap
from headscope._trace.head import HeadTrace, full, kept_values, position_of
from headscope._trace.tiled import stacked
from headscope.attention import Mask, attend

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace.record import LayerRecord, Trace
    from headscope.explain.promotes import Promotion


class LayerTrace:
    """One layer on one text: `trace[3]`. Everything here is computed when it is asked for, from q, k, v and lse.

    `trace[3][5]` is head 5, by its number in the model, as in `trace[3, 5]`; iterating gives the heads in order. The
    first axis of the arrays has the heads in that order too: where not all were kept, `numbers` says which.

    Attributes:
        layer: the layer's number in the model.
        numbers: the numbers of its heads.
    """

    def __init__(self, trace: Trace, layer: int, record: LayerRecord) -> None:
        self._trace = trace
        self._record = record
        self.layer = layer
        self.numbers = trace.head_numbers(layer)

    @property
    def q(self) -> Float[np.ndarray, "heads queries d_head"]:
        """(heads, queries, d_head)."""
        return full(self._record.q)

    @property
    def k(self) -> Float[np.ndarray, "kv_heads keys d_head"]:
        """(kv_heads, keys, d_head): under grouped-query attention one head of keys for several of queries."""
        return full(self._record.k)

    @property
    def v(self) -> Float[np.ndarray, "kv_heads keys d_value"]:
        """(kv_heads, keys, d_value).

        Raises:
            TraceError: the trace was kept without values.
        """
        return full(kept_values(self._record, f"layer {self.layer}"))

    @property
    def lse(self) -> Float[np.ndarray, "heads queries"]:
        """(heads, queries): log-sum-exp of each query's scores."""
        return self._record.lse

    @property
    def scale(self) -> float:
        """What q . k is multiplied by."""
        return self._record.scale

    @property
    def mask(self) -> Mask:
        """Which keys a query may look at."""
        return self._record.mask

    @property
    def stage(self) -> str:
        """What q and k are: projected, scaled, rotated."""
        return self._record.stage

    @property
    def name(self) -> str:
        """The attention module's name in a live model; empty where there was none."""
        return self._record.name

    @property
    def scores(self) -> LazyMap:
        """(heads, queries, keys), before the softmax; -inf where masked. Only the tile that is indexed is computed."""
        return LazyMap.of(stacked([head.scores for head in self]))

    @property
    def weights(self) -> LazyMap:
        """(heads, queries, keys), after the softmax. Only the tile that is indexed is computed."""
        return LazyMap.of(stacked([head.weights for head in self]))

    @property
    def context(self) -> Float[np.ndarray, "heads queries d_value"]:
        """(heads, queries, d_value): weights @ V, in blocks of queries."""
        return attend(self.q, self.k, self.v, scale=self.scale, mask=self.mask)[0]

    @property
    def output(self) -> Float[np.ndarray, "queries d_model"]:
        """(queries, d_model): the sum over its heads of context @ W_O, without the bias.

        Raises:
            TraceError: the trace has no values, or no model to take W_O from.
        """
        return np.sum([head.output for head in self], axis=0)

    def promotes(self, query: int, *, top: int = 10, part: str = "feed_forward") -> Promotion:
        """The tokens whose masked-LM logits the layer's feed-forward at a token raises and lowers most, directly.

        See headscope.explain.promotes.

        Args:
            query: the token at which it writes.
            top: how many tokens to name on each side.
            part: feed_forward, or attention.
        """
        return upward.layer_promotes(self._trace, self.layer, query, top=top, part=part)

    def __len__(self) -> int:
        """How many heads."""
        return len(self.numbers)

    def __getitem__(self, head: int) -> HeadTrace:
        """One head, by its number.

        Raises:
            InputError: there is no such head, or it was not kept.
        """
        at = position_of(head, self.numbers, "head", f"layer {self.layer}")
        return HeadTrace(self._trace, self.layer, self.numbers[at], self._record, at)

    def __iter__(self) -> Iterator[HeadTrace]:
        return (self[head] for head in self.numbers)

    def __repr__(self) -> str:
        heads, queries, d_head = self._record.q.shape
        return (
            f"layer {self.layer} (counted from 0): {heads} heads of {d_head}, {queries} queries, "
            f"{self._record.k.shape[1]} keys, scale {self.scale:.6g}"
        )

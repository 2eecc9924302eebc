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
from headscope.terms import Terms

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace.layer_record import LayerRecord
    from headscope._trace.record import Trace
    from headscope.explain.promotes import Promotion


class LayerTrace:
    """One layer of a trace: `trace[3]`.

        layer = trace[3]
        layer[5].weights          # head 5, as in trace[3, 5]
        layer.weights.shape       # (heads, queries, keys)
        for head in layer: …      # its heads in order

    Scores, weights and contexts are computed on demand from q, k, v and lse. Heads are indexed by their number in the
    model. The first axis of the arrays has the kept heads in order; if not all were kept, `numbers` lists them.

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
        """(heads, queries, d_head): the query vectors."""
        return full(self._record.q)

    @property
    def k(self) -> Float[np.ndarray, "kv_heads keys d_head"]:
        """(kv_heads, keys, d_head): the key vectors; under grouped-query attention, several heads share a key head."""
        return full(self._record.k)

    @property
    def v(self) -> Float[np.ndarray, "kv_heads keys d_value"]:
        """(kv_heads, keys, d_value): the value vectors.

        Raises:
            TraceError: the trace has no values.
        """
        return full(kept_values(self._record, f"layer {self.layer}"))

    @property
    def lse(self) -> Float[np.ndarray, "heads queries"]:
        """(heads, queries): log-sum-exp of each query's scores; -inf for a query that sees no key."""
        return self._record.lse

    @property
    def scale(self) -> float:
        """Factor of q . k."""
        return self._record.scale

    @property
    def mask(self) -> Mask:
        """The rule for which keys a query may look at."""
        return self._record.mask

    @property
    def terms(self) -> Terms:
        """What the model adds to scale * q . k: see headscope.terms."""
        return self._record.terms

    @property
    def stage(self) -> str:
        """State of q and k: projected, scaled or rotated."""
        return self._record.stage

    @property
    def name(self) -> str:
        """The attention module's name in a live model; empty if the trace is not of a live model."""
        return self._record.name

    @property
    def scores(self) -> LazyMap:
        """(heads, queries, keys), lazy: scores before the softmax, -inf where masked."""
        return LazyMap.of(stacked([head.scores for head in self]))

    @property
    def weights(self) -> LazyMap:
        """(heads, queries, keys), lazy: weights after the softmax. Only the indexed tile is computed."""
        return LazyMap.of(stacked([head.weights for head in self]))

    @property
    def context(self) -> Float[np.ndarray, "heads queries d_value"]:
        """(heads, queries, d_value): weights @ V, computed in blocks of queries.

        Raises:
            TraceError: the trace has no values.
        """
        return attend(self.q, self.k, self.v, scale=self.scale, mask=self.mask, terms=self.terms)[0]

    @property
    def output(self) -> Float[np.ndarray, "queries d_model"]:
        """(queries, d_model): the sum of its heads' outputs, context @ W_O, without the bias b_O.

        Raises:
            TraceError: the trace has no values, or no model to take W_O from.
            UnsupportedError: W_O of a live model can't be determined.
        """
        return np.sum([head.output for head in self], axis=0)

    def promotes(self, query: int, *, top: int = 10, part: str = "feed_forward") -> Promotion:
        """The tokens whose masked-LM logits a part of the layer directly raises and lowers most.

        See headscope.explain.promotes.

        Args:
            query: position of the token at which it writes.
            top: number of tokens on each side.
            part: "feed_forward" or "attention".

        Returns:
            The promoted and suppressed tokens with their logits.
        """
        return upward.layer_promotes(self._trace, self.layer, query, top=top, part=part)

    def __len__(self) -> int:
        """Number of heads."""
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

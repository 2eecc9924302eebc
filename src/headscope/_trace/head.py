"""One head of a trace: its q, k and v, and the scores, weights and contexts that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope import upward
from headscope._trace.arrays import LazyMap
from headscope.anatomy.heads import check_index
from headscope.attention import attend, scores, weights
from headscope.errors import InputError, TraceError

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace.layer_record import LayerRecord
    from headscope._trace.record import Trace
    from headscope._trace.tiled import Index
    from headscope.explain.promotes import Promotion


class HeadTrace:
    """One head of a trace: `trace[layer, head]`.

        head = trace[0, 3]
        head.weights[2]           # the weights of query 2, (keys,)
        head.context              # (queries, d_value)

    Scores, weights and contexts are computed on demand from q, k, v and lse.

    Attributes:
        layer: the layer's number in the model.
        head: the head's number in the layer.
    """

    def __init__(self, trace: Trace, layer: int, head: int, record: LayerRecord, at: int) -> None:
        self._trace = trace
        self._record = record
        self._at = at
        self._key_head = at * len(record.k) // len(record.q)
        self.layer = layer
        self.head = head

    @property
    def q(self) -> Float[np.ndarray, "queries d_head"]:
        """(queries, d_head): the query vector of each token."""
        return full(self._record.q[self._at])

    @property
    def k(self) -> Float[np.ndarray, "keys d_head"]:
        """(keys, d_head): the key vector of each token that can be attended to."""
        return full(self._record.k[self._key_head])

    @property
    def v(self) -> Float[np.ndarray, "keys d_value"]:
        """(keys, d_value): the value vector of each of these tokens.

        Raises:
            TraceError: the trace has no values.
        """
        return full(kept_values(self._record, f"layer {self.layer}, head {self.head}")[self._key_head])

    @property
    def lse(self) -> Float[np.ndarray, " queries"]:
        """(queries,): log-sum-exp of each query's scores; -inf for a query that sees no key."""
        return self._record.lse[self._at]

    @property
    def scale(self) -> float:
        """Factor of q . k: 1 / sqrt(d_head), unless the model uses another scale or has already scaled q."""
        return self._record.scale

    @property
    def silenced(self) -> bool:
        """True if this head was silenced in the trace's forward pass."""
        return (self.layer, self.head) in self._trace.ablated

    @property
    def scores(self) -> LazyMap:
        """(queries, keys), lazy: scores before the softmax, -inf where masked. Only the indexed tile is computed."""
        return self._map("scores", False)

    @property
    def weights(self) -> LazyMap:
        """(queries, keys), lazy: weights after the softmax. Only the indexed tile is computed."""
        return self._map("weights", True)

    @property
    def context(self) -> Float[np.ndarray, "queries d_value"]:
        """(queries, d_value): weights @ V, computed in blocks of queries; for a silenced head, as if it were not.

        Raises:
            TraceError: the trace has no values.
        """
        mask, terms = self._record.mask.of_head(self._at), self._record.terms.of_head(self._at)
        context, _ = attend(self.q[None], self.k[None], self.v[None], scale=self.scale, mask=mask, terms=terms)
        return context[0]

    @property
    def output(self) -> Float[np.ndarray, "queries d_model"]:
        """(queries, d_model): context @ W_O, the head's contribution to the residual stream; 0 if it was silenced.

        Raises:
            TraceError: the trace has no values, or no model to take W_O from, as when read from a file.
            UnsupportedError: W_O of a live model can't be determined.
        """
        source = self._trace.source
        if source is None:
            raise TraceError(
                "a head's output requires W_O, which is in the model and not in the trace",
                where=f"layer {self.layer}, head {self.head}",
                advice="read the trace with hs.load(file, model=hs.open(…))",
            )
        W_O = np.asarray(source.W_O(self.layer, self.head), dtype=np.float32)
        if self.silenced:
            return np.zeros((len(self.q), W_O.shape[1]), dtype=np.float32)
        return self.context @ W_O

    def promotes(self, query: int, *, top: int = 10, key: int | None = None) -> Promotion:
        """The tokens whose masked-LM logits the head's output directly raises and lowers most.

        See headscope.explain.promotes.

        Args:
            query: position of the token at which the head writes.
            top: number of tokens on each side.
            key: position of a token; if given, use the head's output with all its weight on this token.

        Returns:
            The promoted and suppressed tokens with their logits.
        """
        return upward.head_promotes(self._trace, self.layer, self.head, query, top=top, key=key)

    def knockout(self, query: int, key: int) -> Float[np.ndarray, " d_value"]:
        """(d_value,): a query's context if it could not see one key. See headscope.explain.knockout.

        Args:
            query: position of the query.
            key: position of the key.

        Raises:
            InputError: there is no such query or key, or it is the only key that the query sees.
        """
        return upward.knockout(self, query, key)

    def _map(self, kind: str, normalised: bool) -> LazyMap:
        sizes = (len(self.q), len(self.k))
        mask, terms = self._record.mask.of_head(self._at), self._record.terms.of_head(self._at)

        def tile(rows: Index, columns: Index) -> Float[np.ndarray, "n m"]:
            raw = scores(
                self.q[rows][None],
                self.k[columns][None],
                scale=self.scale,
                mask=mask,
                terms=terms,
                rows=rows,
                columns=columns,
                sizes=sizes,
            )
            return (weights(raw, self.lse[rows][None]) if normalised else raw)[0]

        return LazyMap(kind, sizes, tile)

    def __repr__(self) -> str:
        silenced = ", silenced" if self.silenced else ""
        return (
            f"layer {self.layer}, head {self.head} (counted from 0){silenced}: "
            f"{len(self.q)} queries, {len(self.k)} keys, d_head {self.q.shape[-1]}, scale {self.scale:.6g}"
        )


def full(array: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Upcast half precision to fp32 for arithmetic."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def kept_values(record: LayerRecord, where: str) -> Float[np.ndarray, "kv_heads keys d_value"]:
    """A layer's values.

    Raises:
        TraceError: the trace has no values.
    """
    if record.v is None:
        raise TraceError("the values were not kept", where=where, advice="create the trace again with values=True")
    return record.v


def position_of(index: int, numbers: tuple[int, ...], noun: str, place: str) -> int:
    """Position of the layer or head with this number among those that were kept.

    Raises:
        InputError: there is no such layer or head, or it was not kept.
    """
    if numbers == tuple(range(len(numbers))) or index < 0:
        return check_index(index, len(numbers), noun, place)
    if index in numbers:
        return numbers.index(index)
    raise InputError(
        f"{noun} {index} was not kept: {place} has {noun}s {', '.join(map(str, numbers))}",
        where=f"{noun} {index}",
        advice=f"capture again with {noun}s=[…, {index}]",
    )

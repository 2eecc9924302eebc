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

    from headscope._trace.record import LayerRecord, Trace
    from headscope._trace.tiled import Index
    from headscope.explain.promotes import Promotion


class HeadTrace:
    """One head of one layer on one text. Everything here is computed when asked for, from q, k, v and lse.

    Attributes:
        layer: the layer's number.
        head: the head's number.
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
        """(queries, d_head): a query for each token that looks."""
        return full(self._record.q[self._at])

    @property
    def k(self) -> Float[np.ndarray, "keys d_head"]:
        """(keys, d_head): a key for each token that is looked at."""
        return full(self._record.k[self._key_head])

    @property
    def v(self) -> Float[np.ndarray, "keys d_value"]:
        """(keys, d_value): what each of these tokens hands over.

        Raises:
            TraceError: the trace was kept without values.
        """
        return full(kept_values(self._record, f"layer {self.layer}, head {self.head}")[self._key_head])

    @property
    def lse(self) -> Float[np.ndarray, " queries"]:
        """(queries,): log-sum-exp of each query's scores."""
        return self._record.lse[self._at]

    @property
    def scale(self) -> float:
        """What q . k is multiplied by: 1 / sqrt(d_head), unless the model has another or has scaled q already."""
        return self._record.scale

    @property
    def silenced(self) -> bool:
        """Whether this head was silenced in the forward pass that left this trace."""
        return (self.layer, self.head) in self._trace.ablated

    @property
    def scores(self) -> LazyMap:
        """(queries, keys), before the softmax; -inf where masked. Only the tile that is indexed is computed."""
        return self._map("scores", False)

    @property
    def weights(self) -> LazyMap:
        """(queries, keys), after the softmax. Only the tile that is indexed is computed."""
        return self._map("weights", True)

    @property
    def context(self) -> Float[np.ndarray, "queries d_value"]:
        """(queries, d_value): weights @ V, in blocks of queries. For a silenced head, what it would have been."""
        mask = self._record.mask.of_head(self._at)
        context, _ = attend(self.q[None], self.k[None], self.v[None], scale=self.scale, mask=mask)
        return context[0]

    @property
    def output(self) -> Float[np.ndarray, "queries d_model"]:
        """(queries, d_model): context @ W_O, what this head writes to the residual stream; 0 if it was silenced.

        Raises:
            TraceError: the trace was read from a file and has no model to take W_O from.
        """
        source = self._trace.source
        if source is None:
            raise TraceError(
                "a head's output needs W_O, which is in the model and not in the trace",
                where=f"layer {self.layer}, head {self.head}",
                advice="read the trace with hs.load(file, model=hs.open(…))",
            )
        W_O = np.asarray(source.W_O(self.layer, self.head), dtype=np.float32)
        if self.silenced:
            return np.zeros((len(self.q), W_O.shape[1]), dtype=np.float32)
        return self.context @ W_O

    def promotes(self, query: int, *, top: int = 10, key: int | None = None) -> Promotion:
        """The tokens whose masked-LM logits this head's output at a token raises and lowers most, directly.

        See headscope.explain.promotes.

        Args:
            query: the token at which the head writes.
            top: how many tokens to name on each side.
            key: what the OV matrix alone writes with all its weight on this token.
        """
        return upward.head_promotes(self._trace, self.layer, self.head, query, top=top, key=key)

    def knockout(self, query: int, key: int) -> Float[np.ndarray, " d_value"]:
        """(d_value,): a query's context if it could not see one key. See headscope.explain.knockout.

        Raises:
            InputError: no such query or key, or the only key that the query sees.
        """
        return upward.knockout(self, query, key)

    def _map(self, kind: str, normalised: bool) -> LazyMap:
        sizes = (len(self.q), len(self.k))

        def tile(rows: Index, columns: Index) -> Float[np.ndarray, "n m"]:
            raw = scores(
                self.q[rows][None],
                self.k[columns][None],
                scale=self.scale,
                mask=self._record.mask.of_head(self._at),
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
    """Half precision widened for arithmetic."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def kept_values(record: LayerRecord, where: str) -> Float[np.ndarray, "kv_heads keys d_value"]:
    """A layer's values.

    Raises:
        TraceError: the trace was kept without values.
    """
    if record.v is None:
        raise TraceError("the values were not kept", where=where, advice="make the trace again with its values")
    return record.v


def position_of(index: int, numbers: tuple[int, ...], noun: str, place: str) -> int:
    """Where a layer or head with this number stands among those that were kept."""
    if numbers == tuple(range(len(numbers))) or index < 0:
        return check_index(index, len(numbers), noun, place)
    if index in numbers:
        return numbers.index(index)
    raise InputError(
        f"{noun} {index} was not kept: {place} has {noun}s {', '.join(map(str, numbers))}",
        where=f"{noun} {index}",
        advice=f"capture again with {noun}s=[…, {index}]",
    )

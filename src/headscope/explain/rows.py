"""Weights, values and head outputs for a few query rows of a layer; never a map of all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headscope._trace.head import full
from headscope.attention import TILE_CELLS, join_heads, scores, weights
from headscope.errors import TraceError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope._trace import LayerRecord

    Rows = Int[np.ndarray, " n"]


def weights_of(record: LayerRecord, rows: Rows, columns: Rows | None = None) -> Float[np.ndarray, "heads n m"]:
    """(heads, n, m): the weights of these queries on these keys, on all keys by default."""
    queries, keys = record.q.shape[1], record.k.shape[1]
    columns = np.arange(keys) if columns is None else columns
    tile = scores(
        full(record.q[:, rows]),
        full(record.k[:, columns]),
        scale=record.scale,
        mask=record.mask,
        terms=record.terms,
        rows=rows,
        columns=columns,
        sizes=(queries, keys),
    )
    return weights(tile, record.lse[:, rows])


def values_of(record: LayerRecord, layer: int) -> Float[np.ndarray, "heads keys d_value"]:
    """(heads, keys, d_value): the values, repeated where several heads share them.

    Raises:
        TraceError: the trace was kept without values.
    """
    if record.v is None:
        raise TraceError(
            "this measure needs the values, which were not kept",
            where=f"layer {layer}",
            advice="make the trace again with its values",
        )
    v = full(record.v)
    shared = len(record.q) // len(v)
    return v if shared == 1 else np.repeat(v, shared, axis=0)


def blocks_of_rows(heads: int, queries: int, keys: int) -> Iterator[Rows]:
    """All queries, a few at a time, so that a tile of all heads and keys stays in the cache."""
    step = max(1, TILE_CELLS // max(1, heads * keys))
    for start in range(0, queries, step):
        yield np.arange(start, min(start + step, queries))


def contexts_of(
    record: LayerRecord, v: Float[np.ndarray, "heads keys d_value"], rows: Rows
) -> Float[np.ndarray, "n joined"]:
    """(n, heads * d_value): softmax(Q K^T) V of these queries, heads side by side."""
    heads, keys, d_value = v.shape
    contexts = np.empty((len(rows), heads * d_value), dtype=v.dtype)
    for part in blocks_of_rows(heads, len(rows), keys):
        contexts[part] = join_heads(weights_of(record, rows[part]) @ v)
    return contexts

"""The page's data of every head before it computes anything: thumbnails, statistics, what heads write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import attend
from headscope.errors import TraceError, UnsupportedError
from headscope.heads import Roles
from headscope.heads.catalog import ON_PAGE
from headscope.heads.reference import LayerArrays, measured_blocks, over_queries, value_norms
from headscope.results.arrays import rounded
from headscope.results.lazy_maps import TILE_CELLS
from headscope.traces import LayerRecord, ModelWeights, Trace, is_broken
from headscope.traces.layer_records import finite_heads

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, UInt8

THUMB = 48
"""Rows and columns of a head's thumbnail; shorter texts have one cell per pair."""
MEASURED_CELLS = 1 << 21
"""Most cells of a head that thumbnails and statistics are computed from; of more, evenly spread runs of RUN queries."""
RUN = 8
LEAST_ROWS = 2 * RUN
"""Least queries of a layer at a time: of fewer, reading the keys takes longer than the arithmetic."""


def measured_share(queries: int, keys: int) -> int:
    """1 if every query is measured, n if every nth run of RUN queries is."""
    return max(1, -(-queries * keys // MEASURED_CELLS))


@dataclass(frozen=True, eq=False)
class LayerMeasures:
    """Numbers about a layer's heads, from one pass over its weights.

    Attributes:
        thumbs: (heads, rows, columns), 255 times the root of the weights, pooled by maximum.
        statistics: by name, their means over the queries that have them.
        lse: (heads, queries), log-sum-exps; None where only a share of the queries was measured.
        broken: (heads,), True where some weights are not numbers.
    """

    thumbs: UInt8[np.ndarray, "heads rows columns"]
    statistics: dict[str, Float[np.ndarray, " heads"]]
    lse: Float[np.ndarray, "heads queries"] | None
    broken: Bool[np.ndarray, " heads"]


def measure_layer(record: LayerRecord, roles: Roles) -> LayerMeasures:
    """Measure every query of a layer's heads, or a share of them in a long text."""
    heads, queries, _ = record.q.shape
    keys = record.k.shape[1]
    rows, columns = min(THUMB, queries), min(THUMB, keys)
    column_starts = np.searchsorted(np.arange(keys) * columns // keys, np.arange(columns))
    pooled = np.zeros((heads, rows, columns), dtype=np.float32)
    every = measured_share(queries, keys)
    whole, positions = every == 1, np.arange(queries)
    walked = None if whole else positions[positions // RUN % every == 0]
    lse = np.full((heads, queries), -np.inf) if whole else None
    parts = []
    cells = max(TILE_CELLS, LEAST_ROWS * heads * keys)
    for part, values in measured_blocks(LayerArrays.of(record), roles, ON_PAGE, rows=walked, cells=cells):
        parts.append(values)
        if lse is not None:
            lse[:, part.rows] = part.lse
        across = np.maximum.reduceat(part.weights, column_starts, axis=-1) if columns < keys else part.weights
        targets = part.rows * rows // queries
        starts = np.flatnonzero(np.diff(targets, prepend=-1))
        down = np.maximum.reduceat(across, starts, axis=1)
        pooled[:, targets[starts]] = np.maximum(pooled[:, targets[starts]], down)
    thumbs = np.rint(255 * np.sqrt(np.minimum(np.nan_to_num(pooled), 1))).astype(np.uint8)
    if lse is not None or record.has_lse:
        broken = is_broken(record if lse is None else replace(record, lse=lse))
    else:  # log-sum-exps of a long text take minutes
        broken = np.isnan(pooled).any((1, 2)) | ~finite_heads(record.q) | ~finite_heads(record.k, heads)
    measured = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in ON_PAGE}
    means = {name: np.where(broken, np.nan, over_queries(values)) for name, values in measured.items()}
    return LayerMeasures(thumbs, means, lse, broken)


def write_norms(
    trace: Trace, source: ModelWeights | None
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."], Float[np.ndarray, "..."]] | None:
    """The size of each value and each context in the residual stream; None if W_O is unavailable.

    value_norms (layers, heads, keys) = |v_j W_O| (Kobayashi et al. 2020, the norm in eq. 4), writes (layers, heads,
    queries) = |c_i W_O|, and shares (layers, heads, queries) = c_i W_O . t_i / |t_i|^2 with t_i the sum over these
    heads: the shares of all heads add up to 1.
    """
    norms, writes, shares = [], [], []
    for at, record in enumerate(trace.layers):
        out = output_weights(trace, at, source)
        if out is None or record.v is None:
            return None
        context, _ = attend(record.q, record.k, record.v, scale=record.scale, mask=record.mask, terms=record.terms)
        sizes, along = written_by(trace, at, context, out)
        norms.append(value_norms(np.repeat(record.v, len(record.q) // len(record.v), axis=0), out))
        writes.append(sizes)
        shares.append(along)
    half = np.float16
    return rounded(np.stack(norms), half), rounded(np.stack(writes), half), rounded(np.stack(shares), half)


def output_weights(
    trace: Trace, at: int, source: ModelWeights | None
) -> Float[np.ndarray, "heads d_value d_model"] | None:
    """W_O of the heads of the layer at this place; None without a model or v, or if a head had another map."""
    layer = trace.numbers[at]
    if source is None or trace.layers[at].v is None or any(number == layer for number, _ in trace.swapped):
        return None
    try:
        heads = trace.head_numbers(layer)
        return np.stack([np.asarray(source.W_O(layer, head), dtype=np.float32) for head in heads])
    except (UnsupportedError, TraceError):  # the live model is gone, or its projection is not a single matrix
        return None


def written_by(
    trace: Trace,
    at: int,
    context: Float[np.ndarray, "heads n d_value"],
    out: Float[np.ndarray, "heads d_value d_model"],
) -> tuple[Float[np.ndarray, "heads n"], Float[np.ndarray, "heads n"]]:
    """|c_i W_O|, and the share of c_i W_O in the sum over the layer's heads, of these contexts."""
    layer = trace.numbers[at]
    silenced = np.array([(layer, head) in trace.ablated for head in trace.head_numbers(layer)])
    context = np.where(silenced[:, None, None], np.float32(0), context)
    total = np.einsum("hnd,hdm->nm", context, out, optimize=True)
    along = np.einsum("hnd,hnd->hn", context, total[None] @ out.swapaxes(-1, -2))
    size = np.einsum("nm,nm->n", total, total)
    return value_norms(context, out), along / np.where(size > 0, size, 1)

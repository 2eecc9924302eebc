"""The vectors that tokens send each other, their lengths, and the mixing ratio.

Kobayashi et al. 2020 (Attention is Not Only a Weight) and 2021 (Incorporating Residual and Normalization Layers). With
F_ij the vector that token j sends to token i in one layer, over all its heads h:

    Attn-W       F_ij = mean_h p_ij^h                     the weights alone, a number
    Attn-N       F_ij = sum_h p_ij^h v_j^h W_O^h
    AttnRes-W    Attn-W with 1 added where j = i          the residual
    AttnRes-N    Attn-N with x_i added where j = i
    AttnResLn-N  AttnRes-N through the LayerNorm made linear: (F_ij - mean of its coordinates) * scale / deviation_i

b_O belongs to no token: it enters the deviation alone. A silenced head sends nothing.

Beside it stand two measures of the same: attention rollout multiplies the layers' mixing (Abnar and Zuidema 2020), and
value zeroing asks how far a layer's output turns without one token's value (Mohebbi et al. 2023), by running the layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy.heads import check_index
from headscope.errors import InputError
from headscope.explain.residual import (
    PostNorm,
    blocks_of_rows,
    check_whole,
    contexts_of,
    layer_inputs,
    post_norm,
    record_of,
    through_layer,
    values_of,
    weights_of,
    whole_layers,
)
from headscope.results.arrays import Named
from headscope.results.explained import MixingRatio
from headscope.results.lazy_maps import LazyMap
from headscope.traces import layer_W_O, refuse_swapped

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder import Tokens
    from headscope.explain.residual import Rows
    from headscope.traces import LayerRecord, Trace


KINDS = ("Attn-W", "Attn-N", "AttnRes-W", "AttnRes-N", "AttnResLn-N")
DIAGONAL_ROWS = 64
"""Rows of the square tiles whose diagonals are taken."""


def mixing_ratio(trace: Trace, kind: str = "AttnResLn-N") -> MixingRatio:
    """The share of each token's new vector that comes from other tokens, per layer and query (Kobayashi et al. 2021).

        r_i = |sum_{j != i} F_ij| / (|sum_{j != i} F_ij| + |F_ii|)

    The sum over all j is the layer's output without b_O, so that sum_{j != i} F_ij = output_i - F_ii: the cost of a
    layer is that of its attention and two output projections, O(S^2 d_model + S d_model^2), and O(S d_model) memory.

    Args:
        trace: of self-attention. The kinds with Res read each layer's input: make it with `hidden_states=True`, or the
            opened checkpoint recomputes them.
        kind: one of KINDS.

    Raises:
        InputError: there is no such kind.
        TraceError: cross-attention; a missing model, values or hidden states.
        UnsupportedError: a live model whose W_O or LayerNorm is not known.
    """
    check_kind(kind)
    check_aligned(trace)
    ratios = [layer.ratios() for layer in mixings(trace, kind, trace.numbers)]
    return MixingRatio(kind, trace.numbers, np.array(ratios, dtype=np.float32))


def norm_map(trace: Trace, layer: int, kind: str = "Attn-N", head: int | None = None) -> LazyMap:
    """(queries, keys), lazy: |F_ij|, how long the vector is that token j sends to token i in one layer or head.

    Kobayashi et al. 2020, 2021. A layer's vectors are never built: |F_ij|^2 = p_ij^T G_j p_ij, where p_ij has the
    weights of all H heads and G_j[h, g] = f_j^h . f_j^g with f_j^h = v_j^h W_O^h is computed once for all queries: H^2
    a cell instead of H d_model, and O(S H^2) memory. For one head it is p_ij |v_j W_O|. Arguments are those of
    `Trace.norm_map`.

    Raises:
        InputError: no such layer, head or kind, or another kind for one head.
        TraceError: cross-attention; a missing model, values or hidden states.
        UnsupportedError: a live model whose W_O or LayerNorm is not known.
    """
    check_kind(kind)
    layer = trace[layer].layer
    if kind.endswith("W") or (head is not None and kind != "Attn-N"):
        raise InputError(
            f"{kind} has no map of norms" + ("" if head is None else " of one head"),
            where="norm_map(kind=…)",
            advice="trace[layer].weights has weights alone; the residual and the LayerNorm belong to no head",
        )
    if kind != "Attn-N":
        check_aligned(trace)
    record = record_of(trace, layer)
    sizes = (len(trace.queries), len(trace.keys))
    if head is None:
        (mixing,) = mixings(trace, kind, [layer])
        return LazyMap(f"norms {kind}", sizes, mixing.tile)
    chosen = trace[layer, head]
    at = trace.head_numbers(layer).index(chosen.head)
    lengths = np.linalg.norm(values_of(record, layer)[at] @ layer_W_O(trace, layer)[at], axis=-1)
    return LazyMap("norms Attn-N", sizes, lambda rows, columns: chosen.weights.tile(rows, columns) * lengths[columns])


class LayerMixing:
    """One layer of one kind: its ratios, and any tile of |F_ij|.

    Attributes:
        kind: one of KINDS.
        record: what attention saw.
    """

    def __init__(self, trace: Trace, layer: int, kind: str, x: Tokens | None) -> None:
        """x: (queries, d_model), the layer's input, for the kinds with Res."""
        self.kind = kind
        self.record: LayerRecord = record_of(trace, layer)
        self._x = x
        heads = trace.head_numbers(layer)
        refuse_swapped(trace, layer)
        self._active = np.array([(layer, head) not in trace.ablated for head in heads])
        if kind.endswith("N"):
            self._v = values_of(self.record, layer)
            self._W_O = layer_W_O(trace, layer)
            self._norm: PostNorm | None = post_norm(trace, layer, kind) if "Res" in kind else None

    def ratios(self) -> Float[np.ndarray, " queries"]:
        """(queries,): |sum_{j != i} F_ij| / (|sum_{j != i} F_ij| + |F_ii|)."""
        rows = np.arange(self.record.q.shape[1])
        own_weights = diagonal(self.record, rows)
        if self.kind.endswith("W"):
            active = max(int(self._active.sum()), 1)
            kept = own_weights[self._active].sum(0) / active
            seen = np.isfinite(self.record.lse[self._active]).sum(0) / active  # rows of weights sum to 1, or to 0
            away, stays = np.maximum(seen - kept, 0), kept + ("Res" in self.kind)
        else:
            others, own_vectors = self._sides(rows, own_weights, self._x)
            away, stays = (np.linalg.norm(vectors, axis=-1) for vectors in (others, own_vectors))
        with np.errstate(invalid="ignore"):
            return away / (away + stays)

    def readers(self, rows: Rows, x: Tokens) -> tuple[Float[np.ndarray, "heads n d_value"], Float[np.ndarray, " n"]]:
        """Vectors that turn values into shares of these queries' new vectors, and the shares that they keep.

        Args:
            rows: which queries.
            x: (n, d_model), the layer's input at them.

        Returns:
            u, (heads, n, d_value): p_ij^h v_j^h . u_i^h is the share that token j brings through head h
                (headscope.explain.taken_in). And (n,), 1 - r_i.
        """
        others, stays = (side.astype(np.float64) for side in self._sides(rows, diagonal(self.record, rows), x))
        away, kept = np.linalg.norm(others, axis=-1), np.linalg.norm(stays, axis=-1)
        size = away * (away + kept)
        toward = others * np.divide(1, size, where=size != 0, out=np.zeros_like(size))[:, None]  # r_i A_i / |A_i|^2
        heads, d_value, d_model = self._W_O.shape
        W = self._normed(self._W_O.reshape(-1, d_model).astype(np.float64))
        readers = (toward @ W.T).reshape(len(rows), heads, d_value).swapaxes(0, 1)
        return readers, np.divide(kept, away + kept, where=away != 0, out=np.ones_like(kept))

    def tile(self, rows: Rows, columns: Rows, *, deviation: bool = True) -> Float[np.ndarray, "n m"]:
        """(n, m): |F_ij| of these queries and keys.

        Args:
            deviation: whether the LayerNorm's division by the deviation counts. It is one number for each query.
        """
        weights = weights_of(self.record, rows, columns)
        match = np.argwhere(rows[:, None] == columns[None, :]) if "Res" in self.kind else np.empty((0, 2), int)
        at, to = match[:, 0], match[:, 1]
        if self.kind.endswith("W"):
            mean = weights[self._active].sum(0) / max(int(self._active.sum()), 1)
            mean[at, to] += "Res" in self.kind
            return mean
        p = weights.transpose(2, 1, 0).astype(np.float64)  # (m, n, heads)
        squares = np.einsum("mnh,mnh->nm", p @ self._gram[columns], p)
        norms = np.sqrt(np.maximum(squares, 0))
        if len(at) and self._x is not None:
            kept = self._own(rows[at], weights[:, at, to]) + self._x[rows[at]]
            norms[at, to] = np.linalg.norm(self._normed(kept), axis=-1)
        if self.kind == "AttnResLn-N" and deviation:
            norms /= self._deviations(rows)[:, None]
        return norms.astype(np.float32)

    @cached_property
    def _gram(self) -> Float[np.ndarray, "keys heads heads"]:
        """(keys, heads, heads): G_j[h, g] = f_j^h . f_j^g, in fp64, from W_O W_O^T: no f_j is built."""
        heads, keys, d_value = self._v.shape
        W = self._normed(self._W_O.reshape(heads * d_value, -1).astype(np.float64))
        v = self._v.astype(np.float64)
        gram = np.empty((keys, heads, heads))
        for head in range(heads):
            product = W[head * d_value : (head + 1) * d_value] @ W.T  # (d_value, heads * d_value)
            mixed = (v[head] @ product).reshape(keys, heads, d_value)
            gram[:, head] = np.einsum("shd,hsd->sh", mixed, v)
        return gram

    def _sides(self, rows: Rows, weights: Float[np.ndarray, "heads n"], x: Tokens | None) -> tuple[Tokens, Tokens]:
        """(n, d_model) each: what all others send to these tokens, and what they send to themselves, x included."""
        own = self._own(rows, weights)
        others = self._project(contexts_of(self.record, self._v, rows)) - own
        return self._normed(others), self._normed(own if x is None else own + x)

    def _own(self, rows: Rows, weights: Float[np.ndarray, "heads n"]) -> Tokens:
        """(n, d_model): what these tokens send to themselves, with their weights on themselves."""
        kept = self._v[:, rows] * weights[..., None].astype(self._v.dtype)
        return self._project(kept.swapaxes(0, 1).reshape(len(rows), -1))

    def _project(self, contexts: Float[np.ndarray, "n joined"]) -> Tokens:
        return contexts @ self._W_O.reshape(-1, self._W_O.shape[-1])

    def _normed(self, vectors: Float[np.ndarray, "n d_model"]) -> Float[np.ndarray, "n d_model"]:
        """Vectors through the LayerNorm made linear, without its division by the deviation."""
        if self.kind != "AttnResLn-N" or self._norm is None:
            return vectors
        return (vectors - vectors.mean(-1, keepdims=True)) * self._norm.scale

    def _deviations(self, rows: Rows) -> Float[np.ndarray, " n"]:
        """(n,): what the LayerNorm divides these queries by: sqrt(variance + eps) of x + attention + b_O."""
        assert self._norm is not None
        assert self._x is not None
        written = self._project(contexts_of(self.record, self._v, rows))
        summed = self._x[rows] + written + self._norm.bias
        return np.sqrt(summed.var(axis=-1, dtype=np.float64) + self._norm.eps)


def mixings(trace: Trace, kind: str, layers: Sequence[int]) -> Iterator[LayerMixing]:
    """Each of these layers, with its input where the kind reads it."""
    reads = "Res" in kind and kind.endswith("N")
    inputs = layer_inputs(trace, layers=layers) if reads else dict.fromkeys(layers)
    return (LayerMixing(trace, layer, kind, inputs[layer]) for layer in layers)


def diagonal(record: LayerRecord, rows: Rows) -> Float[np.ndarray, "heads n"]:
    """(heads, n): the weights of these queries on themselves, from small square tiles."""
    cells = np.empty((len(record.q), len(rows)))
    for start in range(0, len(rows), DIAGONAL_ROWS):
        part = rows[start : start + DIAGONAL_ROWS]
        cells[:, start : start + len(part)] = weights_of(record, part, part).diagonal(axis1=1, axis2=2)
    return cells


def check_kind(kind: str) -> None:
    """Check the name of a kind.

    Raises:
        InputError: there is no such kind.
    """
    if kind not in KINDS:
        raise InputError(f"there is no kind {kind!r:.40}", where="kind", advice=f"use one of {', '.join(KINDS)}")


def check_aligned(trace: Trace) -> None:
    """Check that queries and keys are the same tokens.

    Raises:
        TraceError: it is cross-attention, or generation with a cache.
    """
    if trace.keys is not trace.queries:
        check_whole(trace)


def rollout(trace: Trace, *, to: int | None = None, from_: int | None = None, kind: str = "AttnRes-W") -> Named:
    """(tokens,): how much each input token flows into one output token, or one input token into each output token.

    Abnar and Zuidema 2020, section 3. With A_l the mixing of layer l, its rows scaled to sum to 1, the flow through all
    L layers is R = A_L ... A_2 A_1. For AttnRes-W, A_l = (mean over heads of P + I) / 2, as in that paper; for the
    kinds in N, A_l[i, j] is |F_ij| over its row's sum, so that a weight on a short vector counts for little (Kobayashi
    et al. 2021 give F; see headscope.explain.mixing).

        to=i      e_i^T A_L ... A_1, row i of R: sums to 1
        from_=j   A_L ... A_1 e_j, column j of R: how much of token j is in each output; need not sum to 1

    Each layer costs one pass over its weights in blocks of queries, O(S^2 d_model), or O(S^2 H^2) more for N; with
    `to` the last layer is one row. Memory is O(S).

    Rollout takes a token's vector for a mixture of what the tokens hold. It knows no sign, no feed-forward, and no
    direction in which vectors cancel. Arguments are those of `Trace.rollout`.

    Raises:
        InputError: not exactly one of `to` and `from_`, no such token or kind.
        TraceError: layers or heads are missing, or cross-attention; the model, values or hidden states for N.
        UnsupportedError: a live model whose W_O or LayerNorm is not known.
    """
    check_kind(kind)
    if (to is None) == (from_ is None):
        raise InputError(
            "rollout takes exactly one of `to` and `from_`",
            where="trace.rollout",
            advice="to=4 gives what flows into output token 4, from_=4 where input token 4 flows",
        )
    check_whole(trace)
    place = check_index(to if from_ is None else from_, len(trace), "token", "the trace")  # type: ignore[arg-type]
    flow = np.zeros(len(trace))
    flow[place] = 1
    for layer in mixings(trace, kind, trace.numbers[::-1] if from_ is None else trace.numbers):
        flow = _step(layer, flow, into=from_ is None)
    name = f"rollout to {place}" if from_ is None else f"rollout from {place}"
    return Named(name, ("tokens",), flow.astype(np.float32), trace.tokens)


def rollouts_to(trace: Trace, to: int, kind: str) -> Float[np.ndarray, "layers tokens"]:
    """By layer l, row `to` of A_l ... A_1: how much of each input token has flowed into this one by then.

    For L layers it costs L (L + 1) / 2 steps of `rollout`; its errors are those of `rollout`.
    """
    check_whole(trace)
    layers = [*mixings(trace, kind, trace.numbers)]
    rows = np.zeros((len(layers), len(trace.queries)))
    rows[:, to] = 1
    for last, flow in enumerate(rows):
        for layer in reversed(layers[: last + 1]):
            flow = _step(layer, flow, into=True)
        rows[last] = flow
    return rows


def _step(layer: LayerMixing, flow: Float[np.ndarray, " tokens"], *, into: bool) -> Float[np.ndarray, " tokens"]:
    """flow^T A of a layer, or A flow, in blocks of queries; queries that carry nothing are left out."""
    heads, tokens, _ = layer.record.q.shape
    rows = np.flatnonzero(flow) if into else np.arange(tokens)
    columns = np.arange(tokens)
    reached = np.zeros(tokens)
    for block in blocks_of_rows(heads, len(rows), tokens):
        tile = layer.tile(rows[block], columns, deviation=False).astype(np.float64)
        total = tile.sum(-1, keepdims=True)
        tile /= np.where(total > 0, total, 1)
        if into:
            reached += flow[rows[block]] @ tile
        else:
            reached[rows[block]] = tile @ flow
    return reached


BLOCK_KEYS = 256
"""The most zeroed tokens that go through the layer side by side, which bounds the memory."""


def value_zeroing(trace: Trace, layer: int, query: int) -> Named:
    """(keys,): 1 - cos(y_i, y_i without v_j) for every token j: one query's row of one layer (Mohebbi et al. 2023).

    y_i is the layer's output at query i; without v_j, token j's value vector is 0 in every head of this layer, the
    weights stay as they are, and attention's projection, the norms and the feed-forward run anew. Exact, and for
    one query no more than S rows of the layer: O(S d_model (d_model + d_ffn)). The paper scales each row to sum to 1:
    `row / row.sum()`.

    Distances are |a / |a| - b / |b||^2 / 2 in fp64, which keeps small ones: they are exact to about 1e-12. Arguments
    are those of `Trace.value_zeroing`.

    Raises:
        InputError: no such layer or token.
        TraceError: there is no model, or the trace lacks layers, heads or values.
        UnsupportedError: the model is a live one, whose feed-forward is not known.
    """
    encoder = whole_layers(trace, "value zeroing").encoder
    check_whole(trace)
    layer = trace[layer].layer
    query = check_index(query, len(trace), "token", "the trace")
    record = record_of(trace, layer)
    row = np.array([query])
    silenced = np.array([(layer, head) in trace.ablated for head in range(len(record.q))])
    weights = np.where(silenced[:, None], 0, weights_of(record, row)[:, 0]).astype(np.float32)
    sent = (values_of(record, layer) * weights[..., None]).swapaxes(0, 1).reshape(len(trace), -1)  # (keys, joined)
    whole = sent.sum(0, dtype=np.float64)
    x = layer_inputs(trace, row, [layer])[layer]
    base = _unit(through_layer(encoder, layer, x, whole[None].astype(np.float32)).output)
    distances = np.empty(len(trace))
    for start in range(0, len(trace), BLOCK_KEYS):
        part = slice(start, start + BLOCK_KEYS)
        contexts = (whole - sent[part]).astype(np.float32)
        outputs = through_layer(encoder, layer, np.repeat(x, len(contexts), axis=0), contexts).output
        distances[part] = np.square(_unit(outputs) - base).sum(-1) / 2
    return Named(f"value zeroing of layer {layer}, query {query}", ("keys",), distances, trace.tokens)


def _unit(vectors: Tokens) -> Float[np.ndarray, "n d_model"]:
    wide = vectors.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=-1, keepdims=True)

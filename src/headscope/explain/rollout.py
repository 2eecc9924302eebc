"""Attention rollout: how much each input token flows into an output token, as vector-matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope._trace import Named
from headscope.anatomy.heads import check_index
from headscope.errors import InputError
from headscope.explain.mixing import LayerMixing, check_kind, layer_inputs
from headscope.explain.parts import check_whole
from headscope.explain.rows import blocks_of_rows

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import Trace


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
    direction in which vectors cancel.

    Args:
        trace: of self-attention with all layers and heads.
        to: an output token.
        from_: an input token.
        kind: as for `mixing_ratio`. Kinds without Res leave the residual out. The weights of silenced heads don't
            count.

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
    inputs = layer_inputs(trace) if "Res" in kind and kind.endswith("N") else dict.fromkeys(trace.numbers)
    for layer in reversed(trace.numbers) if from_ is None else trace.numbers:
        flow = _step(LayerMixing(trace, layer, kind, inputs[layer]), flow, into=from_ is None)
    name = f"rollout to {place}" if from_ is None else f"rollout from {place}"
    return Named(name, ("tokens",), flow.astype(np.float32), trace.tokens)


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

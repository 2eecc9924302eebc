"""Value zeroing: how far a token's vector turns in one layer if another token's value is taken out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope._trace import Named
from headscope.anatomy.heads import check_index
from headscope.explain.parts import check_whole, layer_input, post_norm_model, record_of, through_layer, walk
from headscope.explain.rows import values_of, weights_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import Trace
    from headscope.encoder import Tokens

BLOCK_KEYS = 256
"""The most zeroed tokens that go through the layer side by side, which bounds the memory."""


def value_zeroing(trace: Trace, layer: int, query: int) -> Named:
    """(keys,): 1 - cos(y_i, y_i without v_j) for every token j: one query's row of one layer (Mohebbi et al. 2023).

    y_i is the layer's output at query i; without v_j, token j's value vector is 0 in every head of this layer, the
    weights stay as they are, and attention's projection, both LayerNorms and the feed-forward run anew. Exact, and for
    one query no more than S rows of the layer: O(S d_model (d_model + d_ffn)). The paper scales each row to sum to 1:
    `row / row.sum()`.

    Distances are |a / |a| - b / |b||^2 / 2 in fp64, which keeps small ones: they are exact to about 1e-12.

    Args:
        trace: of a checkpoint that headscope opened, with all layers and heads.
        layer: its number.
        query: the token whose vector is looked at.

    Raises:
        InputError: no such layer or token.
        TraceError: there is no model, or the trace lacks layers, heads or values.
        UnsupportedError: the model is a live one, whose feed-forward is not known.
    """
    encoder = post_norm_model(trace, "value zeroing").encoder
    check_whole(trace)
    layer = trace[layer].layer
    query = check_index(query, len(trace), "token", "the trace")
    record = record_of(trace, layer)
    row = np.array([query])
    silenced = np.array([(layer, head) in trace.ablated for head in range(len(record.q))])
    weights = np.where(silenced[:, None], 0, weights_of(record, row)[:, 0]).astype(np.float32)
    sent = (values_of(record, layer) * weights[..., None]).swapaxes(0, 1).reshape(len(trace), -1)  # (keys, joined)
    whole = sent.sum(0, dtype=np.float64)
    kept = f"hidden_states.{layer}" in trace.outputs.kept
    x = layer_input(trace, layer)[row] if kept or layer == 0 else _one_input(trace, layer, row)
    base = _unit(through_layer(encoder, layer, x, whole[None].astype(np.float32)).output)
    distances = np.empty(len(trace))
    for start in range(0, len(trace), BLOCK_KEYS):
        part = slice(start, start + BLOCK_KEYS)
        contexts = (whole - sent[part]).astype(np.float32)
        outputs = through_layer(encoder, layer, np.repeat(x, len(contexts), axis=0), contexts).output
        distances[part] = np.square(_unit(outputs) - base).sum(-1) / 2
    return Named(f"value zeroing of layer {layer}, query {query}", ("keys",), distances, trace.tokens)


def _one_input(trace: Trace, layer: int, row: np.ndarray) -> Tokens:
    """(1, d_model): the layer's input at one query, by its way up from the embeddings."""
    return walk(trace, row, layer)[-1].output


def _unit(vectors: Tokens) -> Float[np.ndarray, "n d_model"]:
    wide = vectors.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=-1, keepdims=True)

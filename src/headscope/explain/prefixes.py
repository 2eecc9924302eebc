"""Forward passes that differ from one that is kept in one head of one layer: only that layer and later ones run again.

In a layer with input x, a head's context c_h enters as the sum x + sum_h c_h W_O^h + b_O. Another
context r_h therefore changes that sum by (r_h - c_h) W_O^h, and no product of the layer's attention has to be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention import join_heads
from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder import Encoder, Input

    Tokens = Float[np.ndarray, "tokens d_model"]


@dataclass(frozen=True, eq=False)
class KeptLayer:
    """The part of a layer's computation that another run can start from.

    Attributes:
        summed: (tokens, d_model), the layer's input plus its attention's output, before the norm.
        contexts: (heads, tokens, d_head).
    """

    summed: Tokens
    contexts: Float[np.ndarray, "heads tokens d_head"]


@dataclass(frozen=True, eq=False)
class Kept:
    """One forward pass, layer by layer, and its last hidden state: 8 tokens d_model bytes for each layer."""

    layers: tuple[KeptLayer, ...]
    last: Tokens


def keep(encoder: Encoder, text: Input) -> Kept:
    """One forward pass whose layers are kept.

    Raises:
        InputError: an id is beyond the vocabulary, or the text is longer than the position table.
        UnsupportedError: a convolution stands beside the first layer.
    """
    if encoder.anatomy.has("convolution.weight"):
        raise UnsupportedError(
            "a convolution stands beside the first layer, and runs that restart from a layer don't repeat it",
            where=f"{encoder.checkpoint.where}: conv_kernel_size",
            advice="compare whole forward passes instead: model.trace(text, ablate={(layer, head)})",
        )
    encoder.checkpoint.fetch()
    encoder.check(text)
    sizes = encoder.anatomy.known()
    x = encoder.embed([text])
    layers = []
    for layer in range(sizes.layers):
        contexts = _contexts(encoder, x, x, layer, slice(None))
        summed = encoder.linear(join_heads(contexts), "layer.attention_output", layer)
        summed += x
        layers.append(KeptLayer(summed, contexts))
        x = encoder.after_attention(summed.copy(), layer)
    return Kept(tuple(layers), encoder.after_layers(x))


def changed_states(
    encoder: Encoder,
    kept: Kept,
    layer: int,
    heads: Sequence[int],
    contexts: Float[np.ndarray, "runs tokens d_head"],
    row: int | None,
) -> Float[np.ndarray, "runs rows d_model"]:
    """Last hidden states of runs in which one head of a layer has another context, a run for each of `heads`.

    Args:
        encoder: the encoder.
        kept: the run that they differ from.
        layer: the layer.
        heads: in each run, the head that differs.
        contexts: what it gives instead, (runs, tokens, d_head).
        row: the only token whose last hidden state is wanted; the last layer then computes queries, the feed-forward
            network and all else for that token alone. None for all tokens.

    Returns:
        (runs, 1, d_model), or (runs, tokens, d_model).
    """
    sizes = encoder.anatomy.known()
    tokens, width, final = len(kept.last), sizes.d_model, sizes.layers - 1
    start = kept.layers[layer]
    rows = slice(None) if row is None else slice(row, row + 1)
    part = rows if layer == final else slice(None)
    stored = encoder.weight("layer.attention_output.weight", layer)
    W_O = np.stack([stored[:, head * sizes.d_head : (head + 1) * sizes.d_head].T for head in heads])
    difference = contexts - start.contexts[list(heads)]
    x = (start.summed[None, part] + difference[:, part] @ W_O).reshape(-1, width)
    x = encoder.after_attention(x, layer)
    for later in range(layer + 1, final + 1):
        texts = [slice(run * tokens, (run + 1) * tokens) for run in range(len(heads))]
        one_each = later == final and row is not None
        queries = x.reshape(len(heads), tokens, width)[:, row] if one_each else x
        joined = np.empty((len(queries), sizes.d_heads), dtype=queries.dtype)
        for run, text in enumerate(texts):
            mine = slice(run, run + 1) if one_each else text
            places = rows if one_each else slice(None)
            joined[mine] = join_heads(_contexts(encoder, queries[mine], x[text], later, places))
        summed = encoder.linear(joined, "layer.attention_output", later)
        summed += queries
        x = encoder.after_attention(summed, later)
    return encoder.after_layers(x).reshape(len(heads), -1, width)


def _contexts(
    encoder: Encoder, queries: Float[np.ndarray, "n d_model"], keys: Tokens, layer: int, places: slice
) -> Float[np.ndarray, "heads n d_head"]:
    """The contexts of all heads, (heads, n, d_head): queries from some tokens, keys and values from all.

    Args:
        places: positions of the queries among the keys.
    """
    angles = encoder.angles(layer, len(keys))
    of_queries = None if angles is None else (angles[0][places], angles[1][places])
    inputs = encoder.attention_input(keys, layer)
    rows = inputs if queries is keys else encoder.attention_input(queries, layer)
    q, k, v = (
        encoder.split(encoder.product(x, (role,), layer), role, layer, turns)
        for x, role, turns in (
            (rows, "layer.query", of_queries),
            (inputs, "layer.key", angles),
            (inputs, "layer.value", angles),
        )
    )
    return encoder.attend(q, k, v, layer, np.arange(len(keys))[places])[0]

"""ALTI: how much of a token each other token makes up, layer by layer, multiplied through all layers.

Ferrando, Gállego and Costa-jussà 2022, “Measuring the Mixing of Contextual Information in the Transformer”. In a
post-norm layer with input x and attention block output y_i (after its LayerNorm), token j gives

    T_i(x_j) = L_i (sum_h p_ij^h v_j^h W_O^h + [i = j] x_j),    v_j^h = x_j W_V^h + b_V^h,

with L_i the LayerNorm made linear at its true deviation (the authors' code divides its variance by d_model - 1, the
model by d_model, as here), without its shift. Its contribution is how much nearer it
brings y_i in the L1 norm, and the layers' contributions are multiplied as in attention rollout:

    c_ij = max(0, |y_i|_1 - |y_i - T_i(x_j)|_1) / sum_k max(0, |y_i|_1 - |y_i - T_i(x_k)|_1)
    C = C_L ... C_1,    token k's score: row C_rk of the token r that the target reads.

The scores are not negative and add up to 1. They depend on the target only through the token that it reads (for a mean
over tokens, the mean of the rows), and neither the feed-forward networks nor what sits on top enter them.

Cost: O(tokens^2 heads d_model) for each layer, in blocks of rows; no map is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.attention import split_heads
from headscope.explain.linearised import Frozen, FrozenLayer

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder import Encoder

BLOCK = 1 << 21
"""Numbers of a block of transformed vectors: 8 MiB in fp32."""


def alti(encoder: Encoder, frozen: Frozen, row: int | None) -> Float[np.ndarray, " tokens"]:
    """The scores (tokens,) of what a token, or the mean of all tokens, is made up of.

    Args:
        encoder: the encoder.
        frozen: the forward pass.
        row: the token; None for the mean over all.
    """
    tokens = len(frozen.last)
    mix = np.full(tokens, 1 / tokens) if row is None else np.zeros(tokens)
    if row is not None:
        mix[row] = 1
    for layer in reversed(range(len(frozen.layers))):
        mix = through_layer(encoder, frozen.layers[layer], layer, mix)
    return mix


def through_layer(
    encoder: Encoder, held: FrozenLayer, layer: int, mix: Float[np.ndarray, " tokens"]
) -> Float[np.ndarray, " tokens"]:
    """A row of the product of contributions, multiplied by one more layer's: sum_i mix_i c_ij."""
    x = held.x
    heads, tokens, d_head = held.q.shape
    W_O = encoder.weight("layer.attention_output.weight", layer)
    gamma = encoder.weight("layer.attention_norm.weight", layer)
    beta = encoder.weight("layer.attention_norm.bias", layer)
    v = split_heads(encoder.linear(x, "layer.value", layer), heads)
    sent = np.stack([v[h] @ W_O[:, h * d_head : (h + 1) * d_head].T for h in range(heads)], axis=1)
    sent = _centred(sent) * gamma  # (tokens, heads, d_model): what each head would carry from each token
    residual = _centred(x) * gamma
    shift = _centred(encoder.weight("layer.attention_output.bias", layer)[None])[0] * gamma
    after = np.zeros(tokens)
    for part, tile in held.rows():
        step = max(1, BLOCK // (tokens * x.shape[1]))
        for start in range(part.start, part.stop, step):
            rows = np.arange(start, min(start + step, part.stop))
            if not mix[rows].any():
                continue
            shares = tile[:, rows - part.start].transpose(2, 1, 0)  # (tokens, n, heads)
            parts = shares @ sent  # (tokens, n, d_model)
            parts[rows, np.arange(len(rows))] += residual[rows]
            parts *= held.attention_norm.scale[rows]
            whole = parts.sum(axis=0) + shift * held.attention_norm.scale[rows] + beta
            near = np.abs(whole).sum(-1) - np.abs(whole - parts).sum(-1)  # (tokens, n)
            near = np.maximum(near, 0).astype(np.float64)
            near /= np.maximum(near.sum(axis=0), 1e-30)
            after += near @ mix[rows]
    return after


def _centred(x: Float[np.ndarray, "... d_model"]) -> Float[np.ndarray, "... d_model"]:
    return x - x.mean(axis=-1, keepdims=True)

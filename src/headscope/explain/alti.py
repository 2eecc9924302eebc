"""ALTI: how much of a token each other token makes up, layer by layer, multiplied back to the embeddings.

Ferrando, Gállego and Costa-jussà 2022, “Measuring the Mixing of Contextual Information in the Transformer”. In a layer
with input x and attention block output y_i (after its LayerNorm, where a norm follows), token j gives

    T_i(x_j) = L_i (sum_h p_ij^h v_j^h W_O^h + [i = j] x_j),    v_j^h = x_j W_V^h + b_V^h,

with L_i that norm made linear at its true deviation (the authors' code divides its variance by d_model - 1, the model
by d_model, as here), without its shift; the identity in pre-norm layers, whose v come from the norm of x. Its
contribution is how much nearer it brings y_i in the L1 norm, and the layers' contributions are multiplied as in
attention rollout:

    c_ij = max(0, |y_i|_1 - |y_i - T_i(x_j)|_1) / sum_k max(0, |y_i|_1 - |y_i - T_i(x_k)|_1)
    C = C_L ... C_1,    token k's score: row C_rk of the token r that the target reads.

The scores are not negative and add up to 1. They depend on the target only through the token that it reads (for a mean
over tokens, the mean of the rows), and neither the feed-forward networks nor what sits on top enter them.

Cost: O(tokens^2 heads d_model) for each layer, in blocks of rows; no map is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import UnsupportedError
from headscope.explain.steps import Mixed

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder import Encoder
    from headscope.explain.propagation import Held, HeldLayer

BLOCK = 1 << 21
"""Numbers of a block of transformed vectors: 8 MiB in fp32."""


def alti(encoder: Encoder, held: Held, row: int | None, prompt: int = 0) -> Float[np.ndarray, " tokens"]:
    """The scores (tokens,) of what a token, or the mean of all tokens, is made up of.

    Args:
        encoder: the encoder.
        held: the forward pass.
        row: the token; None for the mean over all.
        prompt: number of tokens at the beginning that the mean leaves out.

    Raises:
        UnsupportedError: a convolution mixes tokens beside attention.
    """
    if encoder.anatomy.has("convolution.weight"):
        raise UnsupportedError(
            "a convolution mixes the tokens beside the first layer's attention, of which ALTI knows nothing",
            where=encoder.anatomy.where,
            advice="use method='decompx', which has a rule for it",
        )
    tokens = len(held.last)
    mix = np.where(np.arange(tokens) < prompt, 0, 1 / (tokens - prompt)) if row is None else np.zeros(tokens)
    if row is not None:
        mix[row] = 1
    for layer in reversed(range(len(held.layers))):
        mix = _one_layer_down(encoder, held.layers[layer], layer, mix)
    return mix


def _one_layer_down(
    encoder: Encoder, held: HeldLayer, layer: int, mix: Float[np.ndarray, " tokens"]
) -> Float[np.ndarray, " tokens"]:
    """A row of the product of contributions, multiplied by one more layer's: sum_i mix_i c_ij."""
    x, v, after = held.x, held.record.v, held.after
    assert v is not None
    heads, tokens, d_head = held.record.q.shape
    W_O = encoder.weight("layer.attention_output.weight", layer)
    v = np.repeat(v, heads // len(v), axis=0)
    sent = np.stack([v[h] @ W_O[:, h * d_head : (h + 1) * d_head].T for h in range(heads)], axis=1)
    shift, beta = encoder.bias("layer.attention_output", layer)[None], np.float32(0)
    scale, residual = np.ones((tokens, 1), dtype=np.float32), x
    if after is not None:
        gamma, scale = after.scale, after.factor
        sent, residual, shift = ((_centred(part) if after.centred else part) * gamma for part in (sent, x, shift))
        beta = beta if after.shift is None else after.shift
    total = np.zeros(tokens)
    for part, tile in Mixed(held.record).blocks():
        step = max(1, BLOCK // (tokens * x.shape[1]))
        for start in range(part.start, part.stop, step):
            rows = np.arange(start, min(start + step, part.stop))
            if not mix[rows].any():
                continue
            shares = tile[:, rows - part.start].transpose(2, 1, 0)  # (tokens, n, heads)
            parts = shares @ sent  # (tokens, n, d_model): what each head carries from each token, added up
            parts[rows, np.arange(len(rows))] += residual[rows]
            parts *= scale[rows]
            whole = parts.sum(axis=0) + shift * scale[rows] + beta
            near = np.abs(whole).sum(-1) - np.abs(whole - parts).sum(-1)  # (tokens, n)
            near = np.maximum(near, 0).astype(np.float64)
            near /= np.maximum(near.sum(axis=0), 1e-30)
            total += near @ mix[rows]
    return total


def _centred(x: Float[np.ndarray, "... d_model"]) -> Float[np.ndarray, "... d_model"]:
    return x - x.mean(axis=-1, keepdims=True)

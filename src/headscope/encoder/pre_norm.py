"""The layer of ModernBERT (Warner et al. 2024), ESM-2 (Lin et al. 2023), EuroBERT and MegatronBERT: norms come first.

    y = x + Attention(Norm(x))
    x' = y + FeedForward(Norm(y))

The residual stream itself is normalised only once, after the last layer. ModernBERT's first layer has no norm before
its attention, since the embeddings have one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.encoder.feed_forward import feed_forward

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from headscope.encoder.weights import Weights

    Tokens = Float[np.ndarray, "tokens d_model"]


def attention_input(weights: Weights, x: Tokens, layer: int) -> Tokens:
    """The input of queries, keys and values: Norm(x)."""
    if not weights.anatomy.has("layer.attention_input_norm.weight", layer):
        return x
    return weights.norm(x.copy(), "layer.attention_input_norm", layer)


def after_attention(weights: Weights, summed: Tokens, layer: int) -> Tokens:
    """The layer's output from x + Attention(Norm(x)), which is overwritten."""
    summed += feed_forward(weights, weights.norm(summed.copy(), "layer.ffn_input_norm", layer), layer)
    return summed

"""BERT's layer, to be read beside the papers (Devlin et al. 2018; Vaswani et al. 2017): a norm after every sum.

y = Norm(x + Attention(x))
x' = Norm(y + FeedForward(y))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.encoder.feed_forward import feed_forward

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder.weights import Weights

    Tokens = Float[np.ndarray, "tokens d_model"]


def attention_input(_weights: Weights, x: Tokens, _layer: int) -> Tokens:
    """The input of queries, keys and values: the layer's input itself."""
    return x


def after_attention(weights: Weights, summed: Tokens, layer: int) -> Tokens:
    """The layer's output from x + Attention(x), which is overwritten."""
    x = weights.norm(summed, "layer.attention_norm", layer)
    return weights.norm(np.add(feed_forward(weights, x, layer), x, order="C"), "layer.output_norm", layer)

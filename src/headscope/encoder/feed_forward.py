"""The feed-forward network: each token alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.activations import activate

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from headscope.encoder.weights import Weights

    Tokens = Float[np.ndarray, "tokens d_model"]


def feed_forward(weights: Weights, x: Tokens, layer: int) -> Tokens:
    """The plain network, or the gated one if the family has a gate.

    Plain: activation(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2).
    Gated: (activation(x W_g) * (x W_1)) W_2, with biases where the family has them (Shazeer 2020, eq. 6: GEGLU with
    GELU, SwiGLU with SiLU).
    """
    activation = str(weights.anatomy.setting("activation"))
    if weights.anatomy.has("layer.ffn_gate.weight", layer):
        middle = weights.linear(x, "layer.ffn_gate", layer)
        activate(activation, middle, weights.threads)
        middle *= weights.linear(x, "layer.ffn_in", layer)
    else:
        middle = weights.linear(x, "layer.ffn_in", layer)
        activate(activation, middle, weights.threads)
    return weights.linear(middle, "layer.ffn_out", layer)

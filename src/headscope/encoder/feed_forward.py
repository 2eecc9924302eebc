"""The feed-forward network: each token alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.activations import activate

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder.weights import Weights

    Tokens = Float[np.ndarray, "tokens d_model"]


def feed_forward(weights: Weights, x: Tokens, layer: int) -> Tokens:
    """The plain network, or the gated one if the family has a gate; valid until this thread's next call.

    Plain: activation(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2).
    Gated: (activation(x W_g) * (x W_1)) W_2, with biases where the family has them (Shazeer 2020, eq. 6: GEGLU with
    GELU, SwiGLU with SiLU).
    """
    activation = str(weights.anatomy.setting("activation"))
    gated = weights.anatomy.has("layer.ffn_gate.weight", layer)
    middle = _linear(weights, x, "layer.ffn_gate" if gated else "layer.ffn_in", layer)
    activate(activation, middle, weights.threads)
    if gated:
        middle *= _linear(weights, x, "layer.ffn_in", layer)
    return _linear(weights, middle, "layer.ffn_out", layer)


def _linear(
    weights: Weights, x: Float[np.ndarray, "tokens into"], role: str, layer: int
) -> Float[np.ndarray, "tokens out"]:
    """x W + b, in the product's memory."""
    product = weights.product(x, (role,), layer)
    if weights.anatomy.has(f"{role}.bias", layer):
        product += weights.weight(f"{role}.bias", layer)
    return product

"""The feed-forward network: each token alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.activations import activate
from headscope.encoder.products import columns_product

if TYPE_CHECKING:
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
    gated = weights.anatomy.has("layer.ffn_gate.weight", layer)
    columns = x.T  # (d_model, tokens): BLAS multiplies fastest where the tokens are the columns
    middle = _into(weights, columns, "layer.ffn_gate" if gated else "layer.ffn_in", layer)
    activate(activation, middle, weights.threads)
    if gated:
        middle *= _into(weights, columns, "layer.ffn_in", layer)
    stored = weights.weight("layer.ffn_out.weight", layer)
    out = columns_product(stored, middle, weights.scratch("layer.ffn_out", (len(stored), len(x)))).T
    if weights.anatomy.has("layer.ffn_out.bias", layer):
        return np.add(out, weights.weight("layer.ffn_out.bias", layer), order="C")
    return np.ascontiguousarray(out)


def _into(
    weights: Weights, columns: Float[np.ndarray, "d_model tokens"], role: str, layer: int
) -> Float[np.ndarray, "d_ffn tokens"]:
    """(d_ffn, tokens): (x W + b).T, in memory that the next layer overwrites."""
    stored = weights.weight(f"{role}.weight", layer)
    middle = columns_product(stored, columns, weights.scratch(role, (len(stored), columns.shape[1])))
    if weights.anatomy.has(f"{role}.bias", layer):
        middle += weights.weight(f"{role}.bias", layer)[:, None]
    return middle

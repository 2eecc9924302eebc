"""The networks beside a layer's attention: of each token alone, and DeBERTa v2's convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.activations import activate

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder.role_weights import EncoderWeights

    Tokens = Float[np.ndarray, "tokens d_model"]


def feed_forward(weights: EncoderWeights, x: Tokens, layer: int) -> Tokens:
    """The plain network, or the gated one if the family has a gate; valid until this thread's next call.

    Plain: activation(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2).
    Gated: (activation(x W_g) * (x W_1)) W_2, with biases where the family has them (Shazeer 2020, eq. 6: GEGLU with
    GELU, SwiGLU with SiLU).
    """
    gated = weights.held("layer.ffn_gate.weight", layer) is not None
    middle = _linear(weights, x, "layer.ffn_gate" if gated else "layer.ffn_in", layer)
    activate(weights.activation, middle, weights.threads)
    if gated:
        middle *= _linear(weights, x, "layer.ffn_in", layer)
    return _linear(weights, middle, "layer.ffn_out", layer)


def _linear(
    weights: EncoderWeights, x: Float[np.ndarray, "tokens into"], role: str, layer: int
) -> Float[np.ndarray, "tokens out"]:
    """x W + b, in the product's memory."""
    product, bias = weights.product(x, (role,), layer), weights.held(f"{role}.bias", layer)
    if bias is not None:
        product += bias
    return product


def convolved(weights: EncoderWeights, embedded: Tokens, out: Tokens, texts: Sequence[slice]) -> Tokens:
    """DeBERTa v2's convolution beside the first layer: each token sees its neighbours' embeddings.

    Norm(out + activation(sum_t x_(i + t) W_t + b)), with x the embeddings and t from -(size - 1) / 2 on.

    Beyond the ends of a text, x is 0.
    """
    kernel = weights.weight("convolution.weight")  # (out, in of one group, size), as torch stores it
    width, into, size = kernel.shape
    reach, groups = size // 2, width // into
    total = np.empty_like(out)
    for text in texts:
        tokens = text.stop - text.start
        padded = np.pad(embedded[text], ((reach, reach), (0, 0)))
        total[text] = weights.weight("convolution.bias")
        for at in range(size):
            for group in range(groups):
                part = slice(group * into, (group + 1) * into)
                total[text, part] += padded[at : at + tokens, part] @ kernel[part, :, at].T
    activate(str(weights.anatomy.config.get("conv_act", "tanh")), total, weights.threads)
    total += out
    return weights.norm(total, "convolution_norm")

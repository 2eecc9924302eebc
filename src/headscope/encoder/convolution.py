"""DeBERTa v2's convolution beside the first layer: each token sees its neighbours' embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.activations import activate

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder.weights import Weights

    Tokens = Float[np.ndarray, "tokens d_model"]


def convolved(weights: Weights, embedded: Tokens, out: Tokens, texts: Sequence[slice]) -> Tokens:
    """Norm(out + activation(sum_t x_(i + t) W_t + b)), with x the embeddings and t from -(size - 1) / 2 on.

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

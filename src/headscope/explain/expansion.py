"""The expansion rate: by how much a layer's value and output weights lengthen a vector, from the weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float


def expansion_rate(
    W_V: Float[np.ndarray, "d_model d_value"],
    b_V: Float[np.ndarray, " d_value"],
    W_O: Float[np.ndarray, "d_value d_model"],
    b_O: Float[np.ndarray, " d_model"],
) -> float:
    """|[W_V 0; b_V 1] · [W_O b_O; 0 1]|_F / sqrt(d_model + 1), as the authors' code has it (Kobayashi et al. 2021).

    The root mean square of the factor by which a layer's W_V W_O lengthens a random vector, biases included.
    Above 1 attention lengthens what it passes on, below 1 it shortens it. The authors' code has b_O as a column of the
    second matrix, and these are its numbers; the affine map x -> (x W_V + b_V) W_O + b_O itself, with b_O as a row,
    gives slightly smaller ones. The cost is one product in fp32, d_model^3, and no text.

    Args:
        W_V: of all heads, in the paper's orientation, x W_V + b_V.
        b_V: (d_value,).
        W_O: likewise, contexts W_O + b_O.
        b_O: (d_model,).
    """
    W_V, b_V, W_O, b_O = (np.asarray(array, dtype=np.float32) for array in (W_V, b_V, W_O, b_O))
    with np.errstate(invalid="ignore", over="ignore"):
        parts = (W_V @ W_O, W_V @ b_O, b_V @ W_O, b_V @ b_O + 1)
        squares = sum(np.square(part, dtype=np.float64).sum() for part in parts)
    return float(np.sqrt(squares / (len(W_V) + 1)))

"""What follows the heads of a layer whose LayerNorm comes after the residual, as in BERT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class PostNorm:
    """The end of a post-norm layer's attention: LayerNorm(x + sum of the heads' outputs + bias).

    Attributes:
        bias: (d_model,), b_O.
        scale: (d_model,), the LayerNorm's weight.
        eps: added to the variance.
    """

    bias: Float[np.ndarray, " d_model"]
    scale: Float[np.ndarray, " d_model"]
    eps: float

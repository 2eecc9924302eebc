"""One vector for a text: the tokens' vectors, pooled as the checkpoint says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.explained import Pooling


def pooled(
    hidden: Float[np.ndarray, "*runs tokens d_model"], pooling: Pooling, prompt: int
) -> Float[np.ndarray, "*runs d_model"]:
    """Vectors pooled in fp64, not normalised: the mean over the tokens, or the first token's.

    sentence-transformers' mean covers every token that attention sees, [CLS] and [SEP] among them.

    Args:
        hidden: the last hidden state.
        pooling: as the checkpoint says.
        prompt: number of tokens at the beginning that are left out: `Encoded.prompt`.
    """
    wide = hidden[..., prompt:, :].astype(np.float64)
    return wide.mean(axis=-2) if pooling.mode == "mean" else wide[..., 0, :]


def sentence_embedding(
    hidden: Float[np.ndarray, "tokens d_model"], pooling: Pooling, prompt: int
) -> Float[np.ndarray, " d_model"]:
    """The text's vector as sentence-transformers returns it: pooled, and of length 1 where the model normalises."""
    vector = pooled(hidden, pooling, prompt)
    if pooling.normalized:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return vector.astype(np.float32)


def cosines_with(b: Float[np.ndarray, " d_model"], a: Float[np.ndarray, "runs d_model"]) -> Float[np.ndarray, " runs"]:
    """Cosines of vectors with one vector; NaN where one of them is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Float[np.ndarray, " runs"] = (a @ b) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b))
    return cosines

"""Rotary positions (Su et al. 2021): queries and keys turn by an angle that grows with the token's position.

A head's dimensions form pairs; pair i of a token at position m turns by m theta_i, with theta_i = base^(-2i / d_head).
The dot product of a query and a key then depends on the distance of their positions alone (eq. 16).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder.role_weights import EncoderWeights

    Heads = Float[np.ndarray, "*runs heads tokens d_head"]
    Angles = Float[np.ndarray, "tokens half"]

STORED = "rotary_embeddings.inv_freq"
"""The end of the name under which ESM's files hold their frequencies, which may have been rounded to fp16."""


def frequencies(weights: EncoderWeights, base: float) -> Float[np.ndarray, " half"]:
    """(d_head / 2,): theta_i, from the file if it holds them."""
    for name in weights.anatomy.buffers:
        if name.endswith(STORED):
            return np.asarray(weights.checkpoint.read(name), dtype=np.float32)
    return default_frequencies(base, weights.anatomy.known().d_head)


def default_frequencies(base: float, d_head: int) -> Float[np.ndarray, " half"]:
    """(d_head / 2,): theta_i, in fp32, as models compute it: base^(2i / d_head) is rounded before its inverse."""
    exponents = np.arange(0, d_head, 2, dtype=np.float32) / np.float32(d_head)
    return np.float32(1) / np.power(base, exponents, dtype=np.float64).astype(np.float32)


def turns(weights: EncoderWeights, base: float, tokens: int) -> tuple[Angles, Angles]:
    """(tokens, d_head / 2) each: cosines and sines of the angles at positions 0, 1, ….

    RoFormer's files hold a table of them, sines before cosines. All others compute the angle m theta_i in fp32, whose
    rounding at the 8,192nd position is 2e-4: a better angle would be another model.
    """
    if weights.anatomy.has("rotation.weight"):
        sin, cos = np.split(weights.weight("rotation.weight")[:tokens], 2, axis=1)
        return cos, sin
    angles = np.arange(tokens, dtype=np.float32)[:, None] * frequencies(weights, base)
    wide = angles.astype(np.float64)
    return np.cos(wide).astype(np.float32), np.sin(wide).astype(np.float32)


def rotate(x: Heads, cos: Angles, sin: Angles, *, pairs: bool, out: Heads | None = None) -> Heads:
    """(heads, tokens, d_head): every pair (a, b) becomes (a cos - b sin, b cos + a sin).

    Args:
        x: queries or keys.
        cos: cosines of these tokens' angles.
        sin: sines of these tokens' angles.
        pairs: True if dimensions 2i and 2i + 1 form a pair; False for i and i + d_head / 2.
        out: other memory for the result.
    """
    half = x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if pairs else (slice(0, half), slice(half, None))
    a, b = x[..., first], x[..., second]
    turned = np.empty_like(x) if out is None else out
    np.multiply(a, cos, out=turned[..., first])
    turned[..., first] -= b * sin
    np.multiply(b, cos, out=turned[..., second])
    turned[..., second] += a * sin
    return turned

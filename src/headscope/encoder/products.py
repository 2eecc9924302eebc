"""x W for weights as (out, in), which is how files store them.

BLAS copies (packs) a large matrix before it multiplies. For a few tokens that copy takes as long as the product, so the
weight is then multiplied in blocks of some rows, which BLAS multiplies where they lie: half of the time for 12 tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.encoder.memory import aligned

if TYPE_CHECKING:
    from jaxtyping import Float

FEW_TOKENS = 32
"""Weights are multiplied in blocks of rows up to this number of tokens."""

UNPACKED_PRODUCTS, UNPACKED_CELLS = 10**6, 1200
"""OpenBLAS multiplies without packing if m n k and m n are at most these numbers."""

BLOCK_ROWS = 64
"""Maximum number of rows of a weight in a block."""


def block_rows(out: int, into: int, tokens: int) -> int:
    """Rows of a weight in a block: the most that BLAS multiplies where they lie; 0 if no number divides the weight."""
    most = min(BLOCK_ROWS, UNPACKED_CELLS // tokens, UNPACKED_PRODUCTS // (tokens * into))
    return next((rows for rows in range(most // 4 * 4, 0, -4) if out % rows == 0), 0)


def few_product(
    x: Float[np.ndarray, "tokens into"], stored: Float[np.ndarray, "out into"], out: Float[np.ndarray, "tokens out"]
) -> Float[np.ndarray, "tokens out"]:
    """x W, with W = stored.T, for a few tokens."""
    tokens, (width, into) = len(x), stored.shape
    rows = block_rows(width, into, tokens) if stored.flags.c_contiguous else 0
    if not rows:
        return np.matmul(x, stored.T, out=out)
    blocks = stored.reshape(-1, rows, into).swapaxes(1, 2)
    np.matmul(aligned(x), blocks, out=out.reshape(tokens, -1, rows).swapaxes(0, 1))
    return out


def many_product(
    x: Float[np.ndarray, "tokens into"], stored: Float[np.ndarray, "out into"], out: Float[np.ndarray, "out tokens"]
) -> Float[np.ndarray, "out tokens"]:
    """(x W).T for many tokens: one column for each, the faster order."""
    return np.matmul(stored, x.T, out=out)

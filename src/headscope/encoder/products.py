"""x W for weights as files store them, (out, in): no transposed copy of a weight is ever made.

BLAS copies (packs) a large matrix before it multiplies. For a few tokens that copy takes as long as the product, so the
weight is then multiplied in blocks of a few rows, which BLAS multiplies where they lie: half of the time for 12 tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

FEW_TOKENS = 32
"""Weights are multiplied in blocks of rows up to this number of tokens."""

BLOCK_ROWS = 8
"""Rows of a weight in a block. OpenBLAS multiplies without packing if m n k <= 10^6 and m n <= 1200."""


def in_blocks(stored: Float[np.ndarray, "out into"], tokens: int) -> bool:
    """Return True if a weight is to be multiplied in blocks for this many tokens."""
    return tokens <= FEW_TOKENS and len(stored) % BLOCK_ROWS == 0 and stored.flags.c_contiguous


def rows_product(
    x: Float[np.ndarray, "tokens into"], stored: Float[np.ndarray, "out into"]
) -> Float[np.ndarray, "tokens out"]:
    """x W, with W = stored.T."""
    if not in_blocks(stored, len(x)):
        return x @ stored.T
    blocks = stored.reshape(-1, BLOCK_ROWS, stored.shape[1])
    product = np.empty((len(x), len(stored)), dtype=np.result_type(x, stored))
    np.matmul(x, blocks.swapaxes(1, 2), out=product.reshape(len(x), -1, BLOCK_ROWS).swapaxes(0, 1))
    return product


def columns_product(
    stored: Float[np.ndarray, "out into"],
    columns: Float[np.ndarray, "into tokens"],
    out: Float[np.ndarray, "out tokens"],
) -> Float[np.ndarray, "out tokens"]:
    """(x W).T = stored x.T, one column per token: the faster order where the result is needed in this layout."""
    if not in_blocks(stored, columns.shape[1]):
        return np.matmul(stored, columns, out=out)
    blocks = stored.reshape(-1, BLOCK_ROWS, stored.shape[1])
    np.matmul(blocks, columns, out=out.reshape(-1, BLOCK_ROWS, columns.shape[1]))
    return out

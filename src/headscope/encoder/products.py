"""x W for weights as (out, in), which is how files store them, in memory that begins at a line of the cache.

BLAS copies (packs) a large matrix before it multiplies. For a few tokens that copy takes as long as the product, so the
weight is then multiplied in blocks of some rows, which BLAS multiplies where they lie: half of the time for 12 tokens.

For a list of texts, weights are copied first, in the order in memory that BLAS multiplies fastest. For few tokens a
copy is (out, in), as stored, but begins at a line of the cache, which weights in a file rarely do; for many tokens it
is (in, out). Either way, products take about 10 % less. A copy pays for itself within 3 texts of 128 tokens, or 11 of
12. A product with a copy may round otherwise, so whether there are copies never depends on what was computed before.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

    Weight = Float[np.ndarray, "out into"]
    Copies = dict[Hashable, Float[np.ndarray, "rows width"]]
    """The copies of one model's weights, each made before the first product with it."""


CACHE_LINE = 64
"""Bytes. BLAS reads vectors that begin elsewhere from two lines each: a tenth of the time for 12 tokens."""


class QKVBuffer:
    """Memory for the queries, keys and values of all layers of one text, in one piece.

    The system provides a large piece far faster than as many small ones: at 128 tokens that is 4 % of the forward pass.

    Args:
        numbers: size of the buffer.
    """

    def __init__(self, numbers: int) -> None:
        self._free = empty_aligned((numbers,))

    def take(self, shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
        """An array to fill, in the next part of the buffer."""
        numbers = math.prod(shape)
        part, self._free = self._free[:numbers], self._free[numbers:]
        return part.reshape(shape)


def empty_aligned(shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """An array to fill that begins at a line of the cache."""
    numbers, step = math.prod(shape), CACHE_LINE // np.dtype(np.float32).itemsize
    memory = np.empty(numbers + step, dtype=np.float32)
    first = -_address(memory) % CACHE_LINE // memory.itemsize
    return memory[first : first + numbers].reshape(shape)


def aligned(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The array, or a copy that begins at a line of the cache, row after row."""
    if x.flags.c_contiguous and is_aligned(x):
        return x
    copy = empty_aligned(x.shape)
    copy[...] = x
    return copy


def is_aligned(x: Float[np.ndarray, "..."]) -> bool:
    """Return True if an array begins at a line of the cache."""
    return _address(x) % CACHE_LINE == 0


def _address(x: Float[np.ndarray, "..."]) -> int:
    return int(x.__array_interface__["data"][0])


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


def few_products(
    x: Float[np.ndarray, "tokens into"], stored: Sequence[Weight], out: Float[np.ndarray, "tokens all"]
) -> Float[np.ndarray, "tokens all"]:
    """x W for the W of several weights side by side, for a few tokens."""
    tokens, lined = len(x), aligned(x)
    for weight, part in _parts(stored):
        width, into = weight.shape
        if rows := block_rows(width, into, tokens) if weight.flags.c_contiguous else 0:
            blocks = weight.reshape(-1, rows, into).swapaxes(1, 2)
            np.matmul(lined, blocks, out=out[:, part].reshape(tokens, -1, rows).swapaxes(0, 1))
        else:
            np.matmul(x, weight.T, out=out[:, part])
    return out


def many_products(
    x: Float[np.ndarray, "tokens into"], stored: Sequence[Weight], out: Float[np.ndarray, "all tokens"]
) -> Float[np.ndarray, "tokens all"]:
    """x W for the W of several weights side by side, for many tokens."""
    for weight, part in _parts(stored):
        np.matmul(weight, x.T, out=out[part])  # one column for each token, the faster order
    return out.T


def _parts(stored: Sequence[Weight]) -> Iterator[tuple[Weight, slice]]:
    """Each weight with its part of the product with all of them."""
    first = 0
    for weight in stored:
        yield weight, slice(first, first + len(weight))
        first += len(weight)


FEW_TEXTS = 3
"""Length of a list of texts that is read without copies: they would cost more than they save."""

COPIED_BYTES = 1 << 30
"""Most memory for the copies of one model, 1 GiB. In each order, the layers of BERT-base take 0.34 GB."""

LINE, BEYOND = 32, 48
"""Rows of (in, out) are a multiple of 32 numbers and 48 more apart: an odd number of cache lines.

Otherwise, rows of 768 or 3,072 numbers begin in few of a cache's sets, and BLAS, which reads a few columns of many
rows, finds that their lines have been evicted.
"""

ROWS_AT_ONCE = 64
"""Rows that are transposed at a time: whole lines of the copy, from lines that stay in the cache."""


def as_stored(copies: Copies, key: Hashable, stored: Sequence[Weight]) -> Weight:
    """(out of all, in): the copy of these weights, one below the other.

    Args:
        copies: where it is kept.
        key: identifies the weights.
        stored: the weights, (out, in) each.
    """
    if len(stored) == 1 and stored[0].flags.c_contiguous and is_aligned(stored[0]):
        return stored[0]
    if (key, as_stored) not in copies:
        copy = empty_aligned((sum(map(len, stored)), stored[0].shape[1]))
        copies[key, as_stored] = np.concatenate(stored, out=copy)
    return copies[key, as_stored]


def transposed(copies: Copies, key: Hashable, stored: Sequence[Weight]) -> Float[np.ndarray, "into out"]:
    """(in, out of all): the copy of these weights, side by side. Arguments as for `as_stored`."""
    out = sum(map(len, stored))
    if (key, transposed) not in copies:
        copy = empty_aligned((stored[0].shape[1], -(-out // LINE) * LINE + BEYOND))
        first = 0
        for weight in stored:
            for start in range(0, len(weight), ROWS_AT_ONCE):
                rows = weight[start : start + ROWS_AT_ONCE]
                copy[:, first + start : first + start + len(rows)] = rows.T
            first += len(weight)
        copies[key, transposed] = copy
    return copies[key, transposed][:, :out]

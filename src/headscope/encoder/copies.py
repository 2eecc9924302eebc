"""Copies of weights for models that read more than a few texts, in the order in memory that BLAS multiplies fastest.

For few tokens a copy is (out, in), as stored, but begins at a line of the cache, which weights in a file rarely do; for
many tokens it is (in, out). Either way, products take about 10 % less. A copy pays for itself within 3 more texts of
128 tokens, or 11 of 12. A first text copies nothing, unless layers share their weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headscope.encoder.memory import empty_aligned, is_aligned

if TYPE_CHECKING:
    from jaxtyping import Float

    Weight = Float[np.ndarray, "out into"]

PRODUCTS_BEFORE = 3
"""Number of products with a weight as stored before it is copied: copies are for models that read many texts."""

COPIED_BYTES = 1 << 30
"""Memory for the copies of one model, 1 GiB. In each order, the layers of BERT-base take 0.34 GB."""

LINE, BEYOND = 32, 48
"""Rows of (in, out) are a multiple of 32 numbers and 48 more apart: an odd number of cache lines.

Otherwise, rows of 768 or 3,072 numbers begin in few of a cache's sets, and BLAS, which reads a few columns of many
rows, finds that their lines have been evicted.
"""

ROWS_AT_ONCE = 64
"""Rows that are transposed at a time: whole lines of the copy, from lines that stay in the cache."""


@dataclass
class Copies:
    """The copies of one model's weights."""

    _made: dict[Hashable, Float[np.ndarray, "..."]] = field(default_factory=dict)
    _products: Counter[Hashable] = field(default_factory=Counter)
    _bytes: int = 0

    def as_stored(self, key: Hashable, stored: Sequence[Weight]) -> Weight | None:
        """(out of all, in): the copy of these weights, one below the other; None if they have no copy yet.

        Args:
            key: identifies the weights.
            stored: the weights, (out, in) each.
        """
        if len(stored) == 1 and stored[0].flags.c_contiguous and is_aligned(stored[0]):
            return stored[0]
        shape = (sum(map(len, stored)), stored[0].shape[1])
        return self._copy((key, "as stored"), shape, lambda copy: np.concatenate(stored, out=copy))

    def transposed(self, key: Hashable, stored: Sequence[Weight]) -> Float[np.ndarray, "into out"] | None:
        """(in, out of all): the copy of these weights, side by side; None if they have no copy yet.

        Args:
            key: identifies the weights.
            stored: the weights, (out, in) each.
        """
        out = sum(map(len, stored))
        shape = (stored[0].shape[1], -(-out // LINE) * LINE + BEYOND)
        copy = self._copy((key, "transposed"), shape, lambda copy: _transpose(stored, copy))
        return None if copy is None else copy[:, :out]

    def _copy(
        self, key: Hashable, shape: tuple[int, int], fill: Callable[[Float[np.ndarray, "rows width"]], object]
    ) -> Float[np.ndarray, "rows width"] | None:
        if key in self._made:
            return self._made[key]
        self._products[key] += 1
        size = shape[0] * shape[1] * np.dtype(np.float32).itemsize
        if self._products[key] <= PRODUCTS_BEFORE or self._bytes + size > COPIED_BYTES:
            return None
        self._bytes += size
        copy = empty_aligned(shape)
        fill(copy)
        self._made[key] = copy
        return copy


def _transpose(stored: Sequence[Weight], copy: Float[np.ndarray, "into row"]) -> None:
    """Write the weights' transposes into a copy, side by side."""
    first = 0
    for weight in stored:
        for start in range(0, len(weight), ROWS_AT_ONCE):
            rows = weight[start : start + ROWS_AT_ONCE]
            copy[:, first + start : first + start + len(rows)] = rows.T
        first += len(weight)

"""Intervals of shares that were counted over documents, whose words are not independent of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.explain.intervals import t_975

if TYPE_CHECKING:
    from jaxtyping import Float


RESAMPLES = 2000
"""Draws of a bootstrap."""


class Resampled:
    """The bootstrap over documents: all windows of a drawn document count, as often as it is drawn.

    Efron and Tibshirani 1993, chapters 8 and 13: percentiles over resamples of clusters. The draws depend on the number
    of documents alone.

    Args:
        documents: the document of each window.
    """

    def __init__(self, documents: Sequence[int]) -> None:
        names, self._of = np.unique(np.asarray(documents), return_inverse=True)
        self._count = len(names)
        random = np.random.Generator(np.random.PCG64(0))
        draws = random.integers(0, self._count, size=(RESAMPLES, self._count))
        self._weights = np.stack([np.bincount(draw, minlength=self._count) for draw in draws]).astype(np.float64)

    def means(
        self, values: Float[np.ndarray, "windows n"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Means over windows, and the bounds of their 95 % intervals; NaN for fewer than two documents."""
        means = values.mean(0)
        if self._count < 2:
            return means, np.full_like(means, np.nan), np.full_like(means, np.nan)
        sums = np.zeros((self._count, values.shape[1]))
        np.add.at(sums, self._of, values)
        resampled = (self._weights @ sums) / (self._weights @ np.bincount(self._of))[:, None]
        low, high = np.quantile(resampled, (0.025, 0.975), axis=0)
        return means, low, high


class Moments:
    """What an interval needs of a share hits / counts, summed over documents."""

    def __init__(self) -> None:
        self.sums = np.zeros(5)
        self.documents = 0

    def add(self, hits: Float[np.ndarray, " documents"], counts: Float[np.ndarray, " documents"]) -> None:
        """Add documents, all with a count above 0."""
        hits, counts = hits.astype(np.float64), counts.astype(np.float64)
        self.sums += [hits.sum(), counts.sum(), (hits * hits).sum(), (hits * counts).sum(), (counts * counts).sum()]
        self.documents += len(hits)

    @property
    def share(self) -> float:
        """Hits / counts, 0 to 1; NaN for nothing."""
        if not self.sums[1]:
            return math.nan
        return min(max(float(self.sums[0] / self.sums[1]), 0.0), 1.0)  # sums of weights may be off by a rounding

    @property
    def error(self) -> float:
        """The standard error of the share over documents; NaN for fewer than two."""
        n = self.documents
        if n < 2:
            return math.nan
        _, total, squares, products, counts = self.sums
        share = self.share
        return math.sqrt(n / (n - 1) * max(0.0, squares - 2 * share * products + share * share * counts)) / total

    def interval(self) -> tuple[float, float]:
        """The bounds of the 95 % interval; NaN for fewer than two documents.

        Wilson's interval with Student's t over documents and the effective count: p (1 - p) / se^2, where
        se^2 = n / (n - 1) sum_d (hits_d - p counts_d)^2 / (sum_d counts_d)^2 is the variance of a ratio over n
        documents; never more than the count itself (Korn & Graubard 1998, there with another interval).
        """
        n = self.documents
        if n < 2:
            return math.nan, math.nan
        total = self.sums[1]
        share = self.share
        variance = self.error**2
        spread = share * (1 - share)
        effective = min(total, spread / variance) if variance > 0 and spread > 0 else total
        t = t_975(n - 1)
        centre = (share + t * t / (2 * effective)) / (1 + t * t / effective)
        half = t / (1 + t * t / effective) * math.sqrt(spread / effective + (t / (2 * effective)) ** 2)
        return min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))

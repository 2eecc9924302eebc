"""Intervals of 95 %: of means over texts, of means over windows of documents, of shares that were counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import InputError
from headscope.results.head_values import HeadValues
from headscope.results.table import HeadTable

if TYPE_CHECKING:
    from jaxtyping import Float, Num
    from numpy.typing import ArrayLike

RESAMPLES = 2000
"""Draws of a bootstrap."""

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5th percentile of Student's t with 1 to 30 degrees of freedom."""

Z_975 = 1.959964


def t_975(freedom: int) -> float:
    """The 97.5th percentile of Student's t; beyond 30 degrees of freedom by Cornish and Fisher's expansion, to 1e-4."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def mean_interval(
    values: Float[np.ndarray, "texts ..."],
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """The mean over the first axis, and the bounds of its 95 % interval: mean -+ t s / sqrt(n), NaN where n < 2.

    NaN counts in neither.
    """
    present = ~np.isnan(values)
    count = present.sum(0)

    def total(of: Float[np.ndarray, "texts ..."]) -> Float[np.ndarray, "..."]:
        return np.where(present, of, 0).sum(0)

    mean = np.where(count > 0, total(values) / np.maximum(count, 1), np.nan)
    half = np.array([np.nan if n < 2 else t_975(n - 1) / np.sqrt(n) for n in range(len(values) + 1)])[count]
    half = half * np.sqrt(total(np.square(values - mean)) / np.maximum(count - 1, 1))
    return mean, mean - half, mean + half


def over(table: HeadTable, axis: str) -> HeadTable:
    """The means along the third axis with their intervals: see `HeadTable.over`."""
    if axis not in table.along:
        found = f"the table has no axis {axis!r:.40}, but {', '.join(table.along) or 'layers and heads alone'}"
        raise InputError(found, where="over", advice="name a third axis that it has")
    columns = {name: _mean(values, axis) for name, values in table.items()}
    return replace(table, columns=columns, along={of: entries for of, entries in table.along.items() if of != axis})


def _mean(values: HeadValues, axis: str, present: np.ndarray | bool = True) -> HeadValues:
    """The mean of one measure along an axis, over entries that are `present`."""
    at = values.dims.index(axis)
    array = np.moveaxis(np.where(present, values.array.astype(np.float64), np.nan), at, 0)
    mean, low, high = mean_interval(array)
    dims = values.dims[:at] + values.dims[at + 1 :]
    bounds = {"low": low, "high": high, "over": axis, "interval": "t"}
    if not values.sides:
        return HeadValues.of(values.measure, mean, dims, **bounds)
    both = ~np.isnan(values.array)
    sides = tuple(replace(_mean(side, axis, both), low=None, high=None) for side in values.sides)
    return HeadValues.of(values.measure, mean, dims, sides=sides, **bounds)


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


def moments_of(hits: ArrayLike, counts: ArrayLike) -> Float[np.ndarray, "6 ..."]:
    """Moments of hits and counts, to be summed over documents: their products, and 1; 0 for no count."""
    hits, counts = np.broadcast_arrays(np.asarray(hits, np.float64), np.asarray(counts, np.float64))
    sums = np.stack([hits, counts, hits * hits, hits * counts, counts * counts, np.ones_like(counts)])
    return np.where(counts > 0, sums, 0.0)


@dataclass
class Moments:
    """A share hits / counts over documents, with its interval.

    Attributes:
        sums: those of `moments_of`, summed.
    """

    sums: Float[np.ndarray, " 6"] = field(default_factory=lambda: np.zeros(6))

    def add(self, hits: Num[np.ndarray, " documents"], counts: Num[np.ndarray, " documents"]) -> None:
        """Add documents."""
        self.sums = self.sums + moments_of(hits, counts).sum(-1)

    @property
    def documents(self) -> int:
        """Number of documents that have a count."""
        return int(self.sums[5])

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
        _, total, squares, products, counts, _ = self.sums
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

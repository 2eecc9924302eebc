"""Results of comparisons: the worst difference of each with its place and tolerance, and the report of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headscope.results.verify_report import Check

if TYPE_CHECKING:
    from jaxtyping import Float


ROW_BLOCK = 64
"""Number of queries whose rows are in memory at a time."""


class Worst:
    """Tracks the largest difference of one comparison over all layers and heads, and its place.

    If each number has its own tolerance, the largest difference is the one with the largest share of its tolerance.

    Args:
        name, compared, tolerance, reason: as in the Check.
        relative: True if the numbers are differences that were divided by a size: they have no sides to show.
    """

    def __init__(self, name: str, compared: str, tolerance: float, reason: str, *, relative: bool = False) -> None:
        self._fixed = {"name": name, "compared": compared, "reason": reason}
        self._tolerance = tolerance
        self._relative = relative
        self._size = 0.0
        self._worst = -1.0
        self._share = -1.0
        self._allowed: float | None = None
        self._place: dict[str, int] = {}
        self._numbers: dict[str, float] = {}

    def see(
        self,
        ours: Float[np.ndarray, "..."],
        theirs: Float[np.ndarray, "..."],
        axes: tuple[str, ...],
        *,
        allowed: Float[np.ndarray, "..."] | None = None,
        size: float = 0.0,
        **place: int,
    ) -> None:
        """Compare two arrays.

        Args:
            ours: the trace's numbers.
            theirs: the numbers to compare with.
            axes: names of the arrays' first axes; later axes have no names.
            allowed: tolerance of each number, instead of the comparison's.
            size: magnitude of the terms that these numbers are sums of, if larger than the numbers themselves.
            place: place of the arrays; if an axis is in both `axes` and `place`, its value is an offset.
        """
        ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs)
        difference = np.abs(ours - theirs)
        if not difference.size:
            return
        self._size = max(self._size, size, float(np.max(np.abs(theirs))))
        shares = difference if allowed is None else difference / np.maximum(allowed, np.finfo(np.float64).tiny)
        at = int(np.argmax(np.where(np.isnan(shares), np.inf, shares)))
        share = float(shares.reshape(-1)[at])
        if np.isnan(self._share) or not (np.isnan(share) or share > self._share):
            return
        index = np.unravel_index(at, difference.shape)
        self._share = share
        self._worst = float(difference.reshape(-1)[at])
        self._allowed = None if allowed is None else float(np.broadcast_to(allowed, difference.shape)[index])
        if not self._relative:
            self._numbers = {"ours": float(ours[index]), "theirs": float(theirs[index])}
        self._place = {
            **place,
            **{axis: int(i) + place.get(axis, 0) for axis, i in zip(axes, index, strict=False)},
        }

    @property
    def seen(self) -> bool:
        """True if anything was compared."""
        return self._worst >= 0 or bool(np.isnan(self._worst))

    def check(self, **place: int) -> Check:
        """The result, at a place that all comparisons share.

        The tolerance is multiplied by the size of the numbers compared if that is more than 1.
        """
        tolerance = self._allowed
        if tolerance is None:
            tolerance = self._tolerance * max(1.0, self._size if np.isfinite(self._size) else 1.0)
        return Check(**self._fixed, worst=self._worst, tolerance=tolerance, **self._numbers, **{**self._place, **place})  # type: ignore[arg-type]


Limit = tuple[float, str]
"""Tolerance between two correct computations, for numbers around 1, and the reason for it."""


def row_blocks(count: int) -> Iterator[slice]:
    """Slices of a few queries each, from 0 to `count`."""
    for start in range(0, count, ROW_BLOCK):
        yield slice(start, min(start + ROW_BLOCK, count))

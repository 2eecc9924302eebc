"""Results of comparisons: the worst difference of each with its place and tolerance, and the report of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float


ROW_BLOCK = 64
"""Number of queries whose rows are in memory at a time."""


@dataclass(frozen=True)
class Check:
    """The result of one comparison.

    Attributes:
        name: the quantity: queries, weights, context, ….
        compared: description of the comparison.
        worst: the largest absolute difference.
        tolerance: the largest difference that is accepted.
        reason: the reason for this tolerance.
        layer: layer of the worst difference, counted from 0; None if the comparison has no such axis.
        head: head of the worst difference, likewise.
        query: query of the worst difference, likewise.
        key: key of the worst difference, likewise.
        ours: the trace's number there.
        theirs: the number it is compared with.
    """

    name: str
    compared: str
    worst: float
    tolerance: float
    reason: str
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None
    ours: float | None = None
    theirs: float | None = None

    @property
    def agrees(self) -> bool:
        """True if the worst difference is within the tolerance; False if it is NaN."""
        return self.worst <= self.tolerance

    @property
    def place(self) -> str:
        """Place of the worst difference, as text: "layer 3, head 5, query 2"."""
        axes = ("layer", "head", "query", "key")
        return ", ".join(f"{axis} {getattr(self, axis)}" for axis in axes if getattr(self, axis) is not None)


@dataclass(frozen=True)
class Report:
    """The result of `verify`.

    Attributes:
        model: the model's name.
        checks: the results of the comparisons.
        notes: problems with the checkpoint: missing or unexpected tensors, NaN, heads that look untrained.
        skipped: (name, reason) of each comparison that was not possible.
    """

    model: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def agrees(self) -> bool:
        """True if there were comparisons and all of them agree."""
        return bool(self.checks) and all(check.agrees for check in self.checks)

    @property
    def worst(self) -> Check:
        """The check that is closest to its tolerance, or furthest beyond it."""
        return max(self.checks, key=lambda check: (np.isnan(check.worst), check.worst / check.tolerance))

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict for JSON; NaN and infinity become null."""

        def row(check: Check) -> dict[str, Any]:
            fields = {name: getattr(check, name) for name in check.__dataclass_fields__}
            nulls = {
                name: None for name, value in fields.items() if isinstance(value, float) and not np.isfinite(value)
            }
            return {**fields, **nulls, "agrees": check.agrees}

        return {
            "model": self.model,
            "agrees": self.agrees,
            "checks": [row(check) for check in self.checks],
            "notes": list(self.notes),
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
        }

    def __repr__(self) -> str:
        lines = [
            f"{'agrees' if check.agrees else 'DIFFERS':<8}{check.name:<16}{check.worst:.1e} of {check.tolerance:.1e}  "
            f"{check.place}  ({check.compared})"
            for check in self.checks
        ]
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped]
        return "\n".join([*lines, *self.notes])


class Worst:
    """Tracks the largest difference of one comparison over all layers and heads, and its place.

    If each number has its own tolerance, the largest difference is the one with the largest share of its tolerance.
    """

    def __init__(self, name: str, compared: str, tolerance: float, reason: str) -> None:
        self._fixed = {"name": name, "compared": compared, "reason": reason}
        self._tolerance = tolerance
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
        self._numbers = {"ours": float(ours[index]), "theirs": float(theirs[index])}
        self._place = {
            **place,
            **{axis: int(i) + place.get(axis, 0) for axis, i in zip(axes, index, strict=False)},
        }

    def check(self) -> Check:
        """The result; the tolerance is multiplied by the size of the numbers compared if that is more than 1."""
        tolerance = self._allowed
        if tolerance is None:
            tolerance = self._tolerance * max(1.0, self._size if np.isfinite(self._size) else 1.0)
        return Check(**self._fixed, worst=self._worst, tolerance=tolerance, **self._numbers, **self._place)  # type: ignore[arg-type]


Limit = tuple[float, str]
"""Tolerance between two correct computations, for numbers around 1, and the reason for it."""


def row_blocks(count: int) -> Iterator[slice]:
    """Slices of a few queries each, from 0 to `count`."""
    for start in range(0, count, ROW_BLOCK):
        yield slice(start, min(start + ROW_BLOCK, count))

"""What a comparison found: the worst difference and its place, what it may be, and the report of all comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float


ROW_BLOCK = 64
"""Queries whose rows are held at a time."""


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        name: what was compared: queries, weights, context, ….
        compared: with what, in words.
        worst: the largest absolute difference.
        tolerance: what it may be.
        reason: why that much.
        layer: where the worst is, counted from 0; None where the axis doesn't apply.
        head: likewise.
        query: likewise.
        key: likewise.
        ours: the number there, as the trace has it.
        theirs: the other one.
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
        """Whether the worst difference is within the tolerance; NaN is not."""
        return self.worst <= self.tolerance

    @property
    def place(self) -> str:
        """Where the worst is, in words."""
        axes = ("layer", "head", "query", "key")
        return ", ".join(f"{axis} {getattr(self, axis)}" for axis in axes if getattr(self, axis) is not None)


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    Attributes:
        model: the model's name.
        checks: the comparisons.
        notes: what looks wrong with the checkpoint: tensors missing or unexpected, NaN, heads that look untrained.
        skipped: comparisons that could not be made, each with the reason.
    """

    model: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether there were comparisons and all of them agree."""
        return bool(self.checks) and all(check.agrees for check in self.checks)

    @property
    def worst(self) -> Check:
        """The check that is closest to its tolerance, or furthest beyond it."""
        return max(self.checks, key=lambda check: (np.isnan(check.worst), check.worst / check.tolerance))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers that are no JSON numbers become null."""

        def row(check: Check) -> dict[str, Any]:
            kept = {name: getattr(check, name) for name in check.__dataclass_fields__}
            unknown = {name: None for name, one in kept.items() if isinstance(one, float) and not np.isfinite(one)}
            return {**kept, **unknown, "agrees": check.agrees}

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
    """Keeps the largest difference of one comparison over all layers and heads, and where it was.

    Where each number has a tolerance of its own, the largest is the one that is furthest beyond its own.
    """

    def __init__(self, name: str, compared: str, tolerance: float, reason: str) -> None:
        self._fixed = {"name": name, "compared": compared, "reason": reason}
        self._tolerance = tolerance
        self._size = 0.0
        self._worst = -1.0
        self._share = -1.0
        self._own: float | None = None
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
            axes: what the first axes of the arrays are; later axes are not named.
            allowed: what each number may differ by, instead of the tolerance.
            size: how large the numbers are that these are sums of, where that is more than they are themselves.
            place: where the arrays stand; an axis that is named in both is an offset.
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
        self._own = None if allowed is None else float(np.broadcast_to(allowed, difference.shape)[index])
        self._numbers = {"ours": float(ours[index]), "theirs": float(theirs[index])}
        self._place = {
            **place,
            **{axis: int(i) + place.get(axis, 0) for axis, i in zip(axes, index, strict=False)},
        }

    def check(self) -> Check:
        """The comparison's result; the tolerance grows with the numbers compared, where they are beyond 1."""
        tolerance = self._own
        if tolerance is None:
            tolerance = self._tolerance * max(1.0, self._size if np.isfinite(self._size) else 1.0)
        return Check(**self._fixed, worst=self._worst, tolerance=tolerance, **self._numbers, **self._place)  # type: ignore[arg-type]


Limit = tuple[float, str]
"""What two right computations may differ by, for numbers around 1, and why."""


def row_blocks(count: int) -> Iterator[slice]:
    """A few queries at a time."""
    for start in range(0, count, ROW_BLOCK):
        yield slice(start, min(start + ROW_BLOCK, count))

"""The report of `verify`: the worst difference of each comparison with its place and its tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Of
from typing import Any

import numpy as np

from headscope.late import late
from headscope.results.row_tables import plain


@dataclass(frozen=True)
class Check:
    """The result of one comparison."""

    name: Of[str, "the quantity: queries, weights, context, …."]
    compared: Of[str, "description of the comparison."]
    worst: Of[float, "the largest absolute difference."]
    tolerance: Of[float, "the largest difference that is accepted."]
    reason: Of[str, "the reason for this tolerance."]
    layer: Of[int | None, "layer of the worst difference, counted from 0; None if the comparison has no such axis."] = (
        None
    )
    head: Of[int | None, "head of the worst difference, likewise."] = None
    query: Of[int | None, "query of the worst difference, likewise."] = None
    key: Of[int | None, "key of the worst difference, likewise."] = None
    text: Of[int | None, "index of the text of the worst difference; None if the comparison is of one text."] = None
    ours: Of[float | None, "the trace's number there."] = None
    theirs: Of[float | None, "the number it is compared with."] = None

    @property
    def agrees(self) -> bool:
        """True if the worst difference is within the tolerance; False if it is NaN."""
        return self.worst <= self.tolerance

    @property
    def place(self) -> str:
        """Place of the worst difference, as text: "layer 3, head 5, query 2"."""
        axes = ("layer", "head", "query", "key", "text")
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

        def share(check: Check) -> tuple[bool, float]:
            exact = np.inf if check.worst else 0.0
            return bool(np.isnan(check.worst)), check.worst / check.tolerance if check.tolerance else exact

        return max(self.checks, key=share)

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict for JSON; NaN and infinity become null."""
        return {
            "model": self.model,
            "agrees": self.agrees,
            "checks": [plain({**vars(check), "agrees": check.agrees}) for check in self.checks],
            "notes": list(self.notes),
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
        }

    @late("headscope.screens.html_tables:html_screen")
    def _repr_html_(self) -> str | None:
        """The checks as a notebook shows them."""

    def __repr__(self) -> str:
        lines = [
            f"{'agrees' if check.agrees else 'DIFFERS':<8}{check.name:<16}{check.worst:.1e} of {check.tolerance:.1e}  "
            f"{check.place}  ({check.compared})"
            for check in self.checks
        ]
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped]
        return "\n".join([*lines, *self.notes])

"""What changed in each head between two models: a statistic, a label, the effect of silencing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope._trace import Named


def per_head(name: str, array: np.ndarray) -> Named:
    """A value for each head, with its axes."""
    return Named(name, ("layers", "heads"), array)


@dataclass(frozen=True, eq=False)
class Change:
    """One statistic of every head in both models; each is (layers, heads).

    Attributes:
        a: the mean over documents in the first model.
        b: the mean in the second.
        change: b - a.
        low: lower bound of the change's 95 % interval over documents (Student's t, paired); NaN where there is none.
        high: upper bound.
    """

    a: Named
    b: Named
    change: Named
    low: Named
    high: Named

    @property
    def name(self) -> str:
        """The statistic."""
        return self.change.name

    def sure(self) -> np.ndarray:
        """(layers, heads): True where the interval excludes 0; without an interval, where the change is not 0."""
        low, high = self.low.array, self.high.array
        return np.where(np.isnan(low), np.nan_to_num(self.change.array) != 0, (low > 0) | (high < 0))

    def __repr__(self) -> str:
        seen = self.change.array[np.isfinite(self.change.array)]
        span = f"{seen.min():+.4g} to {seen.max():+.4g}" if len(seen) else "nothing to measure"
        return f"change of {self.name}: {span} over heads"


@dataclass(frozen=True, eq=False)
class EffectChange(Change):
    """What silencing each head changes, in both surveys; `a`, `b` and `change` are (layers, heads).

    `low` and `high` bound the change's 95 % interval over documents: percentiles of a bootstrap, paired by window; NaN
    where the surveys measured different windows.

    Attributes:
        a_low, a_high: the 95 % interval of `a`, as in the first survey's effects.
        b_low, b_high: of `b`.
        output: the number that silencing changes.
        unit: its unit.
    """

    a_low: Named
    a_high: Named
    b_low: Named
    b_high: Named
    output: str
    unit: str

    def arrays(self) -> Iterator[tuple[str, Named]]:
        """Name and array of a, b and the change with their bounds, in the order of `Comparison.rows`."""
        for name in ("a", "a_low", "a_high", "b", "b_low", "b_high", "change", "low", "high"):
            yield name, getattr(self, name)


LABEL_FIELDS = ("kind", "label", "score", "low", "high", "baseline", "coverage", "note")
"""Columns of `survey.labels` that are compared."""


@dataclass(frozen=True)
class HeadLabel:
    """A head's label in one survey, as in `survey.labels`.

    Attributes:
        kind: `position`, `syntax`, the label itself, or `none`.
        label: what the head does; `none` where no rule applies.
        score: over the documents that didn't choose the label; None without a label.
        low, high: its 95 % interval.
        baseline: what chance or the best fixed offset reaches.
        coverage: how many of the head's 100 strongest pairs it explains.
        note: why there is none, or what it leaves out.
    """

    kind: str
    label: str
    score: float | None
    low: float | None
    high: float | None
    baseline: float | None
    coverage: int | None
    note: str


@dataclass(frozen=True)
class LabelChange:
    """A head's labels in both surveys.

    Attributes:
        layer, head: which head.
        a: its label in the first survey.
        b: in the second.
    """

    layer: int
    head: int
    a: HeadLabel
    b: HeadLabel

    @property
    def changed(self) -> bool:
        """Return True if the head is labelled otherwise; its score may change without that."""
        return self.a.label != self.b.label

    def row(self) -> dict[str, Any]:
        """Columns of `Comparison.rows`: label_changed, then those of LABEL_FIELDS for a and for b."""
        sides = (("a", self.a), ("b", self.b))
        names = [name if name == "label" else f"label_{name}" for name in LABEL_FIELDS]
        return {
            "label_changed": self.changed,
            **{
                f"{name}_{side}": getattr(label, field)
                for name, field in zip(names, LABEL_FIELDS, strict=True)
                for side, label in sides
            },
        }

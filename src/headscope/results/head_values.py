"""Measures of heads: what a number means, its unit, its values for every head with their intervals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from headscope.late import late
from headscope.results.arrays import Named
from headscope.results.row_tables import Rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from typing_extensions import Self

Head: TypeAlias = tuple[int, int]
"""(layer, head), by their numbers in the model."""

HEADS = ("layers", "heads")
"""The axes of a number per head."""

LANGUAGES = ("en", "ja", "zh")
"""Languages of the page, in the order of names and units."""


def signed(number: float, digits: int = 4) -> str:
    """Return a number with its sign; what rounds to zero is +0, whichever side of it rounding errors left it on."""
    return f"{round(float(number), digits) + 0.0:+.{digits}f}"


@dataclass(frozen=True)
class Unit:
    """The unit of a measure.

    Attributes:
        name: in words, with the range if it has one.
        names: short names for the page, in each of LANGUAGES; empty for shares of a row's weight, which need none.
        low: of the range; None for no bound, or a bound that depends on the text.
        high: of the range, likewise.
    """

    name: str
    names: tuple[str, ...] = ()
    low: float | None = 0.0
    high: float | None = None


WEIGHT = Unit("weight, 0 to 1", high=1.0)


@dataclass(frozen=True)
class Measure:
    """Description of a column of a `HeadTable`: one number for each head.

    Attributes:
        name: in Python, files and on the command line.
        names: short names for the page, in each of LANGUAGES; empty for measures that the page doesn't show.
        meaning: one line.
        formula: for query i, for docs/statistics.md.
        source: the paper it comes from.
        unit: of the number.
    """

    name: str
    names: tuple[str, ...] = ()
    meaning: str = ""
    formula: str = ""
    source: str = ""
    unit: Unit = WEIGHT

    @property
    def signed(self) -> bool:
        """True if it can be negative."""
        return self.unit.low is None

    @property
    def described(self) -> str:
        """The meaning, with the unit unless the meaning mentions it."""
        unit = self.unit.name
        return self.meaning if unit.split(";")[0] in self.meaning else f"{self.meaning} ({unit})"

    def record(self) -> dict[str, Any]:
        """The fields that the page and the report need, for JSON."""
        return {
            "name": self.name,
            "names": dict(zip(LANGUAGES, self.names, strict=False)),
            "meaning": self.meaning,
            "described": self.described,
            "unit": self.unit.name,
            "units": dict(zip(LANGUAGES, self.unit.names, strict=False)),
            "low": self.unit.low,
            "high": self.unit.high,
        }


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadValues(Rows, Named):
    """A measure of every head: an array of (layers, heads), or with one more axis, that knows what it means.

    NaN means that there is no number: the model has no such head, or its weights are not numbers.

    Attributes:
        measure: what the numbers are.
        low: of the 95 % interval, as the array; None where nothing was sampled.
        high: likewise.
        over: what was sampled: `documents` or `texts`.
        interval: how: `t` (Student's), `bootstrap` or `wilson`.
    """

    measure: Measure
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    over: str = ""
    interval: str = ""

    @classmethod
    def of(cls, measure: Measure, array: np.ndarray, dims: tuple[str, ...] = HEADS, **fields: Any) -> Self:
        """Values under the name of their measure."""
        return cls(measure.name, dims, array, measure=measure, **fields)

    def sure(self) -> Bool[np.ndarray, "..."]:
        """True where the interval excludes 0; without an interval, where the number is not 0."""
        nonzero = np.nan_to_num(self.array) != 0
        if self.low is None or self.high is None:
            return nonzero
        return np.where(np.isnan(self.low), nonzero, (self.low > 0) | (self.high < 0))

    def strongest(self, count: int = 10, *, sure: bool = False) -> list[tuple[int, int]]:
        """The positions of the greatest absolute values, the greatest first; with `sure`, of those that are sure."""
        size = np.abs(self.array)
        counted = ~np.isnan(size) & (self.sure() if sure else True)
        order = np.argsort(-size, axis=None, kind="stable")
        positions = np.stack(np.unravel_index(order[counted.ravel()[order]][:count], size.shape), axis=-1)
        return [(row, column) for row, column in positions.tolist()]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each head: its layer, its head, and `columns`. A third axis has a column of its own."""
        names = [{"layers": "layer", "heads": "head"}.get(name, name) for name in self.dims]
        columns = dict(self.columns())
        return [
            dict(zip(names, place, strict=True)) | {name: array[place].item() for name, array in columns.items()}
            for place in np.ndindex(*self.shape)
        ]

    @late("headscope.screens.figures:plot_values")
    def plot(self, *, ax: Any = None, width: float = 3.35, save: str | os.PathLike[str] | None = None) -> Any:
        """Draw the number of every head: layers down, heads across.

        Returns the axes of matplotlib. See headscope.screens.figures.
        """
        raise NotImplementedError

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and array of each column in rows and tables: NAME, then NAME_low and NAME_high if there are bounds."""
        yield self.name, self.array
        if self.low is not None and self.high is not None:
            yield f"{self.name}_low", self.low
            yield f"{self.name}_high", self.high

    def spread(self) -> str:
        """The mean and the range over heads, in one line."""
        seen = self.array[np.isfinite(self.array)]
        text = f"{seen.mean():>10.4g}  {seen.min():.4g} to {seen.max():.4g}" if len(seen) else f"{'nothing':>10}"
        return f"{self.name:<20}{text}  {self.measure.meaning}"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Difference(HeadValues):
    """A measure in b less the same measure in a; the array is b - a, and the bounds are those of the difference.

    Attributes:
        a: the side that is subtracted.
        b: the side that it is subtracted from.
    """

    a: HeadValues
    b: HeadValues

    @staticmethod
    def between(a: HeadValues, b: HeadValues, **fields: Any) -> Difference:
        """From a to b."""
        change = b.array.astype(np.float64) - a.array.astype(np.float64)
        return Difference.of(b.measure, change, b.dims, a=a, b=b, **fields)

    @property
    def change(self) -> Difference:
        """The same: b - a."""
        return self

    def far(self) -> Float[np.ndarray, "..."]:
        """The difference in standard deviations over all heads of both sides; 0 where nothing varies."""
        values = np.stack([self.a.array, self.b.array])
        seen = values[np.isfinite(values)]
        spread = float(seen.std()) if len(seen) else 0.0
        return self.array / spread if spread else np.zeros_like(self.array)

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        """NAME_a and NAME_b with their bounds, if they have any; NAME_change, NAME_low and NAME_high."""
        for side, values in (("a", self.a), ("b", self.b)):
            for name, array in values.columns():
                yield f"{self.name}_{side}{name.removeprefix(values.name)}", array
        nothing = np.full(self.shape, np.nan)
        yield f"{self.name}_change", self.array
        yield f"{self.name}_low", nothing if self.low is None else self.low
        yield f"{self.name}_high", nothing if self.high is None else self.high

    def __repr__(self) -> str:
        seen = self.array[np.isfinite(self.array)]
        span = f"{seen.min():+.4g} to {seen.max():+.4g}" if len(seen) else "nothing to measure"
        return f"change of {self.name}: {span} over heads"


@dataclass(frozen=True, eq=False)
class HeatMap:
    """One measure of all heads, as pictures need it.

    Attributes:
        values: (layer, head) -> the number; heads that the model has.
        layers, heads: their numbers, down and across.
        low: of the range of the ink: the unit's, or that of the values where the unit has none.
        high: likewise.
    """

    values: Mapping[Head, float]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    low: float
    high: float

    def share(self, head: Head) -> float:
        """Position of a head's number within the range, 0 to 1; NaN without a number."""
        value = self.values.get(head, float("nan"))
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0 * value

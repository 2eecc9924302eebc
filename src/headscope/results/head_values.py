"""Measures of heads: what a number means, its values for every head with their intervals; distances between heads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from headscope.errors import InputError, require
from headscope.late import late
from headscope.results.arrays import Named
from headscope.results.row_tables import Rows
from headscope.settings import whole

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
class Measure:
    """Description of a column of a `HeadTable`: one number for each head.

    Attributes:
        name: in Python, files and on the command line.
        names: short names for the page, in each of LANGUAGES; empty for measures that the page doesn't show.
        meaning: one line.
        formula: for query i, for docs/statistics.md.
        source: the paper it comes from.
        unit: of the number, in words, with the range if it has one.
        units: short names of the unit for the page, in each of LANGUAGES; empty for shares of a row's weight, which
            need none.
        low: of the range; None for no bound, or a bound that depends on the text.
        high: of the range, likewise.
    """

    name: str
    names: tuple[str, ...] = ()
    meaning: str = ""
    formula: str = ""
    source: str = ""
    unit: str = "weight, 0 to 1"
    units: tuple[str, ...] = ()
    low: float | None = 0.0
    high: float | None = 1.0

    @classmethod
    def of_score(cls, score: Callable[..., Any]) -> Self:
        """The description of anybody's own score of texts; it has the function's name."""
        name = getattr(score, "__name__", "score").strip("<>")
        return cls(name, meaning="the mean over texts", unit="score", low=None, high=None)

    @property
    def signed(self) -> bool:
        """True if it can be negative."""
        return self.low is None

    @property
    def described(self) -> str:
        """The meaning, with the unit unless the meaning mentions it."""
        return self.meaning if self.unit.split(";")[0] in self.meaning else f"{self.meaning} ({self.unit})"

    def record(self) -> dict[str, Any]:
        """The fields that the page and the report need, for JSON."""
        return {
            "name": self.name,
            "names": dict(zip(LANGUAGES, self.names, strict=False)),
            "meaning": self.meaning,
            "described": self.described,
            "unit": self.unit,
            "units": dict(zip(LANGUAGES, self.units, strict=False)),
            "low": self.low,
            "high": self.high,
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
        sides: of a difference, b - a: a and b; the array and the bounds are the difference's.
        each: of a mean: the values of each text, where they are kept.
        numbers: of the layers and of the heads, in the model; empty where both count from 0.
    """

    measure: Measure
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    over: str = ""
    interval: str = ""
    sides: tuple[HeadValues, ...] = ()
    each: tuple[Any, ...] = ()
    numbers: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, measure: Measure, array: np.ndarray, dims: tuple[str, ...] = HEADS, **fields: Any) -> Self:
        """Values under the name of their measure."""
        return cls(measure.name, dims, array, measure=measure, **fields)

    @property
    def a(self) -> HeadValues:
        """The side of a difference that is subtracted."""
        return self._both()[0]

    @property
    def b(self) -> HeadValues:
        """The side of a difference that it is subtracted from."""
        return self._both()[1]

    def _both(self) -> tuple[HeadValues, ...]:
        if self.sides:
            return self.sides
        found = f"these numbers ({self.name}) are no difference, so they have no sides"
        raise InputError(found, where="a or b", advice="subtract others from them: after.minus(before)")

    def minus(self, a: HeadValues) -> HeadValues:
        """The change from `a`: the difference, with both sides.

        Raises:
            InputError: `a` has another measure or another shape.
        """
        if not isinstance(a, HeadValues) or (a.name, a.shape) != (self.name, self.shape):
            found = f"{self!r:.60} less {a!r:.60} is no change of one measure"
            raise InputError(found, where="minus", advice="subtract values of the same measure, of as many heads")
        change = self.array.astype(np.float64) - a.array.astype(np.float64)
        return HeadValues.of(self.measure, change, self.dims, sides=(a, self), numbers=self.numbers)

    def coordinates(self) -> dict[str, Any]:
        """Name of an axis -> names of its entries: the numbers of layers and heads, where they don't count from 0."""
        return super().coordinates() | {axis: list(of) for axis, of in zip(HEADS, self.numbers, strict=False)}

    def _plane(self, where: str) -> Float[np.ndarray, "layers heads"]:
        """The array, if it has layers and heads alone.

        Raises:
            InputError: it has a third axis.
        """
        if self.array.ndim != 2:
            advice = "choose one entry of the third axis, or average over it: table.over(axis)"
            raise InputError(f"{self.name} has the axes {', '.join(self.dims)}", where=where, advice=advice)
        return self.array.astype(np.float64)

    def far(self) -> Float[np.ndarray, "..."]:
        """A difference in standard deviations over all heads of both sides; 0 where nothing varies."""
        values = np.stack([side.array for side in self.sides])
        seen = values[np.isfinite(values)]
        spread = float(seen.std()) if len(seen) else 0.0
        return self.array / spread if spread else np.zeros_like(self.array)

    def sure(self) -> Bool[np.ndarray, "..."]:
        """True where the interval excludes 0; without an interval, where the number is not 0."""
        nonzero = np.nan_to_num(self.array) != 0
        if self.low is None or self.high is None:
            return nonzero
        return np.where(np.isnan(self.low), nonzero, (self.low > 0) | (self.high < 0))

    def scaled(self) -> Float[np.ndarray, "..."]:
        """Each number's place in the measure's range, 0 to 1.

        Where the measure has no bound, the range ends at the lowest or greatest number, or at 0 if 0 lies beyond it.
        """
        finite = self.array[np.isfinite(self.array)]
        low = float(finite.min(initial=0.0)) if self.measure.low is None else self.measure.low
        high = float(finite.max(initial=low)) if self.measure.high is None else self.measure.high
        return (self.array - low) / (high - low) if high > low else 0.0 * self.array

    def strongest(self, count: int = 10, *, sure: bool = False) -> list[tuple[int, int]]:
        """The positions of the greatest absolute values, the greatest first; with `sure`, of those that are sure."""
        size = np.abs(self._plane("strongest"))
        counted = ~np.isnan(size) & (self.sure() if sure else True)
        order = np.argsort(-size, axis=None, kind="stable")
        first = order[counted.ravel()[order]][: whole(count, "count", 0)]
        return [(row, column) for row, column in np.stack(np.unravel_index(first, size.shape), axis=-1).tolist()]

    def _most(self) -> str:
        """The greatest absolute value with its head, by the numbers in the model, and its interval, in words."""
        if not (best := self.strongest(1)):
            return "nothing to measure"
        layer, head = (of[at] for of, at in zip(self.numbers or map(range, self.shape), best[0], strict=True))
        low, high = (np.nan if bound is None else bound[best[0]] for bound in (self.low, self.high))
        sure = "" if np.isnan(low) else f" (95 % interval {signed(low)} to {signed(high)})"
        return f"layer {layer}, head {head}, {signed(self[best[0]])}{sure}"

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each head: its layer and head, by their numbers in the model, and `columns`.

        A third axis has a column of its own.
        """
        names = [{"layers": "layer", "heads": "head"}.get(name, name) for name in self.dims]
        numbers = dict(zip(HEADS, self.numbers, strict=False))
        entries = [numbers.get(axis, range(size)) for axis, size in zip(self.dims, self.shape, strict=True)]
        columns = dict(self.columns())
        return [
            {name: entry[at] for name, entry, at in zip(names, entries, place, strict=True)}
            | {name: array[place].item() for name, array in columns.items()}
            for place in np.ndindex(*self.shape)
        ]

    @late("headscope.screens.figures:plot_values")
    def plot(self, *, ax: Any = None, width: float = 3.35, save: str | os.PathLike[str] | None = None) -> Any:
        """Draw the number of every head: layers down, heads across.

        Returns the axes of matplotlib. See headscope.screens.figures.
        """

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and array of each column in rows and tables: NAME, then NAME_low and NAME_high if there are bounds.

        Of a difference: NAME_a and NAME_b with their bounds, if they have any; NAME_change, NAME_low and NAME_high.
        """
        if self.sides:
            for side, values in zip("ab", self.sides, strict=True):
                for name, array in values.columns():
                    yield f"{self.name}_{side}{name.removeprefix(values.name)}", array
            nothing = np.full(self.shape, np.nan)
            yield f"{self.name}_change", self.array
            yield f"{self.name}_low", nothing if self.low is None else self.low
            yield f"{self.name}_high", nothing if self.high is None else self.high
            return
        yield self.name, self.array
        if self.low is not None and self.high is not None:
            yield f"{self.name}_low", self.low
            yield f"{self.name}_high", self.high

    def spread(self) -> str:
        """The mean and the range over heads, in one line."""
        seen = self.array[np.isfinite(self.array)]
        text = f"{seen.mean():>10.4g}  {seen.min():.4g} to {seen.max():.4g}" if len(seen) else f"{'nothing':>10}"
        return f"{self.name:<20}{text}  {self.measure.meaning}"

    def __repr__(self) -> str:
        if self.each:
            what = "effects" if self.name == "effect" else f"changes of {self.name}"
            texts = f"{len(self.each)} {self.over if len(self.each) > 1 else self.over.removesuffix('s')}"
            return f"{what} of {self.size} heads on {texts}; most: {self._most()}"
        if not self.sides:
            return super().__repr__()
        seen = self.array[np.isfinite(self.array)]
        span = f"{seen.min():+.4g} to {seen.max():+.4g}" if len(seen) else "nothing to measure"
        return f"change of {self.name}: {span} over heads"


@dataclass(frozen=True, eq=False, repr=False)
class HeadDistances(Named):
    """Distances between all pairs of heads, (heads_total, heads_total): 0 where two have the same weights.

    Attributes:
        heads: (layer, head) of each row and column.
    """

    heads: tuple[Head, ...] = ()

    @classmethod
    def of(cls, array: Float[np.ndarray, "heads_total heads_total"], heads: Sequence[Head]) -> HeadDistances:
        """Distances of these heads."""
        names = tuple(f"{layer}.{head}" for layer, head in heads)
        return cls("head_distances", ("heads_total", "heads_total"), array, names, tuple(heads))

    def clusters(self, count: int) -> list[list[Head]]:
        """The heads in at most `count` groups, the largest first: average linkage by scipy.

        Two groups are as far apart as their heads are on average, and the two nearest are joined until `count` are left
        (Sokal and Michener 1958).

        Raises:
            InputError: `count` is not a number from 1 on, or a distance is not a number, as of broken heads.
            MissingExtraError: scipy is not installed.
        """
        count = whole(count, "count", 1)
        if not np.isfinite(self.array).all():
            advice = "leave out heads with NaN weights"
            raise InputError("a distance is not a number", where="clusters", advice=advice)
        require("scipy", where="clusters", otherwise="give array to another library")
        from scipy.cluster import hierarchy
        from scipy.spatial.distance import squareform

        if len(self.heads) < 2:
            return [list(self.heads)]
        apart = self.array.astype(np.float64)
        flat = squareform((apart + apart.T) / 2, checks=False)
        numbers = hierarchy.fcluster(hierarchy.linkage(flat, "average"), count, "maxclust")
        groups = [[self.heads[at] for at in np.flatnonzero(numbers == number)] for number in np.unique(numbers)]
        return sorted(groups, key=lambda group: (-len(group), group))

    def to_xarray(self) -> Any:
        """Return the array as a DataArray of xarray, with the heads' names (`3.1`) along `head_a` and `head_b`.

        Raises:
            MissingExtraError: xarray is not installed.
        """
        axes = ("head_a", "head_b")  # it takes no name twice
        return Named(self.name, axes, self.array, self.labels).to_xarray().assign_coords(head_a=list(self.labels or ()))

    def to_pandas(self) -> Any:
        """Return a frame of pandas, with the heads' names (`3.1`) on both sides.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", where="to_pandas", otherwise="use array")
        import pandas

        return pandas.DataFrame(self.array, self.labels, self.labels)

    @late("headscope.screens.figures:plot_distances")
    def plot(self, *, ax: Any = None, width: float = 3.35, save: str | os.PathLike[str] | None = None) -> Any:
        """Draw the heads on a plane, so that those that look alike lie together, in the colours of their layers.

        Classical scaling (Torgerson 1952). Returns the axes of matplotlib. See headscope.screens.figures.
        """

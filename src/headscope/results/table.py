"""Tables of heads: measure -> a number for each head, its place in the model, and what is missing."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError, require
from headscope.late import late
from headscope.results.arrays import Arrays
from headscope.results.head_values import HEADS, Head, HeadValues
from headscope.results.row_tables import Rows, plain, rows_of

if TYPE_CHECKING:
    from jaxtyping import Float

SINGULAR = {"queries": "query"}
"""Name of an axis -> that of the column with its entries, where it is not the name without its s."""


class Placed:
    """Heads with their places in arrays of (layers, columns): a column for each number that a layer's head has.

    Attributes:
        layers: the number of each layer in the model.
        heads: the numbers of each layer's heads.
    """

    layers: tuple[int, ...]
    heads: tuple[tuple[int, ...], ...]

    @property
    def across(self) -> tuple[int, ...]:
        """The head number of each column of an array: the numbers of all layers' heads."""
        return across(self.heads)

    def _numbered(self, values: HeadValues) -> HeadValues:
        """The values with the numbers of these layers and heads, where they don't count from 0."""
        numbers = (self.layers, self.across)
        return values if all(of == tuple(range(len(of))) for of in numbers) else replace(values, numbers=numbers)

    def positions(self) -> dict[Head, tuple[int, int]]:
        """Each head, layer by layer, with its row and column in the arrays."""
        column = {head: at for at, head in enumerate(self.across)}
        pairs = enumerate(zip(self.layers, self.heads, strict=True))
        return {(layer, head): (row, column[head]) for row, (layer, heads) in pairs for head in heads}


@dataclass(frozen=True, eq=False, repr=False)
class HeadTable(Placed, Rows, Arrays, Mapping[str, HeadValues]):
    """Measure name -> its values for every head: (layers, heads), or with one more axis, first or last.

    A head stands in the column of its number among the numbers of all layers' heads.

    Attributes:
        columns: the values by name.
        layers: the number of each layer in the model.
        heads: the numbers of each layer's heads.
        along: name of the third axis (documents, queries) -> its entries; empty without one.
        facts: name -> head -> what is not a number: a label, a kind.
        left_out: measure that there is no data for -> the reason.
        broken: heads whose weights are not numbers; their values are NaN.
        source: what the table is of.
    """

    columns: Mapping[str, HeadValues]
    layers: tuple[int, ...]
    heads: tuple[tuple[int, ...], ...]
    along: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    facts: Mapping[str, Mapping[Head, object]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    broken: frozenset[Head] = frozenset()
    source: str = "heads"

    def __getitem__(self, name: str) -> HeadValues:
        if isinstance(name, str) and name in self.columns:
            return self._numbered(self.columns[name])
        reason = self.left_out.get(str(name), f"it was not requested; the table has {', '.join(self.columns)}")
        advice = "name one of docs/statistics.md; the numbers of one head are table.of((3, 1))"
        raise MissingMeasureError(f"the table has no {name!r:.60}: {reason}", where=self.source, advice=advice)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def of(self, head: Head) -> dict[str, Any]:
        """The numbers of one head, by the names of columns; of a table with a third axis, their arrays.

        Raises:
            InputError: there is no such head.
        """
        positions = self.positions()
        if not isinstance(head, tuple) or head not in list(positions):
            raise InputError(f"there is no head {head!r:.40}", where=self.source, advice="pass (layer, head)")
        index = dict(zip(HEADS, positions[head], strict=True))
        return {
            name: array[tuple(index.get(axis, slice(None)) for axis in values.dims)]
            for values in self.values()
            for name, array in values.columns()
        }

    def rows(self, *, by: str | None = None) -> list[dict[str, Any]]:
        """A dict for each head, or each head and entry of the third axis, in the order of the arrays' axes.

        Keys: layer and head, with their numbers in the model, the entry (`document`, `query`), columns, facts.

        Args:
            by: a column of numbers to sort by, the greatest absolute value first.

        Raises:
            MissingMeasureError: there is no such column.
        """
        cells = self.cells()
        rows = rows_of(cells)
        if by is not None:
            told = [name for name in cells if name in self.facts or any(isinstance(cell, str) for cell in cells[name])]
            if by not in (numbers := [name for name in cells if name not in told]):
                found = f"the table has no column of numbers {by!r}"
                raise MissingMeasureError(found, where=self.source, advice=f"use one of {', '.join(numbers)}")
            rows.sort(key=lambda row: -abs(row[by]) if row[by] == row[by] else math.inf)
        return rows

    def to_xarray(self) -> Any:
        """Return the table as a Dataset of xarray: a variable for each column, with the numbers of layers and heads.

        Raises:
            MissingExtraError: xarray is not installed.
        """
        require("xarray", where="to_xarray", otherwise="use rows()")
        import xarray

        coordinates = {"layers": list(self.layers), "heads": list(self.across), **self.along}
        columns = {name: (of.dims, array) for of in self.values() for name, array in of.columns()}
        return xarray.Dataset(columns, coordinates)

    def plot(
        self, measure: str, *, ax: Any = None, width: float = 3.35, save: str | os.PathLike[str] | None = None
    ) -> Any:
        """Draw one measure of every head: layers down, heads across. See `HeadValues.plot`."""
        return self[measure].plot(ax=ax, width=width, save=save)

    def json(self) -> dict[str, Any]:
        """Return the table for JSON: measures, rows (None for NaN and infinity), what is left out or broken."""
        return {
            "source": self.source,
            "measures": [values.measure.record() for values in self.values()],
            "rows": plain(self.rows()),
            "left_out": dict(self.left_out),
            "broken": sorted(self.broken),
        }

    def strongest(self, by: str, count: int = 10, *, sure: bool = False) -> list[Head]:
        """The heads with the greatest absolute values of a measure, the greatest first; see `HeadValues.strongest`."""
        heads = self.across
        return [(self.layers[row], heads[column]) for row, column in self[by].strongest(count, sure=sure)]

    def minus(self, a: HeadTable) -> HeadTable:
        """Return the change from `a`: the difference of each measure that both have, and facts of both sides.

        Raises:
            InputError: the tables have other heads, other queries or documents, or no measure in common.
        """
        names = [name for name in a if name in self]
        if (self.layers, self.heads) != (a.layers, a.heads) or not names:
            shapes = [f"{len(of.layers)} layers of {len(of.across)} heads" for of in (a, self)]
            problem = f"are of models with different heads: {' and '.join(shapes)}" if names else "share no measure"
            advice = "compare tables of models of one shape, with some of the same measures"
            raise InputError(f"{a.source} and {self.source} {problem}", where="minus", advice=advice)
        axes = [{axis: tuple(entries) for axis, entries in of.along.items()} for of in (a, self)]
        if axes[0] != axes[1]:
            entries = [", ".join(f"{axis} {list(of[axis])}"[:60] for axis in of) or "no third axis" for of in axes]
            found = f"{a.source} and {self.source} have different entries: {' and '.join(entries)}"
            advice = "compare tables with the same entries, or their means: table.over(axis)"
            raise InputError(found, where="minus", advice=advice)
        sides = (("a", a.facts), ("b", self.facts))
        return HeadTable(
            {name: self[name].minus(a[name]) for name in names},
            layers=self.layers,
            heads=self.heads,
            along=self.along,
            facts={f"{name}_{side}": of[name] for name in a.facts if name in self.facts for side, of in sides},
            left_out={name: reason for name, reason in {**a.left_out, **self.left_out}.items() if name not in names},
            broken=a.broken | self.broken,
            source=f"{a.source} to {self.source}",
        )

    @late("headscope.heads.intervals:over")
    def over(self, axis: str) -> HeadTable:
        """The means along the third axis with their 95 % intervals (Student's t), over the entries that have a number.

        A difference is paired: entries that one side lacks count in neither.
        """

    def cells(self) -> dict[str, list[Any]]:
        """The columns of `rows`, each a list of as many entries."""
        positions = self.positions()
        rows, columns = np.array([*positions.values()], dtype=np.int64).reshape(-1, 2).T
        axis, entries = next(iter(self.along.items()), ("", (None,)))
        first = next((values.dims for values in self.values()), (axis, *HEADS))[0] == axis
        index = (slice(None), rows, columns) if first else (rows, columns)
        places = [(entry, head) for entry in entries for head in positions]
        if not first:
            places = [(entry, head) for head in positions for entry in entries]
        keys = {"layer": [layer for _, (layer, _) in places], "head": [head for _, (_, head) in places]}
        third = {SINGULAR.get(axis, axis.removesuffix("s")): [entry for entry, _ in places]} if axis else {}
        cells: dict[str, list[Any]] = {**third, **keys} if first else {**keys, **third}
        for values in self.values():
            cells |= {name: array[index].ravel().tolist() for name, array in values.columns()}
        return cells | {name: [of.get(head) for _, head in places] for name, of in self.facts.items()}

    _cells = cells

    def __repr__(self) -> str:
        lines = [f"{self.source} of {len(self.layers)} layers, mean and range over heads"]
        lines += [values.spread() for values in self.values()]
        lines += [f"without {name}: {reason}" for name, reason in self.left_out.items()]
        if self.broken:
            lines.append(f"{len(self.broken)} heads are excluded because their weights are NaN (see .broken)")
        return "\n".join(lines)


def stacked(tables: Sequence[HeadTable], axis: str) -> HeadTable:
    """Tables of the same heads and measures along a new first axis."""
    columns = {
        name: HeadValues.of(values.measure, np.stack([table[name].array for table in tables]), (axis, *values.dims))
        for name, values in tables[0].items()
    }
    return replace(tables[0], columns=columns, along={axis: range(len(tables))}, broken=frozenset())


def across(heads: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The numbers of the heads of all layers, in order: one column each."""
    return tuple(sorted({head for layer in heads for head in layer}))


def in_columns(
    rows: Sequence[Float[np.ndarray, "heads ..."]], heads: Sequence[Sequence[int]]
) -> Float[np.ndarray, "layers heads ..."]:
    """(layers, heads, …) from one array for each layer, each head in the column of its number, NaN elsewhere."""
    columns = across(heads)
    table = np.full((len(rows), len(columns), *rows[0].shape[1:]), np.nan, dtype=rows[0].dtype)
    for at, (row, numbers) in enumerate(zip(rows, heads, strict=True)):
        table[at, np.searchsorted(columns, numbers)] = row
    return table


def placed(values: Sequence[float | None] | np.ndarray, heads: Sequence[Sequence[int]]) -> np.ndarray:
    """(layers, heads) from a value for each head, layer by layer, as `in_columns` has it; None is NaN."""
    ends = np.cumsum([len(numbers) for numbers in heads])[:-1]
    return in_columns(np.split(np.asarray(values, dtype=np.float64), ends), heads)


class MissingMeasureError(InputError, KeyError):
    """The table lacks a measure. Also a KeyError, as mappings require."""

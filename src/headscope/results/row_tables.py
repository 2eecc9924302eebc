"""Records that are tables: rows as dicts, for pyarrow, for pandas, and as HTML in a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headscope.errors import require
from headscope.late import late

if TYPE_CHECKING:
    import pyarrow


class Rows:
    """A record that is a table: subclasses have `rows()`."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dicts."""
        raise NotImplementedError

    @late("headscope.screens.html_tables:html_table")
    def _repr_html_(self) -> str | None:
        """The record as a notebook shows it."""

    def _cells(self) -> Mapping[str, Sequence[Any]]:
        """The columns of the rows."""
        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def arrow(self) -> pyarrow.Table:
        """Return the rows as a table of pyarrow; NaN is null.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        require("pyarrow", "survey", where="arrow")
        import pyarrow

        return pyarrow.table({name: pyarrow.array(of, from_pandas=True) for name, of in self._cells().items()})

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for whatever takes Arrow's tables: `pyarrow.table(rows)`, `polars.from_arrow(rows)`, DuckDB."""
        return self.arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return the rows as a DataFrame of pandas.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", where="to_pandas", otherwise="use rows()")
        import pandas

        return pandas.DataFrame(self.rows())


def plain(value: Any) -> Any:
    """A value that JSON can represent: shapes become lists; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    raise TypeError(f"JSON can't represent a {type(value).__name__}: {value!r}")


def rows_of(cells: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Columns as rows."""
    return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]

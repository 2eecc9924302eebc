"""A watch as a Parquet file: one row per step, layer and head; written whole each time, and read again on resuming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headscope._survey.seal import fault
from headscope.errors import InputError, MissingExtraError
from headscope.writing import write_atomically

if TYPE_CHECKING:
    import pyarrow
    from jaxtyping import Float

KEYS = ("step", "layer", "head")


def check_pyarrow() -> None:
    """Raise MissingExtraError unless pyarrow is installed."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(
            "a Parquet file needs pyarrow, which is not installed",
            where="out",
            advice="pip install 'headscope[survey]', or leave `out` out and read watch.rows()",
        )


def table_of(
    steps: Mapping[int, Float[np.ndarray, "heads_total statistics"]],
    heads: Sequence[tuple[int, int]],
    statistics: Sequence[str],
) -> pyarrow.Table:
    """Columns step, layer, head, then the statistics; null where a head has no value."""
    import pyarrow

    places = np.array(heads, dtype=np.int16).reshape(-1, 2)
    values = np.concatenate(list(steps.values())) if steps else np.empty((0, len(statistics)))
    columns = {
        "step": pyarrow.array(np.repeat(np.array(list(steps), dtype=np.int64), len(heads))),
        "layer": pyarrow.array(np.tile(places[:, 0], len(steps))),
        "head": pyarrow.array(np.tile(places[:, 1], len(steps))),
        **{
            name: pyarrow.array(values[:, at].astype(np.float32), pyarrow.float32(), from_pandas=True)
            for at, name in enumerate(statistics)
        },
    }
    return pyarrow.table(columns)


def write_table(table: pyarrow.Table, path: Path) -> None:
    """Write a table as Parquet, whole or not at all."""
    from headscope._survey.table import sealed_parquet

    write_atomically(path, sealed_parquet(table))


def read_steps(
    path: Path, statistics: Sequence[str], *, until: int
) -> tuple[tuple[tuple[int, int], ...], dict[int, Float[np.ndarray, "heads_total statistics"]]]:
    """The heads and the steps up to `until` that an earlier run wrote.

    Raises:
        InputError: the file is damaged, or not one of a watch over these statistics.
    """
    import pyarrow
    from pyarrow import parquet

    advice = "move it away, or name another file as `out`"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the file can't be read: {error.strerror or error}", where=str(path), advice=advice
        ) from error
    if problem := fault(data):
        raise InputError(f"the file is not one that a watch wrote: {problem}", where=str(path), advice=advice)
    table = parquet.read_table(pyarrow.BufferReader(data))
    if table.column_names != [*KEYS, *statistics]:
        raise InputError(
            f"the file has the columns {', '.join(table.column_names[:20])}",
            where=str(path),
            advice="move it away, name another file as `out`, or watch the same statistics as before",
        )
    columns = {name: table[name].to_numpy() for name in table.column_names}
    steps: dict[int, np.ndarray] = {}
    heads: tuple[tuple[int, int], ...] = ()
    for step in np.unique(columns["step"][columns["step"] <= until]):
        at = columns["step"] == step
        pairs = zip(columns["layer"][at], columns["head"][at], strict=True)
        heads = tuple((int(layer), int(head)) for layer, head in pairs)
        steps[int(step)] = np.stack([columns[name][at] for name in statistics], axis=1).astype(np.float64)
    return heads, steps

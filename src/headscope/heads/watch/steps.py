"""The steps of a watch as a table of heads, and as a Parquet file, which is written whole and read on resuming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headscope.errors import InputError, MissingExtraError, install
from headscope.files import fault, sealed_parquet, write_atomically
from headscope.heads.catalog import CATALOG
from headscope.results.measure import HEADS, Head, HeadValues
from headscope.results.table import HeadTable

if TYPE_CHECKING:
    import pyarrow

Steps: TypeAlias = "dict[int, np.ndarray]"
"""Step -> (heads_total, statistics), NaN where a head has no value."""

KEYS = ("step", "layer", "head")


def check_pyarrow() -> None:
    """Raise MissingExtraError unless pyarrow is installed."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(
            "a Parquet file needs pyarrow, which is not installed",
            where="out",
            advice=f"{install('survey')}, or omit `out` and read watch.rows()",
        )


def table_of(steps: Steps, heads: Sequence[Head], statistics: Sequence[str]) -> HeadTable:
    """The steps as a table of heads; each array is (steps, layers, heads)."""
    layers = tuple(sorted({layer for layer, _ in heads}))
    numbers = tuple(tuple(head for other, head in heads if other == layer) for layer in layers)
    table = HeadTable(
        {},
        layers=layers,
        heads=numbers,
        along={"steps": tuple(steps)},
        left_out=dict.fromkeys(CATALOG, "it is not watched; name it in `statistics`, or leave that out to watch all"),
        source="watch",
    )
    positions = [table.positions()[head] for head in heads]
    rows, columns = np.array(positions, dtype=np.int64).reshape(-1, 2).T
    arrays = np.full((len(steps), len(layers), len(table.across), len(statistics)), np.nan)
    arrays[:, rows, columns] = np.array(list(steps.values())).reshape(len(steps), len(heads), len(statistics))
    values = {
        name: HeadValues.of(CATALOG[name], arrays[..., at], ("steps", *HEADS)) for at, name in enumerate(statistics)
    }
    return replace(table, columns=values)


def file_table(table: HeadTable) -> pyarrow.Table:
    """Columns step, layer, head, then the statistics in fp32; null where a head has no value.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    arrow = table.arrow()
    import pyarrow

    kinds = {"step": pyarrow.int64(), "layer": pyarrow.int16(), "head": pyarrow.int16()}
    return arrow.cast(pyarrow.schema([(name, kinds.get(name, pyarrow.float32())) for name in arrow.column_names]))


def write_steps(table: HeadTable, path: Path) -> None:
    """Write a table as Parquet, whole or not at all."""
    write_atomically(path, sealed_parquet(file_table(table)))


def read_steps(path: Path, statistics: Sequence[str], *, until: int) -> tuple[tuple[Head, ...], Steps]:
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
    steps: Steps = {}
    heads: tuple[Head, ...] = ()
    for step in np.unique(columns["step"][columns["step"] <= until]):
        at = columns["step"] == step
        pairs = zip(columns["layer"][at], columns["head"][at], strict=True)
        heads = tuple((int(layer), int(head)) for layer, head in pairs)
        steps[int(step)] = np.stack([columns[name][at] for name in statistics], axis=1).astype(np.float64)
    return heads, steps

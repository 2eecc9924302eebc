"""Aggregates over all windows, for each head and statistic: mean, deviation, extremes, quantiles.

All of a head's values are collected and sorted before anything is computed from them. So the numbers depend only on
the set of values, not on their order or on how windows are grouped into parts. Quantiles are exact. Memory is bounded:
as many heads are processed at once as BUDGET allows, and the parts are read again for the next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from pyarrow import parquet

from headscope.atlas.survey_data import FIELDS
from headscope.heads.catalog import CATALOG

if TYPE_CHECKING:
    from jaxtyping import Float

BUDGET = 1 << 24
"""Most values in memory at once: 64 MB of fp32, and 128 MB more while they are summed."""

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}

MEASURES = ("count", *FIELDS)
"""Columns of the aggregates, in order."""


def aggregate(
    paths: Sequence[Path], statistics: Sequence[str], heads: int, *, budget: int = BUDGET
) -> dict[str, dict[str, np.ndarray]]:
    """Return statistic -> measure -> (heads,) over every window of the parts. NaN where a head has no value.

    Args:
        paths: the parts.
        statistics: the columns to aggregate.
        heads: number of heads in all layers, which is the number of rows of each window.
        budget: most values in memory at once.
    """
    windows = [parquet.read_metadata(path).num_rows // heads for path in paths]
    total = sum(windows)
    step = max(1, min(heads, budget // max(total, 1)))
    aggregates: dict[str, dict[str, np.ndarray]] = {}
    for name in statistics:
        slabs = []
        for start in range(0, heads, step):
            stop = min(start + step, heads)
            values = np.empty((total, stop - start), dtype=np.float32)
            at = 0
            for path, count in zip(paths, windows, strict=True):
                with parquet.ParquetFile(path) as file:
                    column = file.read(columns=[name]).column(0).to_numpy()
                values[at : at + count] = column.reshape(count, heads)[:, start:stop]
                at += count
            slabs.append(measures(values))
        aggregates[name] = {measure: np.concatenate([slab[measure] for slab in slabs]) for measure in MEASURES}
    return aggregates


def measures(values: Float[np.ndarray, "windows heads"]) -> dict[str, np.ndarray]:
    """Return each measure of each column, ignoring NaN and the order of rows. `values` is sorted in place."""
    values += np.float32(0)  # turns -0 into 0: the two compare equal, so their order would be arbitrary
    values.sort(axis=0)  # NaN last
    heads = values.shape[1]
    count = (~np.isnan(values)).sum(0)
    result = {name: np.full(heads, np.nan) for name in MEASURES}
    result["count"] = count
    for head in range(heads):
        n = int(count[head])
        if not n:
            continue
        head_values = values[:n, head].astype(np.float64)
        mean = head_values.sum() / n
        result["mean"][head] = mean
        result["deviation"][head] = np.sqrt(np.square(head_values - mean).sum() / n)
        result["min"][head], result["max"][head] = head_values[0], head_values[-1]
        for name, share in QUANTILES.items():  # interpolated linearly
            place = share * (n - 1)
            low = int(place)
            at_low, at_high = head_values[low], head_values[min(low + 1, n - 1)]
            result[name][head] = at_low + (at_high - at_low) * (place - low)
    return result


def aggregates_table(aggregates: dict[str, dict[str, np.ndarray]], heads: Sequence[tuple[int, int]]) -> pyarrow.Table:
    """The aggregates: one row per statistic, layer and head."""
    places = np.array(heads, dtype=np.int16).reshape(-1, 2)
    names = pyarrow.array([name for name in aggregates for _ in heads], pyarrow.string())
    columns: dict[str, Any] = {
        "statistic": names,
        "layer": np.tile(places[:, 0], len(aggregates)),
        "head": np.tile(places[:, 1], len(aggregates)),
    }
    for measure in MEASURES:
        kind = pyarrow.int64() if measure == "count" else pyarrow.float64()
        numbers = np.concatenate([aggregates[name][measure] for name in aggregates]) if aggregates else np.empty(0)
        columns[measure] = pyarrow.array(numbers, kind, from_pandas=True)
    return pyarrow.table(columns)


def aggregates_record(
    aggregates: dict[str, dict[str, np.ndarray]], heads: Sequence[tuple[int, int]], windows: int
) -> dict[str, Any]:
    """The aggregates for JSON: each measure a list of layers, each a list of heads; None where a head has no value."""
    layers = sorted({layer for layer, _ in heads})
    rows = {layer: [at for at, (other, _) in enumerate(heads) if other == layer] for layer in layers}

    def lists(numbers: np.ndarray) -> list[list[float | int | None]]:
        return [[None if np.isnan(numbers[at]) else numbers[at].item() for at in rows[layer]] for layer in layers]

    return {
        "windows": windows,
        "layers": layers,
        "heads": [[heads[at][1] for at in rows[layer]] for layer in layers],
        "statistics": {
            name: {"meaning": CATALOG[name].meaning, **{measure: lists(table[measure]) for measure in MEASURES}}
            for name, table in aggregates.items()
        },
    }

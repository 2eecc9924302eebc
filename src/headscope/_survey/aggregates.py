"""From the rows of all parts to one line per head and statistic: mean, deviation, extremes, quantiles.

All of a head's values are brought together and sorted before anything is computed from them. So the numbers depend on
which values there are and on nothing else: not on their order, nor on how windows were cut into parts. Quantiles are
exact. Memory is bounded: as many heads are in hand at once as BUDGET allows, and parts are read again for the next.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from pyarrow import parquet

from headscope._survey.findings import FIELDS
from headscope._survey.table import columns_of
from headscope.statistics.catalog import CATALOG

if TYPE_CHECKING:
    from jaxtyping import Float

BUDGET = 1 << 24
"""Numbers in hand at once: 64 MB of fp32, 128 MB more while they are summed."""

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}

MEASURES = ("count", *FIELDS)
"""Columns of the aggregates, in order."""


def aggregate(
    paths: Sequence[Path], statistics: Sequence[str], heads: int, *, budget: int = BUDGET
) -> dict[str, dict[str, np.ndarray]]:
    """Statistic -> measure -> (heads,) over every window of the parts. NaN where a head has no value.

    Args:
        paths: the parts.
        statistics: which columns.
        heads: heads of all layers together: so many rows of a part belong to one window.
        budget: numbers in hand at once.
    """
    windows = [parquet.read_metadata(path).num_rows // heads for path in paths]
    total = sum(windows)
    step = max(1, min(heads, budget // max(total, 1)))
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in statistics:
        slabs = []
        for start in range(0, heads, step):
            stop = min(start + step, heads)
            values = np.empty((total, stop - start), dtype=np.float32)
            at = 0
            for path, count in zip(paths, windows, strict=True):
                column = columns_of(path, [name]).column(0).to_numpy()
                values[at : at + count] = column.reshape(count, heads)[:, start:stop]
                at += count
            slabs.append(measures(values))
        found[name] = {measure: np.concatenate([slab[measure] for slab in slabs]) for measure in MEASURES}
    return found


def measures(values: Float[np.ndarray, "windows heads"]) -> dict[str, np.ndarray]:
    """Each measure of each column, NaN left out. The order of rows changes nothing; `values` is sorted in place."""
    values += np.float32(0)  # -0 becomes 0, which it would sort with in any order
    values.sort(axis=0)  # NaN last
    heads = values.shape[1]
    count = (~np.isnan(values)).sum(0)
    found = {name: np.full(heads, np.nan) for name in MEASURES}
    found["count"] = count
    for head in range(heads):
        n = int(count[head])
        if not n:
            continue
        there = values[:n, head].astype(np.float64)
        mean = there.sum() / n
        found["mean"][head] = mean
        found["deviation"][head] = np.sqrt(np.square(there - mean).sum() / n)
        found["min"][head], found["max"][head] = there[0], there[-1]
        for name, share in QUANTILES.items():
            found[name][head] = _quantile(there, share)
    return found


def _quantile(there: Float[np.ndarray, " n"], share: float) -> float:
    """Between the two nearest of sorted values, linearly."""
    place = share * (len(there) - 1)
    low = int(place)
    high = min(low + 1, len(there) - 1)
    return float(there[low] + (there[high] - there[low]) * (place - low))


def aggregates_parquet(found: dict[str, dict[str, np.ndarray]], heads: Sequence[tuple[int, int]]) -> bytes:
    """One row per statistic, layer and head."""
    places = np.array(heads, dtype=np.int16).reshape(-1, 2)
    names = pyarrow.array([name for name in found for _ in heads], pyarrow.string())
    columns: dict[str, Any] = {
        "statistic": names,
        "layer": np.tile(places[:, 0], len(found)),
        "head": np.tile(places[:, 1], len(found)),
    }
    for measure in MEASURES:
        kind = pyarrow.int64() if measure == "count" else pyarrow.float64()
        numbers = np.concatenate([found[name][measure] for name in found]) if found else np.empty(0)
        columns[measure] = pyarrow.array(numbers, kind, from_pandas=True)
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), sink, compression="zstd")
    return sink.getvalue()


def aggregates_record(
    found: dict[str, dict[str, np.ndarray]], heads: Sequence[tuple[int, int]], windows: int
) -> dict[str, Any]:
    """The same for JSON: measures as lists of layers of lists of heads; None where there is no number."""
    layers = sorted({layer for layer, _ in heads})
    rows = {layer: [at for at, (one, _) in enumerate(heads) if one == layer] for layer in layers}

    def lists(numbers: np.ndarray) -> list[list[float | int | None]]:
        return [[None if np.isnan(numbers[at]) else numbers[at].item() for at in rows[layer]] for layer in layers]

    return {
        "windows": windows,
        "layers": layers,
        "heads": [[heads[at][1] for at in rows[layer]] for layer in layers],
        "statistics": {
            name: {"meaning": CATALOG[name].meaning, **{measure: lists(of[measure]) for measure in MEASURES}}
            for name, of in found.items()
        },
    }

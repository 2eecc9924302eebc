"""What a survey found, read back from its folder: the aggregates, the manifest, the distances between heads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from jaxtyping import Float

FORMAT = "headscope survey 1"
"""What a manifest says that it is."""

FIELDS = ("mean", "deviation", "min", "q05", "q25", "q50", "q75", "q95", "max")
"""What there is of every statistic; q05 is the quantile below which 5% of the windows lie."""


@dataclass(frozen=True)
class Findings:
    """A survey's results.

    Attributes:
        manifest: as docs describe it: model, settings, corpus, counts, refused documents.
        layers: the number of each layer in the model.
        heads: the numbers of heads, across; a layer that lacks one has NaN there.
        statistics: name -> field (FIELDS, and `count` of windows) -> (layers, heads).
        distances: (heads_total, heads_total), layer 0's heads first, or None where none were measured.
        named: (layer, head) of each row of `distances`, or of every head there is.
    """

    manifest: Mapping[str, Any]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    statistics: Mapping[str, Mapping[str, Float[np.ndarray, "layers heads"]]]
    distances: Float[np.ndarray, "heads_total heads_total"] | None
    named: tuple[tuple[int, int], ...]

    def values(self, statistic: str, field: str = "mean") -> Float[np.ndarray, "layers heads"]:
        """(layers, heads): one field of a statistic; NaN everywhere for one that was not measured."""
        if statistic in self.statistics:
            return self.statistics[statistic][field]
        return np.full((len(self.layers), len(self.heads)), np.nan)


def read_findings(folder: Path) -> Findings:
    """Read a finished survey.

    Raises:
        InputError: the folder has no survey, or one that is not complete.
        MissingExtraError: there are distances between heads, and pyarrow is not installed.
    """
    manifest, aggregates = read_records(folder)
    layers = tuple(aggregates["layers"])
    named = tuple((layer, head) for layer, row in zip(layers, aggregates["heads"], strict=True) for head in row)
    statistics = {
        name: {field: table_of(aggregates, name, field) for field in (*FIELDS, "count")}
        for name in aggregates["statistics"]
    }
    similar = folder / "similarity.parquet"
    distances = _distances(similar, named) if similar.exists() else None
    return Findings(manifest, layers, heads_across(aggregates), statistics, distances, named)


def read_records(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the aggregates of a finished survey.

    Raises:
        InputError: the folder has no survey, or one that is not complete.
    """
    manifest = _json(folder / "manifest.json")
    if manifest.get("format") != FORMAT or not manifest.get("complete"):
        raise InputError(
            f"the manifest says format {manifest.get('format')!r}, complete {manifest.get('complete')!r}; "
            f"expected {FORMAT!r}, complete True",
            where=str(folder / "manifest.json"),
            advice="run the same survey command again: it goes on where it stopped",
        )
    return manifest, _json(folder / "aggregates.json")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"there is no {path.name}",
            where=str(path.parent),
            advice="name the folder that `headscope survey --out` wrote",
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"the file can't be read: {error}", where=str(path), advice="run the same survey command again"
        ) from error
    if not isinstance(found, dict):
        raise InputError("the file holds no JSON object", where=str(path), advice="run the same survey command again")
    return found


def heads_across(aggregates: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of heads that any layer has: the columns of every table."""
    return tuple(sorted({head for own in aggregates["heads"] for head in own}))


def table_of(aggregates: Mapping[str, Any], statistic: str, field: str) -> Float[np.ndarray, "layers heads"]:
    """One field of a statistic, each value in its head's column; NaN where there is no value or no such head."""
    rows, heads = aggregates["statistics"][statistic][field], heads_across(aggregates)
    found = np.full((len(rows), len(heads)), np.nan)
    for at, (row, own) in enumerate(zip(rows, aggregates["heads"], strict=True)):
        found[at, np.searchsorted(heads, own)] = np.array(row, dtype=np.float64)
    return found


def _distances(path: Path, named: tuple[tuple[int, int], ...]) -> Float[np.ndarray, "heads_total heads_total"]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError(
            "reading a survey's distances needs pyarrow, which is not installed",
            where=str(path),
            advice="pip install 'headscope[survey]'",
        ) from error
    values = pq.read_table(path, columns=["distance"])["distance"].to_numpy()
    if len(values) != len(named) ** 2:
        raise InputError(
            f"the file has {len(values)} rows; expected {len(named) ** 2}, one for each pair of {len(named)} heads",
            where=str(path),
            advice="run the survey again into an empty folder",
        )
    return np.asarray(values, dtype=np.float64).reshape(len(named), len(named))

"""A finished survey's folder, made from random numbers: the files that the report and the figures read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headscope.atlas.survey_data import FORMAT, owner_of
from headscope.files import BLANK, MARK, sealed, sealed_parquet
from headscope.heads import CATALOG

RUN = "cd" * 32
"""What the labels of its files begin with."""

ROOF = {"entropy": 5.0, "effective_tokens": 60.0, "distance": 70.0, "norm": 12.0}
LEVELS = {"min": 0.0, "q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "max": 1.0}


def finished(
    folder: Path,
    *,
    layers: int = 3,
    heads: int = 4,
    windows: int = 9,
    similarity: bool = True,
    unmeasured: tuple[str, ...] = ("other_sentence",),
    name: str = "small-bert",
    corpus: str = "texts",
    refused: tuple[str, ...] = ("empty.txt",),
    missing: tuple[tuple[int, int], ...] = (),
) -> Path:
    """Write manifest.json, aggregates.json and, if asked, similarity.parquet.

    Args:
        unmeasured: statistics without a value in any window.
        missing: (layer, head) that the model lacks.
    """
    random = np.random.default_rng(5)
    numbers = [[head for head in range(heads) if (layer, head) not in missing] for layer in range(layers)]
    statistics: dict[str, Any] = {}
    for statistic in CATALOG:
        values = random.beta(0.6, 1.6, (layers, heads, 1)) + random.normal(0, 0.03, (layers, heads, windows))
        values = np.clip(values, 0, 1) * ROOF.get(statistic, 1.0)
        if statistic == "offset":
            values = 30 * (values - 0.4)
        fields = {field: np.quantile(values, level, axis=-1) for field, level in LEVELS.items()}
        fields = {"mean": values.mean(-1), "deviation": values.std(-1), **fields}
        gone = statistic in unmeasured
        statistics[statistic] = {
            "meaning": CATALOG[statistic].meaning,
            "count": [[0 if gone else windows for _ in own] for own in numbers],
            **{
                field: [[None if gone else float(table[at][head]) for head in own] for at, own in enumerate(numbers)]
                for field, table in fields.items()
            },
        }
    folder.mkdir(parents=True, exist_ok=True)
    aggregates = {"windows": windows, "layers": list(range(layers)), "heads": numbers, "statistics": statistics}
    model = {"name": name, "class": "BertModel", "sha256": "ab" * 32, "layers": aggregates["layers"]}
    model |= {"heads": numbers, "parameters": 109482240}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "complete": True,
        "model": model,
        "settings": {"length": 512, "dtype": "fp32", "device": "cpu", "statistics": list(CATALOG), "head_distances": 2},
        "versions": {"headscope": "0.1.0", "numpy": "2.0"},
        "corpus": {"name": corpus, "kind": "text", "files": [{"name": "a.txt", "bytes": 1234}]},
        "statistics": list(CATALOG),
        "left_out": {},
        "counts": {"documents": 3, "refused": len(refused), "windows": windows, "tokens": 4321, "unknown": 0},
        "refused": {
            "reasons": {"empty": len(refused)} if refused else {},
            "documents": [{"document": one, "reason": "empty", "detail": "it has no text"} for one in refused],
        },
        "parts": [],
        "files": {},
        "seal": f"{RUN} manifest.json ",
    }
    aggregates["seal"] = owner_of(manifest).label("aggregates.json")
    write_json(folder, "aggregates.json", aggregates)
    manifest["files"]["aggregates.json"] = {"bytes": (folder / "aggregates.json").stat().st_size}
    if similarity:
        manifest["similarity"] = {"windows": [{"document": "a.txt", "window": 0}]}
        named = [(layer, head) for layer, own in enumerate(numbers) for head in own]
        points = random.normal(size=(len(named), 2)) / 8
        apart = np.minimum(np.linalg.norm(points[:, None] - points[None], axis=-1), 0.83)
        pairs = [(*a, *b) for a in named for b in named]
        columns = dict(zip(("layer_a", "head_a", "layer_b", "head_b"), zip(*pairs, strict=True), strict=True))
        table = pa.table(
            {key: pa.array(column, pa.int16()) for key, column in columns.items()}
            | {"distance": pa.array(apart.ravel()), "windows": pa.array([1] * len(pairs), pa.int32())}
        )
        add_table(folder, manifest, "similarity", table)
    write_manifest(folder, manifest)
    return folder


def add_table(folder: Path, manifest: dict[str, Any], name: str, table: pa.Table) -> None:
    """Write a table of a survey, and list it in the manifest, which the caller writes."""
    path = folder / f"{name}.parquet"
    path.write_bytes(sealed_parquet(table, owner_of(manifest).label(path.name)))
    manifest["files"][path.name] = {"bytes": path.stat().st_size}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write manifest.json, whose seal is made anew."""
    write_json(folder, "manifest.json", manifest)


def write_json(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Write a record with its seal: its label, and the hash of the rest."""
    label = record["seal"].partition(MARK.decode())[0]
    (folder / name).write_bytes(sealed(json.dumps({**record, "seal": label + BLANK.decode()}).encode()))

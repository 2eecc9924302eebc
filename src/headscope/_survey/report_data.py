"""The data of a survey's site as JSON. `Survey` in web/src/report/data.ts has the same names.

Heads are numbered by their cells of the grid: row * columns + column. Untrusted text is made printable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from headscope._survey.figures import CLUSTERS_SOURCE, CLUSTERS_TITLE, FIGURES, layer_ticks, round_up
from headscope._survey.findings import FIELDS, Findings
from headscope._survey.plane import plane_of
from headscope._survey.site_data import (
    Tables,
    distances_data,
    effects_data,
    labels_data,
    middle_data,
    special_data,
    syntax_data,
)
from headscope._survey.wording import extremes
from headscope.checkpoint import called
from headscope.pages import printable
from headscope.statistics import CATALOG

NEAREST = 5
"""Most similar heads listed for each head."""
FILES = 1000
"""Most files of the corpus that are listed."""


def report_data(findings: Findings, tables: Tables) -> dict[str, Any]:
    """All data but those of single heads' pages, which `heads_data` has."""
    manifest = findings.manifest
    model, corpus, settings, counts = (manifest[part] for part in ("model", "corpus", "settings", "counts"))
    return {
        "model": {
            "name": printable(called(str(model["name"]))),
            "class": printable(str(model["class"])),
            "file": _plain(model["name"]),
            "sha256": _plain(model["sha256"]),
            "parameters": model["parameters"],
        },
        "corpus": {
            "name": printable(str(corpus["name"])),
            "kind": printable(str(corpus["kind"])),
            "count": len(corpus["files"]),
            "files": [[printable(str(file["name"])), file["bytes"]] for file in corpus["files"][:FILES]],
        },
        "settings": _pairs(settings),
        "versions": _pairs(manifest["versions"]),
        "counts": {name: counts[name] for name in ("documents", "windows", "tokens")},
        "run": {
            "length": settings["length"],
            "dtype": printable(str(settings["dtype"])),
            "device": printable(str(settings["device"])),
            "examples": settings.get("examples", 0),
        },
        "layers": findings.layers,
        "heads": findings.heads,
        "named": [_cell(findings, layer, head) for layer, head in findings.named],
        "ticks": layer_ticks(findings.layers),
        "statistics": [statistic_words(name) | _fields(fields) for name, fields in findings.statistics.items()],
        "standing": [standing for name in findings.statistics for standing in _standing(findings, name)],
        "figures": _figures(findings),
        "plane": _plane(findings),
        "nearest": _nearest(findings),
        "labels": labels_data(tables),
        "syntax": syntax_data(tables),
        "distances": distances_data(tables),
        "middle": middle_data(tables),
        "effects": effects_data(tables),
        "special": special_data(tables),
        "compared": len(manifest.get("similarity", {}).get("windows", [])),
        "leftOut": _pairs(manifest["left_out"]),
        "refused": {
            "count": counts["refused"],
            "reasons": [[printable(reason), number] for reason, number in manifest["refused"]["reasons"].items()],
            "documents": [
                [printable(str(refused["document"])), printable(str(refused["detail"]))]
                for refused in manifest["refused"]["documents"]
            ],
        },
    }


def statistic_words(name: str) -> dict[str, Any]:
    """A statistic's name, meaning and unit, as the report shows them."""
    statistic = CATALOG[name]
    short = statistic.unit.names[0] if statistic.unit.names else ""
    return {
        "name": name,
        "meaning": statistic.described,
        "unit": statistic.unit.name,
        "short": short if short in ("nats", "tokens") else "",
        "signed": statistic.signed,
    }


def _fields(fields: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Every field, layer by layer, null for a missing value."""
    return {
        **{field: [_number(value) for value in fields[field].ravel()] for field in FIELDS},
        "count": [0 if np.isnan(count) else int(count) for count in fields["count"].ravel()],
    }


def _number(value: float) -> float | None:
    """A number with nine digits, more than the report shows, so that rounding twice makes no difference."""
    return float(f"{value:.9g}") if np.isfinite(value) else None


def _cell(findings: Findings, layer: int, head: int) -> int:
    return findings.layers.index(layer) * len(findings.heads) + findings.heads.index(head)


def _standing(findings: Findings, statistic: str) -> list[dict[str, Any]]:
    return [
        {
            "statistic": statistic,
            "says": extreme.says,
            "heads": [[_cell(findings, layer, head), _number(value)] for layer, head, value in extreme.heads],
            "low": _number(extreme.low),
            "high": _number(extreme.high),
            "middle": _number(extreme.middle),
        }
        for extreme in extremes(findings, statistic)
    ]


def _figures(findings: Findings) -> list[dict[str, Any]]:
    """The figures that show a measured statistic."""
    figures = []
    for figure in FIGURES:
        if not any(name in findings.statistics for name in figure.panels):
            continue
        values = np.concatenate([findings.values(name).ravel() for name in figure.panels])
        highest = np.max(values, initial=0.0, where=np.isfinite(values))
        figures.append(
            {
                "title": figure.title,
                "axis": figure.axis,
                "source": figure.source,
                "panels": list(figure.panels.items()),
                "highest": round_up(float(highest)),
            }
        )
    return figures


def _plane(findings: Findings) -> dict[str, Any] | None:
    if findings.distances is None:
        return None
    cells = [_cell(findings, layer, head) for layer, head in findings.named]
    names = [f"{layer}.{head}" for layer, head in findings.named]
    return {
        "title": CLUSTERS_TITLE,
        "source": CLUSTERS_SOURCE,
        "windows": len(findings.manifest.get("similarity", {}).get("windows", [])),
        **plane_of(findings.distances, names, cells),
    }


def _nearest(findings: Findings) -> list[list[tuple[int, float | None]]] | None:
    """For each cell, the cells of the most similar heads, with their distances."""
    if findings.distances is None:
        return None
    cells = [_cell(findings, layer, head) for layer, head in findings.named]
    nearest: list[list[tuple[int, float | None]]] = [[] for _ in range(len(findings.layers) * len(findings.heads))]
    for at, cell in enumerate(cells):
        others = [other for other in np.argsort(findings.distances[at], kind="stable") if other != at][:NEAREST]
        nearest[cell] = [(cells[other], _number(findings.distances[at, other])) for other in others]
    return nearest


def _pairs(table: Mapping[str, Any]) -> list[list[str]]:
    return [[printable(str(name)), _plain(value)] for name, value in table.items()]


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True))

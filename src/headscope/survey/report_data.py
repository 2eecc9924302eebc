"""What a survey's report is told, as JSON: `Survey` in web/src/report/data.ts has the same names.

Heads are cells of the grid: row * columns + column. Text that nobody vouches for is printable, and text only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from headscope.checkpoint import called
from headscope.pages import printable
from headscope.survey.figures import CLUSTERS_SOURCE, CLUSTERS_TITLE, FIGURES, layer_ticks, round_up
from headscope.survey.findings import FIELDS, Findings
from headscope.survey.plane import plane_of
from headscope.survey.wording import SIGNED, UNITS, meaning, telling

NEAREST = 5
"""How many of the heads most like it are named for each head."""
FILES = 1000
"""How many of the corpus's files are listed."""


def report_data(found: Findings) -> dict[str, Any]:
    """Everything that the report shows."""
    manifest = found.manifest
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
        },
        "layers": found.layers,
        "heads": found.heads,
        "named": [_cell(found, layer, head) for layer, head in found.named],
        "ticks": layer_ticks(found.layers),
        "statistics": [statistic_words(name) | _fields(fields) for name, fields in found.statistics.items()],
        "standing": [one for name in found.statistics for one in _standing(found, name)],
        "figures": _figures(found),
        "plane": _plane(found),
        "nearest": _nearest(found),
        "leftOut": _pairs(manifest["left_out"]),
        "refused": {
            "count": counts["refused"],
            "reasons": [[printable(reason), number] for reason, number in manifest["refused"]["reasons"].items()],
            "documents": [
                [printable(str(one["document"])), printable(str(one["detail"]))]
                for one in manifest["refused"]["documents"]
            ],
        },
    }


def statistic_words(name: str) -> dict[str, Any]:
    """A statistic's name, meaning and unit, as the report says them."""
    word = UNITS[name].split(",")[0].split(";")[0]
    return {
        "name": name,
        "meaning": meaning(name),
        "unit": UNITS[name],
        "short": word if word in ("nats", "tokens") else "",
        "signed": name in SIGNED,
    }


def _fields(fields: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Every field, layer after layer, null where there is none."""
    return {
        **{field: [_number(value) for value in fields[field].ravel()] for field in FIELDS},
        "count": [0 if np.isnan(count) else int(count) for count in fields["count"].ravel()],
    }


def _number(value: float) -> float | None:
    """Nine digits: more than the screen shows, so that rounding there is as good as rounding once."""
    return float(f"{value:.9g}") if np.isfinite(value) else None


def _cell(found: Findings, layer: int, head: int) -> int:
    return found.layers.index(layer) * len(found.heads) + found.heads.index(head)


def _standing(found: Findings, statistic: str) -> list[dict[str, Any]]:
    return [
        {
            "statistic": statistic,
            "says": one.says,
            "heads": [[_cell(found, layer, head), _number(value)] for layer, head, value in one.heads],
            "low": _number(one.low),
            "high": _number(one.high),
            "middle": _number(one.middle),
        }
        for one in telling(found, statistic)
    ]


def _figures(found: Findings) -> list[dict[str, Any]]:
    """The figures that show a measured statistic."""
    made = []
    for figure in FIGURES:
        if not any(name in found.statistics for name in figure.panels):
            continue
        values = np.concatenate([found.values(name).ravel() for name in figure.panels])
        highest = np.max(values, initial=0.0, where=np.isfinite(values))
        made.append(
            {
                "title": figure.title,
                "axis": figure.axis,
                "source": figure.source,
                "panels": list(figure.panels.items()),
                "highest": round_up(float(highest)),
            }
        )
    return made


def _plane(found: Findings) -> dict[str, Any] | None:
    if found.distances is None:
        return None
    cells = [_cell(found, layer, head) for layer, head in found.named]
    names = [f"{layer}.{head}" for layer, head in found.named]
    return {
        "title": CLUSTERS_TITLE,
        "source": CLUSTERS_SOURCE,
        "windows": len(found.manifest.get("similarity", {}).get("windows", [])),
        **plane_of(found.distances, names, cells),
    }


def _nearest(found: Findings) -> list[list[tuple[int, float | None]]] | None:
    """For each cell the cells of the heads most like it, with their distances."""
    if found.distances is None:
        return None
    cells = [_cell(found, layer, head) for layer, head in found.named]
    nearest: list[list[tuple[int, float | None]]] = [[] for _ in range(len(found.layers) * len(found.heads))]
    for at, cell in enumerate(cells):
        others = [other for other in np.argsort(found.distances[at], kind="stable") if other != at][:NEAREST]
        nearest[cell] = [(cells[other], _number(found.distances[at, other])) for other in others]
    return nearest


def _pairs(table: Mapping[str, Any]) -> list[list[str]]:
    return [[printable(str(name)), _plain(value)] for name, value in table.items()]


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True))

"""A survey as one offline HTML file: the grid of heads, each head's numbers, what stands out, the figures."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from headscope._survey.colours import STEPS, rules
from headscope._survey.findings import FIELDS, Findings, read_findings
from headscope._survey.report_sections import sections, title, visible
from headscope.statistics import CATALOG
from headscope.writing import write_atomically

NEAREST = 5
"""How many of the heads most like it are named for each head."""


def write_report(folder: Path, *, parts: bool = True) -> Path:
    """Write report.html into a finished survey's folder, from its manifest, aggregates and distances.

    One file that needs no network. The same survey gives the same bytes. Names of models and documents are text that
    nobody vouches for: they are escaped, and the page's policy runs no script but its own.

    Args:
        parts: whether every part is held against its hash first.

    Raises:
        InputError: the folder has no finished survey, or the file can't be written.
    """
    path = Path(folder) / "report.html"
    write_atomically(path, report_html(read_findings(Path(folder), parts=parts)).encode())
    return path


def report_html(found: Findings) -> str:
    """The report's text."""
    script = _own("report.js")
    style = _own("report.css") + rules()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{visible(title(found))}</title>\n<style>{style}</style>\n</head>\n<body>\n{sections(found)}\n"
        f'<script type="application/json" id="data">{inert(page_data(found))}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def page_data(found: Findings) -> dict[str, Any]:
    """What the report's script reads: every field of every statistic, layer after layer, null where there is none."""
    return {
        "layers": found.layers,
        "heads": found.heads,
        "windows": f"{found.manifest['counts']['windows']:,}",
        "steps": STEPS,
        "statistics": [
            {
                "name": name,
                "meaning": CATALOG[name].described,
                "unit": CATALOG[name].unit.name,
                "signed": CATALOG[name].signed,
                **{field: _numbers(fields[field]) for field in FIELDS},
                "count": [0 if np.isnan(count) else int(count) for count in fields["count"].ravel()],
            }
            for name, fields in found.statistics.items()
        ],
        "nearest": _nearest(found),
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    """Seven digits: what fp32 holds."""
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values.ravel()]


def _nearest(found: Findings) -> list[list[tuple[int, float]]] | None:
    """For each cell of the grid the cells of the heads most like it, with their distances."""
    if found.distances is None:
        return None
    cells = [found.layers.index(layer) * len(found.heads) + found.heads.index(head) for layer, head in found.named]
    nearest: list[list[tuple[int, float]]] = [[] for _ in range(len(found.layers) * len(found.heads))]
    for at, cell in enumerate(cells):
        others = [other for other in np.argsort(found.distances[at], kind="stable") if other != at][:NEAREST]
        nearest[cell] = [(cells[other], float(f"{found.distances[at, other]:.7g}")) for other in others]
    return nearest


def inert(value: Any) -> str:
    """JSON that can't end the script element it stands in, nor open a comment there."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _own(name: str) -> str:
    return (files("headscope._survey") / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

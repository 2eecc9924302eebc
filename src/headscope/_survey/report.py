"""A survey as a small site that opens from disk: a home page and one page per head; or all of it as a single file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headscope._survey.durable import make_folder
from headscope._survey.findings import FIELDS, Findings, read_findings
from headscope._survey.report_data import report_data
from headscope._survey.site_data import Tables, heads_data
from headscope.checkpoint import called
from headscope.pages import filled, filled_beside, json_element, printable, shared
from headscope.writing import write_atomically

SITE = "site"
"""The folder of the site, in the survey's."""

HOME_ONLY = ("standing", "figures", "plane", "distances", "settings", "versions")
"""Data that heads' pages don't show."""

OF_OTHERS = ("label", "kind", "offset", "relation", "way", "act", "score", "coverage", "partly")
"""Of other heads' labels, what a head's page shows."""


def write_site(folder: Path, *, parts: bool = True) -> Path:
    """Write site/ into a finished survey's folder: index.html, and a page for each head.

    Links are relative; no page needs the network. The same survey gives the same bytes. Names of models and documents
    and the texts of the corpus are untrusted: they are data, never markup, in pages whose policy allows only the
    scripts beside them.

    Args:
        folder: of the survey.
        parts: check every part against its hash first.

    Returns:
        The path of the site's home page.

    Raises:
        InputError: the folder has no finished survey, or a file can't be written.
    """
    site = Path(folder) / SITE
    findings = read_findings(Path(folder), parts=parts)
    make_folder(site)
    names = set()
    for name, content in site_pages(Path(folder), findings):
        write_atomically(site / name, content)
        names.add(name)
    for other in site.glob("head-*.html"):
        if other.name not in names:
            other.unlink()
    return site / "index.html"


def write_report(folder: Path, *, parts: bool = True) -> Path:
    """Write report.html into a finished survey's folder: the whole site as a single file. See `write_site`."""
    path = Path(folder) / "report.html"
    findings = read_findings(Path(folder), parts=parts)
    tables = Tables(Path(folder), findings)
    data = {**report_data(findings, tables), "single": True}
    heads = heads_data(tables)
    named = data["named"]
    elements = _elements(data, [heads[cell] for cell in named])
    write_atomically(path, filled("report", title=_title(findings), elements=elements))
    return path


def site_pages(folder: Path, findings: Findings) -> Iterator[tuple[str, bytes]]:
    """The name and the bytes of each file of the site."""
    yield from shared("report").items()
    tables = Tables(folder, findings)
    data = {**report_data(findings, tables), "single": False}
    yield "index.html", filled_beside("report", title=_title(findings), elements=_elements(data, []))
    heads = heads_data(tables)
    for (layer, head), cell in zip(findings.named, data["named"], strict=True):
        title = f"{layer}.{head} · {_title(findings)}"
        page = filled_beside("report", title=title, elements=_elements(_of_head(data, cell), [heads[cell]]))
        yield f"head-{layer}-{head}.html", page


def _of_head(data: dict[str, Any], cell: int) -> dict[str, Any]:
    """The data that a head's page needs: of other heads, the means of statistics, and labels."""
    statistics = [
        {
            **statistic,
            "mean": [
                None if mean is None else float(f"{mean:.4g}") if at != cell else mean
                for at, mean in enumerate(statistic["mean"])
            ],
            **{field: {str(cell): statistic[field][cell]} for field in (*FIELDS, "count") if field != "mean"},
        }
        for statistic in data["statistics"]
    ]
    nearest = data["nearest"] and [near if at == cell else [] for at, near in enumerate(data["nearest"])]
    syntax = data["syntax"] and [row for row in data["syntax"] if row["cell"] == cell]
    empty: dict[str, Any] = {
        name: None if data[name] is None or name in ("plane", "distances") else [] for name in HOME_ONLY
    }
    labels = data["labels"] and [
        label if label is None or at == cell else {name: label[name] for name in OF_OTHERS} | {"also": []}
        for at, label in enumerate(data["labels"])
    ]
    corpus = {**data["corpus"], "files": []}
    refused = {"count": 0, "reasons": [], "documents": []}
    return {
        **data,
        **empty,
        "corpus": corpus,
        "refused": refused,
        "statistics": statistics,
        "nearest": nearest,
        "labels": labels,
        "syntax": syntax,
    }


def _title(findings: Findings) -> str:
    model, corpus = called(str(findings.manifest["model"]["name"])), findings.manifest["corpus"]["name"]
    return printable(f"{model} over {corpus} · headscope survey")


def _elements(data: dict[str, Any], heads: list[dict[str, Any]]) -> list[bytes]:
    return [json_element("hs-survey", data), json_element("hs-heads", heads)]

"""A survey as one offline HTML file: the page that web/src/report builds, with the survey's numbers inside."""

from __future__ import annotations

from pathlib import Path

from headscope._survey.findings import Findings, read_findings
from headscope._survey.report_data import report_data
from headscope.checkpoint import called
from headscope.pages import filled, json_element, printable
from headscope.writing import write_atomically


def write_report(folder: Path, *, parts: bool = True) -> Path:
    """Write report.html into a finished survey's folder, from its manifest, aggregates and distances.

    One file that needs no network. The same survey gives the same bytes. Names of models and documents are text that
    nobody vouches for: they are data of a page whose policy runs no script but its own, and never markup.

    Args:
        parts: whether every part is held against its hash first.

    Raises:
        InputError: the folder has no finished survey, or the file can't be written.
    """
    path = Path(folder) / "report.html"
    write_atomically(path, report_page(read_findings(Path(folder), parts=parts)))
    return path


def report_page(findings: Findings) -> bytes:
    """The report's bytes."""
    model, corpus = called(str(findings.manifest["model"]["name"])), findings.manifest["corpus"]["name"]
    title = printable(f"{model} over {corpus} · headscope survey")
    return filled("report", title=title, elements=[json_element("hs-survey", report_data(findings))])

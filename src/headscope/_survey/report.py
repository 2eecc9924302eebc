"""A survey as one offline HTML file: the page built from web/src/report, with the survey's numbers embedded."""

from __future__ import annotations

from pathlib import Path

from headscope._survey.findings import Findings, read_findings
from headscope._survey.report_data import report_data
from headscope.checkpoint import called
from headscope.pages import filled, json_element, printable
from headscope.writing import write_atomically


def write_report(folder: Path, *, parts: bool = True) -> Path:
    """Write report.html into a finished survey's folder, from its manifest, aggregates and distances.

    The file needs no network, and the same survey gives the same bytes. Names of models and documents are untrusted:
    they are data, never markup, in a page whose policy allows only its own script.

    Args:
        folder: of the survey.
        parts: check every part against its hash first.

    Returns:
        The report's path.

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

"""The findings at the top of `headscope attend`: a few sentences below the title, and all of them in the record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from headscope.explain.findings import Finding, findings
from headscope.view.terminal import Line, Paper, Sheet, prose

if TYPE_CHECKING:
    from headscope._trace import Trace

OPENING = 3
"""The most findings that a screen opens with."""


def with_findings(sheet: Sheet, trace: Trace, layer: int | None = None, head: int | None = None) -> Sheet:
    """Add findings to the sheet of a trace, or of one layer or head of it, below the title.

    They are computed when the screen is drawn or the record is made, but not for a table.
    """

    @cache
    def chosen() -> tuple[Finding, ...]:
        every = findings(trace, layers=None if layer is None else [layer])
        return tuple(finding for finding in every if head is None or any(cell.head == head for cell in finding.cells))

    def draw(paper: Paper) -> Iterable[Line]:
        for finding in chosen()[:OPENING]:
            yield from prose(finding.sentence, mark=f"{paper.sign('•', '-')} ")(paper)

    first, *rest = sheet.drawings
    return replace(
        sheet,
        record=lambda: {**sheet.record(), "findings": [finding.as_dict() for finding in chosen()]},
        drawings=(first, draw, *rest),
    )

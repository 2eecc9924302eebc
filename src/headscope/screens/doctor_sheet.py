"""A model's soundness: one screen of numbers, each beside its limit or what is usual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headscope.checkpoint import called
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Drawing, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.results.report import Check, Report

COLUMNS = (
    Column("name", "line", kind="code"),
    Column("agrees", "sound"),
    Column("worst", "number", align="right", form=".3g"),
    Column("tolerance", "limit", align="right", form=".1g"),
    Column("usual", "usual", kind="prose"),
    Column("earlier", "earlier", align="right", form=".3g"),
    Column("where", "at", kind="prose"),
    Column("compared", "what it is", kind="prose"),
    Column("advice", "what to do", kind="prose"),
)


def doctor_sheet(report: Report) -> Sheet:
    """Each line a number, what is usual, what to do."""
    failed = [check for check in report.checks if not check.agrees]
    verdict = f"{len(failed)} of {len(report.checks)} lines are wrong" if failed else "nothing is wrong"
    drawings: list[Drawing] = [title(f"{called(report.model)}: {verdict}"), blank]
    for check in failed:
        drawings += [prose(f"{check.name}: {check.worst:.3g}, {check.compared}", "yellow", mark="! ")]
        drawings += [prose(check.advice, mark="  ")]
    drawings += [blank] if failed else []
    shown = 6 if any(check.earlier is not None for check in report.checks) else 5
    drawings += [table(Table(COLUMNS[:shown], tuple(_row(check)[:shown] for check in report.checks))), blank]
    drawings += [prose(f"{check.name}: {check.compared}", "dim", mark="- ") for check in report.checks]
    skipped = [f"{name} not checked: {why}" for name, why in report.skipped]
    last = "a line without a limit is a number to judge; layers and heads count from 0"
    drawings.append(notes([*skipped, *report.notes, last]))
    return Sheet(report.to_dict, lambda: Table(COLUMNS, tuple(map(_row, report.checks))), tuple(drawings))


def _row(check: Check) -> tuple[object, ...]:
    limit = None if math.isinf(check.tolerance) else check.tolerance
    sound = check.agrees if limit is not None else None
    numbers = check.worst, limit, check.reason, check.earlier
    return check.name, sound, *numbers, check.place, check.compared, check.advice

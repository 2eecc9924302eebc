"""The scoreboard's figures: medians, spreads and ratios from raw measurements, and the Markdown table of them.

A report's row is {"task", "unit", "more_is_better", "cells"}; a cell is {"tool", "way", "raw"}, one number for each
round, or {"tool", "way", "no"} with the reason. Cells of one round stand at the same place of their lists. A cell whose
rounds were not kept has its figures instead of "raw".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

TOOLS = (
    "headscope",
    "transformers",
    "TransformerLens",
    "torchlens",
    "bertviz",
    "torchinfo",
    "attnread",
    "neuronscope-cli",
)
YARDSTICK = "yardstick"
"""The column of what does less than the task: a bound, nothing that headscope could be ahead of or behind."""

CLOSE = 0.01
"""A ratio that is nearer to 1 than this puts nobody ahead."""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def figures(row: dict[str, Any]) -> dict[str, Any]:
    """The row, each cell with its median, its spread and its ratio to headscope's: above 1, headscope needs less.

    Ratios are taken round by round. A tool that ran in fewer rounds ran in the first ones. Where headscope has several
    ways, a cell is held against the way of its own name, or else against the first.
    """
    baseline = {cell["way"]: cell["raw"] for cell in row["cells"] if cell["tool"] == "headscope" and "raw" in cell}
    cells = []
    for cell in row["cells"]:
        if "raw" in cell:
            cell = {**cell, **spread(cell["raw"])}
            if baseline and cell["tool"] != "headscope":
                ours = baseline.get(cell["way"], next(iter(baseline.values())))
                pairs = list(zip(ours, cell["raw"], strict=False))
                cell["ratio"] = spread([a / b if row["more_is_better"] else b / a for a, b in pairs])
        cells.append(cell)
    return {**row, "cells": cells}


def verdict(row: dict[str, Any]) -> str:
    """The tools that headscope is ahead of, even with and behind, in words.

    Even means that the rounds disagree, or that the difference in one of them is less than CLOSE.
    """
    ahead, even, behind = [], [], []
    for cell in row["cells"]:
        if "ratio" not in cell or cell["tool"] == YARDSTICK:
            continue
        if cell["ratio"]["low"] > 1 + CLOSE:
            ahead.append(name(cell))
        elif cell["ratio"]["high"] < 1 - CLOSE:
            behind.append(f"{name(cell)}: {shown(1 / cell['ratio']['median'])} times as much")
        else:
            even.append(name(cell))
    if not any("median" in cell for cell in row["cells"] if cell["tool"] == "headscope"):
        return "**not measured**"
    clauses = [f"**behind** {', '.join(behind)}"] if behind else []
    clauses += [f"even with {', '.join(even)}"] if even else []
    if ahead:
        clauses.append(f"ahead of {', '.join(ahead)}" if behind or even else "ahead")
    return "; ".join(clauses) or "alone"


def name(cell: dict[str, Any]) -> str:
    """The tool, with the way if it has several."""
    return f"{cell['tool']} ({cell['way']})" if cell.get("way") else str(cell["tool"])


def shown(value: float) -> str:
    """Three significant digits, thousands with commas, never an exponent."""
    if value == 0:
        return "0"
    value = float(f"{value:.3g}")
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def figure(cell: dict[str, Any], unit: str) -> str:
    """Median, spread if there were several rounds, ratio to headscope's."""
    text = f"{shown(cell['median'])} {unit}"
    if cell["low"] < cell["high"]:
        text += f" ({shown(cell['low'])} to {shown(cell['high'])})"
    return text + (f", {shown(cell['ratio']['median'])}×" if "ratio" in cell else "")


def table(report: dict[str, Any]) -> str:
    """A row per task, a column per tool, and below them the reason for each 'no'."""
    rows = [figures(row) for row in report["rows"].values()]
    yardstick = any(cell["tool"] == YARDSTICK for row in rows for cell in row["cells"])
    columns = [*TOOLS, *([YARDSTICK] if yardstick else [])]
    reasons: dict[str, str] = {}
    lines = ["| task | " + " | ".join(columns) + " | headscope is |", "|---" * (len(columns) + 2) + "|"]
    for row in rows:
        texts = [row["task"]]
        for column in columns:
            cells = []
            for cell in (cell for cell in row["cells"] if cell["tool"] == column):
                if "no" in cell:
                    text = f"no ({reasons.setdefault(cell['no'], letters(len(reasons)))})"
                else:
                    text = figure(cell, row["unit"])
                cells.append(f"{cell['way']}: {text}" if cell.get("way") else text)
            texts.append("<br>".join(cells) or "-")
        lines.append("| " + " | ".join([*texts, verdict(row)]) + " |")
    lines += ["", *about(report), ""]
    lines += [f"({letter}) {' '.join(reason.split())}  " for reason, letter in reasons.items()]
    return "\n".join(lines).rstrip() + "\n"


def letters(number: int) -> str:
    """a, b, … z, aa, ab, …"""
    return (letters(number // 26 - 1) if number > 25 else "") + chr(ord("a") + number % 26)


def about(report: dict[str, Any]) -> list[str]:
    """Notes on reading the table, and the versions and the machine."""
    machine = report["machine"]
    tools = []
    for tool, packages in report["versions"].items():
        tools += [
            f"{tool} {version}"
            for package, version in packages.items()
            if package.replace("-", "") == tool.lower().replace("-", "")
        ]
    text = [
        "Medians (lowest to highest of the rounds); × is how many times as much as headscope a tool needs, the median "
        "of the rounds' own ratios: below 1, headscope is behind.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB; Python {machine['python']}, "
        f"torch {machine['torch']}; {', '.join(tools)}.",
    ]
    if machine.get("clock") == "processor":
        text.append(
            "Times are processor time with one thread, because the machine was shared; only first pictures of pages "
            "are by the clock on the wall."
        )
    if report["quick"]:
        text.append("**A smoke run of tiny sizes: these figures say nothing.**")
    if report.get("sections_left"):
        text.append(f"Unfinished: {', '.join(report['sections_left'])} not measured yet.")
    return text
